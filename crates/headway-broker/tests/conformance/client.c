/* A client of the broker, written from docs/protocol.md alone; numbers are passed by the test from the tables of that page.
 *
 * client SOCKET ROUNDS [VERSION]: in each round takes a token, an engine by way of the broker, the same engine by lease, tells
 * of that, and gives everything back. Prints what it did; ends with 0, or with 3 if the broker refused it, else with 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int sock;
static char message[MESSAGE_MAX + 1];
static char *client_page;
static const char *broker_page, *notice_page;
static int bell;
static uint64_t tail, untold;

static _Atomic uint64_t *client_long(size_t at) { return (_Atomic uint64_t *)(client_page + at); }
static const _Atomic uint64_t *broker_long(size_t at) { return (const _Atomic uint64_t *)(broker_page + at); }
static const _Atomic uint32_t *state_word(unsigned slot)
{
    return (const _Atomic uint32_t *)(broker_page + BROKER_STATES + 4 * slot);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Receives one message into `message`; with it up to four descriptors. */
static int hear(int fds[4])
{
    struct pollfd poll_for = {sock, POLLIN, 0};
    if (poll(&poll_for, 1, 300000) <= 0)
        fail("no answer");
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {message, MESSAGE_MAX};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(sock, &header, MSG_CMSG_CLOEXEC);
    if (length <= 0 || header.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        fail("the connection has ended, or a message was cut");
    message[length] = 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    if (!first || first->cmsg_level != SOL_SOCKET || first->cmsg_type != SCM_RIGHTS)
        return 0;
    int count = (int)((first->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(first), (size_t)count * sizeof(int));
    return count;
}

static void say(const char *text)
{
    if (send(sock, text, strlen(text), MSG_NOSIGNAL) < 0)
        fail("send");
}

static void refused(void)
{
    if (!strncmp(message, "{\"refused\"", 10)) {
        printf("%s\n", message);
        exit(3);
    }
}

static uint64_t number(const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *found = strstr(message, key);
    if (!found)
        fail(name);
    return strtoull(found + strlen(key), NULL, 10);
}

static void *map(int fd, size_t bytes, int protection)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        fail("a page that can shrink");
    void *page = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        fail("mmap");
    return page;
}

static void open_connection(const char *path, unsigned version)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != geteuid())
        fail("the broker is another user's");
    char hello[256];
    snprintf(hello, sizeof hello, "{\"hello\":{\"version\":%u,\"name\":\"in C\",\"resumed\":[]}}", version);
    say(hello);
    int fds[4];
    int count = hear(fds);
    refused();
    if (strncmp(message, "{\"welcome\"", 10) || count != 4)
        fail("no welcome with four descriptors");
    client_page = map(fds[0], CLIENT_BYTES, PROT_READ | PROT_WRITE);
    broker_page = map(fds[1], BROKER_BYTES, PROT_READ);
    notice_page = map(fds[2], NOTICE_BYTES, PROT_READ);
    if (mmap(NULL, BROKER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0) != MAP_FAILED)
        fail("the broker page can be written");
    bell = fds[3];
}

static void ring_bell(void)
{
    atomic_thread_fence(memory_order_seq_cst);
    const _Atomic uint32_t *asleep = (const _Atomic uint32_t *)(notice_page + NOTICE_ASLEEP);
    uint64_t one = 1;
    if (atomic_load_explicit(asleep, memory_order_relaxed) && write(bell, &one, 8) != 8 && errno != EAGAIN)
        fail("bell");
}

static uint64_t unread(void)
{
    return tail - atomic_load_explicit(broker_long(BROKER_HEAD), memory_order_acquire);
}

static void put(const uint64_t words[8])
{
    while (unread() >= RING_ENTRIES)
        sched_yield();
    size_t entry = CLIENT_RING + ENTRY_BYTES * (tail % RING_ENTRIES);
    for (size_t at = 0; at < 8; at++)
        atomic_store_explicit(client_long(entry + 8 * at), words[at], memory_order_relaxed);
    atomic_store_explicit(client_long(CLIENT_TAIL), ++tail, memory_order_release);
    ring_bell();
}

