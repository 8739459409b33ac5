/*
 * A library with the CUDA driver's interface for copies and launches, exact in names, versions and order, and no GPU behind it.
 *
 * Streams are queues: what is queued happens only when somebody waits for it, so that who does not wait sees old bytes. A query makes one
 * step. Ordinary memory is copied in the call, behind what was queued. Contexts own their memory and streams; a forked child
 * gets "not initialised". Every copy is counted by the name of the call (fake_count), also those of Headway.
 *
 * FAKE_PINS: what a program page-locks of its own memory are pages, not addresses, and that waits until nothing runs. FAKE_PIN_MAX=BYTES: as much memory may be page-locked. FAKE_VERSION=NUMBER: the driver's version.
 * FAKE_QUEUE=NUMBER: all streams hold as many operations together, and a call that would queue more waits. FAKE_STALL=USEC: a thread that is called "stalls" stops so long before each 32nd word. FAKE_KERNELS_FIRST: memory that is allocated page-locked, and modules, come when nothing runs.
 * FAKE_REFUSES=STATUS: what a program gets that page-locks its own memory. FAKE_GPU=NUMBER: the last byte of the GPU's UUID.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pins.h"

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef size_t CUcontext;
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, CONTEXT_DESTROYED = 709, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906
};
enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
enum { PRIMARY = 77 };

int headway_fake_driver = 1;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
#define LOCKED for (int once = (pthread_mutex_lock(&lock), 1); once; once = (pthread_mutex_unlock(&lock), 0))

/* Calls by name. */
static struct { const char *name; unsigned long calls, bytes; } counts[64];
static void counted(const char *name, size_t bytes) {
    LOCKED {
        size_t i = 0;
        while (counts[i].name && strcmp(counts[i].name, name)) i++;
        counts[i].name = name, counts[i].calls++, counts[i].bytes += bytes;
    }
}
unsigned long fake_count(const char *name) {
    for (size_t i = 0; counts[i].name; i++) if (!strcmp(counts[i].name, name)) return counts[i].calls;
    return 0;
}

/* State. */
static pid_t owner;
static int sticky;
static __thread CUcontext current;
static CUcontext dead[1024];
static int dead_count, primary_alive;
void fake_break(int error) { sticky = error; }

static CUresult state(void) {
    if (owner != getpid()) return NOT_INITIALIZED;
    if (sticky) return sticky;
    if (!current) return INVALID_CONTEXT;
    if (current == PRIMARY) return primary_alive ? SUCCESS : CONTEXT_DESTROYED;
    for (int i = 0; i < dead_count; i++) if (dead[i] == current) return CONTEXT_DESTROYED;
    return SUCCESS;
}
#define ALIVE do { CUresult alive = state(); if (alive) return alive; } while (0)

/* Memory. */
static struct range { uint64_t start; size_t bytes; int kind; CUcontext context; struct pins *pins; } ranges[8192];
static int ranges_count;
static size_t locked_bytes;
size_t fake_locked(void) { return locked_bytes; }
static void range(void *start, size_t bytes, int kind) {
    LOCKED {
        int i = 0;
        while (i < ranges_count && ranges[i].bytes) i++;
        if (i == ranges_count && i + 1 < (int)(sizeof ranges / sizeof *ranges)) ranges_count++;
        ranges[i] = (struct range){(uint64_t)start, bytes, kind, current, 0};
        if (kind == HOST) locked_bytes += bytes;
    }
}
static int no_range(uint64_t start) {
    int found = 0;
    LOCKED for (int i = 0; i < ranges_count; i++)
        if (ranges[i].bytes && ranges[i].start == start) {
            if (ranges[i].kind == HOST) locked_bytes -= ranges[i].bytes;
            pins_end(ranges[i].pins);
            ranges[i].bytes = 0, ranges[i].pins = 0, found = 1;
        }
    return found;
}
static struct range covering(uint64_t start, size_t bytes) {
    struct range found = {0};
    LOCKED for (int i = 0; i < ranges_count; i++)
        if (bytes <= ranges[i].bytes && start >= ranges[i].start && start - ranges[i].start <= ranges[i].bytes - bytes && ranges[i].bytes) found = ranges[i];
    return found;
}
/* As memmove, where page-locked memory is its pages. Behind the range lies nothing of it: who asked has seen to that. */
static void moved(void *to, const void *from, size_t bytes) {
    struct range there = covering((uint64_t)to, bytes), here = covering((uint64_t)from, bytes);
    if (here.pins) LOCKED pins_read(here.pins, to, from, bytes);
    else if (there.pins) LOCKED pins_write(there.pins, to, from, bytes);
    else memmove(to, from, bytes);
}
static int may_lock(size_t bytes) {
    const char *max = getenv("FAKE_PIN_MAX");
    return !max || locked_bytes + bytes <= strtoul(max, 0, 0);
}

