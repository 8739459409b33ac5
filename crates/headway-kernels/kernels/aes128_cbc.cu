// AES-128 in CBC mode, one chain per portion of the block (FIPS 197; NIST SP 800-38A, 6.2).
//
// A chain is serial: its speed is the latency of one 16-byte block, ten rounds of table lookups. So four threads serve one
// chain, one column of the cipher's state each. In a round a thread gets the other columns by three shuffles, looks up one
// byte of each and adds: little is issued one after the other, and no thread waits for more than one shuffle and one
// lookup. A thread block is one warp with one chain; its eight groups of four compute the same values, so that no branch
// is needed, equal addresses are served by one broadcast, and plaintext and ciphertext move 512 bytes at a time, because
// thread t fetches and stores block t of each 32.
//
// State of a portion, 192 bytes: 11 round keys of 16 bytes, then the chaining value. All words are little endian, so row 0 of
// a column is its low byte.

#include "block.cuh"
#include "device.cuh"

#define STATE_BYTES 192u
#define WARP 32u
#define ALL_THREADS 0xffffffffu

// The S-box, FIPS 197 figure 7.
alignas(8) __device__ const unsigned char SBOX[256] = {
    0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76,
    0xca, 0x82, 0xc9, 0x7d, 0xfa, 0x59, 0x47, 0xf0, 0xad, 0xd4, 0xa2, 0xaf, 0x9c, 0xa4, 0x72, 0xc0,
    0xb7, 0xfd, 0x93, 0x26, 0x36, 0x3f, 0xf7, 0xcc, 0x34, 0xa5, 0xe5, 0xf1, 0x71, 0xd8, 0x31, 0x15,
    0x04, 0xc7, 0x23, 0xc3, 0x18, 0x96, 0x05, 0x9a, 0x07, 0x12, 0x80, 0xe2, 0xeb, 0x27, 0xb2, 0x75,
    0x09, 0x83, 0x2c, 0x1a, 0x1b, 0x6e, 0x5a, 0xa0, 0x52, 0x3b, 0xd6, 0xb3, 0x29, 0xe3, 0x2f, 0x84,
    0x53, 0xd1, 0x00, 0xed, 0x20, 0xfc, 0xb1, 0x5b, 0x6a, 0xcb, 0xbe, 0x39, 0x4a, 0x4c, 0x58, 0xcf,
    0xd0, 0xef, 0xaa, 0xfb, 0x43, 0x4d, 0x33, 0x85, 0x45, 0xf9, 0x02, 0x7f, 0x50, 0x3c, 0x9f, 0xa8,
    0x51, 0xa3, 0x40, 0x8f, 0x92, 0x9d, 0x38, 0xf5, 0xbc, 0xb6, 0xda, 0x21, 0x10, 0xff, 0xf3, 0xd2,
    0xcd, 0x0c, 0x13, 0xec, 0x5f, 0x97, 0x44, 0x17, 0xc4, 0xa7, 0x7e, 0x3d, 0x64, 0x5d, 0x19, 0x73,
    0x60, 0x81, 0x4f, 0xdc, 0x22, 0x2a, 0x90, 0x88, 0x46, 0xee, 0xb8, 0x14, 0xde, 0x5e, 0x0b, 0xdb,
    0xe0, 0x32, 0x3a, 0x0a, 0x49, 0x06, 0x24, 0x5c, 0xc2, 0xd3, 0xac, 0x62, 0x91, 0x95, 0xe4, 0x79,
    0xe7, 0xc8, 0x37, 0x6d, 0x8d, 0xd5, 0x4e, 0xa9, 0x6c, 0x56, 0xf4, 0xea, 0x65, 0x7a, 0xae, 0x08,
    0xba, 0x78, 0x25, 0x2e, 0x1c, 0xa6, 0xb4, 0xc6, 0xe8, 0xdd, 0x74, 0x1f, 0x4b, 0xbd, 0x8b, 0x8a,
    0x70, 0x3e, 0xb5, 0x66, 0x48, 0x03, 0xf6, 0x0e, 0x61, 0x35, 0x57, 0xb9, 0x86, 0xc1, 0x1d, 0x9e,
    0xe1, 0xf8, 0x98, 0x11, 0x69, 0xd9, 0x8e, 0x94, 0x9b, 0x1e, 0x87, 0xe9, 0xce, 0x55, 0x28, 0xdf,
    0x8c, 0xa1, 0x89, 0x0d, 0xbf, 0xe6, 0x42, 0x68, 0x41, 0x99, 0x2d, 0x0f, 0xb0, 0x54, 0xbb, 0x16,
};

