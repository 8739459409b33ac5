/* Another library that stands in front of `dlsym`, as profilers and memory checkers do: it counts and passes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int seen, next_seen;
void *dlsym(void *library, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!real) abort();
    seen++;
    next_seen += library == RTLD_NEXT;
    return real(library, name);
}
__attribute__((destructor)) static void end(void) {
    if (getenv("INTERPOSER_SAYS")) fprintf(stderr, "interposer: %d\n", seen);
}