/* Streams and events. */
struct op { int kind; void *to; const void *from; size_t bytes; CUevent event; unsigned long mark; };
enum { COPY, RECORD, WAIT, WRITE, UNTIL, LAUNCH_ENDS };
struct stream {
    int joined; /* with the legacy default stream */
    CUcontext context;
    struct op *ops;
    size_t first, end, room;
    int capturing, invalidated;
    struct graph *graph; /* what is captured */
    struct stream *next;
};
struct graph { size_t count, room; struct op *ops; };
struct event { unsigned long recorded, reached; CUstream where; };
static struct stream legacy, *streams;
/* Launches of the program, whose kernels are function 6, that have not ended; and most of them at a time. */
static unsigned launches, launches_most;
unsigned fake_launches_most(void) { return launches_most; }
static __thread struct stream *own;
static __thread int thread_mode;

static CUstream named(CUstream stream, int per_thread) {
    if ((size_t)stream == 1 || (!stream && !per_thread)) return &legacy;
    if ((size_t)stream == 2 || !stream) {
        if (!own) LOCKED { own = calloc(1, sizeof *own); own->joined = 1, own->next = streams, streams = own; }
        return own;
    }
    return stream;
}
static int known(CUstream stream) {
    if (stream == &legacy) return 1;
    for (CUstream each = streams; each; each = each->next) if (each == stream) return each == own || each->context == current || !each->context;
    return 0;
}
static void drain(CUstream stream);
static void step(CUstream stream) {
    struct op op = stream->ops[stream->first];
    /* What waits for a thread of the program lets it in; who asked asks again. */
    if (op.kind == UNTIL && *(volatile unsigned *)op.to < op.mark) { pthread_mutex_unlock(&lock), sched_yield(), pthread_mutex_lock(&lock); return; }
    stream->first++;
    if (op.kind == COPY) moved(op.to, op.from, op.bytes);
    if (op.kind == LAUNCH_ENDS) launches--;
    if (op.kind == WRITE) *(volatile unsigned *)op.to = (unsigned)op.mark;
    if (op.kind == RECORD && op.event->reached < op.mark) op.event->reached = op.mark;
    if (op.kind == WAIT) while (op.event->reached < op.mark && op.event->where->first < op.event->where->end) step(op.event->where);
}
static void drain(CUstream stream) { while (stream->first < stream->end) step(stream); }
/* What the legacy default stream waits for, or what waits for it. */
static void join(CUstream stream) {
    if (stream == &legacy) { for (CUstream each = streams; each; each = each->next) if (each->joined && !each->capturing) drain(each); }
    else if (stream->joined) drain(&legacy);
}
static size_t queued(void) {
    size_t operations = legacy.end - legacy.first;
    for (CUstream each = streams; each; each = each->next) operations += each->end - each->first;
    return operations;
}
static void push(CUstream stream, struct op op) {
    if (stream->capturing) {
        struct graph *graph = stream->graph;
        if (graph->count == graph->room) graph->ops = realloc(graph->ops, (graph->room = 2 * graph->room + 8) * sizeof op);
        graph->ops[graph->count++] = op;
        return;
    }
    join(stream);
    const char *holds = getenv("FAKE_QUEUE");
    while (holds && queued() >= strtoul(holds, 0, 0)) {
        CUstream full = stream;
        for (CUstream each = streams; each && full->first == full->end; each = each->next) full = each;
        step(full->first == full->end ? &legacy : full);
    }
    if (stream->first == stream->end) stream->first = stream->end = 0; /* a stream of hours stays small */
    if (stream->end == stream->room) {
        stream->room = stream->room ? 2 * stream->room : 64;
        stream->ops = realloc(stream->ops, stream->room * sizeof op);
    }
    stream->ops[stream->end++] = op;
}
/* Whether the call would disturb a capture; it does then. */
static CUresult disturbs(CUstream stream) {
    CUresult status = SUCCESS;
    for (CUstream each = streams; each && stream == &legacy; each = each->next)
        if (each->capturing && each->joined) each->invalidated = 1, status = CAPTURE_IMPLICIT;
    return status;
}

