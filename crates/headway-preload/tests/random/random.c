/*
 * A random program that copies, and knows nothing of Headway.
 *
 *     random SEED
 *
 * The same SEED always gives the same calls: copies, kernels, batches, copies with attributes, of rows and planes, by either kind of default stream, on
 * several CUDA streams that are ordered by events and waits, captures and their launches, memory that is page-locked and freed, calls that the
 * driver refuses, also with ends that make no sense, several threads, a forked child. No program has a race: before it uses bytes, it waits for who had them, as CUDA's rules ask for. So it knows all bytes, and
 * says WRONG where they are others. It prints the status of each call and what the bytes are. That, and how it ends, must be the same with
 * and without Headway.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream, *CUevent;
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
enum { NOT_READY = 600 };

/* The driver's functions. */
struct attributes { unsigned access; struct { unsigned type; int id; } hints[2]; unsigned flags; };
struct rows { /* CUDA_MEMCPY2D */
    size_t from_x, from_y; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array; size_t to_pitch, width, height;
};
struct space { /* CUDA_MEMCPY3D */
    size_t from_x, from_y, from_z, from_lod; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array, *from_reserved; size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_lod; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array, *to_reserved; size_t to_pitch, to_height, width, height, depth;
};
struct launch_config { unsigned sizes[7]; CUstream stream; void *attributes; unsigned count; }; /* CUlaunchConfig */
enum { KERNEL = 6 }; /* the driver's function that copies */
#define SIZES unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
static struct {
    CUresult (*cuInit)(unsigned), (*cuDriverGetVersion)(int *), (*cuDevicePrimaryCtxRetain)(size_t *, int), (*cuCtxSetCurrent)(size_t);
    CUresult (*cuCtxCreate)(size_t *, unsigned, int), (*cuMemAlloc)(CUdeviceptr *, size_t), (*cuMemFree)(CUdeviceptr);
    CUresult (*cuMemHostAlloc)(void **, size_t, unsigned), (*cuMemFreeHost)(void *);
    CUresult (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t), (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
    CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr, const void *, size_t, CUstream), (*cuMemcpyDtoHAsync)(void *, CUdeviceptr, size_t, CUstream);
    CUresult (*cuMemcpy)(CUdeviceptr, CUdeviceptr, size_t), (*cuMemcpyAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    CUresult (*cuMemcpyDtoD)(CUdeviceptr, CUdeviceptr, size_t), (*cuMemcpyDtoDAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    CUresult (*cuMemcpyPeerAsync)(CUdeviceptr, size_t, CUdeviceptr, size_t, size_t, CUstream);
    CUresult (*cuMemcpy2D)(const struct rows *), (*cuMemcpy2DUnaligned)(const struct rows *), (*cuMemcpy2DAsync)(const struct rows *, CUstream);
    CUresult (*cuMemcpy3D)(const struct space *), (*cuMemcpy3DAsync)(const struct space *, CUstream);
    CUresult (*cuMemcpyWithAttributesAsync)(CUdeviceptr, CUdeviceptr, size_t, struct attributes *, CUstream);
    CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, size_t *, CUstream);
    CUresult (*batch_v2)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, CUstream);
    CUresult (*cuLaunchKernel)(size_t, SIZES, CUstream, void **, void **), (*cuLaunchCooperativeKernel)(size_t, SIZES, CUstream, void **);
    CUresult (*cuLaunchKernelEx)(const struct launch_config *, size_t, void **, void **);
    CUresult (*cuStreamCreate)(CUstream *, unsigned), (*cuStreamDestroy)(CUstream), (*cuStreamSynchronize)(CUstream), (*cuStreamQuery)(CUstream);
    CUresult (*cuStreamWaitEvent)(CUstream, CUevent, unsigned), (*cuCtxSynchronize)(void);
    CUresult (*cuEventCreate)(CUevent *, unsigned), (*cuEventDestroy)(CUevent), (*cuEventRecord)(CUevent, CUstream);
    CUresult (*cuEventSynchronize)(CUevent), (*cuEventQuery)(CUevent);
    CUresult (*cuStreamBeginCapture)(CUstream, int), (*cuStreamEndCapture)(CUstream, void **), (*cuGraphGetNodes)(void *, void *, size_t *);
    CUresult (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long), (*cuGraphLaunch)(void *, CUstream);
    CUresult (*cuMemHostRegister)(void *, size_t, unsigned), (*cuMemHostUnregister)(void *);
} cu;
static int version, per_thread, resolver; /* per_thread: copies are by the functions in whose default stream is the thread's own */
static size_t contexts[2];

