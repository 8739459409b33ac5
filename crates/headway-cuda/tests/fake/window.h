/*
 * What windows need of the CUDA driver, and the user library of GDRCopy. Included at the end of fake.c.
 *
 * Memory that is shared lies in a memfd, so that a second mapping of it is the same memory. Built with
 *   -DMEMFD            every allocation of device memory lies in one too
 *   -DMMAP_ATTRIBUTE=1 -DVERSION=13030    the driver says that its dma-bufs can be mapped
 *   -DSEALED           and yet they cannot: the file gives only its reading end
 *   -DGDR_V1           a library of GDRCopy before 2.5
 */
#include <fcntl.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int kind, handles, location, id; void *meta; unsigned char flags[8]; } Properties;
typedef struct { int location, id, flags; } Access;
typedef struct { int kind; union { int fd; void *pointers[2]; } handle; unsigned long long bytes; unsigned flags, reserved[16]; } ExternalDescription;
typedef struct { unsigned long long offset, bytes; unsigned flags, reserved[16]; } ExternalBuffer;
enum { GRANULARITY = 2 << 20, GPU_PAGE = 64 << 10 };

typedef struct { int fd; size_t bytes; } Physical;
typedef struct { char *base; size_t bytes; Physical *physical; int allowed; } Reserved;
static Reserved reserved[64];

static Reserved *reserved_at(Address address, size_t bytes) {
	for (int i = 0; i < 64; i++)
		if (reserved[i].base == (char *)address && reserved[i].bytes == bytes) return &reserved[i];
	return NULL;
}
Code cuMemGetAllocationGranularity(size_t *granularity, const Properties *wanted, int option) {
	ENTER(cuMemGetAllocationGranularity);
	NEED(wanted->kind == 1 && wanted->location == 1 && option == 0, INVALID_VALUE);
	*granularity = GRANULARITY;
	LEAVE(0);
}
Code cuMemCreate(unsigned long long *handle, size_t bytes, const Properties *wanted, unsigned long long flags) {
	ENTER(cuMemCreate);
	NEED(!flags && bytes && bytes % GRANULARITY == 0 && wanted->kind == 1 && wanted->handles == 1 && wanted->location == 1 && wanted->id < DEVICES && !wanted->meta, INVALID_VALUE);
	Physical *physical = malloc(sizeof(Physical));
	*physical = (Physical){memfd_create("fake", 0), bytes};
	if (physical->fd < 0 || ftruncate(physical->fd, bytes)) LEAVE(NO_MEMORY);
	*handle = (unsigned long long)physical;
	live++;
	LEAVE(0);
}
Code cuMemRelease(unsigned long long handle) {
	ENTER(cuMemRelease);
	Physical *physical = (Physical *)handle;
	/* Stricter than the driver: addresses go before the memory. */
	for (int i = 0; i < 64; i++) NEED(reserved[i].physical != physical, INVALID_VALUE);
	close(physical->fd);
	free(physical);
	live--;
	LEAVE(0);
}
Code cuMemExportToShareableHandle(void *to, unsigned long long handle, int kind, unsigned long long flags) {
	ENTER(cuMemExportToShareableHandle);
	NEED(kind == 1 && !flags, INVALID_VALUE);
	*(int *)to = dup(((Physical *)handle)->fd);
	LEAVE(0);
}
Code cuMemAddressReserve(Address *address, size_t bytes, size_t align, Address wish, unsigned long long flags) {
	ENTER(cuMemAddressReserve);
	NEED(bytes % GRANULARITY == 0 && !align && !wish && !flags, INVALID_VALUE);
	for (int i = 0; i < 64; i++)
		if (!reserved[i].base) {
			char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			NEED(base != MAP_FAILED, NO_MEMORY);
			reserved[i] = (Reserved){base, bytes, NULL, 0};
			*address = (Address)base;
			live++;
			LEAVE(0);
		}
	LEAVE(NO_MEMORY);
}
Code cuMemAddressFree(Address address, size_t bytes) {
	ENTER(cuMemAddressFree);
	Reserved *range = reserved_at(address, bytes);
	NEED(range && !range->physical, INVALID_VALUE);
	munmap(range->base, bytes);
	range->base = NULL;
	live--;
	LEAVE(0);
}
Code cuMemMap(Address address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
	ENTER(cuMemMap);
	Reserved *range = reserved_at(address, bytes);
	NEED(range && !range->physical && !offset && !flags && ((Physical *)handle)->bytes == bytes, INVALID_VALUE);
	range->physical = (Physical *)handle;
	live++;
	LEAVE(0);
}
Code cuMemUnmap(Address address, size_t bytes) {
	ENTER(cuMemUnmap);
	Reserved *range = reserved_at(address, bytes);
	NEED(range && range->physical, INVALID_VALUE);
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].base == range->base) ranges[i].used = 0;
	mmap(range->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	range->physical = NULL;
	live--;
	LEAVE(0);
}
Code cuMemSetAccess(Address address, size_t bytes, const Access *access, size_t count) {
	ENTER(cuMemSetAccess);
	Reserved *range = reserved_at(address, bytes);
	NEED(range && range->physical && count == 1 && access->location == 1 && access->id < DEVICES && access->flags == 3, INVALID_VALUE);
	if (!range->allowed++) {
		if (mmap(range->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, range->physical->fd, 0) == MAP_FAILED) LEAVE(NO_MEMORY);
		*slot() = (Range){range->base, bytes, 0, 1, 1, 0, 0};
	}
	LEAVE(0);
}

