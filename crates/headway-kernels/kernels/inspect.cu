// Inspection of wafers by comparing dies (specification of messages, 7.1): a pixel that differs, in the same direction, from the
// same pixel of two other dies belongs to a defect. `inspect` makes a synopsis of one image, `inspect_merge` the list of defects
// from the synopses of a row of images. Integers only: the CPU form writes the same bytes.
//
// Synopsis: 24 words of header, then two words for each cell of 20 x 20 pixels: count (9 bits), left, top, right, bottom within
// the cell (5 each); largest difference (16), check (16).

#include "device.cuh"

#define CELL 20
#define CELL_PIXELS (CELL * CELL)
#define CELLS_MAX 500
#define HEADER 24
#define SYNOPSIS (HEADER + 2 * CELLS_MAX)
#define MAGIC_SYNOPSIS 0x31495748 // "HWI1"
#define MAGIC_LIST 0x314c5748 // "HWL1"
#define THREADS 128
#define MERGE_THREADS 256
// Boxes this many pixels apart, or fewer, are one defect.
#define JOIN 2
#define DEFECTS_MAX 255
// Words of scratch memory for each cell.
#define SCRATCH 8

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

// Grid: a block for each cell, row by row.
extern "C" __global__ void __launch_bounds__(THREADS) inspect(const unsigned short* __restrict__ image,
    unsigned* __restrict__ synopsis, int width, int height, int pitch, int threshold, int steps, int camera, int sequence)
{
    __shared__ unsigned found[7]; // count, left, top, right, bottom, largest, check
    const int columns = (width + CELL - 1) / CELL;
    const int cell = static_cast<int>(blockIdx.x);
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
    for (int unused = first; unused < SYNOPSIS; unused += static_cast<int>(gridDim.x) * THREADS) {
        synopsis[unused] = 0;
    }
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

// Grid: one block. Cells are numbered row by row over all images.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS) inspect_merge(const unsigned* __restrict__ synopses,
    int* __restrict__ scratch, unsigned* __restrict__ list, int images, int width, int height, int sequence)
{
    __shared__ int changed;
    __shared__ int roots[MERGE_THREADS];
    const int columns = (width + CELL - 1) / CELL;
    const int rows = (height + CELL - 1) / CELL;
    const int all_columns = images * columns;
    const int cells = all_columns * rows;
    const int thread = static_cast<int>(threadIdx.x);
    // Label, left, top, right, bottom, pixels, largest, unused.
    for (int cell = thread; cell < cells; cell += MERGE_THREADS) {
        const int column = cell % all_columns, row = cell / all_columns;
        const unsigned word = synopses[column / columns * SYNOPSIS + HEADER + 2 * (row * columns + column % columns)];
        int* own = scratch + SCRATCH * cell;
        own[0] = (word & 511) != 0 ? cell : -1;
        own[1] = own[2] = 0x7fffffff;
        own[3] = own[4] = own[5] = own[6] = own[7] = 0;
    }
    // Each cell takes the least label of its neighbours until none changes.
    do {
        __syncthreads();
        if (thread == 0) {
            changed = 0;
        }
        __syncthreads();
        for (int cell = thread; cell < cells; cell += MERGE_THREADS) {
            int* own = scratch + SCRATCH * cell;
            if (own[0] < 0) {
                continue;
            }
            const int column = cell % all_columns, row = cell / all_columns;
            const unsigned word = synopses[column / columns * SYNOPSIS + HEADER + 2 * (row * columns + column % columns)];
            const Box box = box_of(word, column, row, columns, width);
            for (int near = 0; near < 9; near++) {
                const int x = column + near % 3 - 1, y = row + near / 3 - 1;
                if (x < 0 || x >= all_columns || y < 0 || y >= rows) {
                    continue;
                }
                const int label = atomicMin(scratch + SCRATCH * (y * all_columns + x), 0x7fffffff);
                const unsigned there = synopses[x / columns * SYNOPSIS + HEADER + 2 * (y * columns + x % columns)];
                const Box other = box_of(there, x, y, columns, width);
                const bool apart = label < 0 || other.left - box.right > JOIN + 1 || box.left - other.right > JOIN + 1
                    || other.top - box.bottom > JOIN + 1 || box.top - other.bottom > JOIN + 1;
                if (!apart && atomicMin(own, label) > label) {
                    atomicMax(&changed, 1);
                }
            }
        }
        __syncthreads();
    } while (changed != 0);
    // The cell that gave its label to the others collects what they have.
    for (int cell = thread; cell < cells; cell += MERGE_THREADS) {
        const int label = scratch[SCRATCH * cell];
        if (label < 0) {
            continue;
        }
        const int column = cell % all_columns, row = cell / all_columns;
        const unsigned* words = synopses + column / columns * SYNOPSIS + HEADER + 2 * (row * columns + column % columns);
        const Box box = box_of(words[0], column, row, columns, width);
        int* root = scratch + SCRATCH * label;
        atomicMin(root + 1, box.left);
        atomicMin(root + 2, box.top);
        atomicMax(root + 3, box.right);
        atomicMax(root + 4, box.bottom);
        atomicAdd(root + 5, static_cast<int>(words[0] & 511));
        atomicMax(root + 6, static_cast<int>(words[1] & 0xffff));
    }
    __syncthreads();
    // Each thread lists the roots of a part of the cells, behind those of the threads before it.
    const int part = (cells + MERGE_THREADS - 1) / MERGE_THREADS;
    const int first = min(thread * part, cells), end = min(first + part, cells);
    int count = 0;
    for (int cell = first; cell < end; cell++) {
        count += scratch[SCRATCH * cell] == cell;
    }
    roots[thread] = count;
    __syncthreads();
    int before = 0, total = 0;
    for (int other = 0; other < MERGE_THREADS; other++) {
        before += other < thread ? roots[other] : 0;
        total += roots[other];
    }
    for (int cell = first; cell < end; cell++) {
        const int* root = scratch + SCRATCH * cell;
        if (root[0] == cell && before < DEFECTS_MAX) {
            unsigned* entry = list + 4 + 4 * before;
            entry[0] = static_cast<unsigned>(root[1]) | static_cast<unsigned>(root[2]) << 16;
            entry[1] = static_cast<unsigned>(root[3] - root[1] + 1) | static_cast<unsigned>(root[4] - root[2] + 1) << 16;
            entry[2] = static_cast<unsigned>(root[5]);
            entry[3] = static_cast<unsigned>(root[6]);
        }
        before += root[0] == cell;
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
