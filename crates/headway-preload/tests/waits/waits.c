/*
 * A program whose stream waits for a word that the same thread writes only after its copies, and which knows nothing of Headway.
 *
 *     waits first | first-host | gate | gate-whole | drained | released | streams | beside | destroyed | shared
 *
 * It checks all bytes, and prints how many copies out of the GPU, words and kernels of Headway's reached the driver. A program that hangs is killed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "../fake/program.h"

#define MIB ((size_t)1 << 20)
#define MUST(type, name, ...) must(CALL(type, name, __VA_ARGS__), name)

static CUdeviceptr device;
static unsigned char *source, *locked;
static volatile unsigned *flag;

static void out(void *to, size_t from, size_t bytes, CUstream stream) {
    MUST((void *, CUdeviceptr, size_t, CUstream), "cuMemcpyDtoHAsync_v2", to, device + from, bytes, stream);
}
static void waits_for(CUstream stream, unsigned value) {
    MUST((CUstream, CUdeviceptr, unsigned, unsigned), "cuStreamWaitValue32_v2", stream, (CUdeviceptr)flag, value, 0);
}
static void until_done(CUstream stream) { MUST((CUstream), "cuStreamSynchronize", stream); }
static void same(const void *got, size_t from, size_t bytes, const char *what) {
    if (memcmp(got, source + from, bytes)) { printf("FAILED: bytes of %s\n", what); exit(1); }
}
static void page_locked(void *place, size_t bytes) { MUST((void **, size_t, unsigned), "cuMemHostAlloc", place, bytes, 3); }

static size_t context;
static CUstream shared;
/* A thread with a name makes one part of the copies of a stream, another thread the rest. */
static void *part(void *name) {
    MUST((size_t), "cuCtxSetCurrent", context);
    if (name) pthread_setname_np(pthread_self(), name), out(locked, 0, 2 * MIB, shared);
    else out(locked + 2 * MIB, 2 * MIB, 14 * MIB, shared);
    return 0;
}

