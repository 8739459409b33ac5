/*
 * A program that copies by every function of the driver that copies, by dlsym or by the resolver at several versions, and compares
 * the bytes.
 *
 *     shapes LOOKUP    dlsym, or a version for cuGetProcAddress, with "t" behind it for per-thread default streams
 *
 * It prints how often each of the driver's functions was reached.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream;
#define MIB ((size_t)1 << 20)
#define BYTES (6 * MIB)
enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };

struct plane {
    size_t from_x, from_y; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array; size_t to_pitch, width, height;
};
struct space {
    size_t from_x, from_y, from_z, from_lod; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array, *reserved_a; size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_lod; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array, *reserved_b; size_t to_pitch, to_height, width, height, depth;
};
struct attributes { unsigned access; struct { unsigned type; int id; } hints[2]; unsigned flags; };

static void *driver;
static int version, per_thread;
static CUresult (*resolver)(const char *, void **, int, uint64_t, int *);
static void fail(const char *what) { printf("FAILED: %s\n", what); exit(1); }
/* `name` is the resolver's; `symbol` the library's, with what comes behind it for per-thread default streams. */
static void *find(const char *name, const char *symbol, const char *suffix) {
    void *found = 0;
    if (!version) {
        char text[100];
        snprintf(text, sizeof text, "%s%s", symbol, per_thread && suffix ? suffix : "");
        found = dlsym(driver, text);
    } else resolver(name, &found, version, per_thread && suffix ? 2 : 0, 0);
    if (!found) fail(name);
    return found;
}

