// A pyramidal Lucas-Kanade tracker: Shi and Tomasi 1994 (corners), Bouguet 2001 (pyramid), Baker and Matthews 2004
// (inverse composition: gradients and matrix belong to the template), Jin, Favaro and Soatto 2001 (gain and bias).
//
// Every sum has one order, and the compiler must not fuse multiplications with additions (`--fmad=false`): the CPU form
// computes the same bits.
//
// State of a level, words in rows of `slots`: template (121 rows), its derivatives in x and in y (121 each), the last
// differences (121), the matrix and then its Cholesky factor (64, row * 8 + column), the parameters (8), the centre (2).
// Parameters: displacement x, y; gain - 1; bias; the affine part xx - 1, xy, yx, yy - 1. A centre below zero in x is a code.

#include "../../headway-kernels/kernels/device.cuh"

#define SIDE 11
#define HALF 5
#define PIXELS (SIDE * SIDE)
#define ROW_TEMPLATE 0
#define ROW_DX PIXELS
#define ROW_DY (2 * PIXELS)
#define ROW_DIFFERENCE (3 * PIXELS)
#define ROW_MATRIX (4 * PIXELS)
#define ROW_PARAMETERS (ROW_MATRIX + 64)
#define ROW_CENTRE (ROW_PARAMETERS + 8)
// Slots of a block of `klt_update`, one warp for each of the eight parameters.
#define BLOCK_SLOTS 32

// What becomes of a slot; the order is that of `Fate` in klt.rs.
#define ACTIVE 0.0f
#define CONVERGED 1.0f
#define EMPTY (-1.0f)
#define UNTRACKABLE (-2.0f)
#define OUTSIDE (-3.0f)
#define CHANGED (-4.0f)

// The constants of klt.rs, with their sources there.
#define EIGENVALUE_MIN 0.1f
#define PIVOT_MIN 1e-6f
#define DETERMINANT_MIN 0.1f
#define STEP_SQUARED_MIN 1e-4f
#define DIFFERENCE_MAX 20.0f
#define PREDICTED_MAX 1e6f