int main(int argc, char **argv) {
    const char *does = argc == 2 ? argv[1] : "";
    const size_t bytes = 64 * MIB;
    alarm(120); /* what hangs would hang for ever */
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CUstream kernels, copies;
    MUST((unsigned), "cuInit", 0);
    MUST((size_t *, int), "cuDevicePrimaryCtxRetain", &context, 0);
    MUST((size_t), "cuCtxSetCurrent", context);
    MUST((CUstream *, unsigned), "cuStreamCreate", &kernels, 1);
    MUST((CUstream *, unsigned), "cuStreamCreate", &copies, 1);
    source = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 8) { uint64_t word = i * 0x9e3779b97f4a7c15u; memcpy(source + i, &word, 8); }
    page_locked(&flag, 4096);
    *flag = 0;
    if (!strcmp(does, "first-host")) waits_for(kernels, 1);
    MUST((CUdeviceptr *, size_t), "cuMemAlloc_v2", &device, bytes);
    memcpy((void *)device, source, bytes); /* no call tells of it, so that the first copy comes later */
    if (!strncmp(does, "first", 5)) {
        if (!strcmp(does, "first")) page_locked(&locked, bytes), waits_for(kernels, 1);
        else locked = malloc(bytes), MUST((void *, size_t, unsigned), "cuMemHostRegister_v2", locked, bytes, 0);
        unsigned char *ordinary = malloc(bytes), *small = locked + 32 * MIB;
        out(locked, 3, 4 * MIB, copies);
        out(small, 5, 4096, copies);
        out(ordinary, 7, 4 * MIB, copies);
        MUST((CUdeviceptr, const void *, size_t, CUstream), "cuMemcpyHtoDAsync_v2", device, source, 4 * MIB, copies);
        for (int i = 0; i < 3; i++) out(locked + (8 + i) * MIB, i, 1000, copies);
        until_done(copies);
        *flag = 1;
        until_done(kernels);
        same(locked, 3, 4 * MIB, "a large copy");
        same(small, 5, 4096, "a small copy");
        same(ordinary, 7, 4 * MIB, "ordinary memory");
    } else if (!strcmp(does, "gate") || !strcmp(does, "drained")) {
        page_locked(&locked, bytes);
        for (unsigned i = 0; i < 4; i++) {
            if (!i && !strcmp(does, "gate")) waits_for(copies, 1);
            out(locked + 16 * MIB * i, 16 * MIB * i, 16 * MIB, copies);
            if (!strcmp(does, "drained")) until_done(copies);
        }
        *flag = 1;
        until_done(copies);
        same(locked, 0, bytes, "copies behind a word");
    } else if (!strcmp(does, "gate-whole")) {
        page_locked(&locked, bytes);
        waits_for(copies, 1);
        for (size_t i = 0; i < 500; i++) out(locked, i, 4 * MIB, copies);
        *flag = 1;
        until_done(copies);
        same(locked, 499, 4 * MIB, "the last copy behind a word");
    } else if (!strcmp(does, "released")) {
        /* Another part of the program still holds the context. */
        MUST((size_t *, int), "cuDevicePrimaryCtxRetain", &context, 0);
        page_locked(&locked, bytes);
        MUST((int), "cuDevicePrimaryCtxRelease_v2", 0);
        waits_for(kernels, 1);
        CUdeviceptr more;
        MUST((CUdeviceptr *, size_t), "cuMemAlloc_v2", &more, bytes);
        *flag = 1;
        until_done(kernels);
    } else if (!strcmp(does, "streams")) {
        /* More streams with copies under way than Headway has words for, and one more that is full. */
        CUstream stream;
        page_locked(&locked, bytes);
        for (int i = 0; i <= 1100; i++) {
            MUST((CUstream *, unsigned), "cuStreamCreate", &stream, 1);
            waits_for(stream, 1);
            out(locked, 3, 4 * MIB, stream);
        }
        for (int i = 0; i < 4; i++) out(locked + 16 * MIB * i, 16 * MIB * i, 16 * MIB, stream);
        *flag = 1;
        until_done(stream);
        same(locked, 0, bytes, "copies in a stream of many");
    } else if (!strcmp(does, "beside")) {
        /* One stream stands still with four copies, 15 with one, and one goes on. */
        CUstream stream;
        page_locked(&locked, bytes);
        for (int i = 0; i < 16; i++) {
            if (i == 2) for (int j = 0; j < 4; j++) out(locked + 4 * MIB * j, 4 * MIB * j, 4 * MIB, kernels), until_done(kernels);
            MUST((CUstream *, unsigned), "cuStreamCreate", &stream, 1);
            waits_for(stream, 1);
            for (int copy = 0; copy < (i ? 1 : 4); copy++) out(locked + 32 * MIB, 3, 16 * MIB, stream);
        }
        same(locked, 0, 16 * MIB, "copies of the stream that goes on");
        *flag = 1;
        until_done(stream);
        same(locked + 32 * MIB, 3, 16 * MIB, "copies of a stream that stood still");
    } else if (!strcmp(does, "destroyed")) {
        CUstream stream;
        page_locked(&locked, bytes);
        for (int i = 0; i < 20; i++) {
            MUST((CUstream *, unsigned), "cuStreamCreate", &stream, 1);
            waits_for(stream, 1);
            out(locked, 3, 16 * MIB, stream);
            MUST((CUstream), "cuStreamDestroy_v2", stream);
        }
        *flag = 1;
        MUST((void), "cuCtxSynchronize");
        same(locked, 3, 16 * MIB, "copies of streams that are gone");
    } else if (!strcmp(does, "shared")) {
        pthread_t threads[2];
        page_locked(&locked, bytes);
        for (int i = 0; i < 4; i++) {
            MUST((CUstream *, unsigned), "cuStreamCreate", &shared, 1);
            pthread_create(&threads[0], 0, part, "stalls");
            pthread_create(&threads[1], 0, part, 0);
            for (int j = 0; j < 2; j++) pthread_join(threads[j], 0);
            until_done(shared);
            same(locked, 0, 16 * MIB, "copies of two threads");
        }
        /* Nothing is under way by now. */
        for (int i = 0; i < 4; i++) {
            MUST((CUstream *, unsigned), "cuStreamCreate", &shared, 1);
            out(locked, 3, 16 * MIB, shared), until_done(shared);
        }
    } else must(1, "the task");
    unsigned long (*count)(const char *) = need("fake_count");
    printf("copies out %lu, words %lu, kernel %lu\n", count("cuMemcpyDtoHAsync_v2"), count("cuStreamWriteValue32_v2"), count("kernel"));
    return 0;
}
