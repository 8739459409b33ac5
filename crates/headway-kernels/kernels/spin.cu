// Copies its input, and computes for a time proportional to the bytes of each portion.
//
// State of a portion, 8 bytes: the iterations for each 16 bytes, and a sum that depends on all of them and on the data, so
// that no compiler can leave the work out and the host can check it.

#include "block.cuh"
#include "device.cuh"

#define WARP 32u

// The 16 bytes of `portion` from `at` on, zeros behind its end.
__device__ __forceinline__ uint4 load_unit(const unsigned char* portion, unsigned bytes, unsigned at)
{
    if (bytes - at >= 16) {
        return *reinterpret_cast<const uint4*>(portion + at);
    }
    unsigned words[4] = { 0, 0, 0, 0 };
    UNROLL
    for (unsigned i = 0; i < 15; i++) {
        words[i / 4] |= (i < bytes - at ? portion[at + i] : 0u) << (8 * (i % 4));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// A chain of `iterations` dependent steps, half of the mixer "lowbias32" by C. Wellons each.
__device__ __forceinline__ unsigned burn(unsigned value, unsigned iterations)
{
    for (unsigned i = 0; i < iterations; i++) {
        value = (value ^ value >> 15) * 0x2c1b3c6du;
    }
    return value;
}

// Grid: blocks of one warp. Any number is correct, one per portion is fastest.
extern "C" __global__ void __launch_bounds__(WARP) spin(const unsigned char* __restrict__ input,
    unsigned char* __restrict__ output, unsigned char* __restrict__ state, unsigned portions)
{
    const unsigned thread = threadIdx.x;
    for (unsigned portion = blockIdx.x; portion < portions; portion += gridDim.x) {
        const BlockPortion read = block_read_portion(input, portion);
        const unsigned bytes = block_portion_bytes(read, portions);
        unsigned* portion_state = reinterpret_cast<unsigned*>(state + 8 * static_cast<size_t>(portion));
        const unsigned iterations = portion_state[0];
        unsigned sum = 0;
        for (size_t at = 16 * thread; at < bytes; at += 16 * WARP) {
            const uint4 unit = load_unit(input + read.entry.x, bytes, static_cast<unsigned>(at));
            sum ^= burn(unit.x ^ unit.y ^ unit.z ^ unit.w, iterations);
            *reinterpret_cast<uint4*>(output + read.entry.x + at) = unit;
        }
        atomicXor(portion_state + 1, sum);
        if (thread == 0) {
            block_write_portion(output, read, portions, portion);
        }
    }
}
