// CUDA C++ as the kernels use it, for a host compiler: each thread of a warp is a thread, blocks run one after another.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(threads)
#define __shared__ static

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x;
};

inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

static thread_local Index threadIdx;
static Index blockIdx;
static Index gridDim;
static pthread_barrier_t warp_barrier;

using std::min;

inline void __syncwarp()
{
    pthread_barrier_wait(&warp_barrier);
}

// `value` of the thread that is number `source` of the calling thread's group of `width`; the whole warp must call it.
//
// Every other call uses the other half of the slots: a thread that is ahead by one call cannot overwrite what others still
// have to read, and by two it cannot be ahead.
inline unsigned __shfl_sync(unsigned mask, unsigned value, unsigned source, unsigned width)
{
    static unsigned slots[2][32];
    static thread_local unsigned calls;
    assert(mask == 0xffffffffu && (width & (width - 1)) == 0);
    unsigned* slot = slots[calls++ % 2];
    slot[threadIdx.x] = value;
    pthread_barrier_wait(&warp_barrier);
    return slot[(threadIdx.x & ~(width - 1)) + (source & (width - 1))];
}

inline unsigned atomicXor(unsigned* word, unsigned value)
{
    return __atomic_fetch_xor(word, value, __ATOMIC_RELAXED);
}

// Runs `kernel` on `blocks` blocks of `threads` threads.
template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel)
{
    gridDim.x = blocks;
    pthread_barrier_init(&warp_barrier, nullptr, threads);
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx.x = block;
        std::vector<std::thread> warp;
        for (unsigned thread = 0; thread < threads; thread++) {
            warp.emplace_back([thread, &kernel] {
                threadIdx.x = thread;
                kernel();
            });
        }
        for (std::thread& thread : warp) {
            thread.join();
        }
    }
    pthread_barrier_destroy(&warp_barrier);
}
