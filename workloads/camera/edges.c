// The form of `edges.cu` for a CPU: `cc -shared -fPIC -O2 -o libedges.so edges.c`.
#include <stdint.h>
#include <stdlib.h>

enum { WIDTH = 640 };

void edges(const void *in, void *out, uint64_t bytes)
{
    const uint8_t *picture = in;
    uint8_t *result = out;
    int64_t height = (int64_t)(bytes / WIDTH);
    for (int64_t y = 0; y < height; y++) {
        const uint8_t *above = picture + (y > 0 ? y - 1 : 0) * WIDTH;
        const uint8_t *here = picture + y * WIDTH;
        const uint8_t *below = picture + (y + 1 < height ? y + 1 : y) * WIDTH;
        for (int x = 0; x < WIDTH; x++) {
            int left = x > 0 ? x - 1 : 0, right = x + 1 < WIDTH ? x + 1 : x;
            int across = above[right] + 2 * here[right] + below[right] - above[left] - 2 * here[left] - below[left];
            int down = below[left] + 2 * below[x] + below[right] - above[left] - 2 * above[x] - above[right];
            int both = abs(across) + abs(down);
            result[y * WIDTH + x] = (uint8_t)(both > 255 ? 255 : both);
        }
    }
}
