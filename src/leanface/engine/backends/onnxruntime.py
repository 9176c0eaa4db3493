"""ONNX Runtime: graphics cards of any make, through the build of it that the user has installed.

Its usual settings keep every byte an inference ever needed and try every convolution algorithm with a large
workspace. Both are turned off here.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.session import Session, Tensors, first_line
from leanface.errors import DeviceError, EngineError, ModelError

NAME = "ONNX Runtime"
_PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "ort-cpu": "CPUExecutionProvider",
}
DEVICES: tuple[str, ...] = tuple(_PROVIDERS)


def devices() -> tuple[str, ...]:
    """What the installed build offers, by our names; empty where none is installed."""
    if find_spec("onnxruntime") is None:
        return ()
    import onnxruntime as ort

    there = ort.get_available_providers()
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


def choose_precision(device: str, precision: str, bears: tuple[str, ...]) -> str:
    """Always fp32.

    Raises:
        DeviceError: another one was asked for.
    """
    if precision not in ("auto", "fp32"):
        raise DeviceError(f"{NAME} runs this model in fp32, not in {precision}")
    return "fp32"


def open_session(model: Path, *, device: str, precision: str, threads: int) -> Session:
    """Load an ONNX file; weights are float32 in memory whatever they are in the file.

    Args:
        model: the file.
        device: ``cuda``, ``cuda:N``, ``directml``, ``coreml`` or ``ort-cpu``, and on this machine.
        precision: ``fp32``.
        threads: processor threads.

    Raises:
        DeviceError: the device does not work.
        ModelError: ONNX Runtime cannot read the file.
    """
    import onnxruntime as ort

    name, _, index = device.partition(":")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(model, options, providers=[_provider(name, index)])
    except Exception as error:  # ONNX Runtime's errors share no base but Exception
        if name == "ort-cpu":
            raise ModelError(f"{model}: {NAME} cannot read it ({first_line(error)})") from error
        raise DeviceError(f"{model.name} does not run on {device} ({first_line(error)})") from error
    if _PROVIDERS[name] not in session.get_providers():
        raise DeviceError(f"{device} is offered by {NAME} but does not start; is its driver installed?")
    return _OnnxRuntimeSession(session, device)


def _provider(name: str, index: str) -> Any:
    if name != "cuda":
        return _PROVIDERS[name]
    return _PROVIDERS[name], {
        "device_id": int(index or 0),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
    }


class _OnnxRuntimeSession:
    precision = "fp32"

    def __init__(self, session: Any, device: str) -> None:
        self.device = device
        self._session = session

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        if self._session is None:
            raise EngineError("the session is closed")
        try:
            outputs = self._session.run(None, dict(inputs))
        except Exception as error:
            raise EngineError(f"{NAME} failed on {self.device} ({first_line(error)})") from error
        return {o.name: value for o, value in zip(self._session.get_outputs(), outputs, strict=True)}

    def close(self) -> None:
        self._session = None
