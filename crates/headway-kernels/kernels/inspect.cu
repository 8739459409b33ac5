// Inspection of wafers by comparing dies (specification of messages, 7.1): a pixel that differs, in the same direction, from the
// same pixel of two other dies belongs to a defect. `inspect` makes a synopsis of one image, `inspect_merge` the list of defects
// from the synopses of a row of images; `inspect_block` and `inspect_merge_block` do the same for all images of a packed block.
// Integers only: the CPU form writes the same bytes.
//
// Synopsis: 24 words of header, then two words for each cell of 20 x 20 pixels: count (9 bits), left, top, right, bottom within
// the cell (5 each); largest difference (16), check (16).

#include "block.cuh"
#include "device.cuh"

#define CELL 20
#define CELL_PIXELS (CELL * CELL)
#define CELLS_MAX 500
#define HEADER 24
#define SYNOPSIS (HEADER + 2 * CELLS_MAX)
#define MAGIC_SYNOPSIS 0x31495748 // "HWI1"
#define MAGIC_LIST 0x314c5748 // "HWL1"
#define THREADS 128
#define MERGE_THREADS 512
// Boxes this many pixels apart, or fewer, are one defect.
#define JOIN 2
#define DEFECTS_MAX 255
// Words of scratch memory for each cell: label, left, top, right, bottom, pixels, largest, a cell that is not empty.
#define SCRATCH 8
// Roots that are put in order in shared memory.
#define ROOTS_MAX 1024
// Synopses that a thread reads at once.
#define AT_ONCE 8
// Words of what is known of a camera, and which is which (headway-kernels, inspect/blocks.rs).
#define CAMERA 8

// A chain of dependent steps of three operations each: half of the mixer "lowbias32" by C. Wellons.
__device__ __forceinline__ unsigned burn(unsigned value, int steps)
{
    for (int i = 0; i < steps; i++) {
        value = (value ^ value >> 15) * 0x2c1b3c6du;
    }
    return value;
}

// How far the pixel is from both others, if they agree in which direction.
__device__ __forceinline__ int deviation(int pixel, int one, int other)
{
    const int least = min(pixel - one, pixel - other);
    const int most = max(pixel - one, pixel - other);
    return least > 0 ? least : most < 0 ? -most : 0;
}