// Fills the four tables T0..T3, 1 KiB each: T0[x] is the column that byte x in row 0 becomes after SubBytes and MixColumns,
// the others are its rotations for rows 1 to 3. Each thread takes eight entries, so that it waits for memory once.
__device__ __forceinline__ void fill_tables(unsigned* tables, unsigned thread)
{
    const uint2 eight = reinterpret_cast<const uint2*>(SBOX)[thread];
    UNROLL
    for (unsigned i = 0; i < 8; i++) {
        const unsigned s = (i < 4 ? eight.x : eight.y) >> (8 * (i % 4)) & 0xff;
        const unsigned doubled = (s << 1) ^ ((s >> 7) * 0x11b);
        const unsigned column = doubled | s << 8 | s << 16 | (doubled ^ s) << 24;
        unsigned* entry = tables + 8 * thread + i;
        entry[0] = column;
        entry[256] = column << 8 | column >> 24;
        entry[512] = column << 16 | column >> 16;
        entry[768] = column << 24 | column >> 8;
    }
}

// Entry of table `TABLE` for the byte of `word` in row `ROW`.
//
// On a GPU the offset is one dot-product instruction, where shift and mask are two and keep the logic pipe busy that the
// additions need.
template <int TABLE, int ROW>
__device__ __forceinline__ unsigned lookup(const unsigned* tables, unsigned word)
{
    const unsigned offset = scaled_byte<ROW>(word, 4);
    return *reinterpret_cast<const unsigned*>(reinterpret_cast<const char*>(tables) + 1024 * TABLE + offset);
}

// The columns that ShiftRows takes rows 0 to 3 of a thread's column from.
struct Columns {
    unsigned a, b, c, d;
};

// Gathers them from the thread's group. `x` is the thread's column, number `column`.
__device__ __forceinline__ Columns shift_rows(unsigned x, unsigned column)
{
    Columns from;
    from.a = x;
    from.b = __shfl_sync(ALL_THREADS, x, (column + 1) % 4, 4);
    from.c = __shfl_sync(ALL_THREADS, x, (column + 2) % 4, 4);
    from.d = __shfl_sync(ALL_THREADS, x, (column + 3) % 4, 4);
    return from;
}

// A column after ShiftRows, SubBytes, MixColumns and AddRoundKey.
__device__ __forceinline__ unsigned round_column(const unsigned* tables, unsigned x, unsigned column, unsigned key)
{
    const Columns from = shift_rows(x, column);
    return lookup<0, 0>(tables, from.a) ^ lookup<1, 1>(tables, from.b) ^ key ^ lookup<2, 2>(tables, from.c)
        ^ lookup<3, 3>(tables, from.d);
}

// The same without MixColumns: the tables hold the plain S-box value in two of their bytes.
__device__ __forceinline__ unsigned last_column(const unsigned* tables, unsigned x, unsigned column, unsigned key)
{
    const Columns from = shift_rows(x, column);
    return (lookup<2, 0>(tables, from.a) & 0x000000ffu) ^ (lookup<3, 1>(tables, from.b) & 0x0000ff00u) ^ key
        ^ (lookup<0, 2>(tables, from.c) & 0x00ff0000u) ^ (lookup<1, 3>(tables, from.d) & 0xff000000u);
}

