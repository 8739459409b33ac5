/*
 * A program that copies out of a GPU and knows nothing of Headway. It reaches the driver by the lookup that its first argument
 * names, does what its second names, checks every byte, and prints the driver's log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
#define BULK ((size_t)20 << 20)
#define SMALL ((size_t)4096)

static CUresult (*init)(unsigned), (*retain)(size_t *, int), (*alloc)(CUdeviceptr *, size_t), (*release)(int);
static CUresult (*out_async)(void *, CUdeviceptr, size_t, size_t), (*out)(void *, CUdeviceptr, size_t);
static CUresult (*in)(CUdeviceptr, const void *, size_t);
static const char *(*fake_log)(void);
static void (*fake_clear)(void), (*fake_register)(void *, size_t), (*fake_finish)(void), (*fake_capture)(int), (*fake_break)(int), (*fake_fail)(int);

#ifdef DIRECT
CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(size_t *, int), cuMemAlloc_v2(CUdeviceptr *, size_t), cuDevicePrimaryCtxRelease_v2(int);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, size_t), cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
#endif

static void fail(const char *what) { printf("FAILED: %s\n", what); exit(1); }
static void *need(void *found, const char *name) { if (!found) fail(name); return found; }

static void resolve(const char *lookup) {
    void *driver = need(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "dlopen");
#ifdef DIRECT
    init = cuInit, retain = cuDevicePrimaryCtxRetain, alloc = cuMemAlloc_v2, release = cuDevicePrimaryCtxRelease_v2;
    out_async = cuMemcpyDtoHAsync_v2, out = cuMemcpyDtoH_v2, in = cuMemcpyHtoD_v2;
    (void)lookup;
#else
    if (!strcmp(lookup, "dlsym")) {
#define PLAIN(place, name) place = need(dlsym(driver, name), name)
        PLAIN(init, "cuInit"); PLAIN(retain, "cuDevicePrimaryCtxRetain"); PLAIN(alloc, "cuMemAlloc_v2");
        PLAIN(release, "cuDevicePrimaryCtxRelease_v2"); PLAIN(out_async, "cuMemcpyDtoHAsync_v2"); PLAIN(out, "cuMemcpyDtoH_v2");
        PLAIN(in, "cuMemcpyHtoD_v2");
    } else {
        /* As cudart does: the resolver is asked for itself, and the answer is used. */
        int per_thread = !strcmp(lookup, "per-thread"), old = !strcmp(lookup, "old");
        CUresult (*second)(const char *, void **, int, uint64_t, int *) = 0;
        CUresult (*first)(const char *, void **, int, uint64_t) = 0;
        if (old) {
            first = need(dlsym(driver, "cuGetProcAddress"), "cuGetProcAddress");
        } else {
            second = need(dlsym(driver, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
            void *again = 0;
            second("cuGetProcAddress", &again, 13000, 0, 0);
            second = need(again, "cuGetProcAddress by itself");
        }
#define ASK(place, name, flags) do { void *f = 0; old ? first(name, &f, 11040, flags) : second(name, &f, 13000, flags, 0); place = need(f, name); } while (0)
        ASK(init, "cuInit", 0); ASK(retain, "cuDevicePrimaryCtxRetain", 0); ASK(alloc, "cuMemAlloc", 0);
        ASK(release, "cuDevicePrimaryCtxRelease", 0);
        ASK(out_async, "cuMemcpyDtoHAsync", per_thread ? 2 : 0); ASK(out, "cuMemcpyDtoH", per_thread ? 2 : 0);
        ASK(in, "cuMemcpyHtoD", per_thread ? 2 : 0);
        void *batch = 0;
        if (!old && (second("cuMemcpyBatchAsync", &batch, 12080, 0, 0), batch != dlsym(driver, "cuMemcpyBatchAsync"))) fail("batch replaced");
        /* A version of the future may have another signature. */
        if (!old && getenv("HEADWAY_GUEST") && (second("cuMemcpyDtoH", &batch, 14000, 0, 0), batch == (void *)out)) fail("unknown version replaced");
    }
#endif
    fake_log = need(dlsym(driver, "fake_log"), "fake_log");
    fake_clear = need(dlsym(driver, "fake_clear"), "fake_clear");
    fake_register = need(dlsym(driver, "fake_register"), "fake_register");
    fake_finish = need(dlsym(driver, "fake_finish"), "fake_finish");
    fake_capture = need(dlsym(driver, "fake_capture"), "fake_capture");
    fake_break = need(dlsym(driver, "fake_break"), "fake_break");
    fake_fail = need(dlsym(driver, "fake_fail"), "fake_fail");
}

