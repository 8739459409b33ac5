/* What programs of the tests have in common that find the driver's functions in the library by their names. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream;

static void *driver;
static void *need(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) { printf("FAILED: no %s\n", name); exit(2); }
    return found;
}
#define CALL(type, name, ...) ((CUresult (*) type)need(name))(__VA_ARGS__)
static void must(CUresult status, const char *what) { if (status) { printf("FAILED: %s: %d\n", what, status); exit(2); } }
