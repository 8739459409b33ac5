// Tells ground from obstacles in one turn of a LIDAR: ranges of 64 rings in each direction, the lowest ring first, in units of 2 mm; 0 = no
// echo. The label of each is 0 = no echo, 1 = ground, 2 = obstacle.
//
// One thread walks one direction from ring to ring: a point belongs to the ground if it lies at most 10 cm, and an eighth of the
// way from the last point of the ground, above or below that one. `ground.ptx` is made of this file by `cargo xtask ptx`, or
// by `nvcc -ptx -arch=sm_75 ground.cu`; `ground.c` is its form for a CPU. All is in whole numbers, so that both give the same bytes.
#define TABLE __constant__
#include "rings.h"

extern "C" __global__ void ground(const unsigned short *in, unsigned char *out, unsigned directions, unsigned sensor_height)
{
    unsigned direction = blockIdx.x * blockDim.x + threadIdx.x;
    if (direction >= directions)
        return;
    const unsigned short *ranges = in + (size_t)direction * RINGS;
    unsigned char *labels = out + (size_t)direction * RINGS;
    int last_distance = 0, last_height = 0;
    for (int ring = 0; ring < RINGS; ring++) {
        int range = ranges[ring];
        int distance = range * COSINES[ring] / 16384;
        int height = (int)sensor_height + range * SINES[ring] / 16384;
        bool is_ground = range && abs(height - last_height) <= 50 + abs(distance - last_distance) / 8;
        if (is_ground) {
            last_distance = distance;
            last_height = height;
        }
        labels[ring] = range == 0 ? 0 : is_ground ? 1 : 2;
    }
}