static void find(void *function, void *driver, const char *name, const char *symbol, const char *suffix) {
    CUresult (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    void *found = 0;
    if (symbol && resolver) ask(name, &found, version, per_thread ? 2 : 0, 0);
    else {
        char text[100];
        snprintf(text, sizeof text, "%s%s", symbol ? symbol : name, per_thread ? suffix : "");
        found = dlsym(driver, text);
    }
    if (!found) printf("UNEXPECTED: no %s\n", name);
    memcpy(function, &found, sizeof found);
}
static void find_all(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) exit(2);
    find(&cu.cuDriverGetVersion, driver, "cuDriverGetVersion", 0, "");
    cu.cuDriverGetVersion(&version);
#define ONE(name, suffix) find(&cu.name, driver, #name suffix, 0, "");
#define COPY(name, suffix) find(&cu.name, driver, #name, #name suffix, "_ptds");
#define QUEUE(name, suffix) find(&cu.name, driver, #name, #name suffix, "_ptsz");
    ONE(cuInit, "") ONE(cuDevicePrimaryCtxRetain, "") ONE(cuCtxSetCurrent, "") ONE(cuCtxCreate, "_v2") ONE(cuMemAlloc, "_v2") ONE(cuMemFree, "_v2")
    ONE(cuMemHostAlloc, "") ONE(cuMemFreeHost, "") ONE(cuMemHostRegister, "_v2") ONE(cuMemHostUnregister, "") ONE(cuStreamCreate, "")
    ONE(cuStreamDestroy, "_v2") ONE(cuStreamSynchronize, "") ONE(cuStreamQuery, "") ONE(cuStreamWaitEvent, "") ONE(cuCtxSynchronize, "")
    ONE(cuEventCreate, "") ONE(cuEventDestroy, "_v2") ONE(cuEventRecord, "") ONE(cuEventSynchronize, "") ONE(cuEventQuery, "")
    ONE(cuStreamBeginCapture, "_v2") ONE(cuStreamEndCapture, "") ONE(cuGraphGetNodes, "") ONE(cuGraphInstantiateWithFlags, "") QUEUE(cuGraphLaunch, "")
    QUEUE(cuLaunchKernel, "") QUEUE(cuLaunchCooperativeKernel, "") QUEUE(cuLaunchKernelEx, "")
    COPY(cuMemcpyHtoD, "_v2") COPY(cuMemcpyDtoH, "_v2") QUEUE(cuMemcpyHtoDAsync, "_v2") QUEUE(cuMemcpyDtoHAsync, "_v2") COPY(cuMemcpy, "")
    QUEUE(cuMemcpyAsync, "") COPY(cuMemcpyDtoD, "_v2") QUEUE(cuMemcpyDtoDAsync, "_v2") QUEUE(cuMemcpyPeerAsync, "")
    COPY(cuMemcpy2D, "_v2") COPY(cuMemcpy2DUnaligned, "_v2") QUEUE(cuMemcpy2DAsync, "_v2") COPY(cuMemcpy3D, "_v2") QUEUE(cuMemcpy3DAsync, "_v2")
    if (version >= 13020) QUEUE(cuMemcpyWithAttributesAsync, "")
    if (version >= 13000) find(&cu.batch_v2, driver, "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "_ptsz");
    else if (version >= 12080) find(&cu.batch, driver, "cuMemcpyBatchAsync", "cuMemcpyBatchAsync", "_ptsz");
}

/* One thread's program. */
enum { LEGACY, OWN, CREATED, SHARED = 5, STREAMS, HOST = STREAMS, REGIONS = 9 }; /* SHARED is that of all threads */
enum kind { DEVICE, LOCKED, REGISTERED, HALF, ORDINARY, KINDS }; /* HALF: its first half is registered */
struct region {
    enum kind kind;
    unsigned char *at, *known; /* the bytes, and what they are when all is done that was asked for */
    size_t bytes;
    int writer; /* the CUDA stream that writes it last, or HOST */
    unsigned written, read[STREAMS]; /* the numbers of those operations on their streams */
};
struct copy { struct region *to, *from; size_t to_at, from_at, bytes; };
struct program {
    uint64_t random;
    struct copy recent;
    int number, threads;
    size_t context;
    CUstream streams[STREAMS];
    int blocking[STREAMS]; /* with the legacy default stream */
    unsigned last[STREAMS]; /* operations on each stream */
    unsigned knows[STREAMS + 1][STREAMS]; /* up to which operation of each stream a stream is behind, or the host */
    struct region regions[REGIONS];
    unsigned char *scratch; /* page-locked */
    char *text;
    size_t text_bytes;
    FILE *out;
};

static uint64_t draw(struct program *p, uint64_t below) {
    p->random += 0x9e3779b97f4a7c15u;
    uint64_t z = p->random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u, z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}
static int one_in(struct program *p, uint64_t n) { return !draw(p, n); }
static void said(struct program *p, CUresult status, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vfprintf(p->out, format, rest);
    fprintf(p->out, ": %d\n", status);
    va_end(rest);
}
static void must(struct program *p, CUresult status, const char *what) { if (status) said(p, status, "UNEXPECTED %s", what); }
static uint64_t hash(const unsigned char *memory, size_t bytes) {
    uint64_t sum = bytes, word;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) memcpy(&word, memory + i, 8), sum = (sum ^ word) * 0x9e3779b97f4a7c15u, sum ^= sum >> 29;
    for (; i < bytes; i++) sum = (sum ^ memory[i]) * 0x9e3779b97f4a7c15u;
    return sum;
}
static void fill(struct program *p, unsigned char *memory, size_t bytes) {
    uint64_t word = draw(p, UINT64_MAX);
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) word = word * 6364136223846793005u + 1, memcpy(memory + i, &word, 8);
    for (; i < bytes; i++) memory[i] = (unsigned char)(word >> (i % 8 * 8));
}
/* The handle for functions that have no form for per-thread default streams; the default stream also has the handle 0 for copies. */
static CUstream handle(struct program *p, int s) { return s == LEGACY ? (CUstream)1 : s == OWN ? (CUstream)2 : p->streams[s]; }
static CUstream for_copies(struct program *p, int s) {
    return s == (per_thread ? OWN : LEGACY) && one_in(p, 2) ? 0 : handle(p, s);
}

