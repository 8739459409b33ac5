// y = 3 x + 1 over 32-bit words, in place: a step whose result is checked word for word (patil-2021, IV: overlap).

extern "C" __global__ void __launch_bounds__(256) elementwise(unsigned* __restrict__ words, int count)
{
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < static_cast<size_t>(count);
         at += stride) {
        words[at] = 3u * words[at] + 1u;
    }
}
