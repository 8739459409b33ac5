"""Headway: copies between host and GPU memory, and plans, simulations and guests, which need no GPU.

    import headway as hw

    hw.copy(tensor, array)                                             # of PyTorch and NumPy, for example; either way
    ticket = hw.copy(tensor, array, stream=torch.cuda.current_stream())

    camera = hw.Stream("camera", packet="6 MiB", period="33 ms", deadline="66 ms", steps=[hw.copy_in(), hw.compute("spin")])
    plan = hw.machine("h200-x4").plan(hw.Workload("robot", streams=[camera]))
    print(plan.verdict, plan.margin)
    print(plan.simulate(seeds=10, duration="2 s").to_dicts())

Times and sizes that you give are texts with units, such as `"33 ms"` and `"4 MiB"`, or integers in nanoseconds and bytes. Times and sizes that
you get are integers, and their names end in `_ns` and `_bytes`.
"""

from headway._copy import CopyMethod, Explanation, copy, explain, pinned_empty
from headway._doctor import doctor
from headway._errors import (
    ArrayError,
    CopyError,
    CopyTimeout,
    DefectError,
    FileError,
    GpuError,
    GuestError,
    HeadwayError,
    MachineError,
    NotFound,
    OptionError,
    Place,
    Refused,
    WorkloadError,
)
from headway._flow import Flow, FlowContract, FlowTicket
from headway._load import load_safetensors  # pyright: ignore[reportUnknownVariableType]
from headway._machine import Machine, machine, machines, node
from headway._native import FlowReport, Ticket
from headway._native import commit as _commit
from headway._native import version as _version
from headway._plan import Bound, Plan, strategies
from headway._preload import preload_env
from headway._simulation import Response, Simulation, StreamResult
from headway._workload import Block, Demand, Message, Step, Stream, Workload, compute, copy_in, copy_out

__version__ = _version()
__commit__ = _commit()

__all__ = [
    "ArrayError",
    "Block",
    "Bound",
    "CopyError",
    "CopyMethod",
    "CopyTimeout",
    "DefectError",
    "Demand",
    "Explanation",
    "FileError",
    "Flow",
    "FlowContract",
    "FlowReport",
    "FlowTicket",
    "GpuError",
    "GuestError",
    "HeadwayError",
    "Machine",
    "MachineError",
    "Message",
    "NotFound",
    "OptionError",
    "Place",
    "Plan",
    "Refused",
    "Response",
    "Simulation",
    "Step",
    "Stream",
    "StreamResult",
    "Ticket",
    "Workload",
    "WorkloadError",
    "__commit__",
    "__version__",
    "compute",
    "copy",
    "copy_in",
    "copy_out",
    "doctor",
    "explain",
    "load_safetensors",
    "machine",
    "machines",
    "node",
    "pinned_empty",
    "preload_env",
    "strategies",
]
