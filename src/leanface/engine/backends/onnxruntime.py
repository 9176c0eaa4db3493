"""ONNX Runtime: graphics cards of any make, through the build of it that the user has installed.

Its usual settings keep every byte an inference ever needed and try every convolution algorithm with a large
workspace. Both are turned off here.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.session import Graph, Session, Tensors, failed, first_line, is_want_of_memory
from leanface.errors import DeviceError, EngineError, ModelError

NAME = "ONNX Runtime"
_PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "ort-cpu": "CPUExecutionProvider",
}
DEVICES: tuple[str, ...] = tuple(_PROVIDERS)


def _library() -> Any:
    """ONNX Runtime without its reports to its makers, which it else begins as it is loaded."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def devices() -> tuple[str, ...]:
    """What the installed build offers, by our names; empty where none is installed."""
    if find_spec("onnxruntime") is None:
        return ()
    there = _library().get_available_providers()
    return tuple(name for name, provider in _PROVIDERS.items() if provider in there)


def card_bytes(device: str) -> int:
    """Memory that this process holds on NVIDIA's cards, as their driver counts it; 0 elsewhere."""
    if not device.startswith("cuda"):
        return 0
    query = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    rows = (line.split(",") for line in answer.splitlines())
    return sum(int(row[1]) << 20 for row in rows if row[0].strip() == str(os.getpid()))


def choose_precision(device: str, precision: str, bears: tuple[str, ...], *, typed: bool) -> str:
    """What a device will compute a network in.

    Args:
        device: one of ``DEVICES``, and on this machine.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp16 on ``cuda`` and ``directml``
            where it can be.
        bears: the precisions that the network's results survive; the others are refused.
        typed: its graph can be had in 16-bit types; others run in the float32 that they are written in.

    Raises:
        DeviceError: it cannot do that precision; says what it can.
    """
    able = ["fp16", "fp32"] if typed and "fp16" in bears else ["fp32"]
    if precision == "auto":
        return able[0] if device.partition(":")[0] in ("cuda", "directml") else "fp32"
    if precision not in able:
        raise DeviceError(f"{NAME} runs this model in {' or '.join(able)}, not in {precision}")
    return precision


def open_session(graph: Graph, *, device: str, precision: str, threads: int, limit: int | None) -> Session:
    """Load a graph; the weights of one that is not typed are float32 in memory whatever they are in the file.

    Args:
        graph: what to load.
        device: ``cuda``, ``cuda:N``, ``directml``, ``coreml`` or ``ort-cpu``, and on this machine.
        precision: one that ``choose_precision`` gave.
        threads: processor threads.
        limit: bytes that ``cuda`` may take of the card, or None.

    Raises:
        DeviceError: the device does not work.
        OutOfMemoryError: there is not enough memory.
        ModelError: ONNX Runtime cannot read the file.
    """
    ort = _library()
    name, _, index = device.partition(":")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(graph.path, options, providers=[_provider(name, index, limit)])
    except Exception as error:  # ONNX Runtime's errors share no base but Exception
        if is_want_of_memory(error):
            raise failed(NAME, device, precision, error) from error
        if name == "ort-cpu":
            raise ModelError(f"{graph.path}: {NAME} cannot read it ({first_line(error)})") from error
        raise DeviceError(f"{graph.path.name} does not run on {device} ({first_line(error)})") from error
    if _PROVIDERS[name] not in session.get_providers():
        raise DeviceError(f"{device} is offered by {NAME} but does not start; is its driver installed?")
    return _OnnxRuntimeSession(session, device, precision)


def _provider(name: str, index: str, limit: int | None) -> Any:
    if name != "cuda":
        return _PROVIDERS[name]
    return _PROVIDERS[name], {
        "device_id": int(index or 0),
        **({"gpu_mem_limit": limit} if limit else {}),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
    }


class _OnnxRuntimeSession:
    def __init__(self, session: Any, device: str, precision: str) -> None:
        self.device = device
        self.precision = precision
        self._session = session

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        if self._session is None:
            raise EngineError("the session is closed")
        try:
            outputs = self._session.run(None, dict(inputs))
        except Exception as error:
            raise failed(NAME, self.device, self.precision, error) from error
        return {o.name: value for o, value in zip(self._session.get_outputs(), outputs, strict=True)}

    def close(self) -> None:
        self._session = None
