/*
 * Resident copiers of the fake driver: threads that run the protocol of kernels/resident.cuh on host memory. A thread per
 * unit, so that units go their own ways; launches of one stream follow each other, as on a GPU.
 */
enum Behaviour {
	NORMAL,
	HELD,      /* launches do not begin until the behaviour changes, as behind a kernel that fills the GPU */
	STUCK,     /* units begin and do nothing, not even leave, until the behaviour changes */
	HASTY,     /* units leave in the middle of things, whatever the lease says */
	FAULTY,    /* the first command ends the context */
	CROWDED,   /* all blocks report one multiprocessor */
	SILENT     /* the kernel ends without a word */
};
static volatile int behaviour;
static int resident_launches, resident_ends;
void headway_fake_resident(int now_) { __atomic_store_n(&behaviour, now_, __ATOMIC_SEQ_CST); }
/* For the tests: grids launched so far. */
int headway_fake_resident_launches(void) { return __atomic_load_n(&resident_launches, __ATOMIC_SEQ_CST); }

/* For the tests: and of these, ended. */
int headway_fake_resident_ends(void) { return __atomic_load_n(&resident_ends, __ATOMIC_SEQ_CST); }

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_SEQ_CST)
typedef unsigned long long u64;
typedef struct { u64 leave, unused[7], ring[8][8]; } Mailbox;
typedef struct { u64 completed[4][16], multiprocessor[4][16], started[4], left[4]; } Status;
typedef struct Grid_ {
	Mailbox *mailbox;
	Status *status;
	u64 generation, lease;
	unsigned piece, workers, units;
	Stream *stream;
	pthread_t thread, before;
	int has_before;
} Grid_;
typedef struct { Grid_ *grid; unsigned unit; pthread_t thread; } Unit_;

static int behaves(int as) { return __atomic_load_n(&behaviour, __ATOMIC_SEQ_CST) == as; }
static unsigned random_(u64 *state) { *state ^= *state << 13; *state ^= *state >> 7; *state ^= *state << 17; return *state >> 33; }
/* Nothing waits for longer than a test should take. */
static void while_(int as) { for (long long end = now() + 20000000000LL; behaves(as) && now() < end;) sched_yield(); }

