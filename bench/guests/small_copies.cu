// Small copies with nothing else going on: what a call costs, in page-locked and ordinary memory. Knows nothing of Headway.
// nvcc -O2 -o small_copies small_copies.cu && ./small_copies      One line of JSON; times in nanoseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>

static void must(cudaError_t error, const char* what) {
    if (error != cudaSuccess) { fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error)); exit(1); }
}

int main() {
    const size_t sizes[] = {4, 64, 1024, 4096, 16384, 65536};
    unsigned char *device, *pinned, *expected;
    std::vector<unsigned char> ordinary(65536);
    must(cudaMalloc(&device, 65536), "cudaMalloc");
    must(cudaMallocHost(&pinned, 65536), "cudaMallocHost");
    must(cudaMallocHost(&expected, 65536), "cudaMallocHost");
    for (size_t i = 0; i < 65536; i++) expected[i] = (unsigned char)(i * 2654435761u >> 7);
    must(cudaMemcpy(device, expected, 65536, cudaMemcpyHostToDevice), "in");
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    printf("{");
    bool first = true;
    for (int form = 0; form < 3; form++)
        for (size_t bytes : sizes) {
            std::vector<long> times;
            for (int i = 0; i < 10100; i++) {
                const auto start = std::chrono::steady_clock::now();
                if (form == 0) { must(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream), "out"); must(cudaStreamSynchronize(stream), "wait"); }
                if (form == 1) must(cudaMemcpy(ordinary.data(), device, bytes, cudaMemcpyDeviceToHost), "out");
                if (form == 2) must(cudaMemcpy(device, expected, bytes, cudaMemcpyHostToDevice), "in");
                const auto end = std::chrono::steady_clock::now();
                if (i >= 100) times.push_back((long)std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
            }
            if (form < 2 && memcmp(form ? ordinary.data() : pinned, expected, bytes)) { fprintf(stderr, "bytes differ\n"); return 1; }
            std::sort(times.begin(), times.end());
            const char* names[] = {"out_pinned", "out_ordinary", "in_pinned"};
            printf("%s\"%s_%zu\": [%zu, %ld, %ld, %ld]", first ? "" : ", ", names[form], bytes, times.size(), times[times.size() / 2], times[times.size() * 99 / 100], times.back());
            first = false;
        }
    printf("}\n");
}
