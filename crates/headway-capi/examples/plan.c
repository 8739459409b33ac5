/* Runs the plan of a workload with the program's own frames: cc -std=c11 -D_GNU_SOURCE -pthread plan.c $(pkg-config --cflags --libs headway)
 *
 *     ./a.out camera.toml
 *
 * The workload has a stream `camera`, which comes back to the host, and urgent copies `order` into a GPU. The plan runs on GPUs, where there are
 * none in a simulation; BACKEND=2 emulates GPUs by threads. */
#include <headway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(headway_status status, const char *what)
{
    if (status == HEADWAY_STATUS_OK)
        return;
    fprintf(stderr, "%s: status %d: %s\n", what, (int)status, headway_last_error());
    exit(1);
}

/* A camera may wait here for its next frame. */
static int give(const headway_source_packet *packet, void *to, size_t bytes, void *context)
{
    (void)context;
    memset(to, (int)(packet->packet & 0xff), bytes);
    return 0;
}

static int take(const headway_sink_packet *packet, const void *from, size_t bytes, void *context)
{
    unsigned long long *frames = context;
    ++*frames;
    printf("frame %llu is back after %llu ns: %zu bytes, the first is %02x\n", (unsigned long long)packet->packet,
           (unsigned long long)(packet->delivered_ns - packet->arrived_ns), bytes, *(const unsigned char *)from);
    return 0;
}

/* Asks once, as soon as the run takes requests. */
static void *ask(void *context)
{
    headway_urgent_result result;
    headway_status status = HEADWAY_STATUS_INVALID;
    for (int tries = 0; status != HEADWAY_STATUS_OK && tries < 1000; tries++) {
        status = headway_urgent_copy(context, 4096, 10ull * 1000 * 1000 * 1000, &result);
        if (status == HEADWAY_STATUS_OK)
            printf("the order took %llu ns of %llu, promised: %u\n", (unsigned long long)result.response_ns,
                   (unsigned long long)result.deadline_ns, result.promised);
        else
            nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: %s camera.toml\n", arguments[0]);
        return 2;
    }
    headway_run_options options;
    headway_run_options_init(&options);
    options.out = getenv("OUT");
    options.backend = getenv("BACKEND") ? (uint32_t)atoi(getenv("BACKEND")) : HEADWAY_BACKEND_AUTO;

    headway_program *program = NULL;
    check(headway_program_open(arguments[1], &options, &program), "plan");
    unsigned long long frames = 0;
    check(headway_program_source(program, "camera", give, NULL), "source");
    check(headway_program_sink(program, "camera", take, &frames), "sink");
    check(headway_program_event(program, 0, NULL), "events");

    /* A simulation has no memory for urgent copies, and says so. */
    headway_urgent *order = NULL;
    pthread_t asks;
    if (headway_urgent_open(program, "order", 4096, &order) == HEADWAY_STATUS_OK) {
        void *from, *to;
        check(headway_urgent_memory(order, &from, &to), "memory");
        memset(from, 7, 4096);
        if (pthread_create(&asks, NULL, ask, order))
            return 1;
    } else {
        printf("no urgent copies: %s\n", headway_last_error());
    }

    headway_run_result result;
    headway_status status = headway_program_run(program, &result);
    if (order)
        pthread_join(asks, NULL);
    /* The next call that fails has another text, and the last call for an event does. */
    check(status, "run");
    headway_event event;
    while (headway_program_event(program, 0, &event) == HEADWAY_STATUS_OK)
        printf("at %llu ns: %s\n", (unsigned long long)event.at_ns, event.text);
    printf("%llu frames, %llu came back, deadlines held: %u\n", (unsigned long long)result.packets, frames, result.held);
    headway_urgent_free(order);
    headway_program_close(program);
    return 0;
}
