/*
 * A library with the part of the CUDA driver's interface that a guest and headway-preload use, and no GPU behind it.
 *
 * Copies and kernels happen in the call. A bulk copy stays "under way" for events until fake_finish() is called. Every call
 * that matters for order is written to a log, which fake_log() gives. It is strict where that finds mistakes: addresses must
 * lie in live ranges, kernels may write only what the device sees.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
enum { HOST = 1, DEVICE = 2 };

int headway_fake_driver = 1;

/* Headway's own threads call, too. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static size_t log_length;
#define LOG(...) (pthread_mutex_lock(&lock), log_length += (size_t)snprintf(log_text + log_length, sizeof log_text - log_length, __VA_ARGS__), pthread_mutex_unlock(&lock))
const char *fake_log(void) { return log_text; }
void fake_clear(void) { log_length = 0; log_text[0] = 0; }

static struct { uint64_t start; size_t bytes; int kind; } ranges[1024];
static int ranges_count;
static void range(void *start, size_t bytes, int kind) {
    pthread_mutex_lock(&lock);
    ranges[ranges_count].start = (uint64_t)start;
    ranges[ranges_count].bytes = bytes;
    ranges[ranges_count++].kind = kind;
    pthread_mutex_unlock(&lock);
}
static void no_range(void *start) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ranges_count; i++) if (ranges[i].start == (uint64_t)start) ranges[i].bytes = 0;
    pthread_mutex_unlock(&lock);
}
static int covered(uint64_t start, size_t bytes) {
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ranges_count; i++)
        if (start >= ranges[i].start && start + bytes <= ranges[i].start + ranges[i].bytes) found = i;
    pthread_mutex_unlock(&lock);
    return found;
}
/* Registers memory of the guest as page-locked. */
void fake_register(void *start, size_t bytes) { range(start, bytes, HOST); }

static int busy;          /* events are not reached */
static struct { volatile unsigned *at; unsigned value; } words[64]; /* of the guest's streams, whose copies stay under way */
static unsigned word_count;
static int capturing;     /* every stream captures */
static int sticky;        /* every call that asks for a state fails with this */
void fake_finish(void) { busy = 0; while (word_count) word_count--, *words[word_count].at = words[word_count].value; }
void fake_capture(int on) { capturing = on; }
void fake_break(int error) { sticky = error; }

