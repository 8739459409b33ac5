/* A library of a program that copies; who opens it decides in which scope and namespace it finds `dlsym` and the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
static int (*in)(CUdeviceptr, const void *, size_t), (*out)(void *, CUdeviceptr, size_t);

/* Copies there and back; the number of the driver's own calls, or -1. */
long plugin(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return -1;
    CUresult (*init)(unsigned) = dlsym(driver, "cuInit"), (*retain)(size_t *, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    CUresult (*current)(size_t) = dlsym(driver, "cuCtxSetCurrent"), (*alloc)(CUdeviceptr *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    unsigned long (*count)(const char *) = dlsym(driver, "fake_count");
    in = dlsym(driver, "cuMemcpyHtoD_v2"), out = dlsym(driver, "cuMemcpyDtoH_v2");
    size_t context, bytes = 5 << 20;
    CUdeviceptr device;
    unsigned char *source = malloc(bytes), *back = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) source[i] = (unsigned char)((i * 2654435761u) >> 17);
    if (init(0) || retain(&context, 0) || current(context) || alloc(&device, bytes)) return -1;
    if (in(device, source, bytes) || out(back, device, bytes) || memcmp(source, back, bytes)) return -1;
    return (long)(count("cuMemcpyHtoD_v2") + count("cuMemcpyDtoH_v2"));
}
