// The tracker's programs on the host: FOLDER.

#include "cuda.hpp"

#include "../../kernels/klt.cu"

#include "programs.hpp"

int main(int count, char** arguments)
{
    if (count != 2) {
        return 2;
    }
    return run_all(arguments[1], {
        { "klt_halve", program(false, klt_halve) },
        { "klt_response", program(false, klt_response) },
        { "klt_template", program(false, klt_template) },
        { "klt_matrix", program(false, klt_matrix) },
        { "klt_factor", program(false, klt_factor) },
        { "klt_begin", program(false, klt_begin) },
        { "klt_difference", program(false, klt_difference) },
        { "klt_update", program(true, klt_update) },
        { "klt_descend", program(false, klt_descend) },
        { "klt_finish", program(false, klt_finish) },
    });
}
