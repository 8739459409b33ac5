// CUDA C++ as the kernels use it, for a host compiler: each thread of a warp is a thread, blocks run one after another.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <cmath>
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
static Index blockDim;
static pthread_barrier_t warp_barrier;

using std::max;
using std::min;

inline void __syncwarp()
{
    pthread_barrier_wait(&warp_barrier);
}

// Of the whole block, which `launch` makes as large as the barrier.
inline void __syncthreads()
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

template <typename T>
T atomicAdd(T* word, T value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMin(T* word, T value)
{
    T old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(word, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { }
    return old;
}
template <typename T>
T atomicMax(T* word, T value)
{
    T old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (value > old && !__atomic_compare_exchange_n(word, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { }
    return old;
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
    blockDim.x = threads;
    pthread_barrier_init(&warp_barrier, nullptr, threads);
    std::vector<std::thread> warp;
    for (unsigned thread = 0; thread < threads; thread++) {
        warp.emplace_back([thread, blocks, &kernel] {
            threadIdx.x = thread;
            for (unsigned block = 0; block < blocks; block++) {
                if (thread == 0) {
                    blockIdx.x = block;
                }
                pthread_barrier_wait(&warp_barrier);
                kernel();
                pthread_barrier_wait(&warp_barrier);
            }
        });
    }
    for (std::thread& thread : warp) {
        thread.join();
    }
    pthread_barrier_destroy(&warp_barrier);
}

// The same for a kernel whose threads do not wait for each other: they run one after another.
template <typename Kernel>
void launch_in_turn(unsigned blocks, unsigned threads, Kernel kernel)
{
    gridDim.x = blocks;
    blockDim.x = threads;
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx.x = block;
        for (unsigned thread = 0; thread < threads; thread++) {
            threadIdx.x = thread;
            kernel();
        }
    }
}
