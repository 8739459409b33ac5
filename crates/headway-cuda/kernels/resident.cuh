// A copier that stays on the device: it polls a mailbox, copies what a command names, and writes into host memory that it has.
//
// The grid is one or more units, each a block or a cluster. All units read the same commands, in order, and deal the pieces
// of each one round robin; the threads of a unit share its piece. The first warp of a unit's first block, its leader, polls
// for all of the unit; every block writes its own word when its share is complete.
//
// Three words bind host and device, each written by one side only:
//   `completed` of a block: the last command of which it has done its share. A unit begins behind the word of its leader, so
//                           that a later launch takes up what an earlier one left, and nothing is done twice.
//   `leave` of the mailbox: launches up to this one must go. A leader reads it with every command and obeys it first.
//   `started`, `left`:      the launch that has begun, before its leader reads anything; the launch that has gone, after
//                           everything that its unit completed.
//
// A tagged command is one of few bytes for the host's memory. What it writes is complete when all of its words are there, which
// the host sees by their tags, so that `completed` need not wait for them: a fence for the whole system is most of what a small copy
// takes (NCCL's LL protocol).
//
// A launch stays for its lease and no longer, whatever comes: others may wait for it (some frees, synchronisation of the whole
// device). A unit goes between two commands. It looks at the time when it has found no command for a while, and behind every
// COMMANDS_PER_LOOK commands, so that it stays for at most so many commands more, and does at least one if one is there when it begins.
//
// The host may write a command at any time. If the unit goes (its lease has ended) before it sees the command, `left` is
// written without `completed` having passed the command, the host sees both, and launches again: no command is lost.
#pragma once

typedef unsigned long long u64;

#define THREADS 512u
#define WARP 32u
#define ALL_LANES 0xffffffffu
// 16-byte loads that a thread has in flight.
#define BATCH 8u
#define RING 8u
#define COMMAND_WORDS 4u
#define UNITS_MAX 4u
#define BLOCKS_MAX 16u
// In a command's number of bytes: it is tagged. In a word: below it four bytes, above it the command's number and this bit, which
// is never in memory that was only cleared.
#define TAGGED (1ull << 47)
#define TAG (1u << 31)
// The time is read once in that many polls.
#define POLLS_PER_LOOK 64u
// And once in that many commands: reading it takes about as long as a poll.
#define COMMANDS_PER_LOOK 16u

// Where the host writes. Each word of a command carries the low 16 bits of its sequence number on top of 48 of content: a
// command is whole when all of them agree. Its place last held a command RING earlier, whose number differs in these bits, so
// this needs no more than that 8-byte accesses are not torn.
struct Mailbox {
    u64 leave;
    u64 unused[7];
    u64 ring[RING][8];
};

// Host memory.
struct Status {
    u64 completed[UNITS_MAX][BLOCKS_MAX];
    u64 multiprocessor[UNITS_MAX][BLOCKS_MAX];
    u64 started[UNITS_MAX];
    u64 left[UNITS_MAX];
};

// As the blocks of a unit are told; sequence 0 stands for going.
struct Command {
    u64 source;
    u64 destination;
    u64 bytes;
    u64 sequence;
};

// A thread's place: its unit among all, itself among the unit's threads.
struct Share {
    unsigned unit, units, thread, threads;
};

__device__ __forceinline__ u64 load_acquire(const u64* from)
{
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(u64* to, u64 value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(u64* to, u64 value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// Two words, each of them whole whenever it is seen.
__device__ __forceinline__ void store_words(u64 to, u64 first, u64 second)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}

__device__ __forceinline__ u64 nanos()
{
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// Loads of the data. They pass the first-level cache, which may hold what was there before the host or an engine wrote.
__device__ __forceinline__ void load(const uint4* from, uint4& value)
{
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
}
__device__ __forceinline__ void load(const u64* from, u64& value)
{
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from));
}
__device__ __forceinline__ void load(const unsigned* from, unsigned& value)
{
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from));
}
__device__ __forceinline__ void load(const unsigned char* from, unsigned char& value)
{
    unsigned wide;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(wide) : "l"(from));
    value = static_cast<unsigned char>(wide);
}

