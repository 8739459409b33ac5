/*
 * Whose functions a CUDA runtime holds after it has asked the driver for them: the driver's own, or others in their place.
 *
 * A runtime keeps what it gets from the resolver in its own memory. scan() looks at all writable memory but that of the driver,
 * the stack and libraries named *headway*, and prints the names of the driver's functions that it finds there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Addresses are kept turned over, so that they are not found here. */
static struct { const char *name; uintptr_t others; int own, replaced; } names[256];
static size_t count;

void scan(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const char *(*symbol)(const void *) = driver ? (const char *(*)(const void *))dlsym(driver, "fake_symbol") : 0;
    const char *(*symbol_at)(size_t) = driver ? (const char *(*)(size_t))dlsym(driver, "fake_symbol_at") : 0;
    if (!symbol || !symbol_at) { printf("no driver\n"); return; }
    /* What a look-up by name gives now: with a hook in front of it, another function than the driver's. */
    for (count = 0; count < 256 && symbol_at(count); count++) {
        names[count].name = symbol_at(count);
        void *others = dlsym(driver, names[count].name);
        names[count].others = symbol(others) ? 0 : ~(uintptr_t)others;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024], path[1024] = "";
    unsigned long start, end, last = 0;
    char access[8];
    static uintptr_t words[1 << 15];
    while (fgets(line, sizeof line, maps)) {
        char now[1024] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %1023[^\n]", &start, &end, access, now) < 3) continue;
        /* What follows a library without a gap and a name is its own. */
        if (*now || start != last) strcpy(path, now);
        last = end;
        if (access[1] != 'w' || strstr(path, "libcuda.so") || strstr(path, "headway") || strstr(path, "[stack]") || strstr(path, "scan")) continue;
        for (unsigned long at = start; at < end; at += sizeof words) {
            size_t bytes = end - at < sizeof words ? end - at : sizeof words;
            struct iovec here = {words, bytes}, there = {(void *)at, bytes};
            ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
            for (ssize_t i = 0; i < got / (ssize_t)sizeof *words; i++) {
                if (words[i] < 4096) continue;
                const char *own = symbol((void *)words[i]);
                for (size_t n = 0; n < count; n++) {
                    if (own && !strcmp(own, names[n].name)) names[n].own = 1;
                    if (names[n].others && words[i] == ~names[n].others) names[n].replaced = 1;
                }
            }
        }
    }
    fclose(maps);
    for (size_t n = 0; n < count; n++)
        if (names[n].own || names[n].replaced) printf("%s:%s%s\n", names[n].name, names[n].own ? " own" : "", names[n].replaced ? " replaced" : "");
    fflush(stdout);
}
