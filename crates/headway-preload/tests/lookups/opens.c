/* Opens a library that copies: opens HOW LIBRARY [COMMAND...], then becomes the command if one is named. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long (*plugin)(void);
static void *in_a_thread(void *nothing) { (void)nothing; return (void *)plugin(); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *how = argv[1];
    void *library = !strcmp(how, "namespace") ? dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW)
                    : dlopen(argv[2], RTLD_NOW | (!strcmp(how, "deepbind") ? RTLD_DEEPBIND : RTLD_LOCAL));
    if (!library) { printf("%s\n", dlerror()); return 2; }
    plugin = (long (*)(void))dlsym(library, "plugin");
    long calls;
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        void *answer;
        if (pthread_create(&thread, 0, in_a_thread, 0) || pthread_join(thread, &answer)) return 2;
        calls = (long)answer;
    } else calls = plugin();
    printf("the driver's own calls: %ld\n", calls);
    fflush(stdout);
    if (!strcmp(how, "closes")) printf("closed: %d\n", dlclose(library));
    /* What compilers' helpers see: the environment, and an interposed dlsym for names of all kinds. */
    printf("names: %d %d %d\n", dlsym(RTLD_DEFAULT, "malloc") != 0, dlsym(RTLD_DEFAULT, "no_such_name") != 0, dlerror() != 0);
    if (argc > 3) {
        pid_t child = fork();
        if (!child) { execvp(argv[3], argv + 3); _exit(127); }
        int status;
        waitpid(child, &status, 0);
        printf("helper: %d\n", WEXITSTATUS(status));
    }
    return calls < 0;
}