// What the warp shares of its portion: plaintext and ciphertext of 32 blocks.
struct Tile {
    uint4 plain[WARP];
    uint4 cipher[WARP];
};

// Encrypts `count` blocks of `tile`; `keys`, `chain` and the new chaining value, which it returns, are of column `column`.
//
// The last round of a block adds what the first round of the following one needs, so that chaining costs no time: with
// f = next plaintext ^ key 0, the rounds give ciphertext ^ f, which is the following block's input.
__device__ __forceinline__ unsigned encrypt_tile(const unsigned* tables, const unsigned* keys, Tile* tile, unsigned count,
    unsigned chain, unsigned thread, unsigned column)
{
    const unsigned* plain = reinterpret_cast<const unsigned*>(tile->plain) + column;
    unsigned* cipher = reinterpret_cast<unsigned*>(tile->cipher) + column;
    unsigned x = plain[0] ^ keys[0] ^ chain;
    for (unsigned i = 0; i < count; i++) {
        const unsigned following = plain[4 * ((i + 1) % WARP)] ^ keys[0];
        UNROLL
        for (int round = 1; round < 10; round++) {
            x = round_column(tables, x, column, keys[round]);
        }
        x = last_column(tables, x, column, keys[10] ^ following);
        chain = x ^ following;
        if (thread < 4) {
            cipher[4 * i] = chain;
        }
    }
    return chain;
}

// Encrypts the 16-byte blocks of a portion that begins at `source` and `target`. Fills `tables` too if this is the `first` portion
// of the thread block: the loads of keys and plaintext are then under way already.
__device__ __forceinline__ void encrypt_portion(unsigned* tables, Tile* tile, const uint4* source, uint4* target,
    unsigned blocks, unsigned* state, unsigned thread, bool first)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const unsigned column = thread % 4;
    unsigned keys[11];
    UNROLL
    for (int round = 0; round < 11; round++) {
        keys[round] = state[4 * round + column];
    }
    unsigned chain = state[4 * 11 + column];
    uint4 next = thread < blocks ? source[thread] : zero;
    if (first) {
        fill_tables(tables, thread);
    }
    for (unsigned done = 0; done < blocks; done += WARP) {
        tile->plain[thread] = next;
        __syncwarp();
        const unsigned ahead = done + WARP + thread;
        next = ahead < blocks ? source[ahead] : zero; // arrives while this tile is encrypted
        const unsigned count = min(blocks - done, WARP);
        chain = encrypt_tile(tables, keys, tile, count, chain, thread, column);
        __syncwarp();
        if (thread < count) {
            target[done + thread] = tile->cipher[thread];
        }
    }
    if (thread < 4 && blocks > 0) {
        state[4 * 11 + column] = chain;
    }
}

// Grid: blocks of one warp. Any number is correct, one per portion is fastest.
extern "C" __global__ void __launch_bounds__(WARP) aes128_cbc(const unsigned char* __restrict__ input,
    unsigned char* __restrict__ output, unsigned char* __restrict__ state, unsigned portions)
{
    __shared__ unsigned tables[4 * 256];
    __shared__ Tile tile;
    const unsigned thread = threadIdx.x;
    for (unsigned portion = blockIdx.x; portion < portions; portion += gridDim.x) {
        const BlockPortion read = block_read_portion(input, portion);
        const uint4* source = reinterpret_cast<const uint4*>(input + read.entry.x);
        uint4* target = reinterpret_cast<uint4*>(output + read.entry.x);
        unsigned* portion_state = reinterpret_cast<unsigned*>(state + STATE_BYTES * static_cast<size_t>(portion));
        const unsigned blocks = block_portion_bytes(read, portions) / 16;
        encrypt_portion(tables, &tile, source, target, blocks, portion_state, thread, portion == blockIdx.x);
        if (thread == 0) {
            block_write_portion(output, read, portions, portion);
        }
    }
}
