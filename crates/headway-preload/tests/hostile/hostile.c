/*
 * A program that misuses memory, contexts, threads and limits around its copies, and knows nothing of Headway.
 *
 *     hostile CASE
 *
 * It prints the status of each call and a hash of the bytes that it got. Its output and the way it ends must be the same with
 * and without Headway, on a GPU and on the driver library of the tests. `hostile --list` prints the cases.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream, *CUcontext;

#define MIB ((size_t)1 << 20)
#ifndef LARGE_MIB
#define LARGE_MIB 24
#endif
#define LARGE (LARGE_MIB * MIB + 4096 + 77)
#define MIDDLE (LARGE_MIB * MIB / 3 * 2)
#define SMALL ((size_t)3000)

static void *driver;
static CUresult (*init)(unsigned), (*retain)(CUcontext *, int), (*release)(int), (*reset)(int);
static CUresult (*set_current)(CUcontext), (*create)(CUcontext *, unsigned, int), (*destroy)(CUcontext);
static CUresult (*alloc)(CUdeviceptr *, size_t), (*host_alloc)(void **, size_t, unsigned), (*host_register)(void *, size_t, unsigned);
static CUresult (*stream_create)(CUstream *, unsigned), (*stream_sync)(CUstream), (*fill)(CUdeviceptr, unsigned char, size_t);
static CUresult (*in)(CUdeviceptr, const void *, size_t), (*out)(void *, CUdeviceptr, size_t), (*any)(CUdeviceptr, CUdeviceptr, size_t);
static CUresult (*in_async)(CUdeviceptr, const void *, size_t, CUstream), (*out_async)(void *, CUdeviceptr, size_t, CUstream);
static CUresult (*begin_capture)(CUstream, int), (*end_capture)(CUstream, void **), (*load)(void **, const void *);
static CUresult (*function_of)(void **, void *, const char *);
static CUresult (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

static void find(void *function, const char *name) {
    *(void **)function = dlsym(driver, name);
    if (!*(void **)function) { fprintf(stderr, "the driver has no %s\n", name); exit(2); }
}
static void open_driver(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
    find(&init, "cuInit"), find(&retain, "cuDevicePrimaryCtxRetain"), find(&release, "cuDevicePrimaryCtxRelease_v2");
    find(&reset, "cuDevicePrimaryCtxReset_v2"), find(&set_current, "cuCtxSetCurrent"), find(&create, "cuCtxCreate_v2");
    find(&destroy, "cuCtxDestroy_v2"), find(&alloc, "cuMemAlloc_v2"), find(&host_alloc, "cuMemHostAlloc");
    find(&host_register, "cuMemHostRegister_v2"), find(&stream_create, "cuStreamCreate"), find(&stream_sync, "cuStreamSynchronize");
    find(&fill, "cuMemsetD8_v2"), find(&in, "cuMemcpyHtoD_v2"), find(&out, "cuMemcpyDtoH_v2"), find(&any, "cuMemcpy");
    find(&in_async, "cuMemcpyHtoDAsync_v2"), find(&out_async, "cuMemcpyDtoHAsync_v2");
    find(&begin_capture, "cuStreamBeginCapture_v2"), find(&end_capture, "cuStreamEndCapture"), find(&load, "cuModuleLoadData");
    find(&function_of, "cuModuleGetFunction"), find(&launch, "cuLaunchKernel");
}

static CUcontext context;
static CUdeviceptr device;
static CUstream stream;
static unsigned char *pinned; /* SMALL bytes, and room */

static void must(CUresult status, const char *what) {
    if (status) { printf("%s: status %d\n", what, status); exit(3); }
}
static void said(const char *what, CUresult status) { printf("%s: status %d\n", what, status); fflush(stdout); }
static uint64_t hash(const void *memory, size_t bytes) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const unsigned char *)memory)[i]) * 1099511628211u;
    return sum;
}
static void hashed(const char *what, const void *memory, size_t bytes) {
    printf("%s: bytes %016llx\n", what, (unsigned long long)hash(memory, bytes));
    fflush(stdout);
}
static void pattern(unsigned char *memory, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) memory[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
}
static unsigned char *fresh(size_t bytes) {
    unsigned char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) { printf("no memory: %d\n", errno); exit(3); }
    return memory;
}
/* What is on the GPU, read by way of small page-locked copies that nobody makes faster. */
static void on_gpu(const char *what, CUdeviceptr from, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += SMALL) {
        size_t part = bytes - at < SMALL ? bytes - at : SMALL;
        CUresult status = out(pinned, from + at, part);
        if (status) { said(what, status); return; }
        sum = sum * 31 + hash(pinned, part);
    }
    printf("%s: bytes %016llx\n", what, (unsigned long long)sum);
    fflush(stdout);
}
static void start(void) {
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    must(alloc(&device, 2 * LARGE), "cuMemAlloc");
    must(host_alloc((void **)&pinned, 4096, 0), "cuMemHostAlloc");
    must(stream_create(&stream, 1), "cuStreamCreate");
    unsigned char *source = fresh(LARGE);
    pattern(source, LARGE, 7);
    must(in(device, source, LARGE), "first copy");
    must(fill(device + LARGE, 0x55, LARGE), "cuMemsetD8");
    munmap(source, LARGE);
}