// One cell of an image, by all threads of a block.
__device__ __forceinline__ void inspect_cell(const unsigned short* __restrict__ image, unsigned* __restrict__ synopsis,
    int width, int height, int pitch, int threshold, int steps, int camera, int sequence, int cell)
{
    __shared__ unsigned found[7]; // count, left, top, right, bottom, largest, check
    const int columns = (width + CELL - 1) / CELL;
    const int left = cell % columns * CELL;
    const int top = cell / columns * CELL;
    if (threadIdx.x < 7) {
        found[threadIdx.x] = threadIdx.x == 1 || threadIdx.x == 2 ? CELL : 0;
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < CELL_PIXELS; at += THREADS) {
        const int x = left + at % CELL;
        const int y = top + at / CELL;
        if (x >= width || y >= height) {
            continue;
        }
        // The dies before and behind; at an end, the two nearest.
        const int one = y >= pitch ? y - pitch : y + 2 * pitch;
        const int other = y + pitch < height ? y + pitch : y - 2 * pitch;
        const int pixel = image[y * width + x];
        const int by = deviation(pixel, image[one * width + x], image[other * width + x]);
        atomicXor(&found[6], burn(static_cast<unsigned>(pixel), steps));
        if (by > threshold) {
            atomicAdd(&found[0], 1u);
            atomicMin(&found[1], static_cast<unsigned>(x - left));
            atomicMin(&found[2], static_cast<unsigned>(y - top));
            atomicMax(&found[3], static_cast<unsigned>(x - left));
            atomicMax(&found[4], static_cast<unsigned>(y - top));
            atomicMax(&found[5], static_cast<unsigned>(by));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool any = found[0] > 0;
        const unsigned box = found[1] << 9 | found[2] << 14 | found[3] << 19 | found[4] << 24;
        synopsis[HEADER + 2 * cell] = any ? found[0] | box : 0;
        synopsis[HEADER + 2 * cell + 1] = found[5] | (found[6] ^ found[6] >> 16) << 16;
    }
    if (cell == 0 && threadIdx.x < HEADER) {
        const int words[8] = { MAGIC_SYNOPSIS, camera, sequence, width, height, pitch, threshold, steps };
        unsigned word = 0;
        UNROLL
        for (unsigned i = 0; i < 8; i++) {
            word = threadIdx.x == i ? static_cast<unsigned>(words[i]) : word;
        }
        synopsis[threadIdx.x] = word;
    }
    // What no cell uses.
    const int cells = columns * ((height + CELL - 1) / CELL);
    const int first = HEADER + 2 * cells + cell * THREADS + static_cast<int>(threadIdx.x);
    for (int unused = first; unused < SYNOPSIS; unused += cells * THREADS) {
        synopsis[unused] = 0;
    }
}

// Grid: a block for each cell, row by row.
extern "C" __global__ void __launch_bounds__(THREADS) inspect(const unsigned short* __restrict__ image,
    unsigned* __restrict__ synopsis, int width, int height, int pitch, int threshold, int steps, int camera, int sequence)
{
    const int cell = static_cast<int>(blockIdx.x);
    inspect_cell(image, synopsis, width, height, pitch, threshold, steps, camera, sequence, cell);
}

// Every portion of a packed block is an image; its synopsis is as many times 4 KiB behind the start of `output` as portions are before
// it. The state tells of each portion: width, height, pitch, threshold, steps, camera. Grid: CELLS_MAX blocks for each portion.
extern "C" __global__ void __launch_bounds__(THREADS) inspect_block(const unsigned char* __restrict__ input,
    unsigned char* __restrict__ output, const unsigned char* __restrict__ state, unsigned portions)
{
    const unsigned portion = blockIdx.x / CELLS_MAX;
    const int cell = static_cast<int>(blockIdx.x % CELLS_MAX);
    if (portion >= portions) {
        return;
    }
    const BlockPortion read = block_read_portion(input, portion);
    const int* camera = reinterpret_cast<const int*>(state) + CAMERA * static_cast<size_t>(portion);
    const int width = camera[0], height = camera[1];
    const int cells = (width + CELL - 1) / CELL * ((height + CELL - 1) / CELL);
    const bool whole = block_portion_bytes(read, portions) == 2u * static_cast<unsigned>(width) * static_cast<unsigned>(height);
    if (!whole || cell >= cells) {
        return;
    }
    inspect_cell(reinterpret_cast<const unsigned short*>(input + read.entry.x),
        reinterpret_cast<unsigned*>(output) + SYNOPSIS * static_cast<size_t>(portion), width, height, camera[2], camera[3],
        camera[4], camera[5], static_cast<int>(read.fixed.z & 0x7fffffffu), cell);
}

// A cell's pixels in the row of images.
struct Box {
    int left, top, right, bottom;
};

__device__ __forceinline__ Box box_of(unsigned word, int column, int row, int columns, int width)
{
    Box box;
    box.left = column / columns * width + column % columns * CELL + static_cast<int>(word >> 9 & 31);
    box.top = row * CELL + static_cast<int>(word >> 14 & 31);
    box.right = column / columns * width + column % columns * CELL + static_cast<int>(word >> 19 & 31);
    box.bottom = row * CELL + static_cast<int>(word >> 24 & 31);
    return box;
}

// A row of images. Cells are numbered row by row over all images.
struct Row {
    const unsigned* synopses;
    int images, width, columns, rows, all_columns;

    __device__ __forceinline__ int cells() const { return all_columns * rows; }

    // The first word of the cell at `column` and `row`.
    __device__ __forceinline__ const unsigned* words(int column, int row) const
    {
        return synopses + column / columns * SYNOPSIS + HEADER + 2 * (row * columns + column % columns);
    }
};

// The places of all cells that are not empty, in no order; returns how many there are.
__device__ __forceinline__ int collect_filled(const Row& row, int* __restrict__ scratch, int* filled)
{
    const int of_image = row.columns * row.rows, all = row.images * of_image;
    for (int base = static_cast<int>(threadIdx.x); base < all; base += AT_ONCE * MERGE_THREADS) {
        unsigned words[AT_ONCE];
        UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = base + i * MERGE_THREADS;
            words[i] = at < all ? row.synopses[at / of_image * SYNOPSIS + HEADER + 2 * (at % of_image)] : 0;
        }
        UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            if ((words[i] & 511) == 0) {
                continue;
            }
            const int at = base + i * MERGE_THREADS, within = at % of_image;
            const int column = at / of_image * row.columns + within % row.columns;
            const int cell = within / row.columns * row.all_columns + column;
            scratch[SCRATCH * atomicAdd(filled, 1) + 7] = cell;
            int* own = scratch + SCRATCH * cell;
            own[0] = cell;
            own[1] = own[2] = 0x7fffffff;
            own[3] = own[4] = own[5] = own[6] = 0;
        }
    }
    __syncthreads();
    return *filled;
}