// Copies the elements at `at`, `at + step` and so on below `end`, at most BATCH of them: all are loaded before any is stored.
template <class T>
__device__ __forceinline__ void copy_batch(const T* from, T* to, unsigned at, unsigned step, unsigned end)
{
    T held[BATCH];
#pragma unroll
    for (unsigned i = 0; i < BATCH; i++) {
        if (at + i * step < end) {
            load(from + at + i * step, held[i]);
        }
    }
#pragma unroll
    for (unsigned i = 0; i < BATCH; i++) {
        if (at + i * step < end) {
            to[at + i * step] = held[i];
        }
    }
}

// Copies this thread's share of `count` elements: of those pieces of `piece` bytes that are its unit's.
template <class T>
__device__ __forceinline__ void copy_pieces(u64 source, u64 destination, unsigned count, unsigned piece, Share share)
{
    const T* from = reinterpret_cast<const T*>(source);
    T* to = reinterpret_cast<T*>(destination);
    const unsigned step = piece / sizeof(T);
    for (unsigned start = share.unit * step; start < count; start += share.units * step) {
        const unsigned end = min(start + step, count);
        for (unsigned at = start + share.thread; at < end; at += share.threads * BATCH) {
            copy_batch(from, to, at, share.threads, end);
        }
    }
}

// This thread's part of a command. The widest accesses for which both ends agree; the bytes before the first and behind the
// last of them go to single threads of the first unit, loaded first and stored last. A command is far below 4 GiB.
__device__ __forceinline__ void copy_share(const Command& command, unsigned piece, Share share)
{
    const u64 apart = command.source ^ command.destination;
    const unsigned width = apart % 16 == 0 ? 16 : apart % 8 == 0 ? 8 : apart % 4 == 0 ? 4 : 1;
    const unsigned bytes = static_cast<unsigned>(command.bytes);
    const unsigned head = min(static_cast<unsigned>(0 - command.destination) % width, bytes);
    const unsigned count = (bytes - head) / width;

    unsigned edge = bytes;
    if (share.unit == 0 && share.thread < WARP) {
        const unsigned half = share.thread % 16;
        edge = share.thread >= 16 ? head + count * width + half : half < head ? half : bytes;
    }
    unsigned char held = 0;
    if (edge < bytes) {
        load(reinterpret_cast<const unsigned char*>(command.source + edge), held);
    }
    const u64 source = command.source + head, destination = command.destination + head;
    switch (width) {
    case 16:
        copy_pieces<uint4>(source, destination, count, piece, share);
        break;
    case 8:
        copy_pieces<u64>(source, destination, count, piece, share);
        break;
    case 4:
        copy_pieces<unsigned>(source, destination, count, piece, share);
        break;
    default:
        copy_pieces<unsigned char>(source, destination, count, piece, share);
    }
    if (edge < bytes) {
        reinterpret_cast<unsigned char*>(command.destination)[edge] = held;
    }
}

// This thread's part of a tagged command: eight bytes at a time, each half below a tag. Bytes behind the last are zero.
__device__ __forceinline__ void copy_tagged(const Command& command, Share share)
{
    const unsigned bytes = static_cast<unsigned>(command.bytes & ~TAGGED);
    const u64 tag = static_cast<u64>(static_cast<unsigned>(command.sequence) | TAG) << 32;
    for (unsigned at = share.unit * share.threads + share.thread; 8 * at < bytes; at += share.units * share.threads) {
        const u64 from = command.source + 8 * at;
        u64 data = 0;
        if (command.source % 8 == 0 && 8 * at + 8 <= bytes) {
            load(reinterpret_cast<const u64*>(from), data);
        } else {
            unsigned char held[8];
#pragma unroll
            for (unsigned i = 0; i < 8; i++) {
                held[i] = 0;
                if (8 * at + i < bytes) {
                    load(reinterpret_cast<const unsigned char*>(from + i), held[i]);
                }
            }
#pragma unroll
            for (unsigned i = 0; i < 8; i++) {
                data |= static_cast<u64>(held[i]) << 8 * i;
            }
        }
        store_words(command.destination + 16 * at, tag | (data & 0xffffffffull), tag | data >> 32);
    }
}

