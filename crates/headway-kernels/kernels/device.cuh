// The few things that a host compiler, which the tests use to check the kernels without a GPU, must see differently.
#pragma once

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#define UNROLL
#define NO_UNROLL
#endif

// The byte of `word` at position `INDEX`, 0 being the lowest, times `scale` (at most 255).
template <int INDEX>
__device__ __forceinline__ unsigned scaled_byte(unsigned word, unsigned scale)
{
#ifdef __CUDACC__
    unsigned product;
    asm("dp4a.u32.u32 %0, %1, %2, 0;" : "=r"(product) : "r"(word), "r"(scale << (8 * INDEX)));
    return product;
#else
    return (word >> (8 * INDEX) & 0xff) * scale;
#endif
}
