/*
 * A library with the CUDA driver's interface and no GPU behind it, for the tests of headway-cuda.
 *
 * Device memory is host memory, copies happen in the call, the one kernel it can run is the conformance suite's. It is
 * stricter than the driver where that finds mistakes: asynchronous copies need pinned memory, every address must lie in a
 * live allocation, a context must be current. It can never pass for a GPU: it exports `headway_fake_driver`.
 *
 * Built per test with:
 *   -DFAIL_CALL="\"cuMemHostAlloc\"" -DFAIL_CODE=2 -DFAIL_AT=3    the third such call fails (all calls later too: -DFAIL_STICKY)
 *   -DLAG=4            an event is reached only after that many queries
 *   -DCOPY_NANOS=1000  asynchronous copies take that long
 *   -DcuEventQuery=gone    a missing function
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef FAIL_CALL
#define FAIL_CALL ""
#endif
#ifndef FAIL_CODE
#define FAIL_CODE 0
#endif
#ifndef FAIL_AT
#define FAIL_AT 1
#endif
#ifndef LAG
#define LAG 2
#endif
#ifndef COPY_NANOS
#define COPY_NANOS 0
#endif
#ifndef DEVICES
#define DEVICES 2
#endif

enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_PTX = 218, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, ENABLED = 704 };
typedef int Code;
typedef unsigned long long Address;

int headway_fake_driver = 1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int calls, broken, live;
static __thread struct Context *current;

static struct Context { int retained, peer_enabled; } contexts[DEVICES];
typedef struct { char *base; size_t bytes; int pinned, used; } Range;
static Range ranges[65536];
static int range_count;
typedef struct { long long nanos; int lag; } Event;
typedef struct { int entry_known; char *text; int shared; } Module;

/* Everything below runs under the mutex: `return` through LEAVE. */
static int fails(const char *name) {
	if (broken) return broken;
	if (strcmp(name, FAIL_CALL) == 0 && ++calls == FAIL_AT) {
#ifdef FAIL_STICKY
		broken = FAIL_CODE;
#endif
		return FAIL_CODE;
	}
	return 0;
}
#define ENTER(name) pthread_mutex_lock(&mutex); { int code_ = fails(#name); if (code_) { pthread_mutex_unlock(&mutex); return code_; } }
#define LEAVE(code) do { int result_ = (code); pthread_mutex_unlock(&mutex); return result_; } while (0)
#define NEED(condition, code) do { if (!(condition)) LEAVE(code); } while (0)

static int inside(const void *start, size_t bytes, int pinned) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].pinned == pinned && (const char *)start >= ranges[i].base &&
		    (const char *)start + bytes <= ranges[i].base + ranges[i].bytes)
			return 1;
	return 0;
}
static char *take(size_t bytes, int pinned) {
	int at = 0;
	while (at < range_count && ranges[at].used) at++;
	if (at == 65536) return NULL;
	char *base = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!base) return NULL;
	memset(base, 0xA5, bytes);
	ranges[at] = (Range){base, bytes, pinned, 1};
	if (at == range_count) range_count++;
	live++;
	return base;
}
static int give(const void *base, int pinned) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].base == base && ranges[i].pinned == pinned) {
			ranges[i].used = 0;
			free(ranges[i].base);
			live--;
			return 0;
		}
	return INVALID_VALUE;
}
static long long now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* For the tests: objects and allocations not given back, retained contexts included. */
int headway_fake_live(void) { return live; }

