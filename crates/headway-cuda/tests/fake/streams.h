/*
 * With -DSTREAMS streams are what they are on a GPU: a thread each, that does what it was given in order, waits for words, and
 * does not begin before the call returns. A test can stop all copies for a while (headway_fake_hold), capture, and see what a stream does.
 */
enum Kind { COPY_BYTES, WRITE_WORD, WAIT_EQUAL, WAIT_REACHED };
typedef struct Operation {
	enum Kind kind;
	char *to;
	const char *from;
	size_t bytes;
	unsigned value;
	/* A copy of the source that ends with the operation; or null. */
	char *kept;
	struct Operation *next;
} Operation;
typedef struct {
	struct Context *context;
	pthread_t last; /* of resident kernels, which these streams do not run */
	int has_last, busy;
	pthread_t thread;
	pthread_cond_t came;
	Operation *first, *end;
	int quits;
} Stream;
/* The legacy stream of each context. */
static Stream legacy_streams[DEVICES];
static int capturing;
void headway_fake_capture(int on) { capturing = on; }
/* What a thread may do while another one captures: 0 = not ask, 2 = everything. */
static __thread int capture_mode;
Code cuThreadExchangeStreamCaptureMode(int *mode) { int before = capture_mode; capture_mode = *mode; *mode = before; return 0; }
#define MAY_ASK (!capturing || capture_mode == 2)

static void *serve_stream(void *argument) {
	Stream *stream = argument;
	unsigned noise = (unsigned)(size_t)stream;
	pthread_mutex_lock(&mutex);
	for (;;) {
		while (!stream->first && !stream->quits) pthread_cond_wait(&stream->came, &mutex);
		if (!stream->first) break;
		Operation *now = stream->first;
		pthread_mutex_unlock(&mutex);
		if (rand_r(&noise) % 4 == 0) usleep(rand_r(&noise) % 200);
		volatile unsigned *word = (volatile unsigned *)now->to;
		/* A context that has ended does nothing any more. */
		if (!broken) switch (now->kind) {
		case COPY_BYTES:
			while (held && !broken) sched_yield();
			if (!broken) memcpy(now->to, now->from, now->bytes);
			break;
		case WRITE_WORD: __atomic_store_n(word, now->value, __ATOMIC_RELEASE); break;
		case WAIT_EQUAL: while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != now->value && !broken) sched_yield(); break;
		case WAIT_REACHED: while ((int)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - now->value) < 0 && !broken) sched_yield(); break;
		}
		pthread_mutex_lock(&mutex);
		stream->first = now->next;
		if (!stream->first) stream->end = NULL;
		unfinished--;
		free(now->kept);
		free(now);
	}
	pthread_mutex_unlock(&mutex);
	return NULL;
}
static Stream *stream_of(Stream *handle) {
	if ((size_t)handle > 2 || !current) return handle;
	Stream *legacy = &legacy_streams[current - contexts];
	if (!legacy->thread) {
		pthread_cond_init(&legacy->came, NULL);
		legacy->context = current;
		pthread_create(&legacy->thread, NULL, serve_stream, legacy);
	}
	return legacy;
}
static Code enqueue(Stream *stream, Operation what) {
	Operation *made = malloc(sizeof *made);
	if (!made) return NO_MEMORY;
	*made = what;
	if (stream->end) stream->end->next = made;
	else stream->first = made;
	stream->end = made;
	unfinished++;
	pthread_cond_signal(&stream->came);
	return 0;
}
