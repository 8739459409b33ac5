// Edges of a grey picture: the sums of two convolutions with 3 x 3 weights (Sobel), across and down, added up without their signs.
//
// One thread makes one byte. Beyond the picture its outermost bytes go on. `edges.ptx` is made of this file by
// `cargo xtask ptx`, or by `nvcc -ptx -arch=sm_75 edges.cu`; `edges.c` is its form for a CPU.
extern "C" __global__ void edges(const unsigned char *in, unsigned char *out, unsigned width, unsigned height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= (int)width || y >= (int)height)
        return;
    int left = max(x - 1, 0), right = min(x + 1, (int)width - 1);
    const unsigned char *above = in + (size_t)max(y - 1, 0) * width;
    const unsigned char *here = in + (size_t)y * width;
    const unsigned char *below = in + (size_t)min(y + 1, (int)height - 1) * width;
    int across = above[right] + 2 * here[right] + below[right] - above[left] - 2 * here[left] - below[left];
    int down = below[left] + 2 * below[x] + below[right] - above[left] - 2 * above[x] - above[right];
    out[(size_t)y * width + x] = (unsigned char)min(abs(across) + abs(down), 255);
}
