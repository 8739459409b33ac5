/* Has a CUDA runtime look for the driver, then prints what it holds: runtime [LIBRARY]; without one, the runtime is linked in. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

void scan(void);
#ifdef STATIC
int cudaGetDeviceCount(int *);
#endif
int main(int argc, char **argv) {
    int (*count)(int *) = 0, devices = 0;
    /* The runtime closes a driver that it does not accept. */
    if (!dlopen("libcuda.so.1", RTLD_NOW)) return 2;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (!library) { printf("%s\n", dlerror()); return 2; }
        count = (int (*)(int *))dlsym(library, "cudaGetDeviceCount");
    }
#ifdef STATIC
    count = cudaGetDeviceCount;
#endif
    if (!count) return 2;
    count(&devices); /* its answer does not matter: by then the runtime has asked for every function */
    scan();
    return 0;
}
