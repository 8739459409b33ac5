/*
 * A program that launches kernels and graphs, and knows nothing of Headway.
 *
 *     launches LOOKUP TASK
 *
 * It reaches the driver by LOOKUP: dlsym, resolver, per-thread, or as it is linked. It prints the status of each launch that is not 0, what the
 * kernels have not done, and how many launches were under way at a time, by the driver's count.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../fake/program.h"

enum { KERNEL = 6, LAUNCHES = 120, STREAMS = 3 };
struct config { unsigned sizes[7]; CUstream stream; void *attributes; unsigned count; }; /* CUlaunchConfig */

static CUresult (*launch)(size_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
static CUresult (*launch_together)(size_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
static CUresult (*launch_with)(const struct config *, size_t, void **, void **);
static CUresult (*launch_graph)(void *, CUstream);
#ifdef DIRECT
CUresult cuLaunchKernel(size_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchCooperativeKernel(size_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchKernelEx(const struct config *, size_t, void **, void **);
CUresult cuGraphLaunch(void *, CUstream);
#endif

static void look_up(const char *lookup) {
#ifdef DIRECT
    launch = cuLaunchKernel, launch_together = cuLaunchCooperativeKernel, launch_with = cuLaunchKernelEx, launch_graph = cuGraphLaunch;
    (void)lookup;
#else
    const char *(*symbol)(const void *) = (const char *(*)(const void *))need("fake_symbol");
    CUresult (*ask)(const char *, void **, int, uint64_t, int *) = need("cuGetProcAddress_v2");
    int drivers = 0, per_thread = !strcmp(lookup, "per-thread");
#define FIND(place, name) do { \
        void *found = 0; \
        if (!strcmp(lookup, "dlsym")) found = need(name); else ask(name, &found, 13010, per_thread ? 2 : 0, 0); \
        place = found, drivers += symbol(found) != 0; \
    } while (0)
    FIND(launch, "cuLaunchKernel"); FIND(launch_together, "cuLaunchCooperativeKernel");
    FIND(launch_with, "cuLaunchKernelEx"); FIND(launch_graph, "cuGraphLaunch");
    fprintf(stderr, "functions of the driver: %d\n", drivers);
#endif
}

/* What one thread launches: kernel `i` copies word `i`. */
struct work { CUdeviceptr to, from; CUstream streams[STREAMS]; void *graph; size_t first, count, context; };
static CUresult one(struct work *w, size_t i, CUstream stream, int how) {
    CUdeviceptr to = w->to + 8 * i, from = w->from + 8 * i;
    uint64_t bytes = 8;
    void *arguments[] = {&to, &from, &bytes};
    struct config config = {.stream = stream};
    switch (how) {
    case 0: return launch(KERNEL, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0);
    case 1: return launch_together(KERNEL, 1, 1, 1, 32, 1, 1, 0, stream, arguments);
    case 2: return launch_with(&config, KERNEL, arguments, 0);
    default: return launch_graph(w->graph, stream);
    }
}
static void *all(void *argument) {
    struct work *w = argument;
    must(CALL((size_t), "cuCtxSetCurrent", w->context), "cuCtxSetCurrent");
    for (size_t i = w->first; i < w->first + w->count; i++) {
        /* A graph is one more launch, of kernels that were launched before. */
        for (int how = (int)(i % 3), more = i % 10 == 0; ; how = 3, more = 0) {
            CUresult status = one(w, i, i % 4 == 3 ? 0 : w->streams[i % STREAMS], how);
            if (status) printf("launch %zu by %d: %d\n", i, how, status);
            if (!more) break;
        }
    }
    return 0;
}
static void end(const struct work *w) {
    must(CALL((void), "cuCtxSynchronize"), "cuCtxSynchronize");
    for (size_t i = 0; i < LAUNCHES; i++)
        if (((uint64_t *)w->to)[i] != i + 1) printf("kernel %zu has not run\n", i);
}
static void create(struct work *w) {
    for (int s = 0; s < STREAMS; s++) must(CALL((CUstream *, unsigned), "cuStreamCreate", &w->streams[s], 1), "cuStreamCreate");
    must(CALL((CUdeviceptr *, size_t), "cuMemAlloc_v2", &w->to, LAUNCHES * 8), "cuMemAlloc");
    must(CALL((CUdeviceptr *, size_t), "cuMemAlloc_v2", &w->from, LAUNCHES * 8), "cuMemAlloc");
    memset((void *)w->to, 0, LAUNCHES * 8);
    for (size_t i = 0; i < LAUNCHES; i++) ((uint64_t *)w->from)[i] = i + 1;
    w->first = 0, w->count = LAUNCHES;
}
/* A graph with eight kernels. */
static void record(struct work *w) {
    void *graph;
    size_t nodes = 0;
    must(CALL((CUstream, int), "cuStreamBeginCapture_v2", w->streams[0], 0), "cuStreamBeginCapture");
    for (size_t i = 0; i < 8; i++) must(one(w, i, w->streams[0], (int)(i % 3)), "captured launch");
    must(CALL((CUstream, void **), "cuStreamEndCapture", w->streams[0], &graph), "cuStreamEndCapture");
    must(CALL((void *, void *, size_t *), "cuGraphGetNodes", graph, 0, &nodes), "cuGraphGetNodes");
    must(CALL((void **, void *, unsigned long long), "cuGraphInstantiateWithFlags", &w->graph, graph, 0), "cuGraphInstantiate");
    printf("%zu kernels were recorded\n", nodes);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const char *task = argv[2];
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    look_up(argv[1]);
    unsigned (*most)(void) = (unsigned (*)(void))need("fake_launches_most");
    struct work work = {0};
    must(CALL((unsigned), "cuInit", 0), "cuInit");
    must(CALL((size_t *, int), "cuDevicePrimaryCtxRetain", &work.context, 0), "cuDevicePrimaryCtxRetain");
    must(CALL((size_t), "cuCtxSetCurrent", work.context), "cuCtxSetCurrent");
    create(&work);
    record(&work);
    if (!strcmp(task, "streams")) {
        all(&work);
        end(&work);
    } else if (!strcmp(task, "threads")) {
        pthread_t threads[4];
        struct work parts[4];
        for (size_t t = 0; t < 4; t++) {
            parts[t] = work, parts[t].count = LAUNCHES / 4, parts[t].first = t * parts[t].count;
            pthread_create(&threads[t], 0, all, &parts[t]);
        }
        for (size_t t = 0; t < 4; t++) pthread_join(threads[t], 0);
        end(&work);
    } else if (!strcmp(task, "contexts")) {
        /* A context is destroyed with launches under way, and others come. */
        for (int times = 0; times < 3; times++) {
            struct work other = {0};
            must(CALL((size_t *, unsigned, int), "cuCtxCreate_v2", &other.context, 0, 0), "cuCtxCreate");
            create(&other);
            record(&other);
            all(&other);
            if (times == 2) end(&other);
            must(CALL((size_t), "cuCtxDestroy_v2", other.context), "cuCtxDestroy");
        }
        must(CALL((size_t), "cuCtxSetCurrent", work.context), "cuCtxSetCurrent");
        all(&work);
        must(CALL((int), "cuDevicePrimaryCtxReset_v2", 0), "cuDevicePrimaryCtxReset");
        printf("after a reset: %d\n", one(&work, 0, 0, 0));
    } else if (!strcmp(task, "refused")) {
        struct work other = {0};
        must(CALL((size_t *, unsigned, int), "cuCtxCreate_v2", &other.context, 0, 0), "cuCtxCreate");
        create(&other);
        must(CALL((size_t), "cuCtxSetCurrent", work.context), "cuCtxSetCurrent");
        for (int how = 0; how < 4; how++) printf("a stream of another context: %d\n", one(&work, 1, other.streams[0], how));
        printf("no kernel: %d\n", launch(9, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0));
        printf("no configuration: %d\n", launch_with(0, KERNEL, 0, 0));
        /* The legacy default stream may not meet a capture of a stream that waits for it. */
        CUstream blocking;
        void *graph = 0;
        must(CALL((CUstream *, unsigned), "cuStreamCreate", &blocking, 0), "cuStreamCreate");
        must(CALL((CUstream, int), "cuStreamBeginCapture_v2", blocking, 0), "cuStreamBeginCapture");
        printf("beside a capture: %d\n", one(&work, 1, (CUstream)1, 0));
        printf("the capture: %d\n", CALL((CUstream, void **), "cuStreamEndCapture", blocking, &graph));
        all(&work);
        end(&work);
        CALL((int), "fake_break", 700);
        for (int how = 0; how < 4; how++) printf("after an error: %d\n", one(&work, 1, work.streams[1], how));
        CALL((int), "fake_break", 0);
    } else if (!strcmp(task, "fork")) {
        all(&work);
        fflush(stdout);
        pid_t child = fork();
        if (!child) { printf("child: %d\n", one(&work, 1, work.streams[1], 0)); fflush(stdout); _exit(0); }
        waitpid(child, 0, 0);
        all(&work);
        end(&work);
    } else if (!strcmp(task, "waits")) {
        /* Launches whose stream waits for what the program does after them. */
        CUdeviceptr word;
        must(CALL((CUdeviceptr *, size_t), "cuMemAlloc_v2", &word, 4), "cuMemAlloc");
        *(volatile unsigned *)word = 0;
        must(CALL((CUstream, CUdeviceptr, unsigned, unsigned), "cuStreamWaitValue32_v2", work.streams[0], word, 1, 0), "cuStreamWaitValue32");
        for (size_t i = 0; i < 30; i++) must(one(&work, i, work.streams[0], 0), "launch");
        *(volatile unsigned *)word = 1;
        all(&work);
        end(&work);
    } else if (!strcmp(task, "one")) {
        must(one(&work, 1, work.streams[1], 0), "launch");
    } else return 2;
    printf("most under way: %u\n", most());
    return 0;
}