/* Order. */
static void learn(struct program *p, int who, int of) { for (int s = 0; s < STREAMS; s++) if (p->knows[of][s] > p->knows[who][s]) p->knows[who][s] = p->knows[of][s]; }
/* An operation is put on a stream: its number. */
static unsigned issue(struct program *p, int s) {
    learn(p, s, HOST);
    if (s == LEGACY) { for (int each = OWN; each < STREAMS; each++) if (p->blocking[each]) learn(p, LEGACY, each); }
    else if (p->blocking[s]) learn(p, s, LEGACY);
    return p->knows[s][s] = ++p->last[s];
}
static void wait_for(struct program *p, int s) {
    int how = (int)draw(p, 6);
    CUevent event = 0;
    CUresult status;
    if (how >= 3) {
        must(p, cu.cuEventCreate(&event, 2), "cuEventCreate");
        must(p, cu.cuEventRecord(event, handle(p, s)), "cuEventRecord");
        issue(p, s);
    }
    if (how == 0) status = cu.cuStreamSynchronize(handle(p, s));
    else if (how == 1) while ((status = cu.cuStreamQuery(handle(p, s))) == NOT_READY) {}
    else if (how == 2) status = cu.cuCtxSynchronize();
    else if (how == 3) while ((status = cu.cuEventQuery(event)) == NOT_READY) {}
    else status = cu.cuEventSynchronize(event);
    if (event) must(p, cu.cuEventDestroy(event), "cuEventDestroy");
    said(p, status, "wait %d by %d", s, how);
    if (how == 2) for (int each = 0; each < STREAMS; each++) learn(p, HOST, each);
    learn(p, HOST, s);
}
/* Sees to it that a stream, or the host, is behind that operation. */
static void order(struct program *p, int who, int s, unsigned operation) {
    if (s == HOST || p->knows[who][s] >= operation || (who != HOST && p->knows[HOST][s] >= operation)) return;
    if (who == HOST || one_in(p, 3)) { wait_for(p, s); return; }
    CUevent event;
    must(p, cu.cuEventCreate(&event, 2), "cuEventCreate");
    must(p, cu.cuEventRecord(event, handle(p, s)), "cuEventRecord");
    issue(p, s);
    must(p, cu.cuStreamWaitEvent(handle(p, who), event, 0), "cuStreamWaitEvent");
    issue(p, who), learn(p, who, s);
}
static void order_read(struct program *p, int who, struct region *r) { order(p, who, r->writer, r->written); }
static void order_write(struct program *p, int who, struct region *r) {
    order_read(p, who, r);
    for (int s = 0; s < STREAMS; s++) order(p, who, s, r->read[s]);
}

/* Memory. */
static size_t size(struct program *p) {
    static const size_t usual[] = {64, 4 * KIB, 32 * KIB, 64 * KIB, 100 * KIB, 512 * KIB, MIB, MIB + 1, 2 * MIB, 2 * MIB, 3 * MIB, 5 * MIB};
    size_t bytes = usual[draw(p, sizeof usual / sizeof *usual)];
    return one_in(p, 2) ? bytes : bytes + draw(p, bytes / 8 + 1) - bytes / 16;
}
static int is_host(const struct region *r) { return r->kind != DEVICE; }
static void make(struct program *p, struct region *r, enum kind kind) {
    size_t one = size(p), other = size(p);
    *r = (struct region){.kind = kind, .bytes = (one > other ? one : other) + draw(p, 2) * 4096, .writer = HOST};
    r->known = malloc(r->bytes);
    fill(p, r->known, r->bytes);
    if (kind == DEVICE) {
        CUdeviceptr address;
        must(p, cu.cuMemAlloc(&address, r->bytes), "cuMemAlloc");
        r->at = (unsigned char *)address;
        must(p, cu.cuMemcpyHtoD(address, r->known, r->bytes), "first cuMemcpyHtoD");
        r->writer = per_thread ? OWN : LEGACY, r->written = issue(p, r->writer);
        return;
    }
    if (kind == LOCKED) must(p, cu.cuMemHostAlloc((void **)&r->at, r->bytes, 0), "cuMemHostAlloc");
    else r->at = mmap(0, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kind == REGISTERED || kind == HALF) must(p, cu.cuMemHostRegister(r->at, kind == HALF ? r->bytes / 2 : r->bytes, 0), "cuMemHostRegister");
    memcpy(r->at, r->known, r->bytes);
}
static void look(struct program *p, struct region *r, const char *when) {
    order_read(p, HOST, r);
    uint64_t sum = 0, expected = 0;
    if (is_host(r)) sum = hash(r->at, r->bytes), expected = hash(r->known, r->bytes);
    else for (size_t at = 0; at < r->bytes; at += 64 * KIB) {
        size_t bytes = r->bytes - at < 64 * KIB ? r->bytes - at : 64 * KIB;
        must(p, cu.cuMemcpyDtoH(p->scratch, (CUdeviceptr)r->at + at, bytes), "cuMemcpyDtoH");
        sum = sum * 31 + hash(p->scratch, bytes), expected = expected * 31 + hash(r->known + at, bytes);
    }
    fprintf(p->out, "%s bytes of %d: %016llx%s\n", when, (int)(r - p->regions), (unsigned long long)sum, sum == expected ? "" : " WRONG");
}
static void let_go(struct program *p, struct region *r) {
    order_write(p, HOST, r);
    look(p, r, "last");
    if (r->kind == DEVICE) must(p, cu.cuMemFree((CUdeviceptr)r->at), "cuMemFree");
    else if (r->kind == LOCKED) must(p, cu.cuMemFreeHost(r->at), "cuMemFreeHost");
    else {
        if (r->kind == REGISTERED || r->kind == HALF) must(p, cu.cuMemHostUnregister(r->at), "cuMemHostUnregister");
        munmap(r->at, r->bytes);
    }
    free(r->known);
}