static unsigned char *source, *back, *locked;
static CUdeviceptr device;
static CUstream stream;
static void compare(const unsigned char *got, const unsigned char *wanted, size_t bytes, const char *what) { if (memcmp(got, wanted, bytes)) fail(what); }
static void ok(CUresult status, const char *what) { if (status) { printf("%s: %d\n", what, status); exit(1); } }

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    if (strncmp(argv[1], "dlsym", 5)) version = atoi(argv[1]);
    per_thread = argv[1][strlen(argv[1]) - 1] == 't';
    resolver = dlsym(driver, "cuGetProcAddress_v2");
    void *again = 0;
    if (resolver("cuGetProcAddress", &again, 12000, 0, 0)) fail("cuGetProcAddress by itself");
    resolver = again;
    /* Status and answer for what is not there are the driver's. */
    void *none = driver;
    int found = -1;
    if (resolver("cuNoSuchFunction", &none, 13000, 0, &found) != 500 || none || found != 1) fail("a function that is not there");
    ok(((CUresult (*)(unsigned))find("cuInit", "cuInit", 0))(0), "cuInit");
    size_t context;
    ok(((CUresult (*)(size_t *, int))find("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 0))(&context, 0), "retain");
    ok(((CUresult (*)(size_t))find("cuCtxSetCurrent", "cuCtxSetCurrent", 0))(context), "current");
    ok(((CUresult (*)(CUdeviceptr *, size_t))find("cuMemAlloc", "cuMemAlloc_v2", 0))(&device, 2 * BYTES), "memory");
    ok(((CUresult (*)(void **, size_t, unsigned))find("cuMemHostAlloc", "cuMemHostAlloc", 0))((void **)&locked, BYTES, 0), "page-locked memory");
    ok(((CUresult (*)(CUstream *, unsigned))find("cuStreamCreate", "cuStreamCreate", 0))(&stream, 1), "stream");
    CUresult (*wait)(CUstream) = find("cuStreamSynchronize", "cuStreamSynchronize", "_ptsz");
    source = malloc(BYTES), back = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) source[i] = (unsigned char)((i * 2654435761u) >> 15);

    ok(((CUresult (*)(CUdeviceptr, const void *, size_t))find("cuMemcpyHtoD", "cuMemcpyHtoD_v2", "_ptds"))(device, source, BYTES), "in");
    ok(((CUresult (*)(void *, CUdeviceptr, size_t))find("cuMemcpyDtoH", "cuMemcpyDtoH_v2", "_ptds"))(back, device, BYTES), "out");
    compare(back, source, BYTES, "in and out");
    ok(((CUresult (*)(CUdeviceptr, const void *, size_t, CUstream))find("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", "_ptsz"))(device, source, BYTES - 3, stream), "in, queued");
    ok(((CUresult (*)(void *, CUdeviceptr, size_t, CUstream))find("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", "_ptsz"))(locked, device, BYTES, stream), "out, queued");
    ok(wait(stream), "wait");
    compare(locked, source, BYTES, "in and out, queued");
    memset(back, 0, BYTES);
    ok(((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t))find("cuMemcpy", "cuMemcpy", "_ptds"))((CUdeviceptr)back, device, BYTES), "by address");
    ok(((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream))find("cuMemcpyAsync", "cuMemcpyAsync", "_ptsz"))(device + BYTES, (CUdeviceptr)back, BYTES, stream), "by address, queued");
    ok(wait(stream), "wait");
    ok(((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t))find("cuMemcpyDtoD", "cuMemcpyDtoD_v2", "_ptds"))(device, device + BYTES, BYTES / 2), "within");
    ok(((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream))find("cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", "_ptsz"))(device + BYTES / 2, device + BYTES + BYTES / 2, BYTES / 2, stream), "within, queued");
    ok(((CUresult (*)(CUdeviceptr, size_t, CUdeviceptr, size_t, size_t))find("cuMemcpyPeer", "cuMemcpyPeer", "_ptds"))(device, context, device + BYTES, context, 1000), "peer");
    ok(((CUresult (*)(CUdeviceptr, size_t, CUdeviceptr, size_t, size_t, CUstream))find("cuMemcpyPeerAsync", "cuMemcpyPeerAsync", "_ptsz"))(device, context, device + BYTES, context, 1000, stream), "peer, queued");
    ok(wait(stream), "wait");

    /* Rows of 4096 bytes: without gaps, with gaps, and from within. */
    size_t row = 4096, rows = BYTES / row;
    CUresult (*plane[])(const struct plane *) = {find("cuMemcpy2D", "cuMemcpy2D_v2", "_ptds"), find("cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2", "_ptds")};
    CUresult (*plane_async)(const struct plane *, CUstream) = find("cuMemcpy2DAsync", "cuMemcpy2DAsync_v2", "_ptsz");
    for (int which = 0; which < 2; which++) {
        memset(back, 0, BYTES);
        struct plane in = {.from_kind = HOST, .from_host = source, .from_pitch = row, .to_kind = DEVICE, .to_device = device, .to_pitch = row, .width = row, .height = rows};
        struct plane out = {.from_kind = DEVICE, .from_device = device, .from_pitch = row, .to_kind = HOST, .to_host = back, .to_pitch = row, .width = row, .height = rows};
        ok(plane[which](&in), "rows in"), ok(plane[which](&out), "rows out");
        compare(back, source, BYTES, "rows");
        in.from_y = out.to_y = 3, in.height = out.height = rows - 3;
        memset(back, 0, BYTES);
        ok(plane[which](&in), "later rows in"), ok(plane[which](&out), "later rows out");
        compare(back + 3 * row, source + 3 * row, BYTES - 3 * row, "later rows");
        if (back[3 * row - 1]) fail("a byte before the rows");
        out.width = in.width = row - 100, in.to_x = out.from_x = 7;
        memset(back, 0, BYTES);
        ok(plane[which](&in), "gaps in"), ok(plane[which](&out), "gaps out");
        for (size_t i = 3; i < rows; i++) compare(back + i * row, source + i * row, row - 100, "rows with gaps");
        if (back[BYTES - 1]) fail("a byte in a gap");
    }
    struct plane by_address = {.from_kind = UNIFIED, .from_device = device, .from_pitch = row, .to_kind = UNIFIED, .to_device = (CUdeviceptr)locked, .to_pitch = row, .width = row, .height = rows};
    struct plane in = {.from_kind = HOST, .from_host = source, .from_pitch = row, .to_kind = DEVICE, .to_device = device, .to_pitch = row, .width = row, .height = rows};
    memset(locked, 0, BYTES);
    ok(plane_async(&in, stream), "rows in, queued"), ok(plane_async(&by_address, stream), "rows by address"), ok(wait(stream), "wait");
    compare(locked, source, BYTES, "rows by address");
    CUresult (*space)(const struct space *) = find("cuMemcpy3D", "cuMemcpy3D_v2", "_ptds");
    CUresult (*space_async)(const struct space *, CUstream) = find("cuMemcpy3DAsync", "cuMemcpy3DAsync_v2", "_ptsz");
    for (size_t gap = 0; gap < 2; gap++) {
        size_t height = rows / 4;
        struct space in = {.from_kind = HOST, .from_host = source, .from_pitch = row, .from_height = height, .to_kind = DEVICE, .to_device = device, .to_pitch = row, .to_height = height,
                           .width = row, .height = height - gap, .depth = 4};
        struct space out = {.from_kind = DEVICE, .from_device = device, .from_pitch = row, .from_height = height, .to_kind = HOST, .to_host = back, .to_pitch = row, .to_height = height,
                            .width = row, .height = height - gap, .depth = 4};
        memset(back, 0, BYTES);
        ok(space(&in), "planes in"), ok(space_async(&out, stream), "planes out"), ok(wait(stream), "wait");
        for (size_t z = 0; z < 4; z++) compare(back + z * height * row, source + z * height * row, row * (height - gap), "planes");
        if (gap && back[height * row - 1]) fail("a byte between planes");
    }
    /* What the driver refuses stays refused. */
    struct plane wrong = in;
    wrong.width = row + 1;
    wrong.to_kind = 9;
    printf("refused: %d\n", plane[0](&wrong));

    /* Many copies in one call, by both signatures. */
    if (!version || version >= 12080) {
        enum { MANY = 6 };
        CUdeviceptr to[MANY], from[MANY];
        size_t sizes[MANY], first = 0;
        struct attributes attributes = {.access = 1};
        /* More kinds than copies, of which the memory has only as many as fit on a page. */
        size_t fit = 4096 / sizeof attributes, unlike = (size_t)1 << 40;
        char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct attributes *many = (struct attributes *)(pages + 4096) - fit;
        for (size_t i = 0; i < fit; i++) many[i] = attributes;
        mprotect(pages + 4096, 4096, PROT_NONE);
        memset(locked, 0, BYTES);
        for (size_t i = 0; i < MANY; i++) from[i] = device + i * MIB, to[i] = (CUdeviceptr)locked + i * MIB, sizes[i] = MIB;
        ok(((CUresult (*)(CUdeviceptr, const void *, size_t))find("cuMemcpyHtoD", "cuMemcpyHtoD_v2", "_ptds"))(device, source, BYTES), "in");
        void *function = find("cuMemcpyBatchAsync", "cuMemcpyBatchAsync", "_ptsz");
        if (!version || version < 13000) {
            size_t failed = 77;
            CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, size_t *, CUstream) = function;
            ok(batch(to, from, sizes, MANY, &attributes, &first, 1, &failed, stream), "batch");
            ok(wait(stream), "wait");
            compare(locked, source, MANY * MIB, "batch");
            printf("more kinds than copies: %d\n", batch(to, from, sizes, MANY, many, &first, unlike, &failed, stream));
            from[4] = 4096;
            printf("wrong batch: %d", batch(to, from, sizes, MANY, &attributes, &first, 1, &failed, stream));
            printf(", copy %zu\n", failed);
        }
        if (!version || version >= 13000) {
            if (!version) function = find("", "cuMemcpyBatchAsync_v2", "_ptsz");
            CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, CUstream) = function;
            from[4] = device + 4 * MIB;
            memset(locked, 0, BYTES);
            ok(batch(to, from, sizes, MANY, &attributes, &first, 1, stream), "batch");
            ok(wait(stream), "wait");
            compare(locked, source, MANY * MIB, "batch of CUDA 13");
            printf("more kinds than copies: %d\n", batch(to, from, sizes, MANY, many, &first, unlike, stream));
            printf("empty batch: %d\n", batch(to, from, sizes, 0, 0, 0, 0, stream));
        }
    }
    unsigned long (*count)(const char *) = (unsigned long (*)(const char *))dlsym(driver, "fake_count");
    const char *suffixes[] = {"", "_ptsz", "_ptds"};
    const char *names[] = {"cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpy", "cuMemcpyAsync", "cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2",
                           "cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2", "cuMemcpy3D_v2", "cuMemcpy3DAsync_v2",
                           "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuStreamWriteValue32_v2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) for (size_t s = 0; s < 3; s++) {
        char name[100];
        snprintf(name, sizeof name, "%s%s", names[i], suffixes[s]);
        unsigned long calls = count(name);
        if (calls) printf("%s %lu\n", name, calls);
    }
    return 0;
}
