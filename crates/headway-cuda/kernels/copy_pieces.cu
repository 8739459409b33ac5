// Copies pieces of memory: one warp per entry of a table, each thread with several loads under way.
//
// Host memory is far away: at 1.5 us and 55 GB/s some 80 KB must be under way at a time. A warp has 4 KiB.

struct Piece {
    unsigned long long from, to, bytes;
};

// Loads under way per thread.
constexpr unsigned LOADS = 8;
constexpr unsigned WARP = 32;

// Copies `words` words, both ends aligned to a word.
template <typename Word>
__device__ __forceinline__ void copy_words(const Word* from, Word* to, unsigned long long words, unsigned lane) {
    from += lane;
    to += lane;
    for (; words >= LOADS * WARP; words -= LOADS * WARP, from += LOADS * WARP, to += LOADS * WARP) {
        Word held[LOADS];
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) held[i] = __ldcs(from + i * WARP);
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) __stcs(to + i * WARP, held[i]);
    }
    // The rest, also all under way at once.
    const unsigned rest = static_cast<unsigned>(words);
    Word held[LOADS] = {};
#pragma unroll
    for (unsigned i = 0; i < LOADS; i++)
        if (lane + i * WARP < rest) held[i] = __ldcs(from + i * WARP);
#pragma unroll
    for (unsigned i = 0; i < LOADS; i++)
        if (lane + i * WARP < rest) __stcs(to + i * WARP, held[i]);
}

// Copies `bytes` bytes between addresses that agree modulo the size of a word.
template <typename Word>
__device__ __forceinline__ void copy_as(const unsigned char* from, unsigned char* to, unsigned long long bytes, unsigned lane) {
    const unsigned long long size = sizeof(Word);
    unsigned long long head = (0 - reinterpret_cast<unsigned long long>(to)) & (size - 1);
    if (head > bytes) head = bytes;
    const unsigned long long words = (bytes - head) / size;
    const unsigned long long tail = head + words * size;
    // The first half of the warp has the bytes before the first word, the other those after the last: fewer than 16 each.
    const bool first = lane < WARP / 2;
    const unsigned long long edge = first ? lane : tail + lane - WARP / 2;
    const bool has_edge = edge < (first ? head : bytes);
    unsigned char byte = 0;
    if (has_edge) byte = from[edge];
    copy_words(reinterpret_cast<const Word*>(from + head), reinterpret_cast<Word*>(to + head), words, lane);
    if (has_edge) to[edge] = byte;
}

extern "C" __global__ void __launch_bounds__(512) headway_copy_pieces(const Piece* table, unsigned count) {
    const unsigned lane = threadIdx.x % WARP;
    const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const unsigned warps = gridDim.x * blockDim.x / WARP;
    if (warp >= count) return;
    Piece next = table[warp];
    for (unsigned i = warp; i < count; i += warps) {
        const Piece piece = next;
        // The table may be in host memory: its next entry comes while this piece is copied.
        if (i + warps < count) next = table[i + warps];
        const unsigned char* from = reinterpret_cast<const unsigned char*>(piece.from);
        unsigned char* to = reinterpret_cast<unsigned char*>(piece.to);
        const unsigned apart = static_cast<unsigned>(piece.from ^ piece.to);
        if (apart % 16 == 0) copy_as<uint4>(from, to, piece.bytes, lane);
        else if (apart % 8 == 0) copy_as<unsigned long long>(from, to, piece.bytes, lane);
        else if (apart % 4 == 0) copy_as<unsigned>(from, to, piece.bytes, lane);
        else copy_as<unsigned char>(from, to, piece.bytes, lane);
    }
}