CUresult cuInit(unsigned flags) { (void)flags; return SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13010; return SUCCESS; }
static __thread size_t current;
/* A program's first retain makes the context current, as cudart does by another call. */
CUresult cuDevicePrimaryCtxRetain(size_t *context, int device) {
    static int times;
    (void)device;
    *context = 77;
    if (!times++) current = 77;
    return SUCCESS;
}
CUresult cuCtxSetCurrent(size_t context) { current = context; return SUCCESS; }
CUresult cuGetErrorName(int code, const char **name) { (void)code; *name = "FAKE"; return SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
CUresult cuDeviceGet(int *device, int index) { *device = index; return SUCCESS; }
CUresult cuDeviceGetName(char *name, int bytes, int device) { (void)device; snprintf(name, (size_t)bytes, "fake"); return SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)1 << 30; return SUCCESS; }
CUresult cuDeviceGetPCIBusId(char *text, int bytes, int device) { (void)device; snprintf(text, (size_t)bytes, "0000:00:00.0"); return SUCCESS; }
CUresult cuDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; *can = 0; return SUCCESS; }
CUresult cuCtxEnablePeerAccess(size_t peer, unsigned flags) { (void)peer, (void)flags; return INVALID_VALUE; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; LOG("release\n"); return SUCCESS; }
CUresult cuDevicePrimaryCtxReset_v2(int device) { (void)device; LOG("reset\n"); return SUCCESS; }
CUresult cuCtxDestroy_v2(size_t context) { (void)context; LOG("destroy\n"); return SUCCESS; }
CUresult cuCtxGetCurrent(size_t *context) { *context = current; return SUCCESS; }
CUresult cuCtxGetDevice(int *device) { *device = 0; return SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 41;
    return SUCCESS;
}
/* Tests that share the user's board have a GPU each. */
CUresult cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    (void)device;
    const char *last = getenv("FAKE_GPU");
    memset(uuid, 7, 16);
    if (last) uuid[15] = (unsigned char)atoi(last);
    return SUCCESS;
}
CUresult cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    void *memory = malloc(bytes);
    range(memory, bytes, DEVICE);
    *address = (CUdeviceptr)memory;
    return SUCCESS;
}
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    range(*address, bytes, HOST);
    return SUCCESS;
}
CUresult cuMemFreeHost(void *address) { no_range(address); free(address); return SUCCESS; }
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) { (void)flags; range(address, bytes, HOST); return SUCCESS; }
CUresult cuMemHostUnregister(void *address) { no_range(address); return SUCCESS; }
CUresult cuMemFree_v2(CUdeviceptr address) { no_range((void *)address); free((void *)address); return SUCCESS; }
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = *total = (size_t)1 << 30; return SUCCESS; }
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) { memset((void *)to, value, bytes); return SUCCESS; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *seen, void *address, unsigned flags) {
    (void)flags;
    *seen = (CUdeviceptr)address;
    return SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address) {
    int found = covered(address, 1);
    int kind = found < 0 ? 0 : ranges[found].kind;
    for (unsigned i = 0; i < count; i++) switch (attributes[i]) {
        case 2: *(unsigned *)values[i] = (unsigned)kind; break;
        case 3: *(CUdeviceptr *)values[i] = kind ? address : 0; break;
        case 8: *(unsigned *)values[i] = 0; break;
        case 9: *(int *)values[i] = kind ? 0 : -2; break;
        case 11: *(CUdeviceptr *)values[i] = found < 0 ? 0 : ranges[found].start; break;
        case 12: *(size_t *)values[i] = found < 0 ? 0 : ranges[found].bytes; break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}
CUresult cuStreamCreate(size_t *stream, unsigned flags) { static size_t next = 100; (void)flags; *stream = next++; return SUCCESS; }
CUresult cuStreamDestroy_v2(size_t stream) { (void)stream; return SUCCESS; }
CUresult cuStreamIsCapturing(size_t stream, int *status) { (void)stream; *status = capturing; return SUCCESS; }
CUresult cuStreamQuery(size_t stream) { (void)stream; return sticky; }
CUresult cuStreamSynchronize(size_t stream) { LOG("wait %zu\n", stream); return sticky; }
CUresult cuStreamWriteValue32_v2(size_t stream, CUdeviceptr address, unsigned value, unsigned flags) {
    if (covered(address, 4) < 0 || flags) return INVALID_VALUE;
    if (capturing) LOG("write while capturing\n");
    LOG("write %zu\n", stream);
    if (stream <= 2 || stream >= 100 || word_count == sizeof words / sizeof *words) *(volatile unsigned *)address = value;
    else words[word_count].at = (volatile unsigned *)address, words[word_count++].value = value;
    return SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { static __thread int now; int before = now; now = *mode; *mode = before; return SUCCESS; }
/* Streams with small numbers are the guest's, whose copies stay under way; those of Headway end at once. */
static char pending[4096];
CUresult cuEventCreate(size_t *event, unsigned flags) {
    static size_t next = 900;
    (void)flags;
    pthread_mutex_lock(&lock);
    *event = next++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
CUresult cuEventDestroy_v2(size_t event) { (void)event; return SUCCESS; }
CUresult cuEventRecord(size_t event, size_t stream) {
    pending[event % sizeof pending] = stream > 2 && stream < 100;
    if (stream > 2 && stream < 100) busy = 1;
    return sticky;
}
CUresult cuEventQuery(size_t event) { return sticky ? sticky : busy && pending[event % sizeof pending] ? NOT_READY : SUCCESS; }
CUresult cuEventSynchronize(size_t event) { (void)event; LOG("wait for an event\n"); return sticky; }
CUresult cuEventElapsedTime(float *ms, size_t a, size_t b) { (void)a, (void)b; *ms = 0; return SUCCESS; }
CUresult cuModuleLoadData(size_t *module, const void *image) { *module = strstr(image, "headway_aside") ? 5 : 0; return SUCCESS; }
CUresult cuModuleGetFunction(size_t *function, size_t module, const char *name) { (void)name; *function = module; return SUCCESS; }
/* With FAKE_CORRUPT, copies in streams of Headway and those of its kernel give a wrong byte. */
static void corrupt(void *to, size_t bytes) { if (bytes && getenv("FAKE_CORRUPT")) ((unsigned char *)to)[bytes / 2] ^= 1; }
CUresult cuLaunchKernel(size_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        size_t stream, void **arguments, void **extra) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)extra, (void)bx;
    if (function != 5) return INVALID_VALUE;
    CUdeviceptr to = *(CUdeviceptr *)arguments[0], from = *(CUdeviceptr *)arguments[1];
    uint64_t bytes = *(uint64_t *)arguments[2];
    if (!bytes) return SUCCESS;
    if (covered(to, bytes) < 0 || covered(from, bytes) < 0) { LOG("kernel faults\n"); sticky = ILLEGAL_ADDRESS; return SUCCESS; }
    LOG("kernel %llu by %u in %zu\n", (unsigned long long)bytes, gx, stream);
    memcpy((void *)to, (void *)from, bytes);
    corrupt((void *)to, bytes);
    return SUCCESS;
}
static int failing;       /* copies in streams of Headway fail */
void fake_fail(int error) { failing = error; }
static CUresult copy(const char *name, void *to, const void *from, size_t bytes, size_t stream) {
    LOG("%s %zu in %zu\n", name, bytes, stream);
    if (sticky) return sticky;
    if (failing && stream >= 100) return failing;
    memcpy(to, from, bytes);
    if (stream >= 100) corrupt(to, bytes);
    return SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, size_t stream) { return copy("out", to, (void *)from, bytes, stream); }
CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, size_t stream) { return copy("out-ptsz", to, (void *)from, bytes, stream); }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { return copy("out-waits", to, (void *)from, bytes, 0); }
CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) { return copy("out-waits-ptds", to, (void *)from, bytes, 0); }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, size_t stream) { return copy("in", (void *)to, from, bytes, stream); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { return copy("in-waits", (void *)to, from, bytes, 0); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, size_t stream) { return copy("any", (void *)to, (void *)from, bytes, stream); }
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy("any-waits", (void *)to, (void *)from, bytes, 0); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, size_t stream) { return copy("within", (void *)to, (void *)from, bytes, stream); }
#define NOT_HERE(name) CUresult name(void) { return INVALID_VALUE; }
NOT_HERE(cuMemcpyPeerAsync) NOT_HERE(cuModuleLoadDataEx) NOT_HERE(cuModuleUnload) NOT_HERE(cuFuncSetAttribute)
NOT_HERE(cuMemGetAllocationGranularity) NOT_HERE(cuMemCreate) NOT_HERE(cuMemRelease) NOT_HERE(cuMemExportToShareableHandle)
NOT_HERE(cuMemAddressReserve) NOT_HERE(cuMemAddressFree) NOT_HERE(cuMemMap) NOT_HERE(cuMemUnmap) NOT_HERE(cuMemSetAccess)
NOT_HERE(cuImportExternalMemory) NOT_HERE(cuDestroyExternalMemory) NOT_HERE(cuExternalMemoryGetMappedBuffer)
/* Of another signature than any that is replaced: it must come back untouched. */
CUresult cuMemcpyBatchAsync(void) { return SUCCESS; }

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);
CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    static const struct { const char *name; void *plain, *per_thread; } table[] = {
        {"cuInit", cuInit, 0}, {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 0}, {"cuMemAlloc", cuMemAlloc_v2, 0},
        {"cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz}, {"cuMemcpyDtoH", cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds},
        {"cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 0}, {"cuMemcpyHtoD", cuMemcpyHtoD_v2, 0}, {"cuMemcpyAsync", cuMemcpyAsync, 0},
        {"cuMemcpy", cuMemcpy, 0}, {"cuStreamSynchronize", cuStreamSynchronize, 0}, {"cuMemcpyBatchAsync", cuMemcpyBatchAsync, 0},
        {"cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 0},
    };
    *function = 0;
    if (!strcmp(name, "cuGetProcAddress")) *function = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name)) *function = flags == 2 && table[i].per_thread ? table[i].per_thread : table[i].plain;
    if (found) *found = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