static void overwritten(void) {
    unsigned char *source = fresh(LARGE);
    for (unsigned i = 0; i < 4; i++) {
        pattern(source, LARGE, i);
        said("in", in_async(device, source, LARGE, stream));
        memset(source, 0xee, LARGE);
    }
    said("wait", stream_sync(stream));
    on_gpu("last", device, LARGE);
}
static void freed(void) {
    unsigned char *source = fresh(LARGE);
    pattern(source, LARGE, 3);
    said("in", in_async(device, source, LARGE, stream));
    munmap(source, LARGE);
    said("wait", stream_sync(stream));
    on_gpu("in", device, LARGE);
    unsigned char *to = fresh(LARGE);
    said("out", out_async(to, device, LARGE, stream));
    said("wait", stream_sync(stream));
    hashed("out", to, LARGE);
    munmap(to, LARGE);
    said("later", out(pinned, device, SMALL));
}
static void read_only(size_t bytes) {
    unsigned char *to = fresh(LARGE);
    pattern(to, LARGE, 1);
    mprotect(to, LARGE, PROT_READ);
    said("out", out(to, device, bytes));
    hashed("out", to, LARGE);
}
static void read_only_large(void) { read_only(LARGE); }
static void read_only_small(void) { read_only(SMALL); }
static void read_only_half(void) {
    unsigned char *to = fresh(LARGE);
    mprotect(to + MIDDLE, LARGE - MIDDLE, PROT_READ);
    said("out", out(to, device, LARGE));
}
static void no_access_in(void) {
    unsigned char *source = fresh(LARGE);
    mprotect(source, LARGE, PROT_NONE);
    said("in", in(device, source, LARGE));
}
static void no_access_in_half(void) {
    unsigned char *source = fresh(LARGE);
    pattern(source, MIDDLE, 2);
    mprotect(source + MIDDLE, LARGE - MIDDLE, PROT_NONE);
    said("in", in_async(device, source, LARGE, stream));
    said("wait", stream_sync(stream));
}
static void no_access_out(void) {
    unsigned char *to = fresh(LARGE);
    mprotect(to, LARGE, PROT_NONE);
    said("out", out_async(to, device, LARGE, stream));
}
static void null_pointers(void) {
    size_t sizes[] = {SMALL, LARGE, (size_t)1 << 50, SIZE_MAX - 4095};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        said("in from null", in(device, 0, sizes[i]));
        said("out to null", out(0, device, sizes[i]));
        said("in from null, by address", any(device, 0, sizes[i]));
        said("out to null, by address", any(0, device, sizes[i]));
        said("in from null, queued", in_async(device, 0, sizes[i], stream));
        said("out to null, queued", out_async(0, device, sizes[i], stream));
        said("into null of the GPU", in(0, pinned, sizes[i]));
        said("out of null of the GPU", out(pinned, 0, sizes[i]));
        if (sizes[i] <= LARGE) continue;
        said("in, absurd", in(device, pinned + 1, sizes[i]));
        said("out, absurd", out(pinned + 1, device, sizes[i]));
    }
    on_gpu("after", device, LARGE);
}
/* The driver refuses none of these: its copy raises the signal. */
#define BEHIND_ALL ((unsigned char *)(UINTPTR_MAX - MIB + 1))
#define NOT_CANONICAL ((unsigned char *)((uintptr_t)1 << 60))
static void wraps_in(void) { said("in", in(device, BEHIND_ALL, LARGE)); }
static void wraps_out(void) { said("out", any((CUdeviceptr)BEHIND_ALL, device, LARGE)); }
static void not_canonical_in(void) { said("in", any(device, (CUdeviceptr)NOT_CANONICAL, LARGE)); }
static void not_canonical_out(void) { said("out", out_async(NOT_CANONICAL, device, LARGE, stream)); }
static void unmapped(void) {
    unsigned char *memory = fresh(LARGE);
    munmap(memory, LARGE);
    said("out", out(memory, device, LARGE));
}
static unsigned char *truncated_file(size_t bytes, size_t left) {
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), (off_t)bytes)) exit(3);
    unsigned char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (memory == MAP_FAILED) exit(3);
    pattern(memory, bytes, 5);
    if (ftruncate(fileno(file), (off_t)left)) exit(3);
    return memory;
}
static void truncated_in(void) { said("in", in(device, truncated_file(LARGE, MIDDLE), LARGE)); }
static void truncated_out(void) { said("out", out(truncated_file(LARGE, MIDDLE), device, LARGE)); }
static void overlapping(void) {
    unsigned char *memory = fresh(2 * LARGE);
    pattern(memory, 2 * LARGE, 9);
    said("host to host", any((CUdeviceptr)memory + LARGE, (CUdeviceptr)memory, LARGE / 2));
    hashed("host to host", memory, 2 * LARGE);
    /* Both ways between the same two places, without waiting in between. */
    said("in", in_async(device, memory + 1, LARGE, stream));
    said("out", out_async(memory + 4096, device, LARGE, stream));
    said("in", in_async(device + 3, memory + 4097, LARGE, stream));
    said("wait", stream_sync(stream));
    hashed("both ways", memory, 2 * LARGE);
    on_gpu("both ways", device, LARGE);
}
static void huge(void) {
    size_t bytes = (LARGE + 4 * MIB) / (2 * MIB) * (2 * MIB);
    unsigned char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED) {
        memory = (unsigned char *)(((uintptr_t)fresh(bytes + 2 * MIB) + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
        madvise(memory, bytes, MADV_HUGEPAGE);
    }
    said("out", out(memory + 5, device, LARGE));
    hashed("out", memory, bytes);
    pattern(memory, bytes, 6);
    said("in", in(device, memory + 9, LARGE));
    on_gpu("in", device, LARGE);
}
static void registered_half(void) {
    /* A third in the middle is page-locked. */
    size_t third = LARGE_MIB * MIB / 3, all = 4 * third;
    unsigned char *memory = fresh(all);
    said("register", host_register(memory + third, third, 0));
    pattern(memory, all, 4);
    said("in, begins and ends ordinary", in(device, memory, LARGE));
    said("in, begins registered", in(device, memory + third + 4096, 2 * third));
    said("in, ends registered", in(device, memory + 100, 2 * third - 5000));
    said("in, queued", in_async(device, memory + third + 4096, 2 * third, stream));
    said("wait", stream_sync(stream));
    on_gpu("in", device, LARGE);
    said("out, begins and ends ordinary", out(memory, device, LARGE));
    said("out, begins registered", out(memory + third + 4096, device, 2 * third));
    said("out, ends registered", out(memory + 100, device, 2 * third - 5000));
    said("out, small, across the end", out(memory + 2 * third - 1000, device, SMALL));
    hashed("out", memory, all);
}
static void again(const char *what) {
    said(what, retain(&context, 0));
    said("current", set_current(context));
    said("memory", alloc(&device, LARGE));
    unsigned char *memory = fresh(LARGE), *back = fresh(LARGE);
    pattern(memory, LARGE, 8);
    said("in", in(device, memory, LARGE));
    said("out", out(back, device, LARGE));
    hashed("out", back, LARGE);
}
static void reset_in_flight(void) {
    unsigned char *memory;
    must(host_alloc((void **)&memory, LARGE, 0), "cuMemHostAlloc");
    for (int i = 0; i < 8; i++) must(out_async(memory, device, LARGE, stream), "out");
    unsigned char *ordinary = fresh(LARGE);
    must(in_async(device, ordinary, LARGE, stream), "in");
    said("reset", reset(0));
    again("after the reset");
}
static void destroyed_in_flight(void) {
    CUcontext own;
    CUstream theirs;
    CUdeviceptr there;
    said("create", create(&own, 0, 0));
    must(alloc(&there, LARGE), "cuMemAlloc");
    must(stream_create(&theirs, 1), "cuStreamCreate");
    unsigned char *memory, *ordinary = fresh(LARGE);
    pattern(ordinary, LARGE, 2);
    must(host_alloc((void **)&memory, LARGE, 0), "cuMemHostAlloc");
    said("in", in(there, ordinary, LARGE));
    for (int i = 0; i < 8; i++) must(out_async(memory, there, LARGE, theirs), "out");
    said("out", out_async(pinned, there, SMALL, theirs));
    said("destroy", destroy(own));
    said("current", set_current(context));
    unsigned char *back = fresh(LARGE);
    said("out", out(back, device, LARGE));
    hashed("out", back, LARGE);
    said("create", create(&own, 0, 0));
    must(alloc(&there, LARGE), "cuMemAlloc");
    said("in", in(there, ordinary, LARGE));
    said("out", out(back, there, LARGE));
    hashed("out", back, LARGE);
    said("destroy", destroy(own));
}
static void no_context(void) {
    set_current(0);
    unsigned char *memory = fresh(LARGE);
    said("in", in(device, memory, LARGE));
    said("out", out(memory, device, LARGE));
    said("out, small", out(memory, device, SMALL));
    said("out, queued", out_async(memory, device, LARGE, stream));
}
static void sticky(void) {
    void (*fake_break)(int) = (void (*)(int))dlsym(driver, "fake_break");
    unsigned char *memory = fresh(LARGE);
    if (fake_break) fake_break(700);
    else {
        static const char ptx[] =
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry wrong()\n{\n.reg .b64 %a;\n.reg .b32 %v;\n"
            "mov.u64 %a, 64;\nmov.u32 %v, 1;\nst.global.u32 [%a], %v;\nret;\n}\n";
        void *module, *function;
        must(load(&module, ptx), "cuModuleLoadData");
        must(function_of(&function, module, "wrong"), "cuModuleGetFunction");
        must(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0), "cuLaunchKernel");
        said("wait", stream_sync(stream));
    }
    said("in", in(device, memory, LARGE));
    said("in, queued", in_async(device, memory, LARGE, stream));
    said("out", out(memory, device, LARGE));
    said("out, queued", out_async(memory, device, LARGE, stream));
    said("out, small", out(memory, device, SMALL));
    said("memory", alloc(&device, SMALL));
}
static void invalid(void) {
    unsigned char *memory = fresh(LARGE);
    said("beyond, in", in(device + LARGE + MIB, memory, LARGE));
    said("beyond, out", out(memory, device + LARGE + MIB, LARGE));
    said("nothing", in(device, memory, 0));
    said("nothing, queued", out_async(memory, device, 0, stream));
    said("small and beyond", out(memory, device + 2 * LARGE - 16, SMALL));
    said("not of the GPU", out(memory, 4096, LARGE));
}

/* Batches that the driver refuses: sizes and places of attributes that make no sense. What of them it copied before is its own affair. */
static void invalid_batches(void) {
    struct { unsigned access, hints[4], flags; } attributes[3] = {{.access = 1}, {.access = 3}, {.access = 1}};
    CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream);
    find(&batch, "cuMemcpyBatchAsync_v2");
    unsigned char *locked, *ordinary = fresh(LARGE);
    must(host_alloc((void **)&locked, LARGE, 0), "cuMemHostAlloc");
    CUdeviceptr hosts[2] = {(CUdeviceptr)locked, (CUdeviceptr)ordinary};
    for (int kind = 0; kind < 2; kind++) {
        CUdeviceptr to[3] = {hosts[kind], hosts[kind] + 2 * MIB, hosts[kind] + 4 * MIB}, from[3] = {device, device + 2 * MIB, device + 4 * MIB};
        size_t sizes[3] = {2 * MIB, 2 * MIB, MIB}, rises[3] = {0, 1, 2};
        size_t wrong[][3] = {{0, 0, 1}, {0, 2, 1}, {0, 1, 3}, {0, 1, (size_t)-1}, {1, 2, 3}};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) said("wrong places", batch(to, from, sizes, 3, attributes, wrong[i], 3, stream));
        said("no attributes", batch(to, from, sizes, 3, attributes, rises, 0, stream));
        said("too many attributes", batch(to, from, sizes, 2, attributes, rises, 3, stream));
        for (int bits = 40; bits < 64; bits += 10) {
            sizes[1] = (size_t)1 << bits;
            said("absurd out", batch(to, from, sizes, 3, attributes, rises, 3, stream));
            said("absurd in", batch(from, to, sizes, 3, attributes, rises, 3, stream));
            said("one absurd out", batch(to + 1, from + 1, sizes + 1, 1, attributes, rises, 1, stream));
        }
        must(stream_sync(stream), "wait");
    }
}