/* Copies. */
/* Often that on which the bytes are still under way. */
static int any_stream(struct program *p, const struct region *from, int may_be_legacy) {
    int s = from->writer != HOST && one_in(p, 2) ? from->writer : (int)draw(p, STREAMS);
    return s == LEGACY && !may_be_legacy ? CREATED : s;
}
/* Copies that may reach over both halves of a HALF are refused, and only one copy alone is known to have done nothing then. */
static int draw_copy(struct program *p, struct copy *c, int is_alone) {
    c->to = &p->regions[draw(p, REGIONS)], c->from = &p->regions[draw(p, REGIONS)];
    /* Often what depends on the copy before: it reads what that writes, or writes what that reads. */
    if (p->recent.to && one_in(p, 2)) { if (one_in(p, 2)) c->from = p->recent.to; else c->to = p->recent.from; }
    if (c->to == c->from || (is_host(c->to) && is_host(c->from)) || (!is_alone && (c->to->kind == HALF || c->from->kind == HALF))) return 0;
    c->bytes = size(p);
    size_t most = c->to->bytes < c->from->bytes ? c->to->bytes : c->from->bytes;
    if (c->bytes > most) c->bytes = most;
    c->to_at = one_in(p, 2) ? 0 : draw(p, c->to->bytes - c->bytes + 1);
    c->from_at = one_in(p, 2) ? 0 : draw(p, c->from->bytes - c->bytes + 1);
    return 1;
}
static void order_copy(struct program *p, int s, const struct copy *c) { order_read(p, s, c->from), order_write(p, s, c->to); }
static void made(struct copy c) { memcpy(c.to->known + c.to_at, c.from->known + c.from_at, c.bytes); }
static void note(int s, unsigned operation, const struct copy *c) { c->to->writer = s, c->to->written = operation, c->from->read[s] = operation; }
static CUdeviceptr to_of(const struct copy *c) { return (CUdeviceptr)c->to->at + c->to_at; }
static CUdeviceptr from_of(const struct copy *c) { return (CUdeviceptr)c->from->at + c->from_at; }

static struct attributes draw_attributes(struct program *p) {
    struct attributes attributes = {.access = 1 + (unsigned)draw(p, 3), .flags = (unsigned)draw(p, 2)};
    /* With these the driver is reported to corrupt ordinary memory, and Headway changes them. */
    if (attributes.access == 2) attributes.flags = 0;
    return attributes;
}
/* Sources of other orders than the stream's may be read at any time from the call on. */
static void order_source(struct program *p, struct attributes attributes, struct region *from) { if (attributes.access != 1) order_read(p, HOST, from); }

