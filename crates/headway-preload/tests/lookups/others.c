/*
 * Functions that have the driver's names and are not the driver's: libraries of them, and a program that calls them.
 *
 * With -DWRAPS a library passes some of the driver's functions on to the driver at REAL. With -DNAMES one has only a name.
 *
 *     others HOW LIBRARY
 *
 *     wrapper    calls the functions of LIBRARY, which passes them on
 *     namespace  those of LIBRARY, a second driver that `dlmopen` opens, and those of the driver
 *     names      that of LIBRARY, which has only the name, without a driver and beside one
 *     linked     that of the library that the program is linked with, without a driver
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;

#ifdef NAMES
long cuMemcpyHtoD_v2(const char *text) { return (long)strlen(text) + ((long)1 << 40); }
#elif defined(WRAPS)
static void *real(const char *name) {
    static void *driver;
    if (!driver && !(driver = dlopen(getenv("REAL"), RTLD_NOW | RTLD_LOCAL))) abort();
    return dlsym(driver, name);
}
static unsigned long passed;
unsigned long wrapped(void) { return passed; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { passed++; return ((CUresult (*)(CUdeviceptr, const void *, size_t))real("cuMemcpyHtoD_v2"))(to, from, bytes); }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { passed++; return ((CUresult (*)(void *, CUdeviceptr, size_t))real("cuMemcpyDtoH_v2"))(to, from, bytes); }
CUresult cuInit(unsigned flags) { return ((CUresult (*)(unsigned))real("cuInit"))(flags); }
CUresult cuDevicePrimaryCtxRetain(size_t *context, int device) { return ((CUresult (*)(size_t *, int))real("cuDevicePrimaryCtxRetain"))(context, device); }
CUresult cuCtxSetCurrent(size_t context) { return ((CUresult (*)(size_t))real("cuCtxSetCurrent"))(context); }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { return ((CUresult (*)(CUdeviceptr *, size_t))real("cuMemAlloc_v2"))(address, bytes); }
unsigned long fake_count(const char *name) { return ((unsigned long (*)(const char *))real("fake_count"))(name); }
#else
#define BYTES ((size_t)5 << 20)
long cuMemcpyHtoD_v2(const char *text) __attribute__((weak));

/* Copies there and back by the functions that a library has: how many of them reached the driver. */
static void copies(const char *what, void *library) {
    if (!library) { printf("%s\n", dlerror()); exit(2); }
    CUresult (*init)(unsigned) = dlsym(library, "cuInit"), (*retain)(size_t *, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    CUresult (*current)(size_t) = dlsym(library, "cuCtxSetCurrent"), (*alloc)(CUdeviceptr *, size_t) = dlsym(library, "cuMemAlloc_v2");
    CUresult (*in)(CUdeviceptr, const void *, size_t) = dlsym(library, "cuMemcpyHtoD_v2"), (*out)(void *, CUdeviceptr, size_t) = dlsym(library, "cuMemcpyDtoH_v2");
    unsigned long (*count)(const char *) = dlsym(library, "fake_count"), (*wrapped)(void) = dlsym(library, "wrapped");
    size_t context;
    CUdeviceptr device;
    unsigned char *source = malloc(BYTES), *back = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) source[i] = (unsigned char)((i * 2654435761u) >> 17);
    if (init(0) || retain(&context, 0) || current(context) || alloc(&device, BYTES)) exit(2);
    unsigned long before = count("cuMemcpyHtoD_v2") + count("cuMemcpyDtoH_v2");
    int status = in(device, source, BYTES) | out(back, device, BYTES);
    printf("%s: status %d, bytes %s, wrapped %lu\n", what, status, memcmp(source, back, BYTES) ? "WRONG" : "right", wrapped ? wrapped() : 0);
    fprintf(stderr, "%s: reached %lu\n", what, count("cuMemcpyHtoD_v2") + count("cuMemcpyDtoH_v2") - before);
    free(source), free(back);
}
static void named(void *library) {
    long (*function)(const char *) = (long (*)(const char *))dlsym(library, "cuMemcpyHtoD_v2");
    const char *error = dlerror();
    printf("%lx, error %s\n", function("four"), error ? error : "none");
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (!strcmp(argv[1], "linked")) printf("%x\n", (unsigned)cuMemcpyHtoD_v2("four"));
    else if (!strcmp(argv[1], "wrapper")) copies("wrapper", dlopen(argv[2], RTLD_NOW));
    else if (!strcmp(argv[1], "names")) {
        void *library = dlopen(argv[2], RTLD_NOW);
        named(library);
        copies("driver", dlopen("libcuda.so.1", RTLD_NOW));
        named(library);
    } else {
        void *second = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
        copies("second", second);
        copies("driver", dlopen("libcuda.so.1", RTLD_NOW));
        copies("second", second);
        copies("driver", dlopen("libcuda.so.1", RTLD_NOW));
    }
    return 0;
}
#endif