static void *one_of_many(void *argument) {
    size_t number = (size_t)argument, bytes = 4 * MIB + 1000 * number + 13;
    CUstream own;
    CUdeviceptr there;
    uint64_t *answer = malloc(sizeof *answer);
    *answer = 0;
    if (set_current(context) || stream_create(&own, 1) || alloc(&there, bytes)) return answer;
    unsigned char *source = fresh(bytes), *back = fresh(bytes);
    pattern(source, bytes, (unsigned)number);
    for (int i = 0; i < 2; i++) {
        if (in_async(there, source, bytes, own) || out_async(back, there, bytes, own) || stream_sync(own)) return answer;
        if (memcmp(source, back, bytes)) return answer;
    }
    *answer = hash(back, bytes);
    munmap(source, bytes), munmap(back, bytes);
    return answer;
}
static void threads(size_t count) {
    pthread_t all[64];
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) if (pthread_create(&all[i], 0, one_of_many, (void *)i)) { printf("no thread\n"); exit(3); }
    for (size_t i = 0; i < count; i++) {
        void *answer;
        pthread_join(all[i], &answer);
        if (!*(uint64_t *)answer) printf("thread %zu: wrong\n", i);
        sum += *(uint64_t *)answer;
    }
    printf("threads: bytes %016llx\n", (unsigned long long)sum);
}
static void many_threads(void) { threads(64); }
static void threads_that_end(void) { for (int i = 0; i < 8; i++) threads(3); }