static unsigned char *source, *bulk, *small;
static CUdeviceptr device;

static void check(const unsigned char *got, size_t from, size_t bytes, const char *what) {
    if (memcmp(got, source + from, bytes)) fail(what);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("arguments");
    const char *does = argv[2];
    resolve(argv[1]);
    size_t context;
    init(0);
    retain(&context, 0);
    source = malloc(BULK);
    unsigned long long random = 7;
    for (size_t i = 0; i < BULK; i += sizeof random) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64: rand() takes half a second */
        memcpy(source + i, &random, sizeof random);
    }
    bulk = aligned_alloc(4096, BULK);
    small = aligned_alloc(4096, SMALL * 8);
    alloc(&device, BULK);
    if (in(device, source, BULK)) fail("in");
    if (!strncmp(does, "large", 5)) {
        /* Ordinary memory, both ways, from and to odd places; what is copied next to must stay. */
        size_t bytes = BULK - 4 * SMALL - 77;
        CUdeviceptr other;
        unsigned char *fresh = mmap(0, BULK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        alloc(&other, BULK);
        if (in(other, source, BULK)) fail("in");
        fake_clear();
        if (!strcmp(does, "large-fails")) fake_fail(1);
        if (!strcmp(does, "large-captured")) fake_capture(1);
        if (!strcmp(does, "large-broken")) fake_break(700);
        int one = in(other + 5, source + 3 * SMALL, bytes);
        int two = out_async(bulk + 11, other + 5, bytes, 21);
        int three = out(fresh + 3, other + 5, bytes);
        printf("%s", fake_log());
        fake_break(0), fake_capture(0), fake_fail(0);
        if (!strcmp(does, "large-broken")) { printf("%d %d %d\n", one, two, three); return 0; }
        if (one || two || three) fail("status");
        check(bulk + 11, 3 * SMALL, bytes, "large bytes");
        check(fresh + 3, 3 * SMALL, bytes, "large bytes into fresh memory");
        if (fresh[2] || fresh[3 + bytes]) fail("bytes beside the copy");
        if (!strcmp(does, "large-released")) {
            release(0);
            fake_clear();
            memset(bulk, 0, BULK);
            if (out_async(bulk + 11, other + 5, bytes, 21)) fail("status after release");
            check(bulk + 11, 3 * SMALL, bytes, "large bytes after release");
            printf("released\n%s", fake_log());
        }
        if (!strcmp(does, "large-forked")) {
            fflush(stdout);
            pid_t child = fork();
            fake_clear();
            if (!child) { out_async(bulk + 11, other + 5, bytes, 21); printf("child\n%s", fake_log()); fflush(stdout); _exit(0); }
            waitpid(child, 0, 0);
        }
        return 0;
    }
    fake_register(bulk, BULK);
    if (strcmp(does, "ordinary") && strcmp(does, "read-only") && strcmp(does, "half")) fake_register(small, SMALL * 8);
    if (!strcmp(does, "half")) fake_register(small, SMALL);
    fake_clear();

    if (strncmp(does, "idle", 4) && strcmp(does, "capture")) {
        if (out_async(bulk, device, BULK, 21)) fail("bulk");
        check(bulk, 0, BULK, "bulk bytes");
    }
    if (!strcmp(does, "capture")) {
        fake_capture(1);
        out_async(bulk, device, BULK, 21);
        out_async(small, device + 1, SMALL, 22);
    } else if (!strcmp(does, "beside") || !strcmp(does, "idle")) {
        for (size_t i = 0; i < 4; i++) {
            if (out_async(small + i, device + 3 * i + 1, SMALL - i, 22)) fail("small");
            check(small + i, 3 * i + 1, SMALL - i, "small bytes");
        }
        if (out(small, device + 64, SMALL)) fail("small that waits");
        check(small, 64, SMALL, "bytes of small that waits");
    } else if (!strcmp(does, "idle-blocks")) {
        for (size_t at = 0; at < BULK; at += BULK / 5) {
            if (out_async((char *)bulk + at, device + at, BULK / 5, 22)) fail("block");
        }
        check(bulk, 0, BULK, "bytes of blocks");
    } else if (!strncmp(does, "idle-", 5)) {
        /* Small copies until one goes by a kernel, or until the link's counters were read often enough. */
        void *nvml = need(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), "NVML");
        int *readings = need(dlsym(nvml, "fake_nvml_readings"), "fake_nvml_readings");
        int aside = 0, rounds = 0;
        for (; !aside && *(volatile int *)readings < 12 && rounds < 20000; rounds++) {
            fake_clear();
            if (out_async(small, device + 1, SMALL, 22)) fail("small");
            check(small, 1, SMALL, "small bytes");
            aside = !strncmp(fake_log(), "kernel", 6);
            usleep(1000);
        }
        printf("%s after %s readings\n", aside ? "aside" : "whole", rounds < 20000 ? "some" : "too few");
        fake_clear();
    } else if (!strcmp(does, "same-stream")) {
        out_async(small, device + 1, SMALL, 21);
        check(small, 1, SMALL, "small bytes");
    } else if (!strcmp(does, "done")) {
        fake_finish();
        out_async(small, device + 1, SMALL, 22);
        out_async(small, device + 1, SMALL, 22);
    } else if (!strcmp(does, "ordinary")) {
        if (out(small, device + 1, SMALL)) fail("small");
        check(small, 1, SMALL, "small bytes");
    } else if (!strcmp(does, "half")) {
        if (out_async(small, device + 1, 2 * SMALL, 22)) fail("half-registered");
        check(small, 1, 2 * SMALL, "half-registered bytes");
    } else if (!strcmp(does, "read-only")) {
        mprotect(small, SMALL, PROT_READ);
        out(small, device + 1, SMALL); /* the driver's own behaviour: here, a signal */
    } else if (!strcmp(does, "beyond")) {
        out_async(small, device + BULK - 16, SMALL, 22); /* reads beyond the allocation: the driver's to refuse */
    } else if (!strcmp(does, "broken")) {
        fake_break(700);
        printf("status %d\n", out(small, device + 1, SMALL));
    } else if (!strcmp(does, "fork")) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) { out_async(small, device + 1, SMALL, 22); printf("child:\n%s", fake_log()); fflush(stdout); _exit(0); }
        waitpid(child, 0, 0);
        fake_clear();
        out_async(small, device + 1, SMALL, 22);
        printf("parent:\n");
    } else if (!strcmp(does, "release")) {
        release(0);
        out_async(small, device + 1, SMALL, 22);
        check(small, 1, SMALL, "small bytes");
    } else if (!strcmp(does, "many")) {
        for (size_t i = 0; i < 70000; i++) {
            if (out_async(small, device + i, 8, 22)) fail("one of many");
            fake_clear();
        }
    } else if (!strcmp(does, "lint")) {
        unsigned char *ordinary[3], result[8];
        for (int i = 0; i < 3; i++) out(bulk, device, BULK); /* page-locked, and it waits: the rate to compare with */
        for (int i = 0; i < 3; i++) out(ordinary[i] = malloc(BULK), device, BULK);
        for (int i = 0; i < 20; i++) out(ordinary[0], device, BULK / 2);
        for (int i = 0; i < 3000; i++) { out_async(small, device + i, 8, 22); fake_clear(); }
        for (int i = 0; i < 500; i++) { out(result, device + i, 8); fake_clear(); }
        for (int i = 0; i < 1500; i++) { out_async(result, device + i, 8, 22); fake_clear(); } /* as PyTorch's item() */
    } else if (!strcmp(does, "told")) {
        /* What other programs are told of is there until the input ends. */
        for (size_t i = 0; i < 4; i++) {
            if (out_async(small, device + i, SMALL, 22)) fail("small");
        }
        printf("told\n");
        fflush(stdout);
        getchar();
    } else if (!strcmp(does, "signalled")) {
        raise(SIGUSR1);
    } else if (!strcmp(does, "killed")) {
        out_async(small, device + 1, SMALL, 22);
        raise(SIGKILL);
    } else if (!strcmp(does, "closes")) {
        /* A program that closes what it did not open, and gets the same numbers for files of its own. */
        for (int i = 3; i < 1024; i++) close(i);
        FILE *own = tmpfile();
        for (int i = 3; i < 1024; i++) dup2(fileno(own), i);
        out_async(small, device + 1, SMALL, 22);
        if (fseek(own, 0, SEEK_END) || ftell(own)) fail("somebody wrote into the program's own file");
    } else if (!strcmp(does, "twice")) {
        out_async(small, device + 1, SMALL, 22);
        fflush(stdout);
        pid_t child = fork();
        if (!child) { out_async(small, device + 1, SMALL, 22); execl(argv[0], argv[0], argv[1], "idle", (char *)0); _exit(1); }
        int status;
        waitpid(child, &status, 0);
        if (status) fail("the second process");
    } else if (strcmp(does, "bulk")) fail("unknown task");
    printf("%s", fake_log());
    return 0;
}