/* One copy by one of the functions that make it in the order of a stream, or by a kernel: how it was called. */
static CUresult queue(struct program *p, int s, const struct copy *c, const char **name) {
    CUdeviceptr to = to_of(c), from = from_of(c);
    CUstream stream = for_copies(p, s);
    if (c->to->kind <= REGISTERED && c->from->kind <= REGISTERED && one_in(p, 3)) {
        uint64_t bytes = c->bytes;
        void *arguments[] = {&to, &from, &bytes};
        struct launch_config config = {.stream = stream};
        switch (draw(p, 3)) {
        case 0: *name = "cuLaunchKernel"; return cu.cuLaunchKernel(KERNEL, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0);
        case 1: *name = "cuLaunchCooperativeKernel"; return cu.cuLaunchCooperativeKernel(KERNEL, 1, 1, 1, 32, 1, 1, 0, stream, arguments);
        default: *name = "cuLaunchKernelEx"; return cu.cuLaunchKernelEx(&config, KERNEL, arguments, 0);
        }
    }
    if (one_in(p, 3)) { *name = "cuMemcpyAsync"; return cu.cuMemcpyAsync(to, from, c->bytes, stream); }
    if (is_host(c->from)) { *name = "cuMemcpyHtoDAsync"; return cu.cuMemcpyHtoDAsync(to, (void *)from, c->bytes, stream); }
    if (is_host(c->to)) { *name = "cuMemcpyDtoHAsync"; return cu.cuMemcpyDtoHAsync((void *)to, from, c->bytes, stream); }
    if (one_in(p, 3)) { *name = "cuMemcpyPeerAsync"; return cu.cuMemcpyPeerAsync(to, p->context, from, p->context, c->bytes, stream); }
    *name = "cuMemcpyDtoDAsync";
    return cu.cuMemcpyDtoDAsync(to, from, c->bytes, stream);
}
static CUresult copy_waiting(struct program *p, const struct copy *c, const char **name) {
    CUdeviceptr to = to_of(c), from = from_of(c);
    if (one_in(p, 3)) { *name = "cuMemcpy"; return cu.cuMemcpy(to, from, c->bytes); }
    if (is_host(c->from)) { *name = "cuMemcpyHtoD"; return cu.cuMemcpyHtoD(to, (void *)from, c->bytes); }
    if (is_host(c->to)) { *name = "cuMemcpyDtoH"; return cu.cuMemcpyDtoH((void *)to, from, c->bytes); }
    *name = "cuMemcpyDtoD";
    return cu.cuMemcpyDtoD(to, from, c->bytes);
}
static void copy(struct program *p) {
    struct copy c;
    if (!draw_copy(p, &c, 1)) return;
    int waits = one_in(p, 3), s = waits ? (per_thread ? OWN : LEGACY) : any_stream(p, c.from, 1);
    const char *name;
    order_copy(p, s, &c);
    errno = 77;
    CUresult status = waits ? copy_waiting(p, &c, &name) : queue(p, s, &c, &name);
    int after = errno;
    said(p, status, "%s %zu on %d, %d to %d, errno %d", name, c.bytes, s, c.from->kind, c.to->kind, after);
    if (status) return;
    p->recent = c;
    unsigned operation = issue(p, s), before = c.from->read[s];
    made(c), note(s, operation, &c);
    /* Ordinary memory may be used again when the call returns, and so may what a call that waits has filled. */
    if (c.from->kind == ORDINARY) c.from->read[s] = before;
    if (c.to->kind == ORDINARY || (waits && is_host(c.to))) learn(p, HOST, s);
    if (is_host(c.from) && c.from->kind == ORDINARY && one_in(p, 2)) {
        order_write(p, HOST, c.from);
        fill(p, c.from->at, c.from->bytes), memcpy(c.from->known, c.from->at, c.from->bytes), c.from->writer = HOST;
    }
    if (c.to->kind == ORDINARY && one_in(p, 2)) look(p, c.to, "at once");
}
/* Planes of rows, with gaps in and between them or without. Rows without gaps are one copy, which may be large. */
static void copy_rows(struct program *p) {
    struct copy c;
    if (!draw_copy(p, &c, 0) || c.bytes < 64) return;
    int is_dense = one_in(p, 2), has_planes = one_in(p, 2);
    size_t most = is_dense || one_in(p, 2) ? c.bytes : 3000, width = 1 + draw(p, c.bytes < most ? c.bytes : most);
    size_t pitch = is_dense ? width : width + draw(p, 64), rows = c.bytes / pitch;
    if (!is_dense && rows > 40) rows = 40;
    size_t depth = has_planes && rows ? 1 + draw(p, rows < 4 ? rows : 4) : 1, plane = rows / depth, height = is_dense || !plane ? plane : plane - draw(p, 2);
    struct space space = {.from_pitch = pitch, .from_height = plane, .to_pitch = pitch, .to_height = plane, .width = width, .height = height, .depth = depth};
    space.from_kind = is_host(c.from) ? 1 : 2, space.to_kind = is_host(c.to) ? 1 : 2;
    if (one_in(p, 4)) space.from_kind = 4; /* by the address */
    if (one_in(p, 4)) space.to_kind = 4;
    space.from_host = (void *)from_of(&c), space.from_device = from_of(&c), space.to_host = (void *)to_of(&c), space.to_device = to_of(&c);
    struct rows flat = {
        .from_kind = space.from_kind, .from_host = space.from_host, .from_device = space.from_device, .from_pitch = pitch,
        .to_kind = space.to_kind, .to_host = space.to_host, .to_device = space.to_device, .to_pitch = pitch, .width = width, .height = height,
    };
    int waits = one_in(p, 2), s = waits ? (per_thread ? OWN : LEGACY) : any_stream(p, c.from, 1);
    order_copy(p, s, &c);
    CUresult status;
    if (has_planes) status = waits ? cu.cuMemcpy3D(&space) : cu.cuMemcpy3DAsync(&space, for_copies(p, s));
    else status = !waits ? cu.cuMemcpy2DAsync(&flat, for_copies(p, s)) : one_in(p, 2) ? cu.cuMemcpy2D(&flat) : cu.cuMemcpy2DUnaligned(&flat);
    said(p, status, "rows %zu x %zu x %zu on %d, %d to %d", width, height, depth, s, c.from->kind, c.to->kind);
    if (status) return;
    unsigned operation = issue(p, s);
    for (size_t z = 0; z < depth; z++) for (size_t y = 0; y < height; y++) {
        size_t at = (z * plane + y) * pitch;
        made((struct copy){c.to, c.from, c.to_at + at, c.from_at + at, width});
    }
    note(s, operation, &c);
}
static void copy_with_attributes(struct program *p) {
    struct copy c;
    if (!cu.cuMemcpyWithAttributesAsync || !draw_copy(p, &c, 0)) return;
    struct attributes attributes = draw_attributes(p);
    int s = any_stream(p, c.from, one_in(p, 8));
    order_source(p, attributes, c.from), order_copy(p, s, &c);
    CUresult status = cu.cuMemcpyWithAttributesAsync(to_of(&c), from_of(&c), c.bytes, &attributes, for_copies(p, s));
    said(p, status, "with attributes %u %u, %zu on %d, %d to %d", attributes.access, attributes.flags, c.bytes, s, c.from->kind, c.to->kind);
    if (status) return;
    note(s, issue(p, s), &c), made(c);
}
static CUresult call_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, struct attributes *attributes, size_t *first, size_t kinds, size_t *failed, CUstream stream) {
    if (cu.batch) return cu.batch(to, from, sizes, count, attributes, first, kinds, failed, stream);
    return cu.batch_v2(to, from, sizes, count, attributes, first, kinds, stream);
}
enum { MANY = 400 };
static void batch(struct program *p) {
    struct copy c[MANY];
    struct attributes attributes[3];
    CUdeviceptr to[MANY], from[MANY];
    size_t sizes[MANY], first[3] = {0}, count = 0, kinds, failed = SIZE_MAX;
    if (!cu.batch && !cu.batch_v2) return;
    int s = any_stream(p, &p->regions[draw(p, REGIONS)], one_in(p, 8));
    if (one_in(p, 2)) {
        /* Blocks of one region, in another order. */
        struct copy whole;
        if (!draw_copy(p, &whole, 0)) return;
        size_t block = whole.bytes / (1 + draw(p, MANY));
        if (!block) return;
        for (count = whole.bytes / block; count > MANY; count = MANY) {}
        for (size_t i = 0; i < count; i++) c[i] = (struct copy){whole.to, whole.from, whole.to_at + (count - 1 - i) * block, whole.from_at + i * block, block};
    } else for (int tries = 0; tries < 12 && count < 6; tries++) {
        /* Of several regions; each is written once, and not read then. */
        int is_free = draw_copy(p, &c[count], 0);
        for (size_t i = 0; is_free && i < count; i++) if (c[i].to == c[count].to || c[i].to == c[count].from || c[i].from == c[count].to) is_free = 0;
        count += (size_t)is_free;
    }
    if (!count) return;
    kinds = 1 + draw(p, count < 3 ? count : 3);
    for (size_t k = 0; k < kinds; k++) attributes[k] = draw_attributes(p), first[k] = k ? first[k - 1] + 1 + draw(p, (count - first[k - 1] - (kinds - k))) : 0;
    for (size_t i = 0, k = 0; i < count; i++) {
        while (k + 1 < kinds && first[k + 1] <= i) k++;
        order_source(p, attributes[k], c[i].from), order_copy(p, s, &c[i]);
        to[i] = to_of(&c[i]), from[i] = from_of(&c[i]), sizes[i] = c[i].bytes;
    }
    CUresult status = call_batch(to, from, sizes, count, attributes, first, kinds, one_in(p, 4) ? 0 : &failed, for_copies(p, s));
    said(p, status, "batch of %zu from %zu, %zu kinds, on %d", count, sizes[0], kinds, s);
    if (status) return;
    unsigned operation = issue(p, s);
    for (size_t i = 0; i < count; i++) made(c[i]), note(s, operation, &c[i]);
}

