/*
 * A program that swaps blocks out of the GPU on one stream, as a server does with its cache, and reads small results on another.
 *
 *     swap BLOCK_KIB BLOCKS
 *
 * It prints how many of the blocks and of the results a kernel copied, and how many words were written.
 */
#define _GNU_SOURCE
#include "../fake/program.h"

#define MIB ((size_t)1 << 20)

static unsigned long reached(const char *name) {
    static unsigned long (*count)(const char *);
    if (!count) count = need("fake_count");
    return count(name);
}

int main(int argc, char **argv) {
    if (argc != 3 || !(driver = dlopen("libcuda.so.1", RTLD_NOW))) return 2;
    size_t context, block = (size_t)atoi(argv[1]) << 10, blocks = (size_t)atoi(argv[2]), all = block * blocks + MIB;
    CUdeviceptr device;
    CUstream swap, tokens;
    unsigned char *locked, *source = malloc(all);
    must(((CUresult (*)(unsigned))need("cuInit"))(0), "init");
    must(((CUresult (*)(size_t *, int))need("cuDevicePrimaryCtxRetain"))(&context, 0), "retain");
    must(((CUresult (*)(size_t))need("cuCtxSetCurrent"))(context), "current");
    CUresult (*stream)(CUstream *, unsigned) = need("cuStreamCreate"), (*wait)(CUstream) = need("cuStreamSynchronize"), (*destroy)(CUstream) = need("cuStreamDestroy_v2");
    CUresult (*out)(void *, CUdeviceptr, size_t, CUstream) = need("cuMemcpyDtoHAsync_v2");
    must(stream(&swap, 1), "stream"), must(stream(&tokens, 1), "stream");
    must(((CUresult (*)(CUdeviceptr *, size_t))need("cuMemAlloc_v2"))(&device, all), "memory");
    must(((CUresult (*)(void **, size_t, unsigned))need("cuMemHostAlloc"))((void **)&locked, all, 0), "page-locked memory");
    for (size_t i = 0; i < all; i++) source[i] = i * 7 + i / 251;
    must(((CUresult (*)(CUdeviceptr, const void *, size_t))need("cuMemcpyHtoD_v2"))(device, source, all), "in");
    unsigned char *result = locked + block * blocks;
    CUdeviceptr result_there = device + block * blocks;

    for (int turn = 0; turn < 3; turn++) {
        unsigned long kernels = reached("kernel"), words = reached("cuStreamWriteValue32_v2");
        memset(locked, 0, all);
        for (size_t i = 0; i < blocks; i++) must(out(locked + i * block, device + i * block, block, swap), "block");
        unsigned long of_blocks = reached("kernel") - kernels;
        kernels = reached("kernel");
        for (int i = 0; i < 4; i++) must(out(result + i * 4096, result_there + i * 4096, 4096, tokens), "result");
        unsigned long busy = reached("kernel") - kernels;
        must(wait(tokens), "wait"), must(wait(swap), "wait");
        if (memcmp(locked, source, block * blocks) || memcmp(result, source + block * blocks, 4 * 4096)) must(1, "bytes");
        kernels = reached("kernel");
        for (int i = 0; i < 4; i++) must(out(result + i * 4096, result_there + i * 4096, 4096, tokens), "result");
        must(wait(tokens), "wait");
        printf("blocks aside %lu, results aside %lu, when idle %lu, words %lu\n", of_blocks, busy, reached("kernel") - kernels, reached("cuStreamWriteValue32_v2") - words);
        /* The next turn has another stream. */
        if (turn == 1) must(destroy(swap), "destroy"), must(stream(&swap, 1), "stream");
    }
    return 0;
}