/* Waits until the question of this generation is answered, asleep; its code. */
static unsigned await(unsigned slot, uint32_t generation, uint64_t answer[4])
{
    _Atomic uint32_t *sleeping = (_Atomic uint32_t *)(client_page + CLIENT_SLEEPING + 4 * slot);
    for (;;) {
        uint32_t state = atomic_load_explicit(state_word(slot), memory_order_acquire);
        if (state >> 2 == generation && state & 3) {
            for (size_t at = 0; at < 4; at++)
                answer[at] = atomic_load_explicit(broker_long(BROKER_ANSWERS + BROKER_ANSWER_BYTES * slot + 8 * at),
                                                  memory_order_relaxed);
            return state & 3;
        }
        struct pollfd ended = {sock, POLLRDHUP, 0};
        if (poll(&ended, 1, 0) > 0)
            fail("the broker has ended");
        atomic_store_explicit(sleeping, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        struct timespec bound = {0, 100000000};
        if (atomic_load_explicit(state_word(slot), memory_order_acquire) == state)
            syscall(SYS_futex, state_word(slot), FUTEX_WAIT, state, &bound, NULL, 0);
        atomic_store_explicit(sleeping, 0, memory_order_relaxed);
    }
}

static _Atomic uint64_t *lease(unsigned lock) { return client_long(CLIENT_LEASES + CLIENT_LEASE_BYTES * lock); }

static void give_back(unsigned lock, uint64_t taken)
{
    uint64_t busy = (taken & ~3ull) | 2, held = (taken & ~3ull) | 3, low = taken & 0xfffffffcull;
    if (atomic_compare_exchange_strong_explicit(lease(lock), &busy, low | 1, memory_order_release, memory_order_relaxed))
        return;
    if (!atomic_compare_exchange_strong_explicit(lease(lock), &held, low, memory_order_release, memory_order_relaxed))
        fail("the lock was taken away");
    ring_bell();
}

/* Takes a lock by lease as soon as it is leased; nobody else is at this GPU. */
static uint64_t take_leased(unsigned lock, uint64_t task)
{
    uint64_t until = now() + 300000000000ull;
    while (now() < until) {
        uint64_t seen = atomic_load_explicit(lease(lock), memory_order_relaxed);
        uint64_t mine = task << 32 | (seen & 0xfffffffcull) | 2;
        if ((seen & 3) == 1 && atomic_compare_exchange_strong_explicit(lease(lock), &seen, mine, memory_order_acq_rel,
                                                                      memory_order_relaxed))
            return mine;
        sched_yield();
    }
    fail("no lease");
    return 0;
}

int main(int count, char **words)
{
    if (count < 3)
        return 1;
    int none[4];
    open_connection(words[1], count > 3 ? (unsigned)atoi(words[3]) : VERSION);
    say("{\"register\":{\"name\":\"in C\",\"cluster\":0,\"period\":1000,\"deadline\":50000000,\"state\":0,\"segments\":[],\"thread\":null}}");
    hear(none);
    refused();
    uint64_t task = number("task"), answer[4];
    uint32_t generation = 0;
    unsigned rounds = (unsigned)atoi(words[2]), leases = 0;
    for (uint64_t job = 1; job <= rounds; job++) {
        generation++;
        put((uint64_t[8]){1 | (uint64_t)generation << 32, task, job, now(), 0});
        if (await(0, generation, answer) != 1)
            fail("no token");
        unsigned lock = ENGINES * (unsigned)answer[0];
        put((uint64_t[8]){4 | 1 << 8 | (uint64_t)generation << 32, task, job, 0, 0, 0, 0});
        if (await(1, generation, answer) != 1)
            fail("no engine");
        give_back(lock, answer[0]);
        uint64_t mine = take_leased(lock, task), begin = now();
        give_back(lock, mine);
        if (unread() >= REPORTS)
            untold++;
        else {
            put((uint64_t[8]){5 | (uint64_t)lock << 8, task, job, begin, now(), untold});
            untold = 0;
        }
        leases++;
        put((uint64_t[8]){2, task, job, 1, 1000});
    }
    say("\"status\"");
    hear(none);
    if (strncmp(message, "{\"status\"", 9))
        fail("no status");
    char withdraw[64];
    snprintf(withdraw, sizeof withdraw, "{\"withdraw\":{\"task\":%llu}}", (unsigned long long)task);
    say(withdraw);
    hear(none);
    if (strcmp(message, "\"done\""))
        fail("not withdrawn");
    printf("task %llu: %u rounds, %u leases\n", (unsigned long long)task, rounds, leases);
    return 0;
}