// Each cell takes the least label of its neighbours until none changes.
__device__ __forceinline__ void label_filled(const Row& row, int* scratch, int count, int* changed)
{
    bool again;
    do {
        __syncthreads();
        if (threadIdx.x == 0) {
            *changed = 0;
        }
        __syncthreads();
        for (int at = static_cast<int>(threadIdx.x); at < count; at += MERGE_THREADS) {
            const int cell = scratch[SCRATCH * at + 7];
            int* own = scratch + SCRATCH * cell;
            const int column = cell % row.all_columns, line = cell / row.all_columns;
            const Box box = box_of(row.words(column, line)[0], column, line, row.columns, row.width);
            for (int near = 0; near < 9; near++) {
                const int x = column + near % 3 - 1, y = line + near / 3 - 1;
                if (x < 0 || x >= row.all_columns || y < 0 || y >= row.rows) {
                    continue;
                }
                const unsigned there = row.words(x, y)[0];
                if ((there & 511) == 0) {
                    continue;
                }
                const Box other = box_of(there, x, y, row.columns, row.width);
                const bool apart = other.left - box.right > JOIN + 1 || box.left - other.right > JOIN + 1
                    || other.top - box.bottom > JOIN + 1 || box.top - other.bottom > JOIN + 1;
                const int label = apart ? cell : atomicMin(scratch + SCRATCH * (y * row.all_columns + x), 0x7fffffff);
                if (!apart && atomicMin(own, label) > label) {
                    atomicMax(changed, 1);
                }
            }
        }
        __syncthreads();
        again = *changed != 0;
    } while (again);
}

// The cell that gave its label to the others collects what they have.
__device__ __forceinline__ void sum_filled(const Row& row, int* scratch, int count)
{
    for (int at = static_cast<int>(threadIdx.x); at < count; at += MERGE_THREADS) {
        const int cell = scratch[SCRATCH * at + 7];
        const int column = cell % row.all_columns, line = cell / row.all_columns;
        const unsigned* words = row.words(column, line);
        const Box box = box_of(words[0], column, line, row.columns, row.width);
        int* root = scratch + SCRATCH * scratch[SCRATCH * cell];
        atomicMin(root + 1, box.left);
        atomicMin(root + 2, box.top);
        atomicMax(root + 3, box.right);
        atomicMax(root + 4, box.bottom);
        atomicAdd(root + 5, static_cast<int>(words[0] & 511));
        atomicMax(root + 6, static_cast<int>(words[1] & 0xffff));
    }
    __syncthreads();
}

__device__ __forceinline__ void list_root(const int* root, unsigned* __restrict__ list, int rank)
{
    if (rank < DEFECTS_MAX) {
        unsigned* entry = list + 4 + 4 * rank;
        // The upper half of the left edge has its place behind the largest difference.
        const unsigned left = static_cast<unsigned>(root[1]);
        entry[0] = (left & 0xffff) | static_cast<unsigned>(root[2]) << 16;
        entry[1] = static_cast<unsigned>(root[3] - root[1] + 1) | static_cast<unsigned>(root[4] - root[2] + 1) << 16;
        entry[2] = static_cast<unsigned>(root[5]);
        entry[3] = static_cast<unsigned>(root[6]) | left >> 16 << 16;
    }
}

// More roots than are put in order at once: each thread lists the roots of a part of the cells, behind those of the threads
// before it.
__device__ __forceinline__ void list_many(const Row& row, const int* scratch, unsigned* __restrict__ list, int* counts)
{
    const int thread = static_cast<int>(threadIdx.x), cells = row.cells();
    const int part = (cells + MERGE_THREADS - 1) / MERGE_THREADS;
    const int first = min(thread * part, cells), end = min(first + part, cells);
    int before = 0;
    for (int pass = 0; pass < 2; pass++) {
        int count = 0;
        for (int cell = first; cell < end; cell++) {
            const bool filled = (row.words(cell % row.all_columns, cell / row.all_columns)[0] & 511) != 0;
            if (filled && scratch[SCRATCH * cell] == cell) {
                if (pass == 1) {
                    list_root(scratch + SCRATCH * cell, list, before + count);
                }
                count++;
            }
        }
        counts[thread] = count;
        __syncthreads();
        for (int other = 0; other < thread; other++) {
            before += counts[other];
        }
        __syncthreads();
    }
}

