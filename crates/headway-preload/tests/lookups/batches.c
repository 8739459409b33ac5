/*
 * A program that copies by cuMemcpyBatchAsync and, where the driver has it, cuMemcpyWithAttributesAsync, as RAPIDS and cuda.core do,
 * and compares the bytes. It prints how many copies of each kind reached the driver.
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
#define KIB ((size_t)1 << 10)
#define MANY 300
struct attributes { unsigned access; struct { unsigned type; int id; } hints[2]; unsigned flags; };

static void *driver;
static int version;
static CUstream stream;
static void fail(const char *what) { printf("FAILED: %s\n", what); exit(1); }
static void ok(CUresult status, const char *what) { if (status) { printf("%s: %d\n", what, status); exit(1); } }
static void *find(const char *name) { void *found = dlsym(driver, name); if (!found) fail(name); return found; }
static unsigned long reached(const char *name) {
    static unsigned long (*count)(const char *);
    if (!count) count = find("fake_count");
    return count(name);
}
static unsigned long of_batches(void) { return reached("cuMemcpyBatchAsync") + reached("cuMemcpyBatchAsync_v2") + reached("cuMemcpyWithAttributesAsync"); }
static void batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, struct attributes *attributes, size_t *first, size_t kinds) {
    size_t failed = 0;
    if (version < 13000) {
        CUresult (*call)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, size_t *, CUstream) = find("cuMemcpyBatchAsync");
        ok(call(to, from, sizes, count, attributes, first, kinds, &failed, stream), "batch");
    } else {
        CUresult (*call)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, CUstream) = find("cuMemcpyBatchAsync_v2");
        ok(call(to, from, sizes, count, attributes, first, kinds, stream), "batch");
    }
}
static void one(void *to, const void *from, size_t bytes, struct attributes attributes) {
    CUdeviceptr t = (CUdeviceptr)to, f = (CUdeviceptr)from;
    size_t first = 0;
    batch(&t, &f, &bytes, 1, &attributes, &first, 1);
}
static void with_attributes(void *to, const void *from, size_t bytes, struct attributes attributes) {
    CUresult (*call)(CUdeviceptr, CUdeviceptr, size_t, struct attributes *, CUstream) = find("cuMemcpyWithAttributesAsync");
    ok(call((CUdeviceptr)to, (CUdeviceptr)from, bytes, &attributes, stream), "with attributes");
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    size_t context;
    CUdeviceptr device;
    unsigned char *locked, *source = malloc(32 * MIB), *back = malloc(32 * MIB);
    ok(((CUresult (*)(int *))find("cuDriverGetVersion"))(&version), "version");
    ok(((CUresult (*)(unsigned))find("cuInit"))(0), "init");
    ok(((CUresult (*)(size_t *, int))find("cuDevicePrimaryCtxRetain"))(&context, 0), "retain");
    ok(((CUresult (*)(size_t))find("cuCtxSetCurrent"))(context), "current");
    ok(((CUresult (*)(CUstream *, unsigned))find("cuStreamCreate"))(&stream, 1), "stream");
    ok(((CUresult (*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2"))(&device, 32 * MIB), "memory");
    ok(((CUresult (*)(void **, size_t, unsigned))find("cuMemHostAlloc"))((void **)&locked, 32 * MIB, 0), "page-locked memory");
    CUresult (*wait)(CUstream) = find("cuStreamSynchronize");
    for (size_t i = 0; i < 32 * MIB; i++) source[i] = i * 7 + i / 251;
    struct attributes plain = {.access = 1}, hinted = {.access = 2, .flags = 1}, any = {.access = 3};

    /* One copy in each call, as RMM makes all of its copies. */
    unsigned long before = of_batches();
    one((void *)device, source, 8 * MIB, plain);
    one(back, (void *)device, 8 * MIB, any);
    ok(wait(stream), "wait");
    if (memcmp(back, source, 8 * MIB)) fail("one copy");
    if (version >= 13020) {
        memset(back, 0, 8 * MIB);
        with_attributes((void *)device, source, 8 * MIB, plain);
        with_attributes(back, (void *)device, 8 * MIB, plain);
        ok(wait(stream), "wait");
        if (memcmp(back, source, 8 * MIB)) fail("one copy with attributes");
    }
    printf("alone reached: %lu\n", of_batches() - before);

    /* Large and small ones, of both kinds of memory, with two kinds of attributes. */
    before = of_batches();
    memset(back, 0, 32 * MIB), memset(locked, 0, 32 * MIB);
    memcpy((void *)locked, source, 4 * KIB);
    CUdeviceptr to[MANY] = {device, (CUdeviceptr)back, device + 16 * MIB, (CUdeviceptr)back + 24 * MIB, (CUdeviceptr)locked + MIB, (CUdeviceptr)locked + 2 * MIB};
    CUdeviceptr from[MANY] = {(CUdeviceptr)source, device + 8 * MIB, (CUdeviceptr)source + 16 * MIB, device + 24 * MIB, device + 30 * MIB, device + 31 * MIB};
    size_t sizes[MANY] = {4 * MIB, 4 * MIB, 4 * MIB, 4 * KIB, 4 * KIB, 4 * KIB}, first[2] = {0, 2};
    struct attributes two[2] = {plain, any};
    CUresult (*in)(CUdeviceptr, const void *, size_t) = find("cuMemcpyHtoD_v2");
    ok(in(device + 8 * MIB, source + 8 * MIB, 4 * MIB), "in"), ok(in(device + 24 * MIB, source + 24 * MIB, 8 * MIB), "in");
    batch(to, from, sizes, 6, two, first, 2);
    ok(wait(stream), "wait");
    CUresult (*out)(void *, CUdeviceptr, size_t) = find("cuMemcpyDtoH_v2");
    unsigned char *check = malloc(4 * MIB);
    ok(out(check, device, 4 * MIB), "out");
    if (memcmp(check, source, 4 * MIB)) fail("first of the mixed");
    ok(out(check, device + 16 * MIB, 4 * MIB), "out");
    if (memcmp(check, source + 16 * MIB, 4 * MIB)) fail("third of the mixed");
    if (memcmp(back, source + 8 * MIB, 4 * MIB) || memcmp(back + 24 * MIB, source + 24 * MIB, 4 * KIB)) fail("mixed, ordinary");
    if (memcmp(locked + MIB, source + 30 * MIB, 4 * KIB) || memcmp(locked + 2 * MIB, source + 31 * MIB, 4 * KIB)) fail("mixed, page-locked");
    printf("mixed reached: %lu\n", of_batches() - before);

    /* Blocks of a cache on their way out. */
    before = of_batches();
    unsigned long words = reached("cuStreamWriteValue32_v2");
    ok(in(device, source, 32 * MIB), "in");
    memset(locked, 0, 32 * MIB);
    for (size_t i = 0; i < MANY; i++) from[i] = device + i * 64 * KIB, to[i] = (CUdeviceptr)locked + (MANY - 1 - i) * 64 * KIB, sizes[i] = 64 * KIB;
    batch(to, from, sizes, MANY, &plain, first, 1);
    ok(wait(stream), "wait");
    for (size_t i = 0; i < MANY; i++) if (memcmp(locked + (MANY - 1 - i) * 64 * KIB, source + i * 64 * KIB, 64 * KIB)) fail("small ones");
    printf("small reached: %lu\nsmall words: %lu\n", of_batches() - before, reached("cuStreamWriteValue32_v2") - words);

    /* Which of the copies the driver corrupts. */
    unsigned corrupted = 0;
    memset(back, 0, MIB);
    ok(in(device, source, MIB), "in");
    one(back, (void *)device, 4 * KIB, hinted), ok(wait(stream), "wait"), corrupted += !!memcmp(back, source, 4 * KIB);
    one((void *)device, source, 4 * KIB, hinted), ok(wait(stream), "wait"), ok(out(back, device, 4 * KIB), "out"), corrupted += !!memcmp(back, source, 4 * KIB);
    if (version >= 13020) with_attributes(back, (void *)(device + MIB / 2), 4 * KIB, hinted), ok(wait(stream), "wait"), corrupted += !!memcmp(back, source + MIB / 2, 4 * KIB);
    printf("hinted corrupted: %u\n", corrupted);

    /* Ordinary memory behind what the stream has still to do. */
    CUresult (*queued)(void *, CUdeviceptr, size_t, CUstream) = find("cuMemcpyDtoHAsync_v2");
    for (size_t i = 0; i < 8; i++) ok(queued(locked + i * 4 * KIB, device, 4 * KIB, stream), "queued");
    before = of_batches();
    one((void *)(device + MIB), source + MIB, 2 * MIB, plain);
    printf("busy reached: %lu\n", of_batches() - before);
    ok(wait(stream), "wait");
    ok(out(check, device + MIB, 2 * MIB), "out");
    if (memcmp(check, source + MIB, 2 * MIB)) fail("behind a busy stream");
    return 0;
}
