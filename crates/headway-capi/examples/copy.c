/* Copies ordinary memory to a GPU and back in the order of a stream: cc -std=c11 copy.c $(pkg-config --cflags --libs headway) -ldl
 *
 * The few functions of the CUDA driver are looked up at run time, so that neither cuda.h nor a GPU is needed to build this. */
#include <dlfcn.h>
#include <headway.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Init)(unsigned);
typedef int (*Get)(int *, int);
typedef int (*Retain)(void **, int);
typedef int (*SetCurrent)(void *);
typedef int (*Allocate)(unsigned long long *, size_t);
typedef int (*CreateStream)(void **, unsigned);

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
    void *context = NULL, *stream = NULL;
    unsigned long long there = 0;
    const size_t bytes = 20 * 1000 * 1000;
    if (((Init)function("cuInit"))(0) || ((Get)function("cuDeviceGet"))(&device, 0) ||
        ((Retain)function("cuDevicePrimaryCtxRetain"))(&context, device) || ((SetCurrent)function("cuCtxSetCurrent"))(context) ||
        ((Allocate)function("cuMemAlloc_v2"))(&there, bytes) || ((CreateStream)function("cuStreamCreate"))(&stream, 1)) {
        fprintf(stderr, "the GPU cannot be used\n");
        return 1;
    }
    unsigned char *data = malloc(bytes), *back = calloc(1, bytes);
    if (!data || !back)
        return 1;
    for (size_t at = 0; at < bytes; at++)
        data[at] = (unsigned char)(at * 7 + at / 251);

    headway_options options;
    headway_options_init(&options);
    options.threads = 4;
    headway_copier *copier = NULL;
    check(headway_copier_open(-1, &options, &copier), "open");

    headway_report report;
    check(headway_copy(copier, (void *)there, data, bytes, stream, &report), "copy");
    printf("in: %llu bytes by `%s`\n", (unsigned long long)report.bytes, report.method);

    headway_ticket *ticket = NULL;
    check(headway_copy_async(copier, back, (void *)there, bytes, stream, &ticket), "copy_async");
    struct pollfd event = {headway_ticket_descriptor(ticket), POLLIN, 0};
    if (event.fd < 0 || poll(&event, 1, 60000) != 1) {
        fprintf(stderr, "the copy did not end within a minute\n");
        return 1;
    }
    check(headway_ticket_query(ticket), "query");
    check(headway_ticket_wait(ticket, 0), "wait");
    headway_ticket_free(ticket);
    close(event.fd);
    headway_copier_close(copier);

    int same = memcmp(data, back, bytes) == 0;
    printf("out: %s\n", same ? "the same bytes" : "other bytes");
    free(data);
    free(back);
    return same ? 0 : 1;
}
