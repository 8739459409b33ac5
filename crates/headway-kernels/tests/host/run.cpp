// Runs a kernel's CUDA source on the host: FOLDER BLOCKS THREADS PORTIONS. The folder has `input`, `output` and `state`;
// the last two are overwritten. SOURCE is the file, ENTRY the kernel. Buffers have exactly the files' sizes.

#include "cuda.hpp"

#include SOURCE

#include "buffer.hpp"

int main(int count, char** arguments)
{
    if (count != 5) {
        return 2;
    }
    const std::string folder = arguments[1];
    Buffer input(folder + "/input");
    Buffer output(folder + "/output");
    Buffer state(folder + "/state");
    const unsigned portions = static_cast<unsigned>(std::stoul(arguments[4]));
    launch(static_cast<unsigned>(std::stoul(arguments[2])), static_cast<unsigned>(std::stoul(arguments[3])),
        [&] { ENTRY(input.bytes, output.bytes, state.bytes, portions); });
    output.save();
    state.save();
    return 0;
}