Code cuImportExternalMemory(void **handle, const ExternalDescription *wanted) {
	ENTER(cuImportExternalMemory);
	NEED(wanted->kind == 1 && !wanted->flags && lseek(wanted->handle.fd, 0, SEEK_END) == (off_t)wanted->bytes, INVALID_VALUE);
	Physical *physical = malloc(sizeof(Physical));
	*physical = (Physical){wanted->handle.fd, wanted->bytes};
	*handle = physical;
	live++;
	LEAVE(0);
}
Code cuExternalMemoryGetMappedBuffer(Address *address, Physical *physical, const ExternalBuffer *wanted) {
	ENTER(cuExternalMemoryGetMappedBuffer);
	NEED(!wanted->offset && wanted->bytes == physical->bytes && !wanted->flags, INVALID_VALUE);
	char *base = mmap(NULL, physical->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical->fd, 0);
	NEED(base != MAP_FAILED, NO_MEMORY);
	Range *range = slot();
	*range = (Range){base, physical->bytes, 0, 1, 0, 0, 0};
	live++;
	*address = (Address)base;
	LEAVE(0);
}
Code cuDestroyExternalMemory(Physical *physical) {
	ENTER(cuDestroyExternalMemory);
	close(physical->fd);
	free(physical);
	live--;
	LEAVE(0);
}

/* The file and the offset in it that `address` lies at, of memory built with -DMEMFD; -1 if it is no such memory. */
static int file_of(Address address, size_t bytes, size_t *offset) {
	for (int i = 0; i < range_count; i++)
		if (ranges[i].used && ranges[i].fd && address >= (Address)ranges[i].base && address + bytes <= (Address)ranges[i].base + ranges[i].room) {
			*offset = address - (Address)ranges[i].base;
			return ranges[i].fd;
		}
	return -1;
}
#ifndef NO_DMA_BUF
Code cuMemGetHandleForAddressRange(void *to, Address address, size_t bytes, int kind, unsigned long long flags) {
	ENTER(cuMemGetHandleForAddressRange);
	size_t offset;
	int fd = file_of(address, bytes, &offset);
	NEED(fd >= 0 && kind == 1 && !flags && address % 4096 == 0 && bytes % 4096 == 0, INVALID_VALUE);
	/* A dma-buf starts at the range, a memfd at its own start: the range must be an allocation's from its start on. */
	NEED(offset == 0, INVALID_VALUE);
#ifdef SEALED
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	*(int *)to = open(name, O_RDONLY);
#else
	*(int *)to = dup(fd);
#endif
	LEAVE(0);
}
#endif

/* GDRCopy. */
typedef struct { unsigned long h; } Pinned;
typedef struct { int fd; size_t offset, bytes; char *mapped; } Pin;
static int session;
void *gdr_open(void) { return &session; }
static int pin(void *gdr, unsigned long address, size_t bytes, Pinned *pinned) {
	pthread_mutex_lock(&mutex);
	size_t offset = 0;
	int fd = file_of(address, bytes, &offset), good = gdr == &session && fd >= 0 && address % GPU_PAGE == 0 && bytes % GPU_PAGE == 0 && bytes;
	if (good) {
		Pin *made = malloc(sizeof(Pin));
		*made = (Pin){fd, offset, bytes, NULL};
		pinned->h = (unsigned long)made;
		live++;
	}
	pthread_mutex_unlock(&mutex);
	return good ? 0 : EINVAL;
}
#ifdef GDR_V1
int gdr_pin_buffer(void *gdr, unsigned long address, size_t bytes, unsigned long long token, unsigned space, Pinned *pinned) {
	return token || space ? EINVAL : pin(gdr, address, bytes, pinned);
}
#else
int gdr_pin_buffer_v2(void *gdr, unsigned long address, size_t bytes, unsigned flags, Pinned *pinned) {
	return flags ? EINVAL : pin(gdr, address, bytes, pinned);
}
#endif
int gdr_unpin_buffer(void *gdr, Pinned pinned) {
	Pin *pin = (Pin *)pinned.h;
	if (gdr != &session || pin->mapped) return EINVAL;
	free(pin);
	live--;
	return 0;
}
int gdr_map(void *gdr, Pinned pinned, void **base, size_t bytes) {
	Pin *pin = (Pin *)pinned.h;
	if (gdr != &session || pin->mapped || bytes != pin->bytes) return EAGAIN;
	char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pin->fd, pin->offset);
	if (mapped == MAP_FAILED) return errno;
	*base = pin->mapped = mapped;
	live++;
	return 0;
}
int gdr_unmap(void *gdr, Pinned pinned, void *base, size_t bytes) {
	Pin *pin = (Pin *)pinned.h;
	if (gdr != &session || pin->mapped != base || bytes != pin->bytes) return EINVAL;
	munmap(base, bytes);
	pin->mapped = NULL;
	live--;
	return 0;
}