static void both_ways(const char *what) {
    unsigned char *memory = fresh(LARGE), *back = fresh(LARGE);
    pattern(memory, LARGE, 11);
    said(what, in(device, memory, LARGE));
    said(what, out(back, device, LARGE));
    hashed(what, back, LARGE);
    munmap(memory, LARGE), munmap(back, LARGE);
}
static void child_by_vfork(void) {
    both_ways("before");
    fflush(stdout);
    pid_t child = vfork();
    if (!child) _exit(7);
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: %d\n", WEXITSTATUS(status));
    both_ways("after");
    fflush(stdout);
    child = vfork();
    if (!child) { execl("/bin/sh", "sh", "-c", "exit 5", (char *)0); _exit(1); }
    waitpid(child, &status, 0);
    printf("program: %d\n", WEXITSTATUS(status));
    char *arguments[] = {"sh", "-c", "exit 6", 0};
    if (posix_spawn(&child, "/bin/sh", 0, 0, arguments, environ)) exit(3);
    waitpid(child, &status, 0);
    printf("program: %d\n", WEXITSTATUS(status));
    both_ways("after programs");
}
static void child_by_fork(void) {
    both_ways("before");
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        /* What a driver answers in a forked child. */
        unsigned char *memory = fresh(LARGE);
        said("child, in", in(device, memory, LARGE));
        said("child, out", out(memory, device, LARGE));
        fflush(stdout);
        exit(4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: %d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    both_ways("after");
}
/* A child of a thread that copies, as a DataLoader's workers are. */
static volatile int stop;
static void *copies(void *count) {
    unsigned char *memory = fresh(LARGE);
    set_current(context);
    while (!stop && !in(device, memory, LARGE)) __atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST);
    return 0;
}
static void fork_beside_copies(void) {
    pthread_t thread;
    int count = 0;
    pthread_create(&thread, 0, copies, &count);
    for (int i = 0; i < 20; i++) {
        int seen = __atomic_load_n(&count, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&count, __ATOMIC_SEQ_CST) == seen) usleep(100);
        fflush(stdout);
        pid_t child = fork();
        if (!child) { void *memory = malloc(MIB); memset(memory, 1, MIB); free(memory); exit(0); }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) printf("child %d: %d\n", i, status);
    }
    stop = 1;
    pthread_join(thread, 0);
    both_ways("after");
}
static void *small_copies(void *unused) {
    unsigned char memory[SMALL];
    (void)unused;
    set_current(context);
    while (!stop) out(memory, device, SMALL);
    return 0;
}
/* Children that the C library knows nothing of, so that no handler of `pthread_atfork` runs. */
static void clone_beside_copies(void) {
    pthread_t thread[4];
    both_ways("before");
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], 0, small_copies, 0);
    for (int i = 0; i < 40; i++) {
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!child) {
            alarm(60);
            set_current(context);
            _exit(out(pinned, device, SMALL) + in(device, pinned, SMALL));
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child: %d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(thread[i], 0);
    both_ways("after");
}
static void exit_beside_copies(void) {
    pthread_t thread[4];
    int count = 0;
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], 0, copies, &count);
    while (__atomic_load_n(&count, __ATOMIC_SEQ_CST) < 8) usleep(100);
    printf("exit\n");
    exit(9);
}
static void exit_of_a_thread(void) {
    pthread_t thread;
    int count = 0;
    pthread_create(&thread, 0, copies, &count);
    while (__atomic_load_n(&count, __ATOMIC_SEQ_CST) < 4) usleep(100);
    stop = 1;
    printf("main ends\n");
    fflush(stdout);
    alarm(10); /* a driver's own threads may keep the process alive */
    pthread_exit(0);
}
static void killed(void) {
    both_ways("before");
    raise(SIGTERM);
}
static void closed(void) {
    both_ways("before");
    printf("close: %d\n", dlclose(driver));
    open_driver();
    start();
    both_ways("after");
}
static void limit(int which, rlim_t value) {
    struct rlimit rlimit = {value, value};
    if (setrlimit(which, &rlimit)) { printf("no limit: %d\n", errno); exit(3); }
}
static void few_locked(void) { limit(RLIMIT_MEMLOCK, 0); both_ways("few locked"); both_ways("again"); }
static void few_addresses(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) exit(3);
    fclose(file);
    limit(RLIMIT_AS, pages * 4096 + 64 * MIB);
    both_ways("few addresses");
    both_ways("again");
}
static void few_files(void) {
    limit(RLIMIT_NOFILE, 4);
    both_ways("few files");
}
static void no_file_may_grow(void) {
    both_ways("before");
    limit(RLIMIT_FSIZE, 0);
    both_ways("after");
}
static void few_threads(void) {
    /* The limit does not hold for root. */
    if (!getuid() && setresuid(65534, 65534, 65534)) { printf("another user: %d\n", errno); exit(3); }
    limit(RLIMIT_NPROC, 1);
    pthread_t thread;
    printf("a thread: %s\n", pthread_create(&thread, 0, one_of_many, 0) ? "refused" : "started");
    both_ways("few threads");
    both_ways("again");
}

