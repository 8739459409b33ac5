/* Opens a flow, whose copies are promised to be in time, and makes some: cc -std=c11 flow.c $(pkg-config --cflags --libs headway) -ldl
 *
 * The few functions of the CUDA driver are looked up at run time, so that neither cuda.h nor a GPU is needed to build this. */
#include <dlfcn.h>
#include <headway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Init)(unsigned);
typedef int (*Get)(int *, int);
typedef int (*Retain)(void **, int);
typedef int (*SetCurrent)(void *);
typedef int (*Allocate)(unsigned long long *, size_t);
typedef int (*AllocateHost)(void **, size_t, unsigned);

static void *driver;

static void *function(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(headway_status status, const char *what)
{
    if (status == HEADWAY_STATUS_OK)
        return;
    fprintf(stderr, "%s: status %d: %s\n", what, (int)status, headway_last_error());
    exit(1);
}

int main(void)
{
    const char *named = getenv("HEADWAY_LIBCUDA");
    driver = dlopen(named ? named : "libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        return 1;
    }
    int device = 0;
    void *context = NULL, *frame = NULL, *back = NULL;
    unsigned long long image = 0;
    const size_t bytes = 6 << 20;
    if (((Init)function("cuInit"))(0) || ((Get)function("cuDeviceGet"))(&device, 0) ||
        ((Retain)function("cuDevicePrimaryCtxRetain"))(&context, device) || ((SetCurrent)function("cuCtxSetCurrent"))(context) ||
        ((Allocate)function("cuMemAlloc_v2"))(&image, bytes) || ((AllocateHost)function("cuMemHostAlloc"))(&frame, bytes, 1) ||
        ((AllocateHost)function("cuMemHostAlloc"))(&back, bytes, 1)) {
        fprintf(stderr, "the GPU cannot be used\n");
        return 1;
    }
    headway_copier *copier = NULL;
    headway_node *node = NULL;
    check(headway_copier_open(-1, NULL, &copier), "open");
    const char *machine = getenv("MACHINE");
    check(headway_node_open(copier, machine ? machine : "machine.toml", &node), "the file of `headway measure`");

    headway_contract contract;
    headway_contract_init(&contract);
    contract.name = "camera";
    contract.bytes = bytes;
    contract.period_ns = 33 * 1000 * 1000;
    contract.deadline_ns = 30 * 1000 * 1000;
    headway_flow *camera = NULL, *results = NULL, *radar = NULL;
    check(headway_flow_open(node, &contract, &camera), "camera");
    contract.name = "results";
    contract.direction = HEADWAY_DIRECTION_OUT;
    check(headway_flow_open(node, &contract, &results), "results");
    contract.name = "radar";
    contract.bytes = 1 << 30;
    contract.period_ns = contract.deadline_ns = 10 * 1000 * 1000;
    if (headway_flow_open(node, &contract, &radar) != HEADWAY_STATUS_NOT_PROMISED || radar)
        return 1;
    printf("radar: %s\n", headway_last_error());

    for (int round = 0; round < 3; round++) {
        memset(frame, 'a' + round, bytes);
        headway_flow_result result;
        check(headway_flow_copy(camera, (void *)image, frame, bytes, NULL, &result), "copy");
        printf("camera: %llu ns of at most %llu; %s\n", (unsigned long long)result.response_ns,
               (unsigned long long)headway_flow_bound(camera), result.blame);
        headway_flow_job *job = NULL;
        check(headway_flow_submit(results, back, (void *)image, bytes, NULL, &job), "submit");
        check(headway_flow_job_wait(job, 60ull * 1000 * 1000 * 1000, &result), "wait");
        headway_flow_job_free(job);
        if (memcmp(frame, back, bytes))
            return 1;
    }
    headway_flow_close(camera);
    headway_flow_close(results);
    headway_node_close(node);
    headway_copier_close(copier);
    printf("the same bytes\n");
    return 0;
}
