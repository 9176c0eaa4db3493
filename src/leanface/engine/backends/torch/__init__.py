"""PyTorch: runs a graph node by node, so that memory is what the graph needs at its widest and no more.

Every tensor is freed at its last use, elementwise operators write into an operand that dies there, what is
large but made of little, such as a styled kernel, is made just before it is used, and what is only added or
multiplied to something at once is made in pieces. Weights lie on the device once, or, where a limit asks for
it, come layer by layer and go again.

How much a run will take is known beforehand: the same steps run on tensors without contents (PyTorch's
``meta`` device), and what these would occupy is counted. Not counted is what comes on top of any tensors: a
card's context, the allocator's rounding and the workspaces of its convolutions.

Layout is channels last: there a band of rows is contiguous, and graphics cards compute in it without a copy
of their own.

This file has what every engine offers. Behind it, each on top of those before it: ``onnx_file`` (what a
graph's file says), ``order`` (of its nodes), ``onnx_operators`` (what each does), ``counting`` (of bytes),
``executor`` (a run), ``session`` (runs within a limit).
"""

from __future__ import annotations

from importlib.util import find_spec

from leanface.engine.backends import onnxruntime
from leanface.engine.session import Graph, Session, failed, first_line, is_want_of_memory
from leanface.errors import DeviceError, ModelError

NAME = "PyTorch"
DEVICES: tuple[str, ...] = ("torch-cuda", "torch-mps", "torch-cpu")
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def is_installed() -> bool:
    """Whether PyTorch is there; does not import it."""
    return find_spec("torch") is not None


def devices() -> tuple[str, ...]:
    """What the installed build offers, by our names; empty where none is installed. Imports it."""
    if not is_installed():
        return ()
    import torch

    there = {"torch-cuda": torch.cuda.is_available(), "torch-mps": torch.backends.mps.is_available()}
    return tuple(name for name in DEVICES if there.get(name, True))


def card_bytes(device: str) -> int:
    """Memory that this process holds on a card, with the card's context where its driver tells; else what
    PyTorch has taken of it. 0 on the processor."""
    kind = device.partition(":")[0]
    if kind == "torch-cpu":
        return 0
    import torch

    if kind == "torch-mps":
        return int(torch.mps.driver_allocated_memory())
    return onnxruntime.card_bytes("cuda") or int(torch.cuda.memory_reserved(_place(device)))


def choose_precision(device: str, precision: str, bears: tuple[str, ...], *, typed: bool) -> str:
    """What a device will compute a network in.

    Args:
        device: one of ``DEVICES``, and on this machine.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: 16 bits on a card where the network bears them,
            fp16 first; fp32 on the processor.
        bears: the precisions that the network's results survive; the others are refused.
        typed: its graph can be had in 16-bit types; others are computed in 16 bits throughout.

    Raises:
        DeviceError: the device or the network cannot do that precision; says what they can.
    """
    offered = ("fp16", "fp32") if device == "torch-mps" else ("fp16", "bf16", "fp32")
    able = [p for p in offered if p in bears]
    if precision == "auto":
        return "fp32" if device == "torch-cpu" else able[0]
    if precision not in able:
        raise DeviceError(f"this model does not run in {precision} on {device}; it does in {', '.join(able)}")
    return precision


def open_session(graph: Graph, *, device: str, precision: str, threads: int, limit: int | None) -> Session:
    """Load a graph.

    Args:
        graph: what to load; one that is not typed is computed in ``precision`` throughout.
        device: ``torch-cuda``, ``torch-cuda:N``, ``torch-mps`` or ``torch-cpu``, and on this machine.
        precision: one that ``choose_precision`` gave.
        threads: processor threads.
        limit: bytes that tensors may take of the device, or None. Where weights and activations are more
            together, as many weights as have no room are brought anew for each run, layer by layer.

    Raises:
        DeviceError: the device does not work.
        OutOfMemoryError: there is not enough memory, or the limit is below the least that would do.
        ModelError: the file is no graph, or one with operators that are not known here (names them).
    """
    import torch

    # Here, since every start loads this file, and few use what is behind it.
    from leanface.engine.backends.torch.executor import Executor
    from leanface.engine.backends.torch.onnx_file import read
    from leanface.engine.backends.torch.onnx_operators import operators
    from leanface.engine.backends.torch.session import TorchSession

    file = read(graph.path)
    unknown = sorted({node.operator for node in file.nodes} - operators())
    if unknown:
        raise ModelError(f"{graph.path}: {', '.join(unknown)} cannot be run on {device}; choose another one")
    if device == "torch-cpu":
        torch.set_num_threads(threads)
    compute = None if graph.typed or precision == "fp32" else _TYPES[precision]
    try:
        session = TorchSession(file, device, precision, Executor(file, _place(device), compute), limit)
    except (RuntimeError, AssertionError, MemoryError) as error:
        if is_want_of_memory(error):
            raise failed(NAME, device, precision, error) from error
        raise DeviceError(f"{graph.path.name} does not run on {device} ({first_line(error)})") from error
    return session


def _place(device: str) -> str:
    """PyTorch's name of a device."""
    return device.removeprefix("torch-")