#define TAGGED (1ull << 47)
#define TAG (1ull << 31)
/* Last words first: they may arrive in any order. */
static void copy_tagged(Grid_ *grid, unsigned unit, const char *source, u64 *words, u64 bytes, u64 sequence) {
	u64 tag = ((sequence & (TAG - 1)) | TAG) << 32;
	for (u64 at = (bytes + 3) / 4; at--;) {
		unsigned data = 0;
		memcpy(&data, source + 4 * at, bytes - 4 * at < 4 ? bytes - 4 * at : 4);
		if (at / 2 % grid->units == unit) STORE(words[at], tag | data);
	}
}
static int copy_share(Grid_ *grid, unsigned unit, u64 source, u64 destination, u64 bytes, u64 sequence) {
	int tagged = (bytes & TAGGED) != 0;
	bytes &= ~TAGGED;
	u64 written = tagged ? (bytes + 3) / 4 * 8 : bytes;
	pthread_mutex_lock(&mutex);
	int known = !bytes || ((inside((void *)source, bytes, 0) || inside((void *)source, bytes, 1)) &&
		(inside((void *)destination, written, 0) || inside((void *)destination, written, 1)));
	if (!known || behaves(FAULTY)) broken = 700;
	pthread_mutex_unlock(&mutex);
	if (broken) return 0;
	if (tagged) copy_tagged(grid, unit, (const char *)source, (u64 *)destination, bytes, sequence);
	else for (u64 at = (u64)unit * grid->piece; at < bytes; at += (u64)grid->units * grid->piece)
		memcpy((char *)destination + at, (char *)source + at, bytes - at < grid->piece ? bytes - at : grid->piece);
	return 1;
}
static void *unit_(void *argument) {
	Unit_ *self = argument;
	Grid_ *grid = self->grid;
	Status *status = grid->status;
	unsigned unit = self->unit;
	u64 seed = grid->generation * 0x9e3779b97f4a7c15ull + unit + 1;
	for (unsigned rank = 0; rank < grid->workers; rank++)
		STORE(status->multiprocessor[unit][rank], behaves(CROWDED) ? 5 : unit * 16 + rank);
	STORE(status->started[unit], grid->generation);
	while_(STUCK);
	u64 next = LOAD(status->completed[unit][0]) + 1, words[4];
	unsigned done = 0;
	for (long long began = now();;) {
		if (LOAD(grid->mailbox->leave) >= grid->generation) break;
		int whole = 1;
		for (int i = 0; i < 4; i++) {
			words[i] = LOAD(grid->mailbox->ring[next % 8][i]);
			whole &= words[i] >> 48 == (next & 0xffff);
		}
		if (behaves(HASTY) && random_(&seed) % 4 == 0) break;
		/* As the kernel: at its lease's end it goes, with a command waiting too, but not before it has done some. */
		if ((!whole || done % 16 == 15) && now() - began > (long long)grid->lease) break;
		if (whole) {
			for (int i = 0; i < 4; i++) words[i] &= (1ull << 48) - 1;
			if (!copy_share(grid, unit, words[0] | words[3] << 48, words[1] | words[3] >> 16 << 48, words[2], next)) return NULL;
			for (unsigned rank = 0; rank < grid->workers; rank++) STORE(status->completed[unit][rank], next);
			next++;
			done++;
		} else sched_yield();
	}
	STORE(status->left[unit], grid->generation);
	return NULL;
}
static void *grid_(void *argument) {
	Grid_ *grid = argument;
	Unit_ units[4];
	if (grid->has_before) pthread_join(grid->before, NULL);
	while_(HELD);
	if (!behaves(SILENT)) {
		for (unsigned i = 0; i < grid->units; i++) {
			units[i] = (Unit_){grid, i, 0};
			pthread_create(&units[i].thread, NULL, unit_, &units[i]);
		}
		for (unsigned i = 0; i < grid->units; i++) pthread_join(units[i].thread, NULL);
	}
	__atomic_add_fetch(&resident_ends, 1, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&grid->stream->busy, 1, __ATOMIC_SEQ_CST);
	free(grid);
	return NULL;
}
/* Under the mutex. */
static int launch_resident(Stream *stream, unsigned units, void **arguments) {
	Grid_ *grid = malloc(sizeof *grid);
	*grid = (Grid_){*(Mailbox **)arguments[0], *(Status **)arguments[1], *(u64 *)arguments[2], *(u64 *)arguments[3],
		*(unsigned *)arguments[4], *(unsigned *)arguments[5], units, stream, 0, stream->last, stream->has_last};
	__atomic_add_fetch(&stream->busy, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&resident_launches, 1, __ATOMIC_SEQ_CST);
	pthread_create(&grid->thread, NULL, grid_, grid);
	stream->last = grid->thread;
	stream->has_last = 1;
	return 0;
}
/* Without the mutex, as units need it. */
static void finish(Stream *stream) {
	if (stream && stream->has_last) pthread_join(stream->last, NULL);
	if (stream) stream->has_last = 0;
}
#ifndef STREAMS
Code cuStreamQuery(Stream *stream) { ENTER(cuStreamQuery); NEED(current, INVALID_CONTEXT); LEAVE(held || (stream && __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) ? NOT_READY : 0); }
#endif

typedef struct { unsigned id, padding, value[16]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; Stream *stream; Attribute *attributes; unsigned count; } Config;
static int clusters(Module *function, const Config *config) {
	return config->count == 1 && config->attributes->id == 4 && config->grid[0] % config->attributes->value[0] == 0 &&
		config->attributes->value[1] == 1 && config->attributes->value[2] == 1 && config->shared <= (unsigned)function->shared &&
		(config->attributes->value[0] <= 8 || function->large_clusters) && config->block[0] == 512;
}
Code cuLaunchKernelEx(const Config *config, Module *function, void **arguments, void **extra) {
	ENTER(cuLaunchKernelEx);
	NEED(current && config->stream && !extra, INVALID_CONTEXT);
	NEED(function->entry == 3 && clusters(function, config), INVALID_VALUE);
	LEAVE(launch_resident(config->stream, config->grid[0] / config->attributes->value[0], arguments));
}
Code cuOccupancyMaxActiveClusters(int *count, Module *function, const Config *config) {
	ENTER(cuOccupancyMaxActiveClusters);
	NEED(current && clusters(function, config), INVALID_VALUE);
#ifndef CLUSTERS_OF_16
#define CLUSTERS_OF_16 7
#endif
	*count = config->attributes->value[0] == 16 ? CLUSTERS_OF_16 : config->attributes->value[0] > 8 ? 2 : 16;
	LEAVE(0);
}
