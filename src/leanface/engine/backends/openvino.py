"""OpenVINO: processors of any make, Intel's graphics and neural units."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine import heap
from leanface.engine.session import Graph, Session, Tensors, failed, first_line, is_want_of_memory
from leanface.errors import DeviceError, EngineError, ModelError

NAME = "OpenVINO"
DEVICES: tuple[str, ...] = ("cpu", "gpu", "npu")
# What was made for a shape is kept for when it comes again: by itself for 5000 and 1024 operators, 3 to 8 MB
# of code a shape in the detector. These are enough for the shapes of one picture.
_KEPT_OPERATORS = {"CPU_RUNTIME_CACHE_CAPACITY": "100"}
_KEPT_CODE = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
_HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16", "fp32": "FP32"}


@cache
def _library() -> Any:
    """OpenVINO without its model converter.

    The converter tells its makers of every import, over the network, with a number that it keeps in the
    user's home; and it takes longer to load than all the rest. What the program has imported itself stays.
    """
    converter = "openvino.tools.ovc"
    os.environ.setdefault(*_KEPT_CODE)  # of the process; read when the first graph is compiled
    loaded = sys.modules.keys() & {"openvino", converter}
    if not loaded:
        sys.modules[converter] = None  # type: ignore[assignment]  # an ImportError, which OpenVINO expects
    try:
        import openvino
    finally:
        if not loaded:
            del sys.modules[converter]
    return openvino


@cache
def _core() -> Any:
    return _library().Core()


def devices() -> tuple[str, ...]:
    """What OpenVINO sees on this machine, by our names."""
    there = {name.split(".")[0].lower() for name in _core().available_devices}
    return tuple(name for name in DEVICES if name in there)


def precisions(device: str) -> tuple[str, ...]:
    """What a device computes in, by our names.

    Processors that have fp16 have bf16 too; in fp16 they took as long as in fp32 or longer when measured.
    """
    computes = set(_core().get_property(device.upper(), "OPTIMIZATION_CAPABILITIES"))
    if device == "cpu":
        computes.discard("FP16")
    return tuple(p for p, capability in _CAPABILITIES.items() if capability in computes)


def card_bytes(device: str) -> int:
    """Memory that this process holds on a graphics card; 0 where the driver does not tell."""
    try:
        return sum(_core().get_property(device.upper(), "GPU_MEMORY_STATISTICS").values())
    except RuntimeError:
        return 0


def choose_precision(device: str, precision: str, bears: tuple[str, ...], *, typed: bool) -> str:
    """What a device will compute a network in.

    Args:
        device: one of ``DEVICES``, and on this machine.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: bf16 where the processor computes in it, else
            fp32; fp16 on a graphics card.
        bears: the precisions that the network's results survive; the others are refused.
        typed: its graph can be had in 16-bit types; makes no difference here.

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


def open_session(graph: Graph, *, device: str, precision: str, threads: int, limit: int | None) -> Session:
    """Load a graph.

    What was compiled is kept where the graph says. From there it is loaded in a third of the time, and its
    weights are mapped, not copied.

    Args:
        graph: what to load.
        device: ``cpu``, ``gpu`` or ``npu``, and on this machine.
        precision: one that ``choose_precision`` gave.
        threads: processor threads.
        limit: bytes of the device; OpenVINO knows no limit, and what a graph takes is known before.

    Raises:
        DeviceError: the graph does not run on the device.
        OutOfMemoryError: there is not enough memory.
        ModelError: OpenVINO cannot read the file.
    """
    core = _core()
    name = device.upper()
    # The types in a typed graph decide; another hint than f32 would round more.
    hint = "f32" if graph.typed and name == "CPU" else _HINTS[precision]
    config = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    if name == "CPU":
        config |= {"INFERENCE_NUM_THREADS": str(threads), **_KEPT_OPERATORS}
    folder = graph.compiled / f"{device}-{precision}" if graph.compiled else None
    before = _blobs(folder)
    if folder and _is_writable(folder):
        config["CACHE_DIR"] = str(folder)
    try:
        with heap.large_blocks_returned():
            compiled = core.compile_model(graph.path, name, config)
            heap.give_back()
            if new := _blobs(folder).items() - before.items():
                # Once more, from what has just been kept: its weights then need no memory of their own.
                del compiled
                compiled = core.compile_model(graph.path, name, config)
                heap.give_back()
    except (RuntimeError, MemoryError) as error:
        if is_want_of_memory(error):
            raise failed(NAME, device, precision, error) from error
        raise _explained(core, graph.path, device, error) from error
    for old in before.keys() - dict(new) if new else ():  # of another version of the graph or of OpenVINO
        with suppress(OSError):  # in use by another process
            old.unlink()
    if folder:
        _unmap_read(folder)
    return _OpenVinoSession(compiled, device, precision)


