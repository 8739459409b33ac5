// Copies bytes out of the GPU in the caller's own stream, so that they need not queue at the copy engine.
//
// One block is enough up to 64 KiB; sixteen share the link with the engine about half and half beyond.

// Copies words of `Word`; both addresses are aligned to it. Four loads are under way per thread.
template <typename Word>
__device__ __forceinline__ unsigned long long copy_words(unsigned char* to, const unsigned char* from, unsigned long long bytes) {
    constexpr unsigned LOADS = 4;
    const unsigned long long words = bytes / sizeof(Word);
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    Word* target = reinterpret_cast<Word*>(to);
    const Word* source = reinterpret_cast<const Word*>(from);
    unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + (LOADS - 1) * threads < words; i += LOADS * threads) {
        Word held[LOADS];
#pragma unroll
        for (unsigned load = 0; load < LOADS; load++) held[load] = source[i + load * threads];
#pragma unroll
        for (unsigned load = 0; load < LOADS; load++) target[i + load * threads] = held[load];
    }
    for (; i < words; i += threads) target[i] = source[i];
    return words * sizeof(Word);
}

extern "C" __global__ void __launch_bounds__(512) headway_aside(unsigned char* to, const unsigned char* from, unsigned long long bytes) {
    const unsigned long long both = reinterpret_cast<unsigned long long>(to) | reinterpret_cast<unsigned long long>(from);
    unsigned long long done = 0;
    if (both % 16 == 0) done = copy_words<uint4>(to, from, bytes);
    else if (both % 4 == 0) done = copy_words<unsigned>(to, from, bytes);
    // What is left, or everything if the addresses are odd: at most 15 bytes in the aligned cases.
    copy_words<unsigned char>(to + done, from + done, bytes - done);
}
