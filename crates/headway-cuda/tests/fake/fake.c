/*
 * A library with the CUDA driver's interface and no GPU behind it, for the tests of headway-cuda.
 *
 * Device memory is host memory, copies happen in the call, the kernels it can run are those of the conformance suites and the
 * crate's own. It is
 * stricter than the driver where that finds mistakes: asynchronous copies need pinned memory, every address must lie in a
 * live allocation, a context must be current. It can never pass for a GPU: it exports `headway_fake_driver`.
 *
 * Built per test with:
 *   -DFAIL_CALL="\"cuMemHostAlloc\"" -DFAIL_CODE=2 -DFAIL_AT=3    the third such call fails (all calls later too: -DFAIL_STICKY)
 *   -DLAG=4            an event is reached only after that many queries
 *   -DCOPY_NANOS=1000  asynchronous copies take that long
 *   -DcuEventQuery=gone    a missing function
 *   -DNO_REGISTER      memory cannot be pinned in place
 *   -DSTAGED           copies of ordinary memory arrive when the default stream is waited for
 *   -DMANAGED=1        every address is of managed memory
 *   -DSTREAMS          streams work by themselves, and wait for words: see streams.h
 * and with what window.h says.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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
#ifndef MANAGED
#define MANAGED 0
#endif
#ifndef KERNEL_TIME_LIMIT
#define KERNEL_TIME_LIMIT 0
#endif
#ifndef CAPABILITY_MAJOR
#define CAPABILITY_MAJOR 75
#endif
#ifndef VERSION
#define VERSION 13010
#endif
#ifndef DEVICES
#define DEVICES 2
#endif

enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_PTX = 218, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, ENABLED = 704, REGISTERED = 712 };
typedef int Code;
typedef unsigned long long Address;

int headway_fake_driver = 1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int calls, broken, live;
/* Set by a test while it runs: from the so-manieth call of this name on, every call fails. */
static char fault_call[64];
static int fault_code, fault_left;
/* Set by a test: nothing that was queued ends. */
static volatile int held;
static __thread struct Context *current;

static struct Context { int retained, peer_enabled; } contexts[DEVICES];
typedef struct { char *base; size_t bytes; int pinned, used, foreign, fd; size_t room; } Range;
static Range ranges[65536];
static int range_count;
/* Operations of streams that have not ended. */
static int unfinished;
int headway_fake_unfinished(void) { return __atomic_load_n(&unfinished, __ATOMIC_ACQUIRE); }
#ifdef STREAMS
#include "streams.h"
#else
typedef struct { struct Context *context; pthread_t last; int has_last, busy; } Stream;
#endif
typedef struct { long long nanos; int lag; unsigned untimed; struct Context *context; } Event;
typedef struct { int entry; char *text; int shared, large_clusters; } Module;

/* Everything below runs under the mutex: `return` through LEAVE. */
static int fails(const char *name) {
	if (broken) return broken;
	if (fault_left && strcmp(name, fault_call) == 0 && --fault_left == 0) return broken = fault_code;
	if (strcmp(name, FAIL_CALL) == 0 && ++calls == FAIL_AT) {
#ifdef FAIL_STICKY
		broken = FAIL_CODE;
#endif
		return FAIL_CODE;
	}
	return 0;
}
static int keeps_out;
/* 1: each call waits until all streams rest, as if another thread freed memory, or loaded a module, just then. 2: those that free memory do. */
void headway_fake_keep_out(int which) { __atomic_store_n(&keeps_out, which, __ATOMIC_SEQ_CST); }
static void come_in(const char *name) {
	int frees = strstr(name, "Free") || strstr(name, "Unregister");
	pthread_mutex_lock(&mutex);
	for (int which; (which = __atomic_load_n(&keeps_out, __ATOMIC_SEQ_CST)) && (which == 1 || frees) && unfinished && !broken;) {
		pthread_mutex_unlock(&mutex);
		sched_yield();
		pthread_mutex_lock(&mutex);
	}
}
#define ENTER(name) come_in(#name); { int code_ = fails(#name); if (code_) { pthread_mutex_unlock(&mutex); return code_; } }
#define LEAVE(code) do { int result_ = (code); pthread_mutex_unlock(&mutex); return result_; } while (0)
/* A handle of the current context. */
#define MINE(handle) (current && (handle) && (handle)->context == current)
#define NEED(condition, code) do { if (!(condition)) LEAVE(code); } while (0)