CUresult cuInit(unsigned flags) { (void)flags; owner = getpid(); return SUCCESS; }
CUresult cuDriverGetVersion(int *version) { const char *asked = getenv("FAKE_VERSION"); *version = asked ? atoi(asked) : 13010; return SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, int device) { (void)device; primary_alive = 1; *context = PRIMARY; return owner == getpid() ? SUCCESS : NOT_INITIALIZED; }
static void empty(CUstream stream) {
    for (size_t i = stream->first; i < stream->end; i++) launches -= stream->ops[i].kind == LAUNCH_ENDS;
    stream->first = stream->end = 0;
}
static CUresult gone(CUcontext context) {
    LOCKED {
        for (CUstream each = streams; each; each = each->next) if (each->context == context) empty(each);
        if (context == PRIMARY) empty(&legacy);
        for (int i = 0; i < ranges_count; i++) if (ranges[i].context == context) {
            if (ranges[i].kind == HOST && ranges[i].bytes) locked_bytes -= ranges[i].bytes;
            ranges[i].bytes = 0;
        }
    }
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; counted("cuDevicePrimaryCtxRelease_v2", 0); return SUCCESS; }
CUresult cuDevicePrimaryCtxReset_v2(int device) { (void)device; counted("cuDevicePrimaryCtxReset_v2", 0); primary_alive = 0; return gone(PRIMARY); }
CUresult cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
CUresult cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, int device) {
    static CUcontext next = 200;
    (void)flags, (void)device;
    if (owner != getpid()) return NOT_INITIALIZED;
    current = *context = next++;
    return SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext context) { counted("cuCtxDestroy_v2", 0); dead[dead_count++] = context; if (current == context) current = 0; return gone(context); }
CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return owner == getpid() ? SUCCESS : NOT_INITIALIZED; }
CUresult cuCtxPushCurrent_v2(CUcontext context) { current = context; return SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext *context) { *context = current, current = 0; return SUCCESS; }
CUresult cuCtxGetDevice(int *device) { *device = 0; return current ? SUCCESS : INVALID_CONTEXT; }
CUresult cuCtxGetId(CUcontext context, unsigned long long *id) { *id = context ? context : current; return SUCCESS; }
CUresult cuGetErrorName(int code, const char **name) { (void)code; *name = "FAKE"; return SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
CUresult cuDeviceGet(int *device, int index) { *device = index; return SUCCESS; }
CUresult cuDeviceGetName(char *name, int bytes, int device) { (void)device; snprintf(name, (size_t)bytes, "fake"); return SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)1 << 30; return SUCCESS; }
CUresult cuDeviceGetPCIBusId(char *text, int bytes, int device) { (void)device; snprintf(text, (size_t)bytes, "0000:00:00.0"); return SUCCESS; }
CUresult cuDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; *can = 0; return SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = attribute == 75 ? 9 : attribute == 41; return SUCCESS; }
CUresult cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    (void)device;
    memset(uuid, 7, 16);
    if (getenv("FAKE_GPU")) uuid[15] = (unsigned char)atoi(getenv("FAKE_GPU"));
    return SUCCESS;
}
CUresult cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuModuleGetLoadingMode(int *mode) { *mode = 2; return SUCCESS; }

