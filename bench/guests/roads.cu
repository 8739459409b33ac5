// An ordinary CUDA program: copies of all kinds by the runtime, bytes compared and hashed. It knows nothing of Headway.
//
// Built four ways by roads.sh: static and shared runtime, each also with per-thread default streams.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

static void check(cudaError_t error, int line) {
    if (error == cudaSuccess) return;
    std::printf("line %d: %s\n", line, cudaGetErrorName(error));
    std::exit(1);
}
#define CHECK(call) check(call, __LINE__)

__global__ void add(unsigned *values, size_t count, unsigned what) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) values[i] += what;
}

static uint64_t sum;
static void hash(const void *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ static_cast<const unsigned char *>(memory)[i]) * 1099511628211u;
}

static void both_ways(size_t bytes, bool pinned, cudaStream_t stream, uint64_t *result) {
    unsigned *host, *back, *there;
    if (pinned) {
        CHECK(cudaMallocHost(&host, bytes));
        CHECK(cudaMallocHost(&back, bytes));
    } else {
        host = static_cast<unsigned *>(std::malloc(bytes)), back = static_cast<unsigned *>(std::malloc(bytes));
    }
    CHECK(cudaMalloc(&there, bytes));
    size_t count = bytes / 4;
    for (size_t i = 0; i < count; i++) host[i] = unsigned(i * 2654435761u);
    for (unsigned round = 1; round <= 3; round++) {
        CHECK(cudaMemcpyAsync(there, host, bytes, cudaMemcpyHostToDevice, stream));
        add<<<256, 256, 0, stream>>>(there, count, round);
        CHECK(cudaMemcpyAsync(back, there, bytes, cudaMemcpyDefault, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < count; i++) if (back[i] != host[i] + round) { std::printf("wrong at %zu of %zu\n", i, count); std::exit(1); }
    }
    CHECK(cudaMemcpy(there, host, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(back, there, bytes, cudaMemcpyDeviceToHost));
    if (std::memcmp(back, host, bytes)) { std::printf("wrong bytes\n"); std::exit(1); }
    size_t row = 4096, rows = bytes / row;
    // In rows: with and without gaps.
    for (size_t width : {row, row - 100}) {
        std::memset(back, 0, bytes);
        CHECK(cudaMemset(there, 0, bytes));
        CHECK(cudaMemcpy2D(there, row, host, row, width, rows, cudaMemcpyHostToDevice));
        // The next copy is in a stream that need not wait for the one of this call.
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy2DAsync(back, row, there, row, width, rows, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < rows; i++)
            if (std::memcmp(reinterpret_cast<char *>(back) + i * row, reinterpret_cast<char *>(host) + i * row, width)) {
                std::printf("wrong row %zu\n", i);
                std::exit(1);
            }
    }
    uint64_t own = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) own = (own ^ reinterpret_cast<unsigned char *>(back)[i]) * 1099511628211u;
    *result = own;
    CHECK(cudaFree(there));
    if (pinned) {
        CHECK(cudaFreeHost(host));
        CHECK(cudaFreeHost(back));
    } else {
        std::free(host), std::free(back);
    }
}

int main() {
    uint64_t result;
    for (size_t bytes : {size_t(4096), size_t(1) << 20, (size_t(24) << 20) + 4096}) {
        for (bool pinned : {false, true}) {
            cudaStream_t stream;
            CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            for (cudaStream_t each : {cudaStream_t(nullptr), stream, cudaStreamPerThread}) {
                both_ways(bytes, pinned, each, &result);
                hash(&result, sizeof result);
            }
            CHECK(cudaStreamDestroy(stream));
        }
    }
    std::vector<uint64_t> results(16);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); i++)
        threads.emplace_back([&results, i] { both_ways((size_t(5) << 20) + 4096 * i, i % 2, cudaStreamPerThread, &results[i]); });
    for (auto &thread : threads) thread.join();
    hash(results.data(), results.size() * sizeof results[0]);
#if CUDART_VERSION >= 13000
    // Many copies in one call.
    {
        const size_t count = 64, each = size_t(1) << 20;
        char *host, *there, *back = static_cast<char *>(std::malloc(count * each));
        CHECK(cudaMallocHost(&host, count * each));
        CHECK(cudaMalloc(&there, count * each));
        for (size_t i = 0; i < count * each; i++) host[i] = char(i * 31 >> 3);
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        std::vector<const void *> from(count);
        std::vector<void *> to(count);
        std::vector<size_t> sizes(count, each);
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        size_t first = 0;
        for (size_t i = 0; i < count; i++) from[i] = host + i * each, to[i] = there + (count - 1 - i) * each;
        CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes, &first, 1, stream));
        for (size_t i = 0; i < count; i++) from[i] = there + i * each, to[i] = host + i * each;
        CHECK(cudaStreamSynchronize(stream));
        std::memset(host, 0, count * each);
        CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes, &first, 1, stream));
        CHECK(cudaStreamSynchronize(stream));
        hash(host, count * each);
        std::free(back);
    }
#endif
    // The device is reset and used again.
    CHECK(cudaDeviceReset());
    both_ways((size_t(8) << 20) + 4096, false, nullptr, &result);
    hash(&result, sizeof result);
    std::printf("bytes %016llx\n", static_cast<unsigned long long>(sum));
    return 0;
}
