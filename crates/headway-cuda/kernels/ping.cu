// Answers what the CPU stores: how long a store takes to be seen, and the answer to come back.
//
// One thread waits until `flag`, in device memory, holds the next sequence number (1, 2, ...), and writes it to `answer`, in
// pinned host memory. It leaves after `rounds` answers, or when it has looked `patience` times in vain; no clock is read, as
// that would take longer than the look.
//
// Flag and answer are all that is told, so nothing is ordered by them: to acquire and release what nobody has stored took about
// half a microsecond of the round trip on an H200.

extern "C" __global__ void __launch_bounds__(1)
ping(const unsigned* flag, unsigned* answer, unsigned rounds, unsigned patience)
{
    for (unsigned round = 1; round <= rounds; round++) {
        unsigned seen, looks = 0;
        do {
            asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } while (seen != round && ++looks < patience);
        if (seen != round) {
            return;
        }
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(answer), "r"(seen) : "memory");
    }
}