static int inside(const void *start, size_t bytes, int pinned) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].pinned == pinned && (const char *)start >= ranges[i].base &&
		    (const char *)start + bytes <= ranges[i].base + ranges[i].bytes)
			return 1;
	return 0;
}
static int overlaps(const char *base, size_t bytes) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && base < ranges[i].base + ranges[i].bytes && ranges[i].base < base + bytes) return 1;
	return 0;
}
static Range *slot(void) {
	int at = 0;
	while (at < range_count && ranges[at].used) at++;
	if (at == 65536) return NULL;
	if (at == range_count) range_count++;
	return &ranges[at];
}
static char *take(size_t bytes, int pinned) {
	Range *range = slot();
	if (!range) return NULL;
	int fd = 0;
	size_t room = (bytes + 4095) / 4096 * 4096;
	char *base;
#ifdef MEMFD
	/* On its own GPU pages, as large allocations of the driver. */
	if (!pinned) {
		room = (bytes + 65535) / 65536 * 65536;
		fd = memfd_create("fake", 0);
		if (fd < 0 || ftruncate(fd, room)) return NULL;
		char *wide = mmap(NULL, room + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (wide == MAP_FAILED) return NULL;
		base = (char *)(((size_t)wide + 65535) / 65536 * 65536);
		if (mmap(base, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return NULL;
	} else
#endif
	base = aligned_alloc(4096, room);
	if (!base) return NULL;
	memset(base, 0xA5, bytes);
	*range = (Range){base, bytes, pinned, 1, 0, fd, room};
	live++;
	return base;
}
static int give(const void *base, int pinned) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].base == base && ranges[i].pinned == pinned && !ranges[i].foreign) {
			ranges[i].used = 0;
			if (ranges[i].room) {
				if (ranges[i].fd) munmap(ranges[i].base, ranges[i].room), close(ranges[i].fd);
				else free(ranges[i].base);
			} else munmap(ranges[i].base, ranges[i].bytes);
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

#include "resident.h"

/* For the tests: from the `at`-th call of `call` from now on, every call fails with `code`; at once if `at` is 0. */
void headway_fake_fail(const char *call, int code, int at) {
	pthread_mutex_lock(&mutex);
	snprintf(fault_call, sizeof fault_call, "%s", call);
	fault_code = code;
	fault_left = at;
	if (!at) broken = code;
	pthread_mutex_unlock(&mutex);
}
/* For the tests: while this is set no event is reached and no stream is empty, as on a GPU that hangs. */
void headway_fake_hold(int hold) { held = hold; }
/* For the tests: objects and allocations not given back, retained contexts included. */
int headway_fake_live(void) { return live; }
/* For bench/soak.py: bytes that are page-locked. */
size_t headway_fake_locked(void) {
	size_t bytes = 0;
	pthread_mutex_lock(&mutex);
	for (int i = 0; i < range_count; i++) if (ranges[i].used && ranges[i].pinned) bytes += ranges[i].bytes;
	pthread_mutex_unlock(&mutex);
	return bytes;
}

Code cuInit(unsigned flags) { ENTER(cuInit); LEAVE(flags ? INVALID_VALUE : 0); }
Code cuDriverGetVersion(int *version) { ENTER(cuDriverGetVersion); *version = VERSION; LEAVE(0); }
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
/* 91: registered memory has one address */
Code cuDeviceGetAttribute(int *value, int attribute, int device) {
	(void)device;
	ENTER(cuDeviceGetAttribute);
	*value = attribute == 17 ? KERNEL_TIME_LIMIT : attribute == 75 ? CAPABILITY_MAJOR : attribute;
#ifdef MMAP_ATTRIBUTE
	if (attribute == 152) *value = MMAP_ATTRIBUTE;
#endif
	LEAVE(0);
}
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
Code cuCtxGetCurrent(void **context) { ENTER(cuCtxGetCurrent); *context = current; LEAVE(0); }
Code cuCtxGetDevice(int *device) { ENTER(cuCtxGetDevice); NEED(current, INVALID_CONTEXT); *device = (int)(current - contexts); LEAVE(0); }
Code cuCtxSetCurrent(void *context) { ENTER(cuCtxSetCurrent); current = context; LEAVE(0); }
Code cuCtxEnablePeerAccess(void *peer, unsigned flags) {
	ENTER(cuCtxEnablePeerAccess);
	NEED(current && peer != current && !flags, INVALID_CONTEXT);
	NEED(!current->peer_enabled, ENABLED);
	current->peer_enabled = 1;
	LEAVE(0);
}
#ifndef STREAMS
Code cuStreamCreate(void **stream, unsigned flags) { ENTER(cuStreamCreate); NEED(current, INVALID_CONTEXT); NEED(flags == 1, INVALID_VALUE); Stream *made = calloc(1, sizeof(Stream)); NEED(made, NO_MEMORY); made->context = current; *stream = made; live++; LEAVE(0); }
Code cuStreamDestroy_v2(Stream *stream) { finish(stream); ENTER(cuStreamDestroy_v2); NEED(MINE(stream), INVALID_CONTEXT); free(stream); live--; LEAVE(0); }
Code cuStreamIsCapturing(Stream *stream, int *status) { (void)stream; ENTER(cuStreamIsCapturing); *status = 0; LEAVE(0); }
#else
Code cuStreamCreate(Stream **stream, unsigned flags) {
	ENTER(cuStreamCreate);
	NEED(current, INVALID_CONTEXT);
	NEED(flags == 1, INVALID_VALUE);
	Stream *made = calloc(1, sizeof *made);
	NEED(made, NO_MEMORY);
	made->context = current;
	pthread_cond_init(&made->came, NULL);
	if (pthread_create(&made->thread, NULL, serve_stream, made)) {
		free(made);
		LEAVE(NO_MEMORY);
	}
	*stream = made;
	live++;
	LEAVE(0);
}
Code cuStreamDestroy_v2(Stream *stream) {
	ENTER(cuStreamDestroy_v2);
	NEED(MINE(stream), INVALID_CONTEXT);
	stream->quits = 1;
	pthread_cond_signal(&stream->came);
	live--;
	pthread_mutex_unlock(&mutex);
	pthread_join(stream->thread, NULL);
	free(stream);
	return 0;
}
Code cuStreamQuery(Stream *stream) { ENTER(cuStreamQuery); stream = stream_of(stream); NEED(MINE(stream), INVALID_CONTEXT); NEED(MAY_ASK, 900); LEAVE(stream->first ? NOT_READY : 0); }
Code cuStreamIsCapturing(Stream *stream, int *status) { ENTER(cuStreamIsCapturing); NEED(MINE(stream_of(stream)), INVALID_CONTEXT); *status = capturing; LEAVE(0); }
#endif
/* From ordinary memory: with -DSTAGED the bytes arrive when the default stream is waited for. */
static struct { char *to, *bytes; size_t count; } staged;
#ifdef STREAMS
Code cuStreamSynchronize(Stream *stream) {
	Code code;
	while ((code = cuStreamQuery(stream)) == NOT_READY) sched_yield();
	return code;
}
#else
Code cuStreamSynchronize(Stream *stream) {
	while (held) sched_yield();
	finish(stream);
	ENTER(cuStreamSynchronize);
	NEED(stream ? MINE(stream) : current != NULL, INVALID_CONTEXT);
	if (!stream && staged.bytes) {
		memcpy(staged.to, staged.bytes, staged.count);
		free(staged.bytes);
		staged.bytes = NULL;
	}
	LEAVE(0);
}
#endif
Code cuEventCreate(void **event, unsigned flags) { ENTER(cuEventCreate); NEED(current, INVALID_CONTEXT); NEED(!(flags & ~2u), INVALID_VALUE); *event = calloc(1, sizeof(Event)); NEED(*event, NO_MEMORY); ((Event *)*event)->untimed = flags; ((Event *)*event)->context = current; live++; LEAVE(0); }
Code cuEventDestroy_v2(void *event) { ENTER(cuEventDestroy_v2); NEED(current, INVALID_CONTEXT); free(event); live--; LEAVE(0); }
#ifdef STREAMS
/* Reached when the stream has come to it. */
Code cuEventRecord(Event *event, Stream *stream) {
	ENTER(cuEventRecord);
	stream = stream_of(stream);
	NEED(MINE(event) && MINE(stream), INVALID_CONTEXT);
	event->nanos = now();
	__atomic_store_n(&event->lag, 1, __ATOMIC_RELEASE);
	LEAVE(enqueue(stream, (Operation){WRITE_WORD, (char *)&event->lag, NULL, 0, 0, NULL}));
}
Code cuEventQuery(Event *event) { ENTER(cuEventQuery); NEED(MINE(event), INVALID_CONTEXT); NEED(MAY_ASK, 900); LEAVE(__atomic_load_n(&event->lag, __ATOMIC_ACQUIRE) ? NOT_READY : 0); }
#else
Code cuEventRecord(Event *event, Stream *stream) { ENTER(cuEventRecord); NEED(MINE(event) && MINE(stream), INVALID_CONTEXT); event->nanos = now(); event->lag = LAG; LEAVE(0); }
Code cuEventQuery(Event *event) { ENTER(cuEventQuery); NEED(MINE(event), INVALID_CONTEXT); LEAVE(held || (event->lag > 0 && event->lag--) ? NOT_READY : 0); }
#endif
Code cuEventElapsedTime(float *millis, Event *from, Event *to) { ENTER(cuEventElapsedTime); NEED(from->nanos && to->nanos && !from->untimed && !to->untimed, 400); *millis = (to->nanos - from->nanos) * 1e-6f; LEAVE(0); }
Code cuModuleLoadDataEx(void **module, const char *image, unsigned count, int *options, void **values) {
	ENTER(cuModuleLoadDataEx);
	NEED(current, INVALID_CONTEXT);
	if (strncmp(image, "//", 2) || !strstr(image, ".version")) {
		for (unsigned i = 0; i < count; i++)
			if (options[i] == 5) snprintf(values[i], 64, "fake ptxas: line 1: not PTX");
		LEAVE(INVALID_PTX);
	}
	Module *made = calloc(1, sizeof(Module));
	NEED(made, NO_MEMORY);
	made->text = strdup(image);
	NEED(made->text, NO_MEMORY);
	*module = made;
	live++;
	LEAVE(0);
}
Code cuModuleUnload(Module *module) { ENTER(cuModuleUnload); free(module->text); free(module); live--; LEAVE(0); }
static const char *const entries[] = {"headway_conformance_xor", "headway_copy_pieces", "headway_resident", "headway_resident_cluster", "headway_conformance_add"};
Code cuModuleGetFunction(void **function, Module *module, const char *name) {
	ENTER(cuModuleGetFunction);
	module->entry = -1;
	for (int i = 0; i < (int)(sizeof entries / sizeof *entries); i++)
		if (strcmp(name, entries[i]) == 0 && strstr(module->text, name)) module->entry = i;
	NEED(module->entry >= 0, NOT_FOUND);
	*function = module;
	LEAVE(0);
}
Code cuFuncLoad(Module *function) { ENTER(cuFuncLoad); NEED(current && function->entry >= 0, INVALID_CONTEXT); LEAVE(0); }
Code cuFuncSetAttribute(Module *function, int attribute, int value) { ENTER(cuFuncSetAttribute); NEED((attribute == 8 && value <= 227 << 10) || attribute == 14, INVALID_VALUE); if (attribute == 8) function->shared = value; else function->large_clusters = value; LEAVE(0); }

static int anywhere(const void *start, size_t bytes) { return inside(start, bytes, 0) || inside(start, bytes, 1); }
static Code run_xor(unsigned blocks, void **arguments) {
	unsigned char *input = *(void **)arguments[0], *output = *(void **)arguments[1];
	unsigned *state = *(void **)arguments[2], portions = *(unsigned *)arguments[3], *table = (unsigned *)(input + 16);
	memcpy(output, input, (16 + 8 * portions + 15) / 16 * 16);
	for (unsigned portion = 0; portion < portions && portion < blocks; portion++) {
		if (!inside(input + table[2 * portion], table[2 * portion + 1], 0) || !inside(output + table[2 * portion], table[2 * portion + 1], 0))
			return 700;
		for (unsigned i = 0; i < table[2 * portion + 1]; i++)
			output[table[2 * portion] + i] = input[table[2 * portion] + i] ^ (portion + state[portion]);
		state[portion]++;
	}
	return 0;
}
static Code run_copy_pieces(unsigned threads, void **arguments) {
	const unsigned long long (*table)[3] = *(void **)arguments[0];
	unsigned count = *(unsigned *)arguments[1];
	if (threads % 32 || !anywhere(table, count * sizeof *table)) return 700;
	for (unsigned i = 0; i < count; i++) {
		void *from = (void *)table[i][0], *to = (void *)table[i][1];
		if (!table[i][2] || !anywhere(from, table[i][2]) || !anywhere(to, table[i][2])) return 700;
		memcpy(to, from, table[i][2]);
	}
	return 0;
}
static Code run_add(void **arguments) {
	const unsigned char *from = *(void **)arguments[0];
	unsigned char *to = *(void **)arguments[1];
	int count = *(int *)arguments[2], add = *(int *)arguments[3];
	if (count > 0 && (!anywhere(from, count) || !anywhere(to, count))) return 700;
	for (int i = 0; i < count; i++) to[i] = from[i] + (unsigned)add;
	return 0;
}
Code cuLaunchKernel(Module *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
		Stream *stream, void **arguments, void **extra) {
	ENTER(cuLaunchKernel);
	NEED(MINE(stream) && !extra, INVALID_CONTEXT);
	NEED(y == 1 && z == 1 && ty == 1 && tz == 1 && blocks && threads && threads <= 1024, INVALID_VALUE);
	NEED(shared <= 48 << 10 || shared <= (unsigned)function->shared, INVALID_VALUE);
	switch (function->entry) {
	case 0: LEAVE(run_xor(blocks, arguments));
	case 1: LEAVE(run_copy_pieces(threads, arguments));
	case 2: LEAVE(launch_resident(stream, blocks, arguments));
	case 4: LEAVE(run_add(arguments));
	default: LEAVE(NOT_FOUND);
	}
}
Code cuMemAlloc_v2(Address *address, size_t bytes) { ENTER(cuMemAlloc_v2); NEED(current, INVALID_CONTEXT); char *base = take(bytes, 0); *address = (Address)base; LEAVE(base ? 0 : NO_MEMORY); }
Code cuMemFree_v2(Address address) { ENTER(cuMemFree_v2); NEED(current, INVALID_CONTEXT); LEAVE(give((void *)address, 0)); }
Code cuMemGetInfo_v2(size_t *available, size_t *total) { ENTER(cuMemGetInfo_v2); *available = 12345; *total = 256u << 20; LEAVE(0); }
Code cuMemHostAlloc(void **base, size_t bytes, unsigned flags) { ENTER(cuMemHostAlloc); NEED(current, INVALID_CONTEXT); NEED((flags & 1) && !(flags & ~7u), INVALID_VALUE); *base = take(bytes, 1); LEAVE(*base ? 0 : NO_MEMORY); }
Code cuMemFreeHost(void *base) { ENTER(cuMemFreeHost); LEAVE(give(base, 1)); }
/* Memory of the caller's, pinned in place: it is not ours to free. */
Code cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
	ENTER(cuMemHostRegister_v2);
	NEED(current, INVALID_CONTEXT);
#ifdef NO_REGISTER
	LEAVE(801);
#endif
	NEED((flags & 1) && bytes && (size_t)base % 4096 == 0 && bytes % 4096 == 0, INVALID_VALUE);
	NEED(!overlaps(base, bytes), REGISTERED);
	Range *range = slot();
	NEED(range, NO_MEMORY);
	*range = (Range){base, bytes, 1, 1, 1, 0, 0};
	live++;
	LEAVE(0);
}
Code cuMemHostUnregister(void *base) {
	ENTER(cuMemHostUnregister);
	NEED(current, INVALID_CONTEXT);
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].base == base && ranges[i].foreign) {
			ranges[i].used = 0;
			live--;
			LEAVE(0);
		}
	LEAVE(713);
}
/* Unknown addresses are no error: zeros. */
Code cuPointerGetAttributes(unsigned count, const int *attributes, void **answers, Address address) {
	ENTER(cuPointerGetAttributes);
	NEED(current, INVALID_CONTEXT);
	int pinned = inside((void *)address, 1, 1), device = inside((void *)address, 1, 0);
	for (unsigned i = 0; i < count; i++)
		switch (attributes[i]) {
		case 2: *(unsigned *)answers[i] = pinned ? 1 : device ? 2 : 0; break;
		case 8: *(unsigned *)answers[i] = MANAGED; break;
		case 9: *(int *)answers[i] = 0; break;
		default: LEAVE(INVALID_VALUE);
		}
	LEAVE(0);
}
Code cuMemsetD8_v2(Address address, unsigned char value, size_t bytes) { ENTER(cuMemsetD8_v2); NEED(inside((void *)address, bytes, 0), INVALID_VALUE); memset((void *)address, value, bytes); LEAVE(0); }
#define COPY(name, condition) ENTER(name); NEED(current, INVALID_CONTEXT); NEED(condition, INVALID_VALUE); memcpy((void *)to, (const void *)from, bytes); LEAVE(0)
Code cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
#ifdef STAGED
	ENTER(cuMemcpyHtoD_v2);
	NEED(current && !staged.bytes && inside((void *)to, bytes, 0), INVALID_VALUE);
	staged.to = (char *)to;
	char *kept = malloc(bytes);
	NEED(kept, NO_MEMORY);
	staged.bytes = memcpy(kept, from, bytes);
	staged.count = bytes;
	LEAVE(0);
