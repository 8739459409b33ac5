// The cheapest way down a grid, row by row: best[j] = cost[j] + min of the three neighbours above (the copies and launches
// that cho-2018 measures). A launch does up to `height` rows; each block recomputes a border of `height` columns on each side,
// so that blocks need nothing from each other within a launch.

#define WIDTH 256

extern "C" __global__ void __launch_bounds__(WIDTH) pathfinder(const int* __restrict__ rows, const int* __restrict__ before,
    int* __restrict__ after, int columns, int first_row, int count, int height)
{
    __shared__ int best[WIDTH];
    __shared__ int next[WIDTH];
    const int inner = WIDTH - 2 * height;
    const int thread = static_cast<int>(threadIdx.x);
    const long long column = static_cast<long long>(blockIdx.x) * inner - height + thread;
    const bool exists = column >= 0 && column < columns;
    best[thread] = exists ? before[column] : 0x7fffffff;
    __syncthreads();
    for (int row = 0; row < count; row++) {
        int least = best[thread];
        if (thread > 0) {
            least = min(least, best[thread - 1]);
        }
        if (thread < WIDTH - 1) {
            least = min(least, best[thread + 1]);
        }
        next[thread] = exists ? least + rows[static_cast<long long>(first_row + row) * columns + column] : 0x7fffffff;
        __syncthreads();
        best[thread] = next[thread];
        __syncthreads();
    }
    if (exists && thread >= height && thread < WIDTH - height) {
        after[column] = best[thread];
    }
}