/* Signals that are blocked in this thread must wait for it, whatever other threads there are. */
static void block(int signal) {
    sigset_t blocked;
    sigemptyset(&blocked), sigaddset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, 0);
}
static void reap(int signal) {
    int before = errno;
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {}
    errno = before;
}
static void children_are_reaped_by_a_handler(void) {
    int failed = 0;
    both_ways("before");
    signal(SIGCHLD, reap);
    for (int i = 0; i < 50; i++) failed += system("exit 3") != 3 << 8;
    printf("system: %d of 50 failed\n", failed);
}
static volatile sig_atomic_t alarms;
static void on_alarm(int signal) { (void)signal, alarms++; }
static void alarm_is_blocked(void) {
    signal(SIGALRM, on_alarm);
    block(SIGALRM);
    both_ways("before");
    for (int i = 0; i < 20; i++) {
        sigset_t pending;
        kill(getpid(), SIGALRM);
        both_ways("beside");
        sigpending(&pending);
        if (!sigismember(&pending, SIGALRM)) printf("a blocked signal was taken\n");
    }
    printf("alarms: %d\n", alarms);
}
static void signal_is_waited_for(void) {
    sigset_t awaited;
    int taken = 0;
    /* SIGUSR1 is what `--stats` answers. */
    block(SIGUSR2);
    sigemptyset(&awaited), sigaddset(&awaited, SIGUSR2);
    both_ways("before");
    kill(getpid(), SIGUSR2);
    both_ways("beside");
    sigwait(&awaited, &taken);
    printf("taken: %d\n", taken == SIGUSR2);
}

/* The smallest stack that a thread may have, and the stack of a signal handler. */
static void *on_small_stack(void *what) {
    set_current(context);
    unsigned char *memory = fresh(LARGE);
    pattern(memory, LARGE, 13);
    said(what, in(device, memory, LARGE));
    memset(memory, 0, LARGE);
    said(what, out(memory, device, LARGE));
    hashed(what, memory, LARGE);
    said(what, out_async(pinned, device + 5, SMALL, stream));
    said(what, out(memory, device + 7, SMALL));
    said(what, stream_sync(stream));
    hashed(what, memory, SMALL);
    return 0;
}
static void *on_small_stack_from_the_start(void *what) {
    open_driver();
    start();
    return on_small_stack(what);
}
static void in_small_thread(void *(*run)(void *), char *what) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) || pthread_create(&thread, &attributes, run, what)) exit(3);
    pthread_join(thread, 0);
}
static void small_stack(void) {
    in_small_thread(on_small_stack, "first");
    both_ways("with room");
    in_small_thread(on_small_stack, "later");
    in_small_thread(on_small_stack_from_the_start, "anew");
}
static void copies_in_handler(int signal) { (void)signal, on_small_stack("handler"); }
static void handler_copies(void) {
    stack_t stack = {.ss_sp = fresh(16384), .ss_size = 16384};
    struct sigaction action = {.sa_handler = copies_in_handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, 0) || sigaction(SIGUSR2, &action, 0)) exit(3);
    raise(SIGUSR2);
    both_ways("with room");
    raise(SIGUSR2);
}

/* What another process of the user may do: files in shared memory are cut to nothing. */
static void shared_files_are_cut(void) {
    both_ways("before");
    glob_t found;
    if (!glob("/dev/shm/headway-*", 0, 0, &found))
        for (size_t i = 0; i < found.gl_pathc; i++) if (truncate(found.gl_pathv[i], 0)) printf("not cut: %d\n", errno);
    both_ways("after");
    said("small", out(pinned, device, SMALL));
}

struct capture { CUstream stream; int mode; CUresult begun, ended; pthread_barrier_t begin, end; };
static void *captures(void *argument) {
    struct capture *capture = argument;
    void *graph = 0;
    set_current(context);
    capture->begun = begin_capture(capture->stream, capture->mode);
    pthread_barrier_wait(&capture->begin);
    pthread_barrier_wait(&capture->end);
    capture->ended = end_capture(capture->stream, &graph);
    return 0;
}
static void captured_elsewhere(void) {
    static const char *modes[] = {"global", "of the thread", "relaxed"};
    unsigned char *memory = fresh(LARGE), *back = fresh(LARGE);
    pattern(memory, LARGE, 12);
    for (int i = 0; i < 12; i++) {
        struct capture capture = {.mode = i % 3};
        must(stream_create(&capture.stream, i / 3 % 2), "cuStreamCreate");
        pthread_barrier_init(&capture.begin, 0, 2), pthread_barrier_init(&capture.end, 0, 2);
        pthread_t thread;
        pthread_create(&thread, 0, captures, &capture);
        pthread_barrier_wait(&capture.begin);
        CUresult went[4] = {0};
        memset(back, 0, LARGE);
        if (i < 6) {
            went[0] = in(device, memory, LARGE), went[1] = out(back, device, LARGE), went[2] = out(pinned, device, SMALL);
        } else {
            went[0] = in_async(device, memory, LARGE, stream), went[1] = out_async(back, device, LARGE, stream);
            went[2] = out_async(pinned, device, SMALL, stream), went[3] = stream_sync(stream);
        }
        pthread_barrier_wait(&capture.end);
        pthread_join(thread, 0);
        printf("%s, %s, %s: begun %d, in %d, out %d, small %d, wait %d, ended %d, bytes %016llx\n", modes[i % 3],
               i / 3 % 2 ? "apart" : "joined", i < 6 ? "waiting" : "queued", capture.begun, went[0], went[1], went[2], went[3], capture.ended,
               (unsigned long long)hash(back, LARGE));
        fflush(stdout);
    }
}
static void captured(void) {
    unsigned char *memory, *ordinary = fresh(LARGE);
    void *graph = 0;
    must(host_alloc((void **)&memory, LARGE, 0), "cuMemHostAlloc");
    for (int mode = 0; mode < 3; mode++) {
        said("begin", begin_capture(stream, mode));
        said("out", out_async(memory, device, LARGE, stream));
        said("out, small", out_async(pinned, device, SMALL, stream));
        said("in", in_async(device, memory, LARGE, stream));
        said("end", end_capture(stream, &graph));
        said("begin", begin_capture(stream, mode));
        said("out, ordinary", out_async(ordinary, device, LARGE, stream));
        said("in, ordinary", in_async(device, ordinary, LARGE, stream));
        said("end", end_capture(stream, &graph));
    }
    both_ways("after");
}
/* Small results beside a bulk copy: what `--aside` and `--yield` are for. */
static void beside(void) {
    unsigned char *bulk;
    CUstream other;
    must(host_alloc((void **)&bulk, LARGE, 0), "cuMemHostAlloc");
    must(stream_create(&other, 1), "cuStreamCreate");
    uint64_t sum = 0;
    for (int i = 0; i < 50; i++) {
        must(out_async(bulk, device, LARGE, other), "bulk");
        unsigned char small[SMALL];
        must(out_async(pinned, device + (CUdeviceptr)i * 7, SMALL, stream), "small");
        must(stream_sync(stream), "wait");
        must(out(small, device + (CUdeviceptr)i * 11, SMALL - (size_t)i), "small, ordinary");
        sum = sum * 31 + hash(pinned, SMALL) + hash(small, SMALL - (size_t)i);
    }
    must(stream_sync(other), "wait");
    printf("beside: bytes %016llx\n", (unsigned long long)(sum + hash(bulk, LARGE)));
}