#else
	COPY(cuMemcpyHtoD_v2, inside((void *)to, bytes, 0));
#endif
}
Code cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { COPY(cuMemcpyDtoH_v2, inside((void *)from, bytes, 0)); }
#ifdef STREAMS
/* Little ordinary memory is read in the call. */
Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream *stream) {
	ENTER(cuMemcpyHtoDAsync_v2);
	stream = stream_of(stream);
	NEED(MINE(stream) && bytes && inside((void *)to, bytes, 0), INVALID_VALUE);
	char *kept = NULL;
	if (!inside(from, bytes, 1)) {
		NEED(bytes <= 65536, INVALID_VALUE);
		kept = malloc(bytes);
		NEED(kept, NO_MEMORY);
		from = memcpy(kept, from, bytes);
	}
	LEAVE(enqueue(stream, (Operation){COPY_BYTES, (char *)to, from, bytes, 0, kept, NULL}));
}
/* Little ordinary memory is written when the stream comes to it, as drivers may. */
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream *stream) {
	ENTER(cuMemcpyDtoHAsync_v2);
	stream = stream_of(stream);
	NEED(MINE(stream) && bytes && inside((void *)from, bytes, 0) && (bytes <= 65536 || inside(to, bytes, 1)), INVALID_VALUE);
	LEAVE(enqueue(stream, (Operation){COPY_BYTES, to, (char *)from, bytes, 0, NULL, NULL}));
}
#else
Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream *stream) { for (long long end = now() + COPY_NANOS; now() < end;); COPY(cuMemcpyHtoDAsync_v2, MINE(stream) && bytes && inside((void *)to, bytes, 0) && inside(from, bytes, 1)); }
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream *stream) { COPY(cuMemcpyDtoHAsync_v2, MINE(stream) && bytes && inside((void *)from, bytes, 0) && inside(to, bytes, 1)); }
#endif
static int words;
/* Words written by streams so far. */
int headway_fake_words(void) { return words; }
#ifdef STREAMS
Code cuStreamWriteValue32_v2(Stream *stream, Address word, unsigned value, unsigned flags) {
	ENTER(cuStreamWriteValue32_v2);
	stream = stream_of(stream);
	NEED(MINE(stream) && !flags && word % 4 == 0 && inside((void *)word, 4, 1), INVALID_VALUE);
	words++;
	LEAVE(enqueue(stream, (Operation){WRITE_WORD, (char *)word, NULL, 0, value, NULL, NULL}));
}
Code cuStreamWaitValue32_v2(Stream *stream, Address word, unsigned value, unsigned flags) {
	ENTER(cuStreamWaitValue32_v2);
	stream = stream_of(stream);
	NEED(MINE(stream) && flags <= 1 && word % 4 == 0 && inside((void *)word, 4, 1), INVALID_VALUE);
	LEAVE(enqueue(stream, (Operation){flags ? WAIT_EQUAL : WAIT_REACHED, (char *)word, NULL, 0, value, NULL, NULL}));
}
#else
Code cuStreamWriteValue32_v2(Stream *stream, Address word, unsigned value, unsigned flags) {
	ENTER(cuStreamWriteValue32_v2);
	NEED(MINE(stream) && !flags && word % 4 == 0 && inside((void *)word, 4, 1), INVALID_VALUE);
	*(unsigned *)word = value;
	words++;
	LEAVE(0);
}
Code cuStreamWaitValue32_v2(Stream *stream, Address word, unsigned value, unsigned flags) { (void)stream, (void)word, (void)value, (void)flags; ENTER(cuStreamWaitValue32_v2); LEAVE(801); }
#endif
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream *stream) { COPY(cuMemcpyDtoDAsync_v2, MINE(stream) && bytes && inside((void *)from, bytes, 0) && inside((void *)to, bytes, 0)); }
Code cuMemcpyPeerAsync(Address to, void *to_context, Address from, void *from_context, size_t bytes, Stream *stream) {
	COPY(cuMemcpyPeerAsync, MINE(stream) && bytes && to_context != from_context && current->peer_enabled && inside((void *)from, bytes, 0) && inside((void *)to, bytes, 0));
}

