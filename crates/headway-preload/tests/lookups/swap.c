/*
 * A program that swaps blocks out of the GPU on one stream, as a server does with its cache, and reads small results on another.
 *
 *     swap BLOCK_KIB BLOCKS
 *
 * It prints how many of the blocks and of the results a kernel copied, and how many words were written.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream;
#define MIB ((size_t)1 << 20)

static void *driver;
static void fail(const char *what) { printf("FAILED: %s\n", what); exit(1); }
static void ok(CUresult status, const char *what) { if (status) { printf("%s: %d\n", what, status); exit(1); } }
static void *find(const char *name) { void *found = dlsym(driver, name); if (!found) fail(name); return found; }
static unsigned long reached(const char *name) {
    static unsigned long (*count)(const char *);
    if (!count) count = find("fake_count");
    return count(name);
}

int main(int argc, char **argv) {
    if (argc != 3 || !(driver = dlopen("libcuda.so.1", RTLD_NOW))) return 2;
    size_t context, block = (size_t)atoi(argv[1]) << 10, blocks = (size_t)atoi(argv[2]), all = block * blocks + MIB;
    CUdeviceptr device;
    CUstream swap, tokens;
    unsigned char *locked, *source = malloc(all);
    ok(((CUresult (*)(unsigned))find("cuInit"))(0), "init");
    ok(((CUresult (*)(size_t *, int))find("cuDevicePrimaryCtxRetain"))(&context, 0), "retain");
    ok(((CUresult (*)(size_t))find("cuCtxSetCurrent"))(context), "current");
    CUresult (*stream)(CUstream *, unsigned) = find("cuStreamCreate"), (*wait)(CUstream) = find("cuStreamSynchronize"), (*destroy)(CUstream) = find("cuStreamDestroy_v2");
    CUresult (*out)(void *, CUdeviceptr, size_t, CUstream) = find("cuMemcpyDtoHAsync_v2");
    ok(stream(&swap, 1), "stream"), ok(stream(&tokens, 1), "stream");
    ok(((CUresult (*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2"))(&device, all), "memory");
    ok(((CUresult (*)(void **, size_t, unsigned))find("cuMemHostAlloc"))((void **)&locked, all, 0), "page-locked memory");
    for (size_t i = 0; i < all; i++) source[i] = i * 7 + i / 251;
    ok(((CUresult (*)(CUdeviceptr, const void *, size_t))find("cuMemcpyHtoD_v2"))(device, source, all), "in");
    unsigned char *result = locked + block * blocks;
    CUdeviceptr result_there = device + block * blocks;

    for (int turn = 0; turn < 3; turn++) {
        unsigned long kernels = reached("kernel"), words = reached("cuStreamWriteValue32_v2");
        memset(locked, 0, all);
        for (size_t i = 0; i < blocks; i++) ok(out(locked + i * block, device + i * block, block, swap), "block");
        unsigned long of_blocks = reached("kernel") - kernels;
        kernels = reached("kernel");
        for (int i = 0; i < 4; i++) ok(out(result + i * 4096, result_there + i * 4096, 4096, tokens), "result");
        unsigned long busy = reached("kernel") - kernels;
        ok(wait(tokens), "wait"), ok(wait(swap), "wait");
        if (memcmp(locked, source, block * blocks) || memcmp(result, source + block * blocks, 4 * 4096)) fail("bytes");
        kernels = reached("kernel");
        for (int i = 0; i < 4; i++) ok(out(result + i * 4096, result_there + i * 4096, 4096, tokens), "result");
        ok(wait(tokens), "wait");
        printf("blocks aside %lu, results aside %lu, when idle %lu, words %lu\n", of_blocks, busy, reached("kernel") - kernels, reached("cuStreamWriteValue32_v2") - words);
        /* The next turn has another stream. */
        if (turn == 1) ok(destroy(swap), "destroy"), ok(stream(&swap, 1), "stream");
    }
    return 0;
}