CUresult cuCtxSynchronize(void);
static void kernels_first(void) { if (getenv("FAKE_KERNELS_FIRST")) cuCtxSynchronize(); }
static void *memory(size_t bytes) { void *got = 0; return posix_memalign(&got, 4096, (bytes + 4095) / 4096 * 4096) ? 0 : got; }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    ALIVE;
    void *got = memory(bytes);
    if (!got) return OUT_OF_MEMORY;
    range(got, bytes, DEVICE);
    *address = (CUdeviceptr)got;
    return SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) { ALIVE; if (!no_range(address)) return INVALID_VALUE; free((void *)address); return SUCCESS; }
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    ALIVE;
    kernels_first();
    if (!may_lock(bytes) || !(*address = memory(bytes))) return OUT_OF_MEMORY;
    range(*address, bytes, HOST);
    return SUCCESS;
}
CUresult cuMemFreeHost(void *address) { ALIVE; if (!no_range((uint64_t)address)) return INVALID_VALUE; free(address); return SUCCESS; }
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    (void)flags;
    ALIVE;
    if (getenv("FAKE_REFUSES") && atoi(getenv("FAKE_REFUSES"))) return atoi(getenv("FAKE_REFUSES"));
    if (getenv("FAKE_PINS")) cuCtxSynchronize();
    if (!may_lock(bytes)) return OUT_OF_MEMORY;
    uint64_t start = (uint64_t)address;
    for (int i = 0; i < ranges_count; i++)
        if (ranges[i].bytes && ranges[i].kind == HOST && ranges[i].start < start + bytes && start < ranges[i].start + ranges[i].bytes) return ALREADY_REGISTERED;
    LOCKED {
        range(address, bytes, HOST);
        for (int i = 0; getenv("FAKE_PINS") && i < ranges_count; i++)
            if (ranges[i].start == start && ranges[i].bytes == bytes) ranges[i].pins = pins_of(address, bytes);
    }
    return SUCCESS;
}
CUresult cuMemHostUnregister(void *address) { ALIVE; return no_range((uint64_t)address) ? SUCCESS : NOT_REGISTERED; }
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = *total = (size_t)1 << 30; return SUCCESS; }
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) { ALIVE; LOCKED { join(&legacy); drain(&legacy); } memset((void *)to, value, bytes); return SUCCESS; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *seen, void *address, unsigned flags) { (void)flags; *seen = (CUdeviceptr)address; return SUCCESS; }
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address) {
    if (owner != getpid()) return NOT_INITIALIZED;
    struct range found = covering(address, 1);
    for (unsigned i = 0; i < count; i++) switch (attributes[i]) {
        case 2: *(unsigned *)values[i] = (unsigned)found.kind; break;
        case 3: *(CUdeviceptr *)values[i] = found.kind ? address : 0; break;
        case 8: *(unsigned *)values[i] = 0; break;
        case 9: *(int *)values[i] = found.kind ? 0 : -2; break;
        case 11: *(CUdeviceptr *)values[i] = found.start; break;
        case 12: *(size_t *)values[i] = found.bytes; break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    if (!covering(address, 1).kind) return INVALID_VALUE;
    return cuPointerGetAttributes(1, &attribute, &value, address);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ALIVE;
    LOCKED {
        *stream = calloc(1, sizeof **stream);
        (*stream)->joined = !(flags & 1), (*stream)->context = current, (*stream)->next = streams;
        streams = *stream;
    }
    return SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) { (void)stream; return SUCCESS; } /* what is queued still happens; the memory stays, for who uses it once more */
static CUresult is_capturing(CUstream stream, int *status) {
    CUresult answer = SUCCESS;
    LOCKED {
        answer = disturbs(stream);
        *status = stream->invalidated ? 2 : stream->capturing;
    }
    return answer;
}
CUresult cuStreamIsCapturing(CUstream stream, int *status) { ALIVE; return is_capturing(named(stream, 0), status); }
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    ALIVE;
    if (named(stream, 0) == &legacy) return CAPTURE_UNSUPPORTED;
    (void)mode;
    LOCKED stream = named(stream, 0), stream->capturing = 1, stream->invalidated = 0, stream->graph = calloc(1, sizeof *stream->graph);
    return SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, void **graph) {
    stream = named(stream, 0);
    CUresult status = stream->invalidated ? CAPTURE_INVALIDATED : SUCCESS;
    LOCKED stream->capturing = stream->invalidated = 0;
    *graph = status ? 0 : stream->graph;
    return status;
}
CUresult cuGraphGetNodes(struct graph *graph, void *nodes, size_t *count) { (void)nodes; *count = graph->count; return SUCCESS; }
CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { (void)flags; *exec = graph; return SUCCESS; }
/* A launch of the program was queued, with the lock. */
static void launched(CUstream stream) {
    if (stream->capturing) return;
    if (++launches > launches_most) launches_most = launches;
    push(stream, (struct op){.kind = LAUNCH_ENDS});
}
static CUresult launch_graph(struct graph *exec, CUstream stream) {
    CUresult status = SUCCESS;
    ALIVE;
    LOCKED {
        if (!known(stream)) status = INVALID_HANDLE;
        else if (!(status = disturbs(stream))) {
            for (size_t i = 0; i < exec->count; i++) push(stream, exec->ops[i]);
            launched(stream);
        }
    }
    return status;
}
CUresult cuGraphLaunch(struct graph *exec, CUstream stream) { return launch_graph(exec, named(stream, 0)); }
CUresult cuGraphLaunch_ptsz(struct graph *exec, CUstream stream) { return launch_graph(exec, named(stream, 1)); }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { int before = thread_mode; thread_mode = *mode; *mode = before; return SUCCESS; }
static CUresult stream_query(CUstream stream) {
    CUresult status = SUCCESS;
    LOCKED {
        if (stream->capturing) stream->invalidated = 1, status = CAPTURE_UNSUPPORTED;
        else if (stream->first < stream->end) { step(stream); status = stream->first < stream->end ? NOT_READY : SUCCESS; }
    }
    return status;
}
CUresult cuStreamQuery(CUstream stream) { ALIVE; return stream_query(named(stream, 0)); }
static CUresult stream_wait(CUstream stream) {
    CUresult status = SUCCESS;
    LOCKED {
        if (!known(stream)) status = INVALID_HANDLE;
        else if (stream->capturing) stream->invalidated = 1, status = CAPTURE_UNSUPPORTED;
        else if (!(status = disturbs(stream))) { join(stream); drain(stream); }
    }
    return status;
}
CUresult cuStreamSynchronize(CUstream stream) { ALIVE; return stream_wait(named(stream, 0)); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { ALIVE; return stream_wait(named(stream, 1)); }
CUresult cuCtxSynchronize(void) { ALIVE; LOCKED { for (CUstream each = streams; each; each = each->next) if (!each->context || each->context == current) drain(each); drain(&legacy); } return SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    ALIVE;
    LOCKED if (event->recorded) push(named(stream, 0), (struct op){.kind = WAIT, .event = event, .mark = event->recorded});
    return SUCCESS;
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags) {
    ALIVE;
    if (covering(address, 4).kind == 0 || flags) return INVALID_VALUE;
    counted("cuStreamWriteValue32_v2", 4);
    const char *stalls = getenv("FAKE_STALL");
    static __thread int words;
    char thread[16] = "";
    if (stalls && !pthread_getname_np(pthread_self(), thread, sizeof thread) && !strcmp(thread, "stalls") && ++words % 32 == 0) usleep(atoi(stalls));
    LOCKED push(named(stream, 0), (struct op){.kind = WRITE, .to = (void *)address, .mark = value});
    return SUCCESS;
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, unsigned value, unsigned flags) {
    ALIVE;
    if (covering(address, 4).kind == 0 || flags) return INVALID_VALUE;
    LOCKED push(named(stream, 0), (struct op){.kind = UNTIL, .to = (void *)address, .mark = value});
    return SUCCESS;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) { (void)flags; ALIVE; *event = calloc(1, sizeof **event); return SUCCESS; }
CUresult cuEventDestroy_v2(CUevent event) { (void)event; return SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
    ALIVE;
    CUstream where = named(stream, 0);
    CUresult status = SUCCESS;
    LOCKED {
        if (!known(where)) status = INVALID_HANDLE;
        else if (!(status = disturbs(where))) {
            event->where = where;
            push(where, (struct op){.kind = RECORD, .event = event, .mark = ++event->recorded});
        }
    }
    return status;
}
CUresult cuEventQuery(CUevent event) {
    ALIVE;
    CUresult status = SUCCESS;
    LOCKED {
        if (event->reached < event->recorded && event->where->first < event->where->end) step(event->where);
        if (event->reached < event->recorded && event->where->first < event->where->end) status = NOT_READY;
    }
    return status;
}
CUresult cuEventSynchronize(CUevent event) {
    ALIVE;
    LOCKED while (event->reached < event->recorded && event->where->first < event->where->end) step(event->where);
    return SUCCESS;
}
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { (void)a, (void)b; *ms = 0; return SUCCESS; }

CUresult cuModuleLoadData(size_t *module, const void *image) { ALIVE; kernels_first(); *module = strstr(image, "headway_aside") ? 5 : 0; return SUCCESS; }
CUresult cuModuleGetFunction(size_t *function, size_t module, const char *name) { (void)name; ALIVE; *function = module; return SUCCESS; }
enum { OWN_KERNEL = 5, PROGRAMS_KERNEL };
static CUresult launch(const char *name, size_t function, CUstream stream, void **arguments) {
    ALIVE;
    if (function == PROGRAMS_KERNEL) counted(name, 0);
    else if (function != OWN_KERNEL) return INVALID_VALUE;
    if (!known(stream)) return INVALID_HANDLE;
    CUresult status = SUCCESS;
    if (function == PROGRAMS_KERNEL) LOCKED status = disturbs(stream);
    if (status) return status;
    CUdeviceptr to = *(CUdeviceptr *)arguments[0], from = *(CUdeviceptr *)arguments[1];
    uint64_t bytes = *(uint64_t *)arguments[2];
    if (!bytes) return SUCCESS;
    if (!covering(to, bytes).kind || !covering(from, bytes).kind) { sticky = 700; return SUCCESS; }
    if (function == OWN_KERNEL) counted("kernel", bytes);
    LOCKED {
        push(stream, (struct op){.to = (void *)to, .from = (void *)from, .bytes = bytes});
        if (function == PROGRAMS_KERNEL) launched(stream);
    }
    return SUCCESS;
}

/* Copies. */
enum { OUT = 1, IN = 2, ANY = 3 };
static CUresult copy(const char *name, void *to, const void *from, size_t bytes, CUstream stream, int waits, int way) {
    ALIVE;
    counted(name, bytes);
    CUresult status = SUCCESS;
    int ordinary = 0;
    pthread_mutex_lock(&lock);
    if (!known(stream)) status = INVALID_HANDLE;
    else if (bytes) {
        struct range there = covering((uint64_t)to, 1), here = covering((uint64_t)from, 1);
        if (way == ANY) way = (here.kind == DEVICE ? OUT : 0) | (there.kind == DEVICE ? IN : 0);
        if ((way & IN && covering((uint64_t)to, bytes).kind != DEVICE) || (way & OUT && covering((uint64_t)from, bytes).kind != DEVICE)) status = INVALID_VALUE;
        const void *host = way == IN ? from : to;
        struct range locked = way == IN ? here : there;
        ordinary = way != (IN | OUT) && locked.kind != HOST;
        /* As driver 580 does: a null pointer is refused; any other address is read or written. */
        if ((locked.kind == HOST && !covering((uint64_t)host, bytes).kind) || (way != (IN | OUT) && !host)) status = INVALID_VALUE;
        if (!status) status = disturbs(stream);
        if (!status && stream->capturing) { push(stream, (struct op){.to = to, .from = from, .bytes = bytes}); bytes = 0; }
        else if (!status && (ordinary || waits)) { join(stream); drain(stream); }
        else if (!status) push(stream, (struct op){.to = to, .from = from, .bytes = bytes});
    }
    pthread_mutex_unlock(&lock);
    /* Ordinary memory may be of any kind: what it does to the caller happens without the lock. */
    if (!status && bytes && (ordinary || waits)) moved(to, from, bytes);
    return status;
}
#define BOTH(name, suffix, arguments, call) CUresult name arguments { enum { PER_THREAD = 0 }; const char *called = #name; return call; } \
    CUresult name##suffix arguments { enum { PER_THREAD = 1 }; const char *called = #name #suffix; return call; }
#define SIZES unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SIZES_UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared
struct launch_config { unsigned sizes[7]; CUstream stream; void *attributes; unsigned count; }; /* CUlaunchConfig */
BOTH(cuLaunchKernel, _ptsz, (size_t function, SIZES, CUstream stream, void **arguments, void **extra), (SIZES_UNUSED, (void)extra, launch(called, function, named(stream, PER_THREAD), arguments)))
BOTH(cuLaunchCooperativeKernel, _ptsz, (size_t function, SIZES, CUstream stream, void **arguments), (SIZES_UNUSED, launch(called, function, named(stream, PER_THREAD), arguments)))
BOTH(cuLaunchKernelEx, _ptsz, (const struct launch_config *config, size_t function, void **arguments, void **extra),
     ((void)extra, config ? launch(called, function, named(config->stream, PER_THREAD), arguments) : INVALID_VALUE))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), copy(called, to, (void *)from, bytes, named(stream, PER_THREAD), 0, OUT))
