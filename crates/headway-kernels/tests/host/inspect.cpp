// The inspection's programs on the host: FOLDER.

#include "cuda.hpp"

#include "../../kernels/inspect.cu"

#include "programs.hpp"

int main(int count, char** arguments)
{
    if (count != 2) {
        return 2;
    }
    return run_all(arguments[1], {
        { "inspect", program(true, inspect) },
        { "inspect_block", program(true, inspect_block) },
        { "inspect_merge", program(true, inspect_merge) },
        { "inspect_merge_block", program(true, inspect_merge_block) },
    });
}
