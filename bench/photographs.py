"""Writes a video for `headway-lab gpusync-gpu --video FILE`: what a camera sees that moves over real photographs.

    python3 -m venv venv && venv/bin/pip install scikit-image
    venv/bin/python bench/photographs.py photographs.raw

The photographs ship with scikit-image. Over each of them a window of 320 x 240 pixels pans, turns by up to 3 degrees and zooms by
up to 4 %, on a closed path of 200 pictures. The file has 8-bit grey levels, row after row, picture after picture: 6 x 200 pictures,
92 MB. The tracker starts camera k at picture 1000 k, which is the beginning of a photograph.
"""

import argparse

import numpy as np
from skimage import color, data, transform, util

WIDTH, HEIGHT, PICTURES = 320, 240, 200
PHOTOGRAPHS = ["astronaut", "camera", "coffee", "chelsea", "brick", "gravel"]


def grey(name):
    """A photograph as grey levels from 0 to 1, with room for the window to move."""
    image = getattr(data, name)()
    image = color.rgb2gray(image) if image.ndim == 3 else util.img_as_float(image)
    scale = max(1.0, 1.35 * WIDTH / image.shape[1], 1.5 * HEIGHT / image.shape[0])
    return transform.rescale(image, scale, anti_aliasing=True)


def window(image, at):
    """What the camera sees at `at`, a part of its path from 0 to 1."""
    rows, columns = image.shape
    turn = 2 * np.pi * at
    # The turned and zoomed window stays inside the photograph.
    reach = [0.3 * (columns - 1.12 * WIDTH - 14), 0.3 * (rows - 1.12 * HEIGHT - 18)]
    centre = [0.5 * columns + reach[0] * np.sin(turn), 0.5 * rows + reach[1] * np.sin(2 * turn + 0.4)]
    seen = (
        transform.AffineTransform(translation=(-0.5 * WIDTH, -0.5 * HEIGHT))
        + transform.AffineTransform(scale=1 + 0.04 * np.cos(turn), rotation=np.deg2rad(3) * np.sin(turn))
        + transform.AffineTransform(translation=centre)
    )
    picture = transform.warp(image, seen, output_shape=(HEIGHT, WIDTH), order=1, mode="reflect")
    return np.clip(np.rint(255 * picture), 0, 255).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="the file to write")
    out = parser.parse_args().out
    with open(out, "wb") as file:
        for name in PHOTOGRAPHS:
            image = grey(name)
            for at in range(PICTURES):
                file.write(window(image, at / PICTURES).tobytes())
    print(f"{out}: {len(PHOTOGRAPHS) * PICTURES} pictures of {WIDTH} x {HEIGHT}")


if __name__ == "__main__":
    main()