Code cuInit(unsigned flags) { ENTER(cuInit); LEAVE(flags ? INVALID_VALUE : 0); }
Code cuDriverGetVersion(int *version) { ENTER(cuDriverGetVersion); *version = 13010; LEAVE(0); }
Code cuGetErrorName(Code code, const char **name) {
	*name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 218 ? "CUDA_ERROR_INVALID_PTX"
		: code == 500 ? "CUDA_ERROR_NOT_FOUND" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 1 ? "CUDA_ERROR_INVALID_VALUE"
		: code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : NULL;
	return *name ? 0 : INVALID_VALUE;
}
Code cuDeviceGetCount(int *count) { ENTER(cuDeviceGetCount); *count = DEVICES; LEAVE(0); }
Code cuDeviceGet(int *device, int index) { ENTER(cuDeviceGet); NEED(index >= 0 && index < DEVICES, 101); *device = index; LEAVE(0); }
Code cuDeviceGetName(char *name, int bytes, int device) { ENTER(cuDeviceGetName); snprintf(name, bytes, "fake %d (test library, no GPU)", device); LEAVE(0); }
Code cuDeviceGetUuid_v2(unsigned char *uuid, int device) { ENTER(cuDeviceGetUuid_v2); for (int i = 0; i < 16; i++) uuid[i] = 16 * device + i; LEAVE(0); }
Code cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; ENTER(cuDeviceTotalMem_v2); *bytes = 256u << 20; LEAVE(0); }
Code cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; ENTER(cuDeviceGetAttribute); *value = attribute; LEAVE(0); }
Code cuDeviceGetPCIBusId(char *text, int bytes, int device) { ENTER(cuDeviceGetPCIBusId); snprintf(text, bytes, "0000:0%X:00.0", 10 + device); LEAVE(0); }
Code cuDeviceCanAccessPeer(int *can, int from, int to) {
	ENTER(cuDeviceCanAccessPeer);
#ifdef NO_PEERS
	*can = 0;
#else
	*can = from != to;
#endif
	LEAVE(0);
}
Code cuDevicePrimaryCtxRetain(void **context, int device) { ENTER(cuDevicePrimaryCtxRetain); contexts[device].retained++; live++; *context = &contexts[device]; LEAVE(0); }
Code cuDevicePrimaryCtxRelease_v2(int device) { ENTER(cuDevicePrimaryCtxRelease_v2); NEED(contexts[device].retained, INVALID_CONTEXT); contexts[device].retained--; live--; LEAVE(0); }
Code cuCtxSetCurrent(void *context) { ENTER(cuCtxSetCurrent); current = context; LEAVE(0); }
Code cuCtxEnablePeerAccess(void *peer, unsigned flags) {
	ENTER(cuCtxEnablePeerAccess);
	NEED(current && peer != current && !flags, INVALID_CONTEXT);
	NEED(!current->peer_enabled, ENABLED);
	current->peer_enabled = 1;
	LEAVE(0);
}
Code cuStreamCreate(void **stream, unsigned flags) { ENTER(cuStreamCreate); NEED(current, INVALID_CONTEXT); NEED(flags == 1, INVALID_VALUE); *stream = malloc(1); live++; LEAVE(0); }
Code cuStreamDestroy_v2(void *stream) { ENTER(cuStreamDestroy_v2); NEED(current, INVALID_CONTEXT); free(stream); live--; LEAVE(0); }
Code cuStreamSynchronize(void *stream) { (void)stream; ENTER(cuStreamSynchronize); NEED(current, INVALID_CONTEXT); LEAVE(0); }
Code cuEventCreate(void **event, unsigned flags) { ENTER(cuEventCreate); NEED(current, INVALID_CONTEXT); NEED(!flags, INVALID_VALUE); *event = calloc(1, sizeof(Event)); live++; LEAVE(0); }
Code cuEventDestroy_v2(void *event) { ENTER(cuEventDestroy_v2); NEED(current, INVALID_CONTEXT); free(event); live--; LEAVE(0); }
Code cuEventRecord(Event *event, void *stream) { (void)stream; ENTER(cuEventRecord); NEED(current, INVALID_CONTEXT); *event = (Event){now(), LAG}; LEAVE(0); }
Code cuEventQuery(Event *event) { ENTER(cuEventQuery); NEED(current, INVALID_CONTEXT); LEAVE(event->lag > 0 && event->lag-- ? NOT_READY : 0); }
Code cuEventElapsedTime(float *millis, Event *from, Event *to) { ENTER(cuEventElapsedTime); NEED(from->nanos && to->nanos, 400); *millis = (to->nanos - from->nanos) * 1e-6f; LEAVE(0); }
Code cuModuleLoadDataEx(void **module, const char *image, unsigned count, int *options, void **values) {
	ENTER(cuModuleLoadDataEx);
	NEED(current, INVALID_CONTEXT);
	if (strncmp(image, "//", 2) || !strstr(image, ".version")) {
		for (unsigned i = 0; i < count; i++)
			if (options[i] == 5) snprintf(values[i], 64, "fake ptxas: line 1: not PTX");
		LEAVE(INVALID_PTX);
	}
	Module *made = calloc(1, sizeof(Module));
	made->text = strdup(image);
	*module = made;
	live++;
	LEAVE(0);
}
Code cuModuleUnload(Module *module) { ENTER(cuModuleUnload); free(module->text); free(module); live--; LEAVE(0); }
Code cuModuleGetFunction(void **function, Module *module, const char *name) {
	ENTER(cuModuleGetFunction);
	NEED(strcmp(name, "headway_conformance_xor") == 0 && strstr(module->text, name), NOT_FOUND);
	*function = module;
	LEAVE(0);
}
Code cuFuncSetAttribute(Module *function, int attribute, int value) { ENTER(cuFuncSetAttribute); NEED(attribute == 8 && value <= 227 << 10, INVALID_VALUE); function->shared = value; LEAVE(0); }
Code cuLaunchKernel(Module *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
		void *stream, void **arguments, void **extra) {
	ENTER(cuLaunchKernel);
	NEED(current && stream && !extra, INVALID_CONTEXT);
	NEED(y == 1 && z == 1 && ty == 1 && tz == 1 && blocks && threads && threads <= 1024, INVALID_VALUE);
	NEED(shared <= 48 << 10 || shared <= (unsigned)function->shared, INVALID_VALUE);
	unsigned char *input = *(void **)arguments[0], *output = *(void **)arguments[1];
	unsigned *state = *(void **)arguments[2], lanes = *(unsigned *)arguments[3], *table = (unsigned *)(input + 16);
	memcpy(output, input, (16 + 8 * lanes + 15) / 16 * 16);
	for (unsigned lane = 0; lane < lanes && lane < blocks; lane++) {
		NEED(inside(input + table[2 * lane], table[2 * lane + 1], 0) && inside(output + table[2 * lane], table[2 * lane + 1], 0), 700);
		for (unsigned i = 0; i < table[2 * lane + 1]; i++)
			output[table[2 * lane] + i] = input[table[2 * lane] + i] ^ (lane + state[lane]);
		state[lane]++;
	}
	LEAVE(0);
}
Code cuMemAlloc_v2(Address *address, size_t bytes) { ENTER(cuMemAlloc_v2); NEED(current, INVALID_CONTEXT); char *base = take(bytes, 0); *address = (Address)base; LEAVE(base ? 0 : NO_MEMORY); }
Code cuMemFree_v2(Address address) { ENTER(cuMemFree_v2); NEED(current, INVALID_CONTEXT); LEAVE(give((void *)address, 0)); }
Code cuMemGetInfo_v2(size_t *available, size_t *total) { ENTER(cuMemGetInfo_v2); *available = 12345; *total = 256u << 20; LEAVE(0); }
Code cuMemHostAlloc(void **base, size_t bytes, unsigned flags) { ENTER(cuMemHostAlloc); NEED(current, INVALID_CONTEXT); NEED(flags & 1, INVALID_VALUE); *base = take(bytes, 1); LEAVE(*base ? 0 : NO_MEMORY); }
Code cuMemFreeHost(void *base) { ENTER(cuMemFreeHost); LEAVE(give(base, 1)); }
Code cuMemsetD8_v2(Address address, unsigned char value, size_t bytes) { ENTER(cuMemsetD8_v2); NEED(inside((void *)address, bytes, 0), INVALID_VALUE); memset((void *)address, value, bytes); LEAVE(0); }
#define COPY(name, condition) ENTER(name); NEED(current, INVALID_CONTEXT); NEED(condition, INVALID_VALUE); memcpy((void *)to, (const void *)from, bytes); LEAVE(0)
Code cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { COPY(cuMemcpyHtoD_v2, inside((void *)to, bytes, 0)); }
Code cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { COPY(cuMemcpyDtoH_v2, inside((void *)from, bytes, 0)); }
Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) { for (long long end = now() + COPY_NANOS; now() < end;); COPY(cuMemcpyHtoDAsync_v2, stream && bytes && inside((void *)to, bytes, 0) && inside(from, bytes, 1)); }
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) { COPY(cuMemcpyDtoHAsync_v2, stream && bytes && inside((void *)from, bytes, 0) && inside(to, bytes, 1)); }
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) { COPY(cuMemcpyDtoDAsync_v2, stream && bytes && inside((void *)from, bytes, 0) && inside((void *)to, bytes, 0)); }
Code cuMemcpyPeerAsync(Address to, void *to_context, Address from, void *from_context, size_t bytes, void *stream) {
	COPY(cuMemcpyPeerAsync, stream && bytes && to_context != from_context && current->peer_enabled && inside((void *)from, bytes, 0) && inside((void *)to, bytes, 0));
}

/* NVML: two GPUs, the first with three links of which the second is down. */
typedef struct { char legacy[16]; unsigned numbers[5]; char address[32]; } Pci;
static void *handles[2] = {(void *)1, (void *)2};
int nvmlInit_v2(void) {
#ifdef NVML_INIT
	return NVML_INIT;
#else
	return 0;
#endif
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { snprintf(text, bytes, "0.fake"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = handles[index]; return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned bytes) { snprintf(text, bytes, "fake %d", handle != handles[0]); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned bytes) { snprintf(text, bytes, "GPU-%d", handle != handles[0]); return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { snprintf(pci->address, 32, "00000000:0%c:00.0", handle == handles[0] ? 'A' : 'B'); return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) { *value = 1; return handle == handles[0] ? 0 : 3; }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { (void)handle; *value = 16; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) { (void)handle; *value = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value) { (void)handle; *value = 16; return 0; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) { *active = link != 1; return handle != handles[0] ? 3 : link < 3 ? 0 : 2; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) { (void)handle; snprintf(pci->address, 32, "00000000:0B:00.0"); return link == 2 ? 3 : 0; }