/*
 * Memory that is copied again and again, so that it may be kept page-locked, and then becomes other memory. What a GPU gets and what the program
 * finds must be what lies at the address at the time of the call.
 */
static unsigned char *repeated(unsigned seed) {
    unsigned char *memory = fresh(LARGE);
    pattern(memory, LARGE, seed);
    for (int i = 0; i < 5; i++) must(in(device, memory, LARGE), "in");
    return memory;
}
static void in_now(const char *what, unsigned char *memory, size_t bytes) {
    must(fill(device, 0x11, LARGE), "cuMemsetD8");
    said(what, in(device, memory, bytes));
    on_gpu(what, device, LARGE);
}
static void map_at(void *address, size_t bytes) {
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != address) exit(3);
}
static void again_unmapped(void) {
    for (unsigned round = 0; round < 3; round++) {
        unsigned char *memory = repeated(round);
        munmap(memory, LARGE);
        map_at(memory, LARGE);
        if (round == 0) in_now("of zeros", memory, LARGE);
        if (round == 1) in_now("small, of zeros", memory + 8192, SMALL);
        pattern(memory, LARGE, 50 + round);
        in_now("mapped again", memory, LARGE);
        must(fill(device, 0x22, LARGE), "cuMemsetD8");
        said("out", out(memory, device, LARGE));
        hashed("out", memory, LARGE);
    }
}
/* A program that has closed its input expects low descriptors to be its own. */
static void again_without_input(void) {
    close(0);
    repeated(1);
    for (int low = 0; low < 100; low++) {
        char path[32], what[64] = {0};
        snprintf(path, sizeof path, "/proc/self/fd/%d", low);
        if (readlink(path, what, sizeof what - 1) > 0 && strstr(what, "userfaultfd")) printf("%d is Headway's\n", low);
    }
}
static void again_in_part(void) {
    unsigned char *memory = repeated(1);
    map_at(memory + 2 * MIB, MIB);
    in_now("in the middle", memory, LARGE);
    memory = repeated(2);
    map_at(memory, LARGE);
    memory = repeated(3);
    munmap(memory + LARGE / 4096 * 4096 - 4096, 8192);
    in_now("without its end", memory, LARGE / 4096 * 4096 - 4096);
}
static void again_given_back(void) {
    for (int how = 0; how < 2; how++) {
        unsigned char *memory = repeated(4);
        madvise(memory + 2 * MIB, 2 * MIB, how ? MADV_DONTNEED : MADV_FREE);
        if (how) in_now("in part", memory, LARGE);
        pattern(memory, LARGE, 5);
        for (int i = 0; i < 5; i++) in_now("written again", memory, LARGE);
    }
}
static void again_moved(void) {
    unsigned char *memory = repeated(6), *there = fresh(2 * LARGE);
    if (mremap(memory, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) != there) exit(3);
    map_at(memory, LARGE);
    pattern(memory, LARGE, 7);
    in_now("at the old place", memory, LARGE);
    in_now("at the new place", there, LARGE);
    for (int i = 0; i < 5; i++) must(in(device, there, LARGE), "in");
    if (mremap(there, LARGE, MIB, 0) != there) exit(3);
    in_now("what is left", there, MIB);
    if (mremap(there, MIB, 3 * LARGE, MREMAP_MAYMOVE) == MAP_FAILED) exit(3);
}
static void again_small(void) {
    unsigned char *memory = repeated(8);
    said("small, queued", in_async(device, memory + 5000, SMALL, stream));
    memset(memory, 0xee, LARGE);
    said("wait", stream_sync(stream));
    on_gpu("small", device, SMALL);
    memory = repeated(9);
    must(fill(device, 0x33, LARGE), "cuMemsetD8");
    /* Our stream does not wait for the default one. */
    must(stream_sync(0), "cuStreamSynchronize");
    said("small out, queued", out_async(memory + 9000, device, SMALL, stream));
    hashed("small out", memory, LARGE);
    memory = repeated(10);
    in_now("a part", memory + 4096 * 3 + 7, 2 * MIB);
    in_now("across the end", memory + LARGE - SMALL, SMALL);
}
static void again_asked(void) {
    CUresult (*attribute)(void *, int, CUdeviceptr), (*attributes)(unsigned, int *, void **, CUdeviceptr), (*unregister)(void *);
    find(&attribute, "cuPointerGetAttribute"), find(&attributes, "cuPointerGetAttributes"), find(&unregister, "cuMemHostUnregister");
    unsigned char *memory = repeated(11);
    unsigned kind = 7;
    void *value = &kind;
    int type = 2;
    said("kind", attribute(&kind, 2, (CUdeviceptr)memory + MIB));
    said("kinds", attributes(1, &type, &value, (CUdeviceptr)memory + MIB));
    printf("kind %u\n", kind);
    said("not registered", unregister(memory) != 0);
    memory = repeated(12);
    said("register", host_register(memory, 2 * MIB, 0));
    said("kind", attribute(&kind, 2, (CUdeviceptr)memory + MIB));
    printf("kind %u\n", kind);
    said("unregister", unregister(memory));
    in_now("ordinary again", memory, LARGE);
}
static void again_forked(void) {
    unsigned char *memory = repeated(13);
    pid_t child = fork();
    if (!child) { memset(memory, 0, LARGE); munmap(memory, LARGE); _exit(0); }
    pattern(memory, LARGE, 14);
    in_now("beside the child", memory, LARGE);
    waitpid(child, 0, 0);
    pattern(memory, LARGE, 15);
    in_now("after the child", memory, LARGE);
    must(fill(device, 0x44, LARGE), "cuMemsetD8");
    said("out", out(memory, device, LARGE));
    hashed("out", memory, LARGE);
}
static void again_captured(void) {
    unsigned char *memory = repeated(16);
    void *graph;
    said("begin", begin_capture(stream, 2));
    said("in", in_async(device, memory, LARGE, stream));
    said("end", end_capture(stream, &graph));
    pattern(memory, LARGE, 17);
    for (int i = 0; i < 4; i++) in_now("after the capture", memory, LARGE);
}
static void again_both_ways(void) {
    unsigned char *memory = fresh(LARGE);
    for (unsigned i = 0; i < 8; i++) {
        pattern(memory, LARGE, 20 + i);
        said("in", in_async(device, memory, LARGE, stream));
        memset(memory, 0xee, LARGE);
        said("wait", stream_sync(stream));
        said("out", out_async(memory, device, LARGE, stream));
        hashed("out", memory, LARGE);
    }
}
static void again_allocated(void) {
    unsigned char *before = 0;
    for (unsigned i = 0; i < 12; i++) {
        size_t bytes = LARGE - i % 3 * MIB;
        unsigned char *memory = malloc(bytes);
        pattern(memory, bytes, i);
        for (int j = 0; j < 4; j++) must(in(device, memory, bytes), "in");
        in_now("allocated", memory, bytes);
        if (i % 4 == 3) memory = realloc(memory, 3 * LARGE), in_now("larger", memory, bytes);
        free(before), before = memory;
    }
}
/* As PyTorch does with weights that are offloaded: allocated on the CPU, filled by the GPU, and then copied in for each token. */
static void again_offloaded(void) {
    enum { WEIGHTS = 3 };
    size_t bytes = 40 * MIB;
    unsigned char *weights[WEIGHTS];
    CUdeviceptr place;
    must(alloc(&place, bytes), "cuMemAlloc");
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < WEIGHTS; i++) {
            if (round) must(in_async(place, weights[i], bytes, 0), "in"), must(stream_sync(0), "wait"), free(weights[i]);
            if (posix_memalign((void **)&weights[i], 64, bytes)) exit(3);
            must(fill(place, (unsigned char)(i + 1), bytes), "cuMemsetD8");
            must(out_async(weights[i], place, bytes, 0), "out"), must(stream_sync(0), "wait");
        }
    for (int token = 0; token < 4; token++)
        for (int i = 0; i < WEIGHTS; i++) {
            must(in_async(place, weights[i], bytes, 0), "in"), must(stream_sync(0), "wait");
            on_gpu("weight", place, MIB);
            weights[i][token] ^= 0x55;
        }
    for (int i = 0; i < WEIGHTS; i++) free(weights[i]);
}
static int wrong;
static void *again_in_a_thread(void *number) {
    must(set_current(context), "cuCtxSetCurrent");
    CUdeviceptr own;
    must(alloc(&own, MIDDLE), "cuMemAlloc");
    for (unsigned i = 0; i < 24; i++) {
        unsigned char *memory = fresh(MIDDLE), *back = malloc(MIDDLE);
        for (unsigned j = 0; j < 1 + i % 6; j++) {
            pattern(memory, MIDDLE, (unsigned)(size_t)number * 1000 + i + j);
            memset(back, 0, MIDDLE);
            if (in(own, memory, MIDDLE) || out(back, own, MIDDLE) || memcmp(memory, back, MIDDLE)) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        }
        if (i % 3 == 1) madvise(memory, MIDDLE, MADV_DONTNEED);
        munmap(memory, MIDDLE);
        free(back);
    }
    return 0;
}
static void again_in_threads(void) {
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) pthread_create(&threads[i], 0, again_in_a_thread, (void *)i);
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("wrong: %d\n", wrong);
}
static void again_reset(void) {
    unsigned char *memory = repeated(18);
    said("reset", reset(0));
    again("after the reset");
    pattern(memory, LARGE, 19);
    must(host_alloc((void **)&pinned, 4096, 0), "cuMemHostAlloc");
    for (int i = 0; i < 4; i++) in_now("after the reset", memory, LARGE);
}
/* A stream waits for a thread that copies first: of the memory that the stream is to copy, or while the driver is asked to page-lock and waits, too. */
static volatile unsigned *gate;
static CUresult held_status;
static void close_gate(void) {
    CUresult (*wait_value)(CUstream, CUdeviceptr, unsigned, unsigned);
    find(&wait_value, "cuStreamWaitValue32_v2");
    gate = (volatile unsigned *)(pinned + 4032), *gate = 0;
    must(wait_value(stream, (CUdeviceptr)gate, 1, 0), "cuStreamWaitValue32");
    alarm(60);
}
static void open_gate(pthread_t thread) {
    *gate = 1;
    pthread_join(thread, 0);
    said("in the thread", held_status);
    said("wait", stream_sync(stream));
    on_gpu("in the thread", device, LARGE);
}
static void *in_behind_the_gate(void *memory) {
    must(set_current(context), "cuCtxSetCurrent");
    held_status = in_async(device, memory, LARGE, stream);
    return 0;
}
static void again_waited_for(void) {
    unsigned char *memory = repeated(21);
    pthread_t thread;
    close_gate();
    pthread_create(&thread, 0, in_behind_the_gate, memory);
    usleep(100000);
    said("small", in(device + LARGE, memory + 5000, SMALL));
    open_gate(thread);
    on_gpu("small", device + LARGE, SMALL);
}
static void *in_beside_the_gate(void *memory) {
    must(set_current(context), "cuCtxSetCurrent");
    for (int i = 0; i < 5 && !held_status; i++) held_status = in(device, memory, LARGE);
    return 0;
}
static void again_held_up(void) {
    unsigned char *memory = fresh(LARGE), *other = fresh(LARGE);
    pthread_t thread;
    pattern(memory, LARGE, 22), pattern(other, LARGE, 23);
    close_gate();
    pthread_create(&thread, 0, in_beside_the_gate, memory);
    usleep(100000);
    for (int i = 0; i < 4; i++) said("other", in(device + LARGE, other, i % 2 ? LARGE : SMALL));
    open_gate(thread);
    on_gpu("other", device + LARGE, LARGE);
}