BOTH(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes), copy(called, to, (void *)from, bytes, named(0, PER_THREAD), 1, OUT))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), copy(called, (void *)to, from, bytes, named(stream, PER_THREAD), 0, IN))
BOTH(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes), copy(called, (void *)to, from, bytes, named(0, PER_THREAD), 1, IN))
BOTH(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), copy(called, (void *)to, (void *)from, bytes, named(stream, PER_THREAD), 0, ANY))
BOTH(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(called, (void *)to, (void *)from, bytes, named(0, PER_THREAD), 1, ANY))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), copy(called, (void *)to, (void *)from, bytes, named(stream, PER_THREAD), 0, IN | OUT))
BOTH(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy(called, (void *)to, (void *)from, bytes, named(0, PER_THREAD), 0, IN | OUT))
BOTH(cuMemcpyPeerAsync, _ptsz, (CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t bytes, CUstream stream), ((void)a, (void)b, copy(called, (void *)to, (void *)from, bytes, named(stream, PER_THREAD), 0, IN | OUT)))
BOTH(cuMemcpyPeer, _ptds, (CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t bytes), ((void)a, (void)b, copy(called, (void *)to, (void *)from, bytes, named(0, PER_THREAD), 0, IN | OUT)))

/* CUDA_MEMCPY2D and CUDA_MEMCPY3D of the driver's header. */
struct memcpy2d {
    size_t from_x, from_y; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array; size_t to_pitch, width, height;
};
struct memcpy3d {
    size_t from_x, from_y, from_z, from_lod; unsigned from_kind; const void *from_host; CUdeviceptr from_device; void *from_array, *reserved_a; size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_lod; unsigned to_kind; void *to_host; CUdeviceptr to_device; void *to_array, *reserved_b; size_t to_pitch, to_height, width, height, depth;
};
static CUresult rows(const char *name, const struct memcpy3d *c, CUstream stream, int waits) {
    int way = (c->to_kind == DEVICE ? IN : 0) | (c->from_kind == DEVICE ? OUT : 0);
    if (c->from_kind == UNIFIED || c->to_kind == UNIFIED) way = 0;
    else if (c->from_kind > 2 || c->to_kind > 2 || !c->from_kind || !c->to_kind) return NOT_SUPPORTED;
    if (c->from_kind > UNIFIED || c->to_kind > UNIFIED || c->width + c->from_x > c->from_pitch || c->width + c->to_x > c->to_pitch) return INVALID_VALUE;
    const char *from = c->from_kind == HOST ? c->from_host : (const char *)c->from_device;
    char *to = c->to_kind == HOST ? c->to_host : (char *)c->to_device;
    for (size_t z = 0; z < c->depth; z++) for (size_t y = 0; y < c->height; y++) {
        size_t out = ((c->from_z + z) * c->from_height + c->from_y + y) * c->from_pitch + c->from_x;
        size_t in = ((c->to_z + z) * c->to_height + c->to_y + y) * c->to_pitch + c->to_x;
        CUresult status = copy(name, to + in, from + out, c->width, stream, waits, way ? way : ANY);
        if (status) return status;
    }
    return SUCCESS;
}
static CUresult plane(const char *name, const struct memcpy2d *c, CUstream stream, int waits) {
    struct memcpy3d whole = {
        .from_x = c->from_x, .from_y = c->from_y, .from_kind = c->from_kind, .from_host = c->from_host, .from_device = c->from_device, .from_pitch = c->from_pitch,
        .to_x = c->to_x, .to_y = c->to_y, .to_kind = c->to_kind, .to_host = c->to_host, .to_device = c->to_device, .to_pitch = c->to_pitch,
        .width = c->width, .height = c->height, .depth = 1,
    };
    return rows(name, &whole, stream, waits);
}
BOTH(cuMemcpy2D_v2, _ptds, (const struct memcpy2d *c), plane(called, c, named(0, PER_THREAD), 1))
BOTH(cuMemcpy2DUnaligned_v2, _ptds, (const struct memcpy2d *c), plane(called, c, named(0, PER_THREAD), 1))
BOTH(cuMemcpy2DAsync_v2, _ptsz, (const struct memcpy2d *c, CUstream stream), plane(called, c, named(stream, PER_THREAD), 0))
BOTH(cuMemcpy3D_v2, _ptds, (const struct memcpy3d *c), rows(called, c, named(0, PER_THREAD), 1))
BOTH(cuMemcpy3DAsync_v2, _ptsz, (const struct memcpy3d *c, CUstream stream), rows(called, c, named(stream, PER_THREAD), 0))
/* CUmemcpyAttributes. Ordinary memory that is read during the call with the hint to overlap is corrupted, as is reported of the driver. */
struct attributes { unsigned access; struct { unsigned type; int id; } hints[2]; unsigned flags; };
static CUresult copy_with(const char *name, CUdeviceptr to, CUdeviceptr from, size_t bytes, const struct attributes *attributes, CUstream stream) {
    int in = covering(to, 1).kind == DEVICE, out = covering(from, 1).kind == DEVICE;
    if ((!in && !out) || attributes->access < 1 || attributes->access > 3 || attributes->flags > 1) return INVALID_VALUE;
    CUresult status = copy(name, (void *)to, (void *)from, bytes, stream, 0, ANY);
    int ordinary = !covering(in ? from : to, 1).kind;
    if (!status && ordinary && attributes->access == 2 && attributes->flags) *(char *)to ^= 1;
    return status;
}
static CUresult batch(const char *name, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, const struct attributes *attributes, const size_t *first, size_t kinds,
                      CUstream stream, size_t *failed) {
    if (stream == &legacy || kinds > count || (count && first[0])) return INVALID_VALUE;
    for (size_t k = 1; k < kinds; k++) if (first[k] <= first[k - 1] || first[k] >= count) return INVALID_VALUE;
    for (size_t i = 0, kind = 0; i < count; i++) {
        while (kind + 1 < kinds && first[kind + 1] <= i) kind++;
        CUresult status = copy_with(name, to[i], from[i], sizes[i], &attributes[kind], stream);
        if (status) { if (failed) *failed = i; return status; }
    }
    return SUCCESS;
}
BOTH(cuMemcpyWithAttributesAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, struct attributes *attributes, CUstream stream),
     (named(stream, PER_THREAD) == &legacy ? INVALID_VALUE : copy_with(called, to, from, bytes, attributes, named(stream, PER_THREAD))))
