// Runs a kernel's CUDA source on the host: FOLDER BLOCKS THREADS LANES. The folder has `input`, `output` and `state`;
// the last two are overwritten. SOURCE is the file, ENTRY the kernel. Buffers have exactly the files' sizes.

#include "cuda.hpp"

#include SOURCE

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

struct Buffer {
    std::string path;
    size_t size;
    unsigned char* bytes;

    explicit Buffer(const std::string& file)
        : path(file)
    {
        std::ifstream in(file, std::ios::binary);
        const std::vector<char> content { std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>() };
        size = content.size();
        void* memory = nullptr;
        if (!in.good() && !in.eof()) {
            std::perror(file.c_str());
            std::exit(2);
        }
        if (posix_memalign(&memory, 256, size) != 0) {
            std::exit(2);
        }
        bytes = static_cast<unsigned char*>(memory);
        std::copy(content.begin(), content.end(), bytes);
    }
    ~Buffer() { std::free(bytes); }
    Buffer(const Buffer&) = delete;

    void save() const
    {
        std::ofstream out(path, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    }
};

int main(int count, char** arguments)
{
    if (count != 5) {
        return 2;
    }
    const std::string folder = arguments[1];
    Buffer input(folder + "/input");
    Buffer output(folder + "/output");
    Buffer state(folder + "/state");
    const unsigned lanes = static_cast<unsigned>(std::stoul(arguments[4]));
    launch(static_cast<unsigned>(std::stoul(arguments[2])), static_cast<unsigned>(std::stoul(arguments[3])),
        [&] { ENTRY(input.bytes, output.bytes, state.bytes, lanes); });
    output.save();
    state.save();
    return 0;
}