@cache
def _sampler() -> Any:
    """A picture [1,c,h,w] and places [1,y,x,2] (-1 and 1 are its borders) -> what is there, [1,c,y,x]."""
    core, ops = _core(), _library().opset13
    picture = ops.parameter([1, -1, -1, -1], np.float32, name="picture")
    places = ops.parameter([1, -1, -1, 2], np.float32, name="places")
    mode = {"mode": "bicubic", "padding_mode": "border", "align_corners": False}
    graph = _library().Model([ops.grid_sample(picture, places, mode)], [picture, places])
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "2"}
    return core.compile_model(graph, "CPU", config | {"CPU_RUNTIME_CACHE_CAPACITY": "0"})


def sample(planes: NDArray[np.float32], places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values of a picture between its pixels, bicubic.

    Args:
        planes: float32 [1, c, h, w].
        places: float32 [y, x, 2], across and down; -1 and 1 are the outer edges of the first and last pixels,
            past which the nearest pixel counts.

    Returns:
        float32 [1, c, y, x].

    Raises:
        EngineError: it failed; OutOfMemoryError where memory was short.
    """
    out: NDArray[np.float32] = np.empty((1, planes.shape[1], *places.shape[:2]), np.float32)
    try:
        request = _sampler().create_infer_request()
        request.set_output_tensor(_library().Tensor(out, shared_memory=True))
        request.infer({"picture": planes, "places": places[None]}, share_inputs=True, share_outputs=True)
    except (RuntimeError, MemoryError) as error:
        raise failed(NAME, "cpu", "fp32", error) from error
    return out


def _explained(core: Any, model: Path, device: str, error: Exception) -> DeviceError | ModelError:
    """Whose fault it is that a graph was not compiled: the file's or the device's."""
    try:
        core.read_model(model)
    except RuntimeError as unreadable:
        return ModelError(f"{model}: OpenVINO cannot read it ({first_line(unreadable)})")
    return DeviceError(f"{model.name} does not run on {device} ({first_line(error)})")


def _unmap_read(folder: Path) -> None:
    """Give back the pages of mapped files of ``folder`` that have been read, while the mappings stay.

    Where OpenVINO has brought weights into an order of its own when it loaded them, it does not read the
    file's again. The others come back from the system's cache when they are (madvise(2), MADV_DONTNEED).
    """
    if sys.platform != "linux":
        return
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, mode, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].startswith(f"{folder}{os.sep}") and "w" not in mode:
            first, last = (int(bound, 16) for bound in span.split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 4)


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False  # a cache that cannot be written is a cache less, no error
    return os.access(path, os.W_OK)


def _blobs(folder: Path | None) -> dict[Path, int]:
    """What is kept there, with the times of writing."""
    found = {}
    for blob in folder.glob("*.blob") if folder else ():
        with suppress(OSError):  # discarded by another process just now
            found[blob] = blob.stat().st_mtime_ns
    return found


def _is_known(output: Any) -> bool:
    """Whether an output's shape is known beforehand, and float32 its type."""
    return bool(output.partial_shape.is_static and output.element_type.to_dtype() == np.float32)


class _OpenVinoSession:
    def __init__(self, compiled: Any, device: str, precision: str) -> None:
        self.device = device
        self.precision = precision
        self._shapes = {
            output.get_any_name(): output.shape if _is_known(output) else None for output in compiled.outputs
        }
        self._request = compiled.create_infer_request()

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        if self._request is None:
            raise EngineError("the session is closed")
        outputs: dict[str, NDArray[np.float32]] = {}
        try:
            for name, shape in self._shapes.items():
                if shape is not None:  # written straight into what the caller gets
                    outputs[name] = np.empty(shape, np.float32)
                    self._request.set_tensor(name, _library().Tensor(outputs[name], shared_memory=True))
            with heap.large_blocks_returned():
                self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            for name in self._shapes.keys() - outputs.keys():
                outputs[name] = self._request.get_tensor(name).data.copy()
        except (RuntimeError, MemoryError) as error:
            raise failed(NAME, self.device, self.precision, error) from error
        return outputs

    def close(self) -> None:
        self._request = None