BOTH(cuMemcpyBatchAsync, _ptsz, (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *first, size_t kinds, size_t *failed, CUstream stream),
     batch(called, to, from, sizes, count, attributes, first, kinds, named(stream, PER_THREAD), failed))
BOTH(cuMemcpyBatchAsync_v2, _ptsz, (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *first, size_t kinds, CUstream stream),
     batch(called, to, from, sizes, count, attributes, first, kinds, named(stream, PER_THREAD), 0))

#define NOT_HERE(name) CUresult name(void) { return NOT_SUPPORTED; }
NOT_HERE(cuCtxEnablePeerAccess) NOT_HERE(cuModuleLoadDataEx) NOT_HERE(cuModuleUnload) NOT_HERE(cuFuncSetAttribute)
NOT_HERE(cuMemGetAllocationGranularity) NOT_HERE(cuMemCreate) NOT_HERE(cuMemRelease) NOT_HERE(cuMemExportToShareableHandle)
NOT_HERE(cuMemAddressReserve) NOT_HERE(cuMemAddressFree) NOT_HERE(cuMemMap) NOT_HERE(cuMemUnmap) NOT_HERE(cuMemSetAccess)
NOT_HERE(cuImportExternalMemory) NOT_HERE(cuDestroyExternalMemory) NOT_HERE(cuExternalMemoryGetMappedBuffer)
/* Always passed on; this driver has none. */
CUresult cuGetExportTable(const void **table, const void *id) { (void)id; counted("cuGetExportTable", 0); *table = 0; return NOT_FOUND; }

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);
CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) { return cuGetProcAddress_v2(name, function, version, flags, 0); }
/* The name for the resolver, since which version it means this function, and its form for per-thread default streams. */
static const struct named { const char *name; int since; void *plain, *per_thread; const char *symbol, *symbol_per_thread; } table[] = {
#define ONE(name, since, symbol) {#name, since, symbol, 0, #symbol, 0},
#define TWO(name, since, symbol, suffix) {#name, since, symbol, symbol##suffix, #symbol, #symbol #suffix},
    ONE(cuInit, 2000, cuInit) ONE(cuDriverGetVersion, 2020, cuDriverGetVersion) ONE(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)
    ONE(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease) ONE(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)
    ONE(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset) ONE(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)
    ONE(cuCtxDestroy, 2000, cuCtxDestroy) ONE(cuCtxDestroy, 4000, cuCtxDestroy_v2) ONE(cuCtxCreate, 3020, cuCtxCreate_v2)
    ONE(cuCtxSetCurrent, 4000, cuCtxSetCurrent) ONE(cuCtxGetCurrent, 4000, cuCtxGetCurrent) ONE(cuCtxGetDevice, 2000, cuCtxGetDevice)
    ONE(cuDeviceGetCount, 2000, cuDeviceGetCount) ONE(cuDeviceGet, 2000, cuDeviceGet) ONE(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode)
    ONE(cuGetExportTable, 3000, cuGetExportTable) ONE(cuMemAlloc, 3020, cuMemAlloc_v2) ONE(cuMemFree, 3020, cuMemFree_v2)
    ONE(cuMemHostAlloc, 2020, cuMemHostAlloc) ONE(cuMemFreeHost, 2000, cuMemFreeHost) ONE(cuStreamCreate, 2000, cuStreamCreate)
    TWO(cuStreamSynchronize, 2000, cuStreamSynchronize, _ptsz)
    TWO(cuLaunchKernel, 4000, cuLaunchKernel, _ptsz) TWO(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, _ptsz)
    TWO(cuLaunchKernelEx, 11060, cuLaunchKernelEx, _ptsz) TWO(cuGraphLaunch, 10000, cuGraphLaunch, _ptsz)
    TWO(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, _ptsz) TWO(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, _ptds)
    TWO(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, _ptsz) TWO(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, _ptds)
    TWO(cuMemcpyAsync, 4000, cuMemcpyAsync, _ptsz) TWO(cuMemcpy, 4000, cuMemcpy, _ptds)
    TWO(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, _ptsz) TWO(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, _ptds)
    TWO(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync, _ptsz) TWO(cuMemcpyPeer, 4000, cuMemcpyPeer, _ptds)
    TWO(cuMemcpy2D, 3020, cuMemcpy2D_v2, _ptds) TWO(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, _ptds) TWO(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, _ptsz)
    TWO(cuMemcpy3D, 3020, cuMemcpy3D_v2, _ptds) TWO(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2, _ptsz)
    TWO(cuMemcpyWithAttributesAsync, 13020, cuMemcpyWithAttributesAsync, _ptsz)
    TWO(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync, _ptsz) TWO(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2, _ptsz)
    ONE(cuGetProcAddress, 11030, cuGetProcAddress) ONE(cuGetProcAddress, 12000, cuGetProcAddress_v2)
};
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    int newest = 0;
    cuDriverGetVersion(&newest);
    *function = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name) && table[i].since <= version && table[i].since <= newest)
            *function = flags == 2 && table[i].per_thread ? table[i].per_thread : table[i].plain;
    if (found) *found = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
/* The library's name of the function at this address, if it is one of the table's; and all names. */
const char *fake_symbol(const void *address) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].plain == address) return table[i].symbol;
        if (table[i].per_thread && table[i].per_thread == address) return table[i].symbol_per_thread;
    }
    return 0;
}
const char *fake_symbol_at(size_t number) {
    size_t entries = sizeof table / sizeof *table;
    if (number < entries) return table[number].symbol;
    for (size_t i = 0; i < entries; i++) if (table[i].per_thread && number-- == entries) return table[i].symbol_per_thread;
    return 0;
}