__device__ __forceinline__ int thread_index()
{
    return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

// The image's value between pixels; beyond its edge, that of the edge.
__device__ __forceinline__ float sample(const float* image, int width, int height, float x, float y)
{
    x = fminf(fmaxf(x, 0.0f), static_cast<float>(width - 1));
    y = fminf(fmaxf(y, 0.0f), static_cast<float>(height - 1));
    const int left = static_cast<int>(x);
    const int top = static_cast<int>(y);
    const int right = min(left + 1, width - 1);
    const int bottom = min(top + 1, height - 1);
    const float fx = x - static_cast<float>(left);
    const float fy = y - static_cast<float>(top);
    const float* upper = image + static_cast<size_t>(top) * width;
    const float* lower = image + static_cast<size_t>(bottom) * width;
    const float above = upper[left] + fx * (upper[right] - upper[left]);
    const float below = lower[left] + fx * (lower[right] - lower[left]);
    return above + fy * (below - above);
}

// How the template's value at (x, y) from its centre answers to parameter `entry`.
__device__ __forceinline__ float steepest(int entry, float value, float dx, float dy, float x, float y)
{
    switch (entry) {
    case 0:
        return dx;
    case 1:
        return dy;
    case 2:
        return value;
    case 3:
        return 1.0f;
    case 4:
        return x * dx;
    case 5:
        return y * dx;
    case 6:
        return x * dy;
    default:
        return y * dy;
    }
}

// Index beyond an edge, reflected without repeating the edge.
__device__ __forceinline__ int reflected(int at, int size)
{
    at = at < 0 ? -at : at;
    return at >= size ? 2 * size - 2 - at : at;
}

// Derivatives by Scharr's filter from the eight neighbours.
__device__ __forceinline__ float scharr(float before0, float before1, float before2, float after0, float after1, float after2)
{
    return (3.0f * (after0 - before0) + 10.0f * (after1 - before1) + 3.0f * (after2 - before2)) * 0.03125f;
}

// Half the size, by the filter 1 4 6 4 1 in both directions. A thread for each pixel of `to`.
extern "C" __global__ void __launch_bounds__(256)
    klt_halve(const float* __restrict__ from, float* __restrict__ to, int width, int height)
{
    const int half_width = (width + 1) / 2;
    const int half_height = (height + 1) / 2;
    const int at = thread_index();
    if (at >= half_width * half_height) {
        return;
    }
    const int x = 2 * (at % half_width);
    const int y = 2 * (at / half_width);
    const int left2 = reflected(x - 2, width), left = reflected(x - 1, width);
    const int right = reflected(x + 1, width), right2 = reflected(x + 2, width);
    float rows[5];
    UNROLL
    for (int i = 0; i < 5; i++) {
        const float* row = from + static_cast<size_t>(reflected(y + i - 2, height)) * width;
        rows[i] = (row[left2] + row[right2]) + 4.0f * (row[left] + row[right]) + 6.0f * row[x];
    }
    to[at] = ((rows[0] + rows[4]) + 4.0f * (rows[1] + rows[3]) + 6.0f * rows[2]) * (1.0f / 256.0f);
}

// The smaller eigenvalue of the mean gradient matrix of 5 x 5 pixels. A thread for each pixel.
extern "C" __global__ void __launch_bounds__(256)
    klt_response(const float* __restrict__ image, float* __restrict__ response, int width, int height)
{
    const int at = thread_index();
    if (at >= width * height) {
        return;
    }
    float xx = 0.0f, xy = 0.0f, yy = 0.0f;
    for (int row = -2; row <= 2; row++) {
        for (int column = -2; column <= 2; column++) {
            const int x = min(max(at % width + column, 0), width - 1);
            const int y = min(max(at / width + row, 0), height - 1);
            const int left = max(x - 1, 0), right = min(x + 1, width - 1);
            const float* above = image + static_cast<size_t>(max(y - 1, 0)) * width;
            const float* level = image + static_cast<size_t>(y) * width;
            const float* below = image + static_cast<size_t>(min(y + 1, height - 1)) * width;
            const float dx = scharr(above[left], level[left], below[left], above[right], level[right], below[right]);
            const float dy = scharr(above[left], above[x], above[right], below[left], below[x], below[right]);
            xx = xx + dx * dx;
            xy = xy + dx * dy;
            yy = yy + dy * dy;
        }
    }
    xx = xx * 0.04f;
    xy = xy * 0.04f;
    yy = yy * 0.04f;
    response[at] = 0.5f * ((xx + yy) - sqrtf((xx - yy) * (xx - yy) + 4.0f * (xy * xy)));
}

// Takes templates of one level for `count` listed slots. A thread for each listed slot and pixel.
extern "C" __global__ void __launch_bounds__(256) klt_template(const float* __restrict__ image,
    const int* __restrict__ listed, const float* __restrict__ xs, const float* __restrict__ ys, float* __restrict__ state,
    int width, int height, int level, int slots, int count)
{
    const int at = thread_index();
    if (at >= count * PIXELS) {
        return;
    }
    const int slot = listed[at % count];
    if (slot < 0 || slot >= slots) {
        return;
    }
    const int pixel = at / count;
    const float scale = 1.0f / static_cast<float>(1 << level);
    const float centre_x = xs[at % count] * scale;
    const float centre_y = ys[at % count] * scale;
    const float x = centre_x + static_cast<float>(pixel % SIDE - HALF);
    const float y = centre_y + static_cast<float>(pixel / SIDE - HALF);
    // Scharr's filters, row by row: unrolled, this would need more registers than there are.
    float value = 0.0f, dx = 0.0f, dy = 0.0f;
    NO_UNROLL
    for (int row = -1; row <= 1; row++) {
        const float row_y = y + static_cast<float>(row);
        const float before = sample(image, width, height, x - 1.0f, row_y);
        const float here = sample(image, width, height, x, row_y);
        const float after = sample(image, width, height, x + 1.0f, row_y);
        value = row == 0 ? here : value;
        dx = dx + (row == 0 ? 10.0f : 3.0f) * (after - before);
        dy = dy + static_cast<float>(row) * (3.0f * (before + after) + 10.0f * here);
    }
    state[(ROW_TEMPLATE + pixel) * slots + slot] = value;
    state[(ROW_DX + pixel) * slots + slot] = dx * 0.03125f;
    state[(ROW_DY + pixel) * slots + slot] = dy * 0.03125f;
    state[(ROW_DIFFERENCE + pixel) * slots + slot] = 0.0f;
    if (pixel < 8) {
        state[(ROW_PARAMETERS + pixel) * slots + slot] = 0.0f;
    }
    if (pixel < 2) {
        state[(ROW_CENTRE + pixel) * slots + slot] = pixel == 0 ? centre_x : centre_y;
    }
}

// The lower half of the matrix. A thread for each listed slot and entry.
extern "C" __global__ void __launch_bounds__(256)
    klt_matrix(const int* __restrict__ listed, float* __restrict__ state, int slots, int count)
{
    const int at = thread_index();
    if (at >= count * 36) {
        return;
    }
    const int slot = listed[at % count];
    if (slot < 0 || slot >= slots) {
        return;
    }
    int row = 0;
    int column = at / count;
    while (column > row) {
        row++;
        column -= row;
    }
    float sum = 0.0f;
    for (int pixel = 0; pixel < PIXELS; pixel++) {
        const float value = state[(ROW_TEMPLATE + pixel) * slots + slot];
        const float dx = state[(ROW_DX + pixel) * slots + slot];
        const float dy = state[(ROW_DY + pixel) * slots + slot];
        const float x = static_cast<float>(pixel % SIDE - HALF);
        const float y = static_cast<float>(pixel / SIDE - HALF);
        sum = sum + steepest(row, value, dx, dy, x, y) * steepest(column, value, dx, dy, x, y);
    }
    state[(ROW_MATRIX + row * 8 + column) * slots + slot] = sum;
}

// Judges the matrix, and factors its first `parameters` rows (Cholesky). A thread for each listed slot.
extern "C" __global__ void __launch_bounds__(256)
    klt_factor(const int* __restrict__ listed, float* __restrict__ state, int slots, int count, int parameters)
{
    const int at = thread_index();
    if (at >= count || listed[at] < 0 || listed[at] >= slots) {
        return;
    }
    float* matrix = state + ROW_MATRIX * slots + listed[at];
    const float xx = matrix[0], xy = matrix[8 * slots], yy = matrix[9 * slots];
    const float least = 0.5f * ((xx + yy) - sqrtf((xx - yy) * (xx - yy) + 4.0f * (xy * xy)));
    bool good = least >= EIGENVALUE_MIN * static_cast<float>(PIXELS);
    for (int j = 0; good && j < parameters; j++) {
        const float whole = matrix[9 * j * slots];
        float pivot = whole;
        for (int k = 0; k < j; k++) {
            const float factor = matrix[(8 * j + k) * slots];
            pivot = pivot - factor * factor;
        }
        good = pivot > PIVOT_MIN * whole;
        if (!good) {
            break;
        }
        const float root = sqrtf(pivot);
        matrix[9 * j * slots] = root;
        for (int i = j + 1; i < parameters; i++) {
            float entry = matrix[(8 * i + j) * slots];
            for (int k = 0; k < j; k++) {
                entry = entry - matrix[(8 * i + k) * slots] * matrix[(8 * j + k) * slots];
            }
            matrix[(8 * i + j) * slots] = entry / root;
        }
    }
    if (!good) {
        state[ROW_CENTRE * slots + listed[at]] = UNTRACKABLE;
    }
}

// Begins a frame at level `level`: where the finest level's slots are, moved by the homography `prediction`. A thread for
// each slot.
extern "C" __global__ void __launch_bounds__(256) klt_begin(const float* __restrict__ prediction,
    const float* __restrict__ finest, float* __restrict__ state, float* __restrict__ status, int level, int slots)
{
    const int slot = thread_index();
    if (slot >= slots) {
        return;
    }
    const float centre_x = finest[ROW_CENTRE * slots + slot];
    const float centre_y = finest[(ROW_CENTRE + 1) * slots + slot];
    if (!(centre_x >= 0.0f)) {
        status[slot] = centre_x;
        return;
    }
    const float x = centre_x + finest[ROW_PARAMETERS * slots + slot];
    const float y = centre_y + finest[(ROW_PARAMETERS + 1) * slots + slot];
    const float w = prediction[6] * x + prediction[7] * y + prediction[8];
    const float moved_x = (prediction[0] * x + prediction[1] * y + prediction[2]) / w;
    const float moved_y = (prediction[3] * x + prediction[4] * y + prediction[5]) / w;
    if (!(fabsf(moved_x) < PREDICTED_MAX && fabsf(moved_y) < PREDICTED_MAX)) {
        status[slot] = OUTSIDE;
        return;
    }
    const float scale = 1.0f / static_cast<float>(1 << level);
    float* parameters = state + ROW_PARAMETERS * slots + slot;
    parameters[0] = (moved_x - centre_x) * scale;
    parameters[slots] = (moved_y - centre_y) * scale;
    for (int i = 2; i < 8; i++) {
        parameters[i * slots] = finest[(ROW_PARAMETERS + i) * slots + slot];
    }
    status[slot] = ACTIVE;
}

// What the image, warped, has more than the template. A thread for each slot and pixel.
extern "C" __global__ void __launch_bounds__(256) klt_difference(const float* __restrict__ image,
    float* __restrict__ state, const float* __restrict__ status, int width, int height, int slots, int always)
{
    const int at = thread_index();
    if (at >= slots * PIXELS) {
        return;
    }
    const int slot = at % slots;
    const int pixel = at / slots;
    const float now = status[slot];
    const float centre_x = state[ROW_CENTRE * slots + slot];
    if (!(now == ACTIVE || (always != 0 && now == CONVERGED)) || centre_x < 0.0f) {
        return;
    }
    const float* parameters = state + ROW_PARAMETERS * slots + slot;
    const float x = static_cast<float>(pixel % SIDE - HALF);
    const float y = static_cast<float>(pixel / SIDE - HALF);
    const float offset_x = x + (parameters[4 * slots] * x + parameters[5 * slots] * y);
    const float offset_y = y + (parameters[6 * slots] * x + parameters[7 * slots] * y);
    const float warped_x = (centre_x + parameters[0]) + offset_x;
    const float warped_y = (state[(ROW_CENTRE + 1) * slots + slot] + parameters[slots]) + offset_y;
    const float seen = sample(image, width, height, warped_x, warped_y);
    const float corrected = (1.0f + parameters[2 * slots]) * seen + parameters[3 * slots];
    state[(ROW_DIFFERENCE + pixel) * slots + slot] = corrected - state[(ROW_TEMPLATE + pixel) * slots + slot];
}

// Solves for the step and composes the warp with its inverse; returns what becomes of the slot. `step` has stride BLOCK_SLOTS.
__device__ __forceinline__ float compose(float* step, const float* matrix, float* warp, const float* centre, int width,
    int height, int slots, int parameters)
{
    for (int i = 0; i < parameters; i++) {
        float sum = step[i * BLOCK_SLOTS];
        for (int k = 0; k < i; k++) {
            sum = sum - matrix[(8 * i + k) * slots] * step[k * BLOCK_SLOTS];
        }
        step[i * BLOCK_SLOTS] = sum / matrix[9 * i * slots];
    }
    for (int i = parameters - 1; i >= 0; i--) {
        float sum = step[i * BLOCK_SLOTS];
        for (int k = i + 1; k < parameters; k++) {
            sum = sum - matrix[(8 * k + i) * slots] * step[k * BLOCK_SLOTS];
        }
        step[i * BLOCK_SLOTS] = sum / matrix[9 * i * slots];
    }
    const float step_x = step[0], step_y = step[BLOCK_SLOTS];
    const float gain = 1.0f + step[2 * BLOCK_SLOTS];
    const float xx = 1.0f + step[4 * BLOCK_SLOTS], xy = step[5 * BLOCK_SLOTS];
    const float yx = step[6 * BLOCK_SLOTS], yy = 1.0f + step[7 * BLOCK_SLOTS];
    const float determinant = xx * yy - xy * yx;
    if (!(determinant > DETERMINANT_MIN && gain > DETERMINANT_MIN)) {
        return CHANGED;
    }
    const float warp_xx = 1.0f + warp[4 * slots], warp_xy = warp[5 * slots];
    const float warp_yx = warp[6 * slots], warp_yy = 1.0f + warp[7 * slots];
    const float new_xx = (warp_xx * yy - warp_xy * yx) / determinant;
    const float new_xy = (warp_xy * xx - warp_xx * xy) / determinant;
    const float new_yx = (warp_yx * yy - warp_yy * yx) / determinant;
    const float new_yy = (warp_yy * xx - warp_yx * xy) / determinant;
    const float move_x = new_xx * step_x + new_xy * step_y;
    const float move_y = new_yx * step_x + new_yy * step_y;
    warp[0] = warp[0] - move_x;
    warp[slots] = warp[slots] - move_y;
    warp[2 * slots] = (1.0f + warp[2 * slots]) / gain - 1.0f;
    warp[3 * slots] = (warp[3 * slots] - step[3 * BLOCK_SLOTS]) / gain;
    warp[4 * slots] = new_xx - 1.0f;
    warp[5 * slots] = new_xy;
    warp[6 * slots] = new_yx;
    warp[7 * slots] = new_yy - 1.0f;
    const float x = centre[0] + warp[0];
    const float y = centre[slots] + warp[slots];
    const float border = static_cast<float>(HALF);
    if (!(x >= -border && x <= static_cast<float>(width) + border && y >= -border && y <= static_cast<float>(height) + border)) {
        return OUTSIDE;
    }
    return move_x * move_x + move_y * move_y < STEP_SQUARED_MIN ? CONVERGED : ACTIVE;
}

// One Gauss-Newton step of every active slot. Blocks of 256 threads: a warp for each parameter, a lane for each of 32 slots.
extern "C" __global__ void __launch_bounds__(256) klt_update(
    float* __restrict__ state, float* __restrict__ status, int width, int height, int slots, int parameters)
{
    __shared__ float steps[8 * BLOCK_SLOTS];
    const int entry = static_cast<int>(threadIdx.x) / BLOCK_SLOTS;
    const int lane = static_cast<int>(threadIdx.x) % BLOCK_SLOTS;
    const int slot = static_cast<int>(blockIdx.x) * BLOCK_SLOTS + lane;
    const bool active = slot < slots && status[slot] == ACTIVE && state[ROW_CENTRE * slots + slot] >= 0.0f;
    float sum = 0.0f;
    for (int pixel = 0; active && entry < parameters && pixel < PIXELS; pixel++) {
        const float value = state[(ROW_TEMPLATE + pixel) * slots + slot];
        const float dx = state[(ROW_DX + pixel) * slots + slot];
        const float dy = state[(ROW_DY + pixel) * slots + slot];
        const float x = static_cast<float>(pixel % SIDE - HALF);
        const float y = static_cast<float>(pixel / SIDE - HALF);
        sum = sum + steepest(entry, value, dx, dy, x, y) * state[(ROW_DIFFERENCE + pixel) * slots + slot];
    }
    steps[threadIdx.x] = sum;
    __syncthreads();
    if (active && entry == 0) {
        status[slot] = compose(steps + lane, state + ROW_MATRIX * slots + slot, state + ROW_PARAMETERS * slots + slot,
            state + ROW_CENTRE * slots + slot, width, height, slots, parameters);
    }
}

// Hands the parameters to the next finer level. A thread for each slot.
extern "C" __global__ void __launch_bounds__(256)
    klt_descend(const float* __restrict__ from, float* __restrict__ to, float* __restrict__ status, int slots)
{
    const int slot = thread_index();
    if (slot >= slots || status[slot] < 0.0f) {
        return;
    }
    for (int i = 0; i < 8; i++) {
        const float value = from[(ROW_PARAMETERS + i) * slots + slot];
        to[(ROW_PARAMETERS + i) * slots + slot] = i < 2 ? 2.0f * value : value;
    }
    status[slot] = ACTIVE;
}

// Judges the finest level: positions, the other parameters, and the mean difference or a code. A thread for each slot.
extern "C" __global__ void __launch_bounds__(256) klt_finish(float* __restrict__ state, float* __restrict__ parameters,
    float* __restrict__ status, int width, int height, int slots)
{
    const int slot = thread_index();
    if (slot >= slots) {
        return;
    }
    float verdict = status[slot];
    float* centre = state + ROW_CENTRE * slots + slot;
    const float x = centre[0] + state[ROW_PARAMETERS * slots + slot];
    const float y = centre[slots] + state[(ROW_PARAMETERS + 1) * slots + slot];
    if (verdict >= 0.0f) {
        float sum = 0.0f;
        for (int pixel = 0; pixel < PIXELS; pixel++) {
            sum = sum + fabsf(state[(ROW_DIFFERENCE + pixel) * slots + slot]);
        }
        verdict = sum / static_cast<float>(PIXELS);
        if (!(verdict <= DIFFERENCE_MAX)) {
            verdict = CHANGED;
        }
        if (!(x >= 0.0f && x <= static_cast<float>(width - 1) && y >= 0.0f && y <= static_cast<float>(height - 1))) {
            verdict = OUTSIDE;
        }
    }
    parameters[slot] = x;
    parameters[slots + slot] = y;
    for (int i = 2; i < 8; i++) {
        parameters[i * slots + slot] = state[(ROW_PARAMETERS + i) * slots + slot];
    }
    status[slot] = verdict;
    if (verdict < 0.0f) {
        centre[0] = EMPTY;
    }
}