/* A capture, beside which other streams copy; what it recorded is launched several times. Or a call spoils it. */
static void capture(struct program *p) {
    struct copy c[4], beside;
    size_t count = 0, nodes = 0;
    const char *name;
    void *graph = 0, *exec;
    int s = CREATED + (int)draw(p, SHARED - CREATED), other = s + 1, spoiled = one_in(p, 4);
    /* Other threads use the legacy default stream, which may not meet a capture of a stream that waits for it. */
    if (p->threads > 1 && p->blocking[s]) return;
    for (int tries = 0; tries < 8 && count < 4; tries++) count += (size_t)draw_copy(p, &c[count], 0);
    for (size_t i = 0; i < count; i++) order_copy(p, s, &c[i]);
    int has_beside = draw_copy(p, &beside, 0);
    for (size_t i = 0; i < count; i++) if (beside.to == c[i].to || beside.to == c[i].from || beside.from == c[i].to) has_beside = 0;
    if (has_beside) order_copy(p, other, &beside);
    said(p, cu.cuStreamBeginCapture(handle(p, s), (int)draw(p, 3)), "capture on %d", s);
    for (size_t i = 0; i < count; i++) said(p, queue(p, s, &c[i], &name), "captured %zu, %d to %d", c[i].bytes, c[i].from->kind, c[i].to->kind);
    if (has_beside && (p->blocking[other] == p->blocking[s] || !p->blocking[other])) {
        CUresult status = queue(p, other, &beside, &name);
        said(p, status, "beside it %s %zu on %d, %d to %d", name, beside.bytes, other, beside.from->kind, beside.to->kind);
        if (!status) note(other, issue(p, other), &beside), made(beside);
    }
    if (spoiled && p->blocking[s]) said(p, cu.cuMemcpyDtoHAsync(p->scratch, (CUdeviceptr)p->regions[0].at, 64, (CUstream)1), "spoiled");
    else if (spoiled) said(p, cu.cuStreamSynchronize(handle(p, s)), "spoiled");
    CUresult status = cu.cuStreamEndCapture(handle(p, s), &graph);
    if (!status) must(p, cu.cuGraphGetNodes(graph, 0, &nodes), "cuGraphGetNodes");
    said(p, status, "captured %zu nodes", nodes);
    if (status) return;
    must(p, cu.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    for (uint64_t launches = draw(p, 3); launches; launches--) {
        int where = any_stream(p, count ? c[0].from : p->regions, 1);
        for (size_t i = 0; i < count; i++) order_copy(p, where, &c[i]);
        said(p, cu.cuGraphLaunch(exec, for_copies(p, where)), "launch on %d", where);
        unsigned operation = issue(p, where);
        for (size_t i = 0; i < count; i++) made(c[i]), note(where, operation, &c[i]);
    }
}

/* A copy with an end or a size that makes no sense: the driver refuses it and changes nothing. */
static void absurd(struct program *p) {
    static const size_t sizes[] = {1, MIB, 5 * MIB, (size_t)1 << 40, SIZE_MAX / 2, SIZE_MAX - 4095, SIZE_MAX};
    struct region *device = &p->regions[0], *host = &p->regions[draw(p, REGIONS)];
    size_t bytes = sizes[draw(p, sizeof sizes / sizeof *sizes)];
    int is_in = one_in(p, 2), is_null = bytes <= 5 * MIB || one_in(p, 2), how = (int)draw(p, 4);
    if (!is_host(host)) return;
    CUdeviceptr there = (CUdeviceptr)device->at, here = is_null ? 0 : (CUdeviceptr)host->at;
    CUstream stream = for_copies(p, CREATED);
    struct space space = {.from_kind = is_in ? 1 : 2, .to_kind = is_in ? 2 : 1, .from_host = (void *)here, .to_host = (void *)here, .from_device = there, .to_device = there,
                          .from_pitch = MIB, .to_pitch = MIB, .width = MIB, .height = 1, .depth = 1};
    CUresult status;
    if (how == 0 && is_null) status = cu.cuMemcpy3DAsync(&space, stream);
    else if (how <= 1) status = is_in ? cu.cuMemcpyHtoD(there, (void *)here, bytes) : cu.cuMemcpyDtoH((void *)here, there, bytes);
    else if (how == 2) status = is_in ? cu.cuMemcpyHtoDAsync(there, (void *)here, bytes, stream) : cu.cuMemcpyDtoHAsync((void *)here, there, bytes, stream);
    else status = is_in ? cu.cuMemcpyAsync(there, here, bytes, stream) : cu.cuMemcpyAsync(here, there, bytes, stream);
    said(p, status, "absurd %zx %s %s by %d", bytes, is_in ? "in" : "out", is_null ? "null" : "host", how);
}

/* Calls that the driver refuses. What they may have changed is made anew. */
static void refused(struct program *p) {
    struct copy c;
    if (!draw_copy(p, &c, 0)) return;
    int s = any_stream(p, c.from, 1);
    struct region *device = is_host(c.to) ? c.from : c.to, *host = is_host(c.to) ? c.to : c.from;
    if (!is_host(host)) return;
    order_write(p, HOST, c.from), order_write(p, HOST, c.to);
    CUdeviceptr beyond = (CUdeviceptr)device->at + device->bytes - 8, wild = draw(p, 2) ? 4096 : (CUdeviceptr)host->at;
    CUstream stream = for_copies(p, s);
    switch (draw(p, 6)) {
    case 0: said(p, cu.cuMemcpyDtoHAsync(host->at, wild, c.bytes, stream), "no memory of a GPU, out"); break;
    case 1: said(p, cu.cuMemcpyHtoDAsync(wild, host->at, c.bytes, stream), "no memory of a GPU, in"); break;
    case 2: said(p, cu.cuMemcpyDtoH(host->at, beyond, c.bytes < 64 ? 64 : c.bytes), "beyond, out"); break;
    case 3: said(p, cu.cuMemcpyHtoDAsync(beyond, host->at, 0, stream), "nothing"); break;
    case 4: {
        must(p, cu.cuCtxSetCurrent(contexts[p->context == contexts[0]]), "cuCtxSetCurrent");
        said(p, cu.cuMemcpyDtoHAsync(host->at, (CUdeviceptr)device->at, host->bytes < device->bytes ? host->bytes : device->bytes, p->streams[CREATED]), "another context");
        must(p, cu.cuCtxSetCurrent(p->context), "cuCtxSetCurrent");
        break;
    }
    default: {
        if (!cu.batch && !cu.batch_v2) return;
        struct attributes attributes[2] = {draw_attributes(p), draw_attributes(p)};
        CUdeviceptr to[3] = {(CUdeviceptr)p->scratch, (CUdeviceptr)host->at, (CUdeviceptr)p->scratch + 64}, from[3] = {(CUdeviceptr)device->at, (CUdeviceptr)device->at, (CUdeviceptr)device->at};
        size_t sizes[3] = {64, host->bytes < device->bytes ? host->bytes : device->bytes, 64}, first[2] = {0, draw(p, 5)}, failed = SIZE_MAX, kinds = 1 + draw(p, 2), count = 3;
        switch (draw(p, 4)) {
        case 0: sizes[1] = (size_t)1 << (40 + draw(p, 24)); break;
        case 1: from[1] = wild == 4096 ? wild : beyond; break;
        case 2: attributes[0].access = 7; break;
        default: kinds = 4; break;
        }
        CUresult status = call_batch(to, from, sizes, count, attributes, first, kinds < 3 ? kinds : 4, &failed, handle(p, CREATED));
        said(p, status, "refused batch, failed %zd", (ssize_t)failed);
        must(p, cu.cuStreamSynchronize(handle(p, CREATED)), "cuStreamSynchronize");
        learn(p, HOST, CREATED);
    }
    }
    if (is_host(host)) fill(p, host->known, host->bytes), memcpy(host->at, host->known, host->bytes), host->writer = HOST;
}

static void use_from_host(struct program *p, struct region *r) {
    if (!is_host(r)) return;
    order_write(p, HOST, r);
    size_t at = draw(p, r->bytes), bytes = 1 + draw(p, r->bytes - at);
    fill(p, r->at + at, bytes), memcpy(r->known + at, r->at + at, bytes), r->writer = HOST;
}
static void replace(struct program *p, struct region *r) {
    let_go(p, r);
    /* The first two stay what they are, so that there is always something to copy. */
    make(p, r, r == p->regions ? DEVICE : r == p->regions + 1 ? LOCKED : (enum kind)draw(p, KINDS));
}
static void replace_stream(struct program *p) {
    int s = CREATED + (int)draw(p, SHARED - CREATED), is_idle = one_in(p, 2);
    if (is_idle) wait_for(p, s);
    must(p, cu.cuStreamDestroy(p->streams[s]), "cuStreamDestroy");
    if (!is_idle) {
        must(p, cu.cuCtxSynchronize(), "cuCtxSynchronize");
        for (int each = 0; each < STREAMS; each++) learn(p, HOST, each);
    }
    must(p, cu.cuStreamCreate(&p->streams[s], p->blocking[s] ? 0 : 1), "cuStreamCreate");
}
/* CUDA does not work in a forked child: every call says so, and the parent goes on. */
static void fork_a_child(struct program *p) {
    if (p->threads > 1) return;
    fflush(p->out);
    pid_t child = fork();
    if (!child) {
        CUresult statuses[3];
        struct region *device = &p->regions[0], *host = &p->regions[1];
        size_t bytes = device->bytes < host->bytes ? device->bytes : host->bytes;
        statuses[0] = cu.cuMemcpyDtoH(p->scratch, (CUdeviceptr)device->at, 64);
        statuses[1] = cu.cuMemcpyDtoHAsync(host->at, (CUdeviceptr)device->at, bytes, p->streams[CREATED]);
        unsigned char *ordinary = malloc(bytes);
        statuses[2] = cu.cuMemcpyHtoD((CUdeviceptr)device->at, ordinary, bytes);
        _exit((int)hash((unsigned char *)statuses, sizeof statuses) & 127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    said(p, status, "child");
}

static void *run(void *argument) {
    struct program *p = argument;
    p->out = open_memstream(&p->text, &p->text_bytes);
    must(p, cu.cuCtxSetCurrent(p->context), "cuCtxSetCurrent");
    must(p, cu.cuMemHostAlloc((void **)&p->scratch, 64 * KIB, 0), "cuMemHostAlloc");
    p->blocking[OWN] = 1;
    for (int s = CREATED; s < SHARED; s++) {
        p->blocking[s] = one_in(p, 3);
        must(p, cu.cuStreamCreate(&p->streams[s], p->blocking[s] ? 0 : 1), "cuStreamCreate");
    }
    static const enum kind kinds[REGIONS] = {DEVICE, LOCKED, ORDINARY, DEVICE, LOCKED, ORDINARY, DEVICE, REGISTERED, HALF};
    for (int r = 0; r < REGIONS; r++) make(p, &p->regions[r], kinds[r]);
    for (uint64_t steps = 30 + draw(p, 60); steps; steps--) switch (draw(p, 26)) {
        case 0: capture(p); break;
        case 1: refused(p); break;
        case 2: replace(p, &p->regions[draw(p, REGIONS)]); break;
        case 3: case 4: use_from_host(p, &p->regions[draw(p, REGIONS)]); break;
        case 5: case 6: look(p, &p->regions[draw(p, REGIONS)], "now"); break;
        case 7: case 8: case 9: batch(p); break;
        case 10: case 11: copy_with_attributes(p); break;
        case 12: case 14: copy_rows(p); break;
        case 15: absurd(p); break;
        case 13: if (one_in(p, 4)) fork_a_child(p); else replace_stream(p); break;
        default: copy(p); break;
    }
    for (int r = 0; r < REGIONS; r++) let_go(p, &p->regions[r]);
    fclose(p->out);
    return 0;
}

int main(int argc, char **argv) {
    static struct program programs[3];
    if (argc != 2) return 2;
    struct program whole = {.random = strtoull(argv[1], 0, 0)};
    /* Nothing takes that long. */
    alarm(300);
    resolver = one_in(&whole, 2), per_thread = one_in(&whole, 2);
    int threads = one_in(&whole, 3) ? 3 : 1;
    find_all();
    if (cu.cuInit(0) || cu.cuDevicePrimaryCtxRetain(&contexts[0], 0) || cu.cuCtxCreate(&contexts[1], 0, 0)) return 2;
    size_t context = contexts[one_in(&whole, 4)];
    pthread_t others[3];
    CUstream shared;
    if (cu.cuCtxSetCurrent(context) || cu.cuStreamCreate(&shared, 1)) return 2;
    for (int t = 0; t < threads; t++) {
        programs[t] = (struct program){.random = draw(&whole, UINT64_MAX), .number = t, .threads = threads, .context = context, .streams[SHARED] = shared};
        pthread_create(&others[t], 0, run, &programs[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(others[t], 0);
    for (int t = 0; t < threads; t++) printf("thread %d\n%s", t, programs[t].text);
    return 0;
}
