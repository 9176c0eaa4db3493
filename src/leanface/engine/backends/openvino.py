"""OpenVINO: processors of any make, Intel's graphics and neural units."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.session import Session, Tensors, first_line
from leanface.errors import DeviceError, EngineError, ModelError

NAME = "OpenVINO"
DEVICES: tuple[str, ...] = ("cpu", "gpu", "npu")
_HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16", "fp32": "FP32"}


@cache
def _core() -> Any:
    import openvino as ov

    return ov.Core()


def devices() -> tuple[str, ...]:
    """What OpenVINO sees on this machine, by our names."""
    there = {name.split(".")[0].lower() for name in _core().available_devices}
    return tuple(name for name in DEVICES if name in there)


def precisions(device: str) -> tuple[str, ...]:
    """What a device computes in, by our names."""
    computes = set(_core().get_property(device.upper(), "OPTIMIZATION_CAPABILITIES"))
    return tuple(p for p, capability in _CAPABILITIES.items() if capability in computes)


def card_bytes(device: str) -> int:
    """Memory that this process holds on a graphics card; 0 where the driver does not tell."""
    try:
        return sum(_core().get_property(device.upper(), "GPU_MEMORY_STATISTICS").values())
    except RuntimeError:
        return 0


def choose_precision(device: str, precision: str, bears: tuple[str, ...]) -> str:
    """What a device will compute a network in.

    Args:
        device: one of ``DEVICES``, and on this machine.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: bf16 where the processor computes in it, else
            fp32; fp16 on a graphics card.
        bears: the precisions that the network's results survive; the others are refused.

    Raises:
        DeviceError: the device or the network cannot do that precision; says what they can.
    """
    able = [p for p in precisions(device) if p in bears]
    if precision == "auto":
        fast = "bf16" if device == "cpu" else "fp16"
        return fast if fast in able else "fp32"
    if precision not in able:
        raise DeviceError(f"this model does not run in {precision} on {device}; it does in {', '.join(able)}")
    return precision


def open_session(model: Path, *, device: str, precision: str, threads: int) -> Session:
    """Load an ONNX file.

    Args:
        model: the file; free dimensions stay free, each run may have another shape.
        device: ``cpu``, ``gpu`` or ``npu``, and on this machine.
        precision: one that ``choose_precision`` gave.
        threads: processor threads.

    Raises:
        DeviceError: the graph does not run on the device.
        ModelError: OpenVINO cannot read the file.
    """
    core = _core()
    name = device.upper()
    config = {"INFERENCE_PRECISION_HINT": _HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    if name == "CPU":
        config["INFERENCE_NUM_THREADS"] = str(threads)
    try:
        graph = core.read_model(model)
    except RuntimeError as error:
        raise ModelError(f"{model}: OpenVINO cannot read it ({first_line(error)})") from error
    try:
        compiled = core.compile_model(graph, name, config)
    except RuntimeError as error:
        raise DeviceError(f"{model.name} does not run on {device} ({first_line(error)})") from error
    return _OpenVinoSession(compiled, device, precision)


class _OpenVinoSession:
    def __init__(self, compiled: Any, device: str, precision: str) -> None:
        self.device = device
        self.precision = precision
        self._outputs = [output.get_any_name() for output in compiled.outputs]
        self._request = compiled.create_infer_request()

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        if self._request is None:
            raise EngineError("the session is closed")
        try:
            self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed on {self.device} ({first_line(error)})") from error
        # A copy, since the engine writes the next result into the same memory.
        return {name: self._request.get_tensor(name).data.copy() for name in self._outputs}

    def close(self) -> None:
        self._request = None