/* A thread copies while its keys are destroyed, in each of the rounds that the C library makes. */
static pthread_key_t late;
static void copies_late(void *round) {
    both_ways("late"), said("late", out(pinned, device, SMALL));
    if ((size_t)round < 4) pthread_setspecific(late, (void *)((size_t)round + 1));
}
static void *ends_late(void *has_copied) {
    must(set_current(context), "cuCtxSetCurrent");
    pthread_setspecific(late, (void *)1);
    for (int i = 0; has_copied && i < 4; i++) both_ways("early");
    return 0;
}
static void key_destructor(void) {
    pthread_key_create(&late, copies_late);
    for (size_t i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, ends_late, (void *)i);
        pthread_join(thread, 0);
    }
    both_ways("after");
}
/* Cancelled before it copies, a thread ends at the first place that allows that: in the program, at the end. A GPU's driver may have others. */
static int copies_made;
static void *copies_cancelled(void *nothing) {
    (void)nothing;
    must(set_current(context), "cuCtxSetCurrent");
    pthread_cancel(pthread_self());
    unsigned char *memory = fresh(LARGE);
    for (int i = 0; i < 5; i++, copies_made++) if (in(device, memory, LARGE) || out(memory, device, LARGE)) break;
    pthread_testcancel();
    return 0;
}
static void again_cancelled(void) {
    if (!dlsym(driver, "fake_break")) return;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *answer = 0;
        pthread_create(&thread, 0, copies_cancelled, 0);
        pthread_join(thread, &answer);
        printf("copies %d, cancelled %d\n", copies_made, answer == PTHREAD_CANCELED);
        both_ways("after");
    }
}

