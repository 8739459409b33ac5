// The form of `ground.cu` for a CPU: `cc -shared -fPIC -O2 -o libground.so ground.c`.
#include <stdint.h>
#include <stdlib.h>

#define TABLE
#include "rings.h"

enum { SENSOR_HEIGHT = 865 };

void ground(const void *in, void *out, uint64_t bytes)
{
    const uint16_t *ranges = in;
    uint8_t *labels = out;
    for (uint64_t direction = 0; direction < bytes / 2 / RINGS; direction++) {
        int last_distance = 0, last_height = 0;
        for (int ring = 0; ring < RINGS; ring++) {
            int range = *ranges++;
            int distance = range * COSINES[ring] / 16384;
            int height = SENSOR_HEIGHT + range * SINES[ring] / 16384;
            if (range == 0) {
                *labels++ = 0;
            } else if (abs(height - last_height) <= 50 + abs(distance - last_distance) / 8) {
                *labels++ = 1;
                last_distance = distance;
                last_height = height;
            } else {
                *labels++ = 2;
            }
        }
    }
}