// By all threads of one block.
__device__ __forceinline__ void merge_row(const unsigned* __restrict__ synopses, int* __restrict__ scratch,
    unsigned* __restrict__ list, int images, int width, int height, int sequence)
{
    __shared__ int shared[3]; // cells that are not empty, whether a label changed, roots
    __shared__ int roots[ROOTS_MAX];
    const int thread = static_cast<int>(threadIdx.x);
    Row row;
    row.synopses = synopses;
    row.images = images;
    row.width = width;
    row.columns = (width + CELL - 1) / CELL;
    row.rows = (height + CELL - 1) / CELL;
    row.all_columns = images * row.columns;
    if (thread < 3) {
        shared[thread] = 0;
    }
    __syncthreads();
    const int count = collect_filled(row, scratch, &shared[0]);
    label_filled(row, scratch, count, &shared[1]);
    sum_filled(row, scratch, count);
    for (int at = thread; at < count; at += MERGE_THREADS) {
        const int cell = scratch[SCRATCH * at + 7];
        if (scratch[SCRATCH * cell] == cell) {
            const int slot = atomicAdd(&shared[2], 1);
            if (slot < ROOTS_MAX) {
                roots[slot] = cell;
            }
        }
    }
    __syncthreads();
    const int total = shared[2];
    if (total > ROOTS_MAX) {
        list_many(row, scratch, list, roots);
    } else {
        for (int slot = thread; slot < total; slot += MERGE_THREADS) {
            int rank = 0;
            for (int other = 0; other < total; other++) {
                rank += roots[other] < roots[slot];
            }
            list_root(scratch + SCRATCH * roots[slot], list, rank);
        }
    }
    const int listed = min(total, DEFECTS_MAX);
    for (int word = 4 + 4 * listed + thread; word < 4 + 4 * DEFECTS_MAX; word += MERGE_THREADS) {
        list[word] = 0;
    }
    if (thread == 0) {
        list[0] = MAGIC_LIST;
        list[1] = static_cast<unsigned>(total);
        list[2] = static_cast<unsigned>(listed);
        list[3] = static_cast<unsigned>(sequence);
    }
}

// Grid: one block.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS) inspect_merge(const unsigned* __restrict__ synopses,
    int* __restrict__ scratch, unsigned* __restrict__ list, int images, int width, int height, int sequence)
{
    merge_row(synopses, scratch, list, images, width, height, sequence);
}

// `input` holds a synopsis for each portion, `output` takes the list and behind it the scratch memory. Synopses that are not those
// of cameras 0, 1, 2, ... of one size and sequence number give a list of zeros. Grid: one block.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS) inspect_merge_block(const unsigned char* __restrict__ input,
    unsigned char* __restrict__ output, const unsigned char*, unsigned portions)
{
    __shared__ int strangers;
    const unsigned* synopses = reinterpret_cast<const unsigned*>(input);
    unsigned* list = reinterpret_cast<unsigned*>(output);
    const int thread = static_cast<int>(threadIdx.x), images = static_cast<int>(portions);
    if (thread == 0) {
        strangers = 0;
    }
    __syncthreads();
    for (int image = thread; image < images; image += MERGE_THREADS) {
        const unsigned* own = synopses + SYNOPSIS * static_cast<size_t>(image);
        const bool known = own[0] == MAGIC_SYNOPSIS && own[1] == static_cast<unsigned>(image) && own[2] == synopses[2]
            && own[3] == synopses[3] && own[4] == synopses[4];
        if (!known) {
            atomicMax(&strangers, 1);
        }
    }
    __syncthreads();
    if (strangers != 0) {
        for (int word = thread; word < SYNOPSIS; word += MERGE_THREADS) {
            list[word] = 0;
        }
        return;
    }
    merge_row(synopses, reinterpret_cast<int*>(output + 4 * SYNOPSIS), list, images, static_cast<int>(synopses[3]),
        static_cast<int>(synopses[4]), static_cast<int>(synopses[2]));
}