static const struct { const char *name; void (*run)(void); } cases[] = {
    {"again-unmapped", again_unmapped}, {"again-without-input", again_without_input}, {"again-in-part", again_in_part}, {"again-given-back", again_given_back},
    {"again-moved", again_moved}, {"again-small", again_small}, {"again-asked", again_asked}, {"again-forked", again_forked},
    {"again-captured", again_captured}, {"again-both-ways", again_both_ways}, {"again-allocated", again_allocated},
    {"again-offloaded", again_offloaded}, {"again-in-threads", again_in_threads}, {"again-reset", again_reset},
    {"again-waited-for", again_waited_for}, {"again-held-up", again_held_up},
    {"again-cancelled", again_cancelled}, {"key-destructor", key_destructor},
    {"overwritten", overwritten}, {"freed", freed}, {"read-only", read_only_large}, {"read-only-small", read_only_small},
    {"read-only-half", read_only_half}, {"no-access-in", no_access_in}, {"no-access-in-half", no_access_in_half},
    {"no-access-out", no_access_out}, {"null", null_pointers}, {"wraps-in", wraps_in}, {"wraps-out", wraps_out},
    {"not-canonical-in", not_canonical_in}, {"not-canonical-out", not_canonical_out}, {"unmapped", unmapped}, {"truncated-in", truncated_in},
    {"truncated-out", truncated_out}, {"overlapping", overlapping}, {"huge", huge}, {"registered-half", registered_half},
    {"reset", reset_in_flight}, {"destroyed", destroyed_in_flight}, {"no-context", no_context}, {"sticky", sticky},
    {"invalid", invalid}, {"many-threads", many_threads}, {"threads-that-end", threads_that_end}, {"vfork", child_by_vfork},
    {"fork", child_by_fork}, {"fork-beside-copies", fork_beside_copies}, {"exit-beside-copies", exit_beside_copies},
    {"main-thread-ends", exit_of_a_thread}, {"killed", killed}, {"closed", closed}, {"few-locked", few_locked},
    {"few-addresses", few_addresses}, {"few-files", few_files}, {"few-threads", few_threads}, {"no-file-may-grow", no_file_may_grow},
    {"captured-elsewhere", captured_elsewhere}, {"captured", captured}, {"beside", beside},
    {"children-reaped", children_are_reaped_by_a_handler}, {"alarm-blocked", alarm_is_blocked}, {"signal-awaited", signal_is_waited_for},
    {"shared-files-cut", shared_files_are_cut}, {"small-stack", small_stack}, {"handler-copies", handler_copies},
    {"clone-beside-copies", clone_beside_copies}, {"invalid-batches", invalid_batches},
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc == 2 && !strcmp(argv[1], "--list")) puts(cases[i].name);
        else if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
            open_driver();
            start();
            cases[i].run();
            return 0;
        }
    }
    return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
}