/* The attributes: source order and flags around two locations of two numbers. */
static Code batch(const Address *to, const Address *from, const size_t *bytes, size_t count, const unsigned *attributes, const size_t *first,
		size_t attribute_count, Stream *stream, size_t *failed) {
	if (!MINE(stream) || !count || attribute_count != 1 || *first || attributes[0] != 1 || attributes[5]) return INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		*failed = i;
		if (!bytes[i] || !anywhere((void *)to[i], bytes[i]) || !anywhere((void *)from[i], bytes[i])) return INVALID_VALUE;
		memcpy((void *)to[i], (void *)from[i], bytes[i]);
	}
	return 0;
}
Code cuMemcpyBatchAsync(Address *to, Address *from, size_t *bytes, size_t count, void *attributes, size_t *first, size_t attribute_count,
		size_t *failed, Stream *stream) {
	ENTER(cuMemcpyBatchAsync);
	LEAVE(batch(to, from, bytes, count, attributes, first, attribute_count, stream, failed));
}
Code cuMemcpyBatchAsync_v2(Address *to, Address *from, size_t *bytes, size_t count, void *attributes, size_t *first, size_t attribute_count,
		Stream *stream) {
	size_t failed;
	ENTER(cuMemcpyBatchAsync_v2);
	LEAVE(batch(to, from, bytes, count, attributes, first, attribute_count, stream, &failed));
}

#include "nvml.c"
#include "window.h"