// The leader warp waits for command `sequence`, the one behind `done` others of this launch: whether there is one, and not the
// time to go, and this lane's word of it. The launch began at `began`.
__device__ __forceinline__ bool await_command(
    const Mailbox* mailbox, u64 sequence, u64 generation, u64 began, u64 lease, unsigned done, u64& word)
{
    const unsigned lane = threadIdx.x;
    const u64* at = lane < COMMAND_WORDS ? &mailbox->ring[sequence % RING][lane] : &mailbox->leave;
    const bool looks = done % COMMANDS_PER_LOOK == COMMANDS_PER_LOOK - 1;
    for (unsigned polls = 1;; polls++) {
        word = 0;
        if (lane <= COMMAND_WORDS) {
            word = load_acquire(at);
        }
        if (__any_sync(ALL_LANES, lane == COMMAND_WORDS && word >= generation)) {
            return false;
        }
        const bool whole = __all_sync(ALL_LANES, lane >= COMMAND_WORDS || word >> 48 == (sequence & 0xffff));
        if (whole ? looks : polls % POLLS_PER_LOOK == 0) {
            if (__any_sync(ALL_LANES, lane == 0 && nanos() - began > lease)) {
                return false;
            }
        }
        if (whole) {
            return true;
        }
    }
}

// The command whose words the lanes hold.
__device__ __forceinline__ Command decode(u64 word, u64 sequence)
{
    const u64 content = word & 0xffffffffffffull;
    const u64 source = __shfl_sync(ALL_LANES, content, 0), destination = __shfl_sync(ALL_LANES, content, 1);
    const u64 bytes = __shfl_sync(ALL_LANES, content, 2), tops = __shfl_sync(ALL_LANES, content, 3);
    Command command;
    command.source = source | tops << 48;
    command.destination = destination | (tops >> 16) << 48;
    command.bytes = bytes;
    command.sequence = sequence;
    return command;
}

// The whole kernel. `Unit` gives a block its place, and brings the blocks of a unit together. `workers` blocks of each unit
// work, the others go at once: they only keep other units off the unit's GPC.
template <class Unit>
__device__ __forceinline__ void reside(
    const Mailbox* mailbox, Status* status, u64 generation, u64 lease, unsigned piece, unsigned workers)
{
    // Two, in turn: the leader writes one only when all blocks of the unit have met after reading it.
    __shared__ Command commands[2];
    const unsigned unit = Unit::index(), rank = Unit::rank(), thread = threadIdx.x;
    if (rank >= workers) {
        return;
    }
    const bool leads = rank == 0 && thread < WARP;
    const Share share = { unit, Unit::count(), rank * THREADS + thread, workers * THREADS };
    if (thread == 0) {
        unsigned multiprocessor;
        asm("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
        store_release(&status->multiprocessor[unit][rank], multiprocessor);
    }
    u64 next = 0, began = 0;
    unsigned done = 0;
    if (leads) {
        began = nanos();
        if (thread == 0) {
            store_release(&status->started[unit], generation);
            // The host closes the mailbox, then reads `started`; here it is the other way round. One of the two sees the other.
            asm volatile("fence.sc.sys;" ::: "memory");
            next = load_acquire(&status->completed[unit][0]) + 1;
        }
        next = __shfl_sync(ALL_LANES, next, 0);
    }
    // No block's shared memory is written before the block has begun.
    Unit::meet();
    for (unsigned turn = 0;; turn ^= 1) {
        if (leads) {
            u64 word;
            const bool wanted = await_command(mailbox, next, generation, began, lease, done, word);
            const Command command = decode(word, wanted ? next : 0);
            Unit::tell(&commands[turn], command, workers);
            next++;
            done++;
        }
        Unit::meet();
        const Command command = commands[turn];
        if (command.sequence == 0) {
            break;
        }
        const bool tagged = (command.bytes & TAGGED) != 0;
        if (tagged) {
            copy_tagged(command, share);
        } else {
            copy_share(command, piece, share);
        }
        __syncthreads();
        if (thread == 0) {
            u64* const completed = &status->completed[unit][rank];
            tagged ? store_relaxed(completed, command.sequence) : store_release(completed, command.sequence);
        }
    }
    if (rank == 0 && thread == 0) {
        store_release(&status->left[unit], generation);
    }
}
