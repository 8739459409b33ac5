"""Tracks of OpenCV's calcOpticalFlowPyrLK on a video: reference.py VIDEO FIRST STEP FRAMES FOLDER.

Writes `frames.gz` (raw grey levels, 320 x 240 each) and `tracks.csv` to FOLDER. Needs `pip install opencv-python-headless`.
"""

import gzip
import hashlib
import sys
from pathlib import Path

import cv2
import numpy as np

WIDTH, HEIGHT, SIDE, LEVELS, CORNERS = 320, 240, 11, 3, 200
CRITERIA = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 0.001)


def frames(video: str, first: int, step: int, count: int) -> list[np.ndarray]:
    """`count` frames in grey, every `step`th from `first` on, scaled by area."""
    capture = cv2.VideoCapture(video)
    found = []
    for at in range(first + step * (count - 1) + 1):
        good, frame = capture.read()
        if not good:
            sys.exit(f"{video} has only {at} frames")
        if at >= first and (at - first) % step == 0:
            grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
            found.append(cv2.resize(grey, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))
    return found


def follow(start: np.ndarray, end: np.ndarray, points: np.ndarray, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where `points` of `start` are in `end`, searched from `guess` on, and whether they were found."""
    found, status, _ = cv2.calcOpticalFlowPyrLK(
        start, end, points, guess.copy(), winSize=(SIDE, SIDE), maxLevel=LEVELS - 1, criteria=CRITERIA,
        flags=cv2.OPTFLOW_USE_INITIAL_FLOW,
    )
    return found, status.reshape(-1)


def main() -> None:
    video, first, step, count, folder = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    images = frames(video, first, step, count)
    raw = b"".join(image.tobytes() for image in images)
    (folder / "frames.gz").write_bytes(gzip.compress(raw, 9, mtime=0))

    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[16:-16, 16:-16] = 255
    corners = cv2.goodFeaturesToTrack(images[0], CORNERS, 0.01, 7, mask=mask, blockSize=5, gradientSize=3)
    response = cv2.cornerMinEigenVal(images[0], 5, ksize=-1)  # -1: Scharr's filter
    lines = [
        f"# OpenCV {cv2.__version__}, calcOpticalFlowPyrLK, window {SIDE}, levels {LEVELS}, 30 steps, 0.001 pixel",
        f"# {Path(video).name}, frames {first} to {first + step * (count - 1)} by {step}, sha256 {hashlib.sha256(raw).hexdigest()}",
        "# response: of the first frame, at the corner; template: the first frame's corner, searched from where it was in the",
        "# frame before; chain: from frame to frame. back: how far from its start the track leads that goes back.",
        "kind,frame,point,x,y,found,back",
    ]
    for point, (x, y) in enumerate(corners.reshape(-1, 2)):
        lines.append(f"response,0,{point},{x:g},{y:g},1,{response[int(y), int(x)]:.9e}")
    template, chain = corners, corners
    for frame in range(1, count):
        template, found = follow(images[0], images[frame], corners, template)
        back, _ = follow(images[frame], images[0], template, corners)
        rows = [("template", template, found, np.linalg.norm((back - corners).reshape(-1, 2), axis=1))]
        before = chain
        chain, found = follow(images[frame - 1], images[frame], before, before)
        back, _ = follow(images[frame], images[frame - 1], chain, before)
        rows.append(("chain", chain, found, np.linalg.norm((back - before).reshape(-1, 2), axis=1)))
        for kind, points, found, back in rows:
            for point, ((x, y), good, far) in enumerate(zip(points.reshape(-1, 2), found, back)):
                lines.append(f"{kind},{frame},{point},{x:.4f},{y:.4f},{good},{far:.4f}")
    (folder / "tracks.csv").write_text("\n".join(lines) + "\n")


main()
