"""A deployment of Ray Serve whose replicas copy each frame to the GPU in time, or do not start.

    pip install './python[ray,torch]' 'ray[serve]'
    serve run --working-dir python/examples serve_camera:app
    head -c 6291456 /dev/urandom | curl --data-binary @- http://localhost:8000

It needs a cluster with Headway's labels, whose nodes have GPUs: docs/ray.md. Each replica asks its own node. Serve says in its log and in `serve status`
why a replica was refused.
"""

# pyright: basic

from __future__ import annotations

from typing import Any

import headway as hw
import headway.ray
from ray import serve
from starlette.requests import Request

FRAME_BYTES = 6 << 20
CONTRACT = hw.FlowContract("camera", "in", FRAME_BYTES, period="33 ms", deadline="5 ms")


# A replica has one frame, and so one request at a time.
@serve.deployment(num_replicas=1, max_ongoing_requests=1, ray_actor_options={"num_gpus": 1})
class Camera:
    def __init__(self) -> None:
        import torch

        # Raises `AdmissionRefused` where this node cannot promise it.
        held = headway.ray.admit_here(contract=CONTRACT)
        self.frame = hw.pinned_empty(FRAME_BYTES, "uint8")
        self.image = torch.empty(FRAME_BYTES, dtype=torch.uint8, device="cuda")
        self.flow = held.machine.flow(held.contracts[0], dst=self.image, src=self.frame)

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.body()
        if len(body) != FRAME_BYTES:
            return {"error": f"a frame has {FRAME_BYTES} bytes, not {len(body)}"}
        self.frame[:] = memoryview(body)
        report = await self.flow.submit()
        return {
            "mean": float(self.image.float().mean()),
            "response_ns": report.response_ns,
            "bound_ns": report.bound_ns,
            "missed": report.missed,
        }


app = Camera.bind()  # type: ignore[attr-defined]
