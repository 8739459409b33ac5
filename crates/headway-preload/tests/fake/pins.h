/*
 * Page-locked memory as a device has it: the pages that were there when it was registered, whatever the addresses mean later.
 *
 * An io_uring with a registered buffer keeps the pages by the same call of the kernel as a GPU's driver, and reads and writes them, not the
 * addresses. Where the system forbids it, page-locked memory is what lies at its addresses, and tests of stale pages show nothing.
 */
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

struct pins { int ring, file; char *shared; struct io_uring_sqe *entries; struct io_uring_params layout; };

static struct pins *pins_of(void *start, size_t bytes) {
    struct pins *pins = calloc(1, sizeof *pins);
    struct iovec buffer = {start, bytes};
    pins->ring = (int)syscall(SYS_io_uring_setup, 4, &pins->layout);
    if (pins->ring < 0 || syscall(SYS_io_uring_register, pins->ring, IORING_REGISTER_BUFFERS, &buffer, 1)) {
        if (pins->ring >= 0) close(pins->ring);
        free(pins);
        return 0;
    }
    pins->file = (int)syscall(SYS_memfd_create, "pins", 1);
    pins->shared = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, pins->ring, IORING_OFF_SQ_RING);
    pins->entries = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, pins->ring, IORING_OFF_SQES);
    if (pins->file < 0 || (void *)pins->shared == MAP_FAILED || (void *)pins->entries == MAP_FAILED || ftruncate(pins->file, (off_t)bytes)) abort();
    return pins;
}
static void pins_end(struct pins *pins) {
    if (!pins) return;
    munmap(pins->shared, 16384), munmap(pins->entries, 4096);
    close(pins->ring), close(pins->file), free(pins);
}
/* Moves bytes between the pages behind `at` and the start of the file. */
static void pins_move(struct pins *pins, int operation, void *at, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        unsigned *tail = (unsigned *)(pins->shared + pins->layout.sq_off.tail), *head = (unsigned *)(pins->shared + pins->layout.cq_off.head);
        unsigned mask = *(unsigned *)(pins->shared + pins->layout.sq_off.ring_mask), slot = *tail & mask;
        pins->entries[slot] = (struct io_uring_sqe){
            .opcode = (unsigned char)operation, .fd = pins->file, .off = done, .addr = (uint64_t)at + done, .len = (unsigned)(bytes - done)};
        ((unsigned *)(pins->shared + pins->layout.sq_off.array))[slot] = slot;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, pins->ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) abort();
        unsigned *ends = (unsigned *)(pins->shared + pins->layout.cq_off.tail), left = *(unsigned *)(pins->shared + pins->layout.cq_off.ring_mask);
        while (__atomic_load_n(ends, __ATOMIC_ACQUIRE) == *head) sched_yield();
        int moved = ((struct io_uring_cqe *)(pins->shared + pins->layout.cq_off.cqes))[*head & left].res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        if (moved <= 0) { fprintf(stderr, "page-locked memory was not reached: %d\n", moved); abort(); }
        done += (size_t)moved;
    }
}
static void pins_read(struct pins *pins, void *to, const void *from, size_t bytes) {
    pins_move(pins, IORING_OP_WRITE_FIXED, (void *)from, bytes);
    if (pread(pins->file, to, bytes, 0) != (ssize_t)bytes) abort();
}
static void pins_write(struct pins *pins, void *to, const void *from, size_t bytes) {
    if (pwrite(pins->file, from, bytes, 0) != (ssize_t)bytes) abort();
    pins_move(pins, IORING_OP_READ_FIXED, to, bytes);
}
