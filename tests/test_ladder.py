"""What happens when a network fails for want of memory, or gives no picture: with an engine that does so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leanface import Options, Restorer
from leanface.engine import pool
from leanface.engine.backends import onnxruntime, openvino
from leanface.engine.session import Engine, Graph, Session, Tensors, failed, is_want_of_memory
from leanface.errors import BrokenOutputError, DeviceError, EngineError, OutOfMemoryError
from leanface.types import Image

WHOLE = Options(faces="none")
ALL = ("fp32", "bf16", "fp16")


class Machine:
    """An engine with a processor and a card, which inverts crops; ``faults`` says what goes wrong where."""

    NAME = "Fake"
    DEVICES = ("cpu", "cuda")

    def __init__(self, **faults: str) -> None:
        self.faults = {tuple(place.split("_")): what for place, what in faults.items()}
        self.opened: list[tuple[str, str]] = []
        self.closed: list[tuple[str, str]] = []
        self.limits: list[int | None] = []

    def devices(self) -> tuple[str, ...]:
        return self.DEVICES

    def card_bytes(self, device: str) -> int:
        return 0

    def choose_precision(self, device: str, precision: str, bears: tuple[str, ...], *, typed: bool) -> str:
        able = ("fp16", "fp32") if device == "cuda" else ("bf16", "fp32")
        if precision != "auto" and precision not in able:
            raise DeviceError(f"not in {precision}")
        return able[0] if precision == "auto" else precision

    def open_session(
        self, graph: Graph, *, device: str, precision: str, threads: int, limit: int | None
    ) -> Session:
        self.opened.append((device, precision))
        self.limits.append(limit)
        fault = self.faults.get((device, precision))
        if fault == "load":
            raise failed(self.NAME, device, precision, RuntimeError("std::bad_alloc"))

        def run(inputs: Tensors) -> dict[str, Any]:
            if fault == "memory":
                raise failed(self.NAME, device, precision, RuntimeError("CUDA out of memory"))
            values = {"nan": np.nan, "black": -0.5}
            made = 1 - inputs["input"] if fault is None else np.full_like(inputs["input"], values[fault])
            return {"output": made}

        return SimpleNamespace(
            device=device, precision=precision, run=run, close=lambda: self.closed.append((device, precision))
        )


@pytest.fixture
def picture() -> Image:
    down, across = np.mgrid[50:200:500j, 50:200:500j]
    return Image(np.stack([down, across, np.full_like(down, 90)], axis=2).astype(np.uint8))


def machine(monkeypatch: pytest.MonkeyPatch, **faults: str) -> Machine:
    fake = Machine(**faults)
    monkeypatch.setattr(pool, "ENGINES", (fake,))
    return fake


@pytest.mark.parametrize("fault", ["load", "memory"])
def test_out_of_memory_steps_down_to_the_processor(
    fault: str, picture: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = machine(monkeypatch, cuda_fp32=fault, cuda_fp16=fault)
    with Restorer("lite", device="cuda", options=WHOLE) as restorer:
        first, second = restorer.restore(picture), restorer.restore(picture)
    assert fake.opened == [("cuda", "fp16"), ("cpu", "bf16")]
    if fault == "memory":
        assert fake.closed[0] == ("cuda", "fp16")  # freed before the next is opened
    assert (first.device, first.precision) == (second.device, second.precision) == ("cpu", "bf16")
    (note,) = [note for note in first.notes if "memory" in note]
    assert note == "lite ran out of memory on cuda in fp16; from here on it runs on cpu in bf16"
    assert not any("memory" in note for note in second.notes)
    np.testing.assert_array_equal(first.image.pixels, second.image.pixels)
    assert first.image.pixels.shape == (512, 512, 3)  # smaller than the crop: enlarged
    inverted = 255 - picture.pixels[250, 250].astype(int)
    assert np.abs(first.image.pixels[256, 256] - inverted).max() <= 1


def test_fp32_steps_down_to_16_bits_first(picture: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert pool.leaner("cuda", "fp32", ALL) == ("cuda", "fp16")
    assert pool.leaner("cuda", "fp16", ALL) == ("cpu", "bf16")
    assert pool.leaner("cpu", "fp32", ALL) == ("cpu", "bf16")
    assert pool.leaner("cpu", "bf16", ALL) is None


def test_a_forced_precision_stays(picture: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(monkeypatch, cuda_fp32="memory", cpu_bf16="nan")
    with (
        Restorer("lite", device="cuda", precision="fp32", options=WHOLE) as restorer,
        pytest.raises(OutOfMemoryError, match="not enough memory on cuda in fp32"),
    ):
        restorer.restore(picture)
    with (
        Restorer("lite", device="cpu", precision="bf16", options=WHOLE) as restorer,
        pytest.raises(BrokenOutputError, match="try another precision"),
    ):
        restorer.restore(picture)
    assert fake.opened == [("cuda", "fp32"), ("cpu", "bf16")]


def test_nothing_leaner_is_an_error(picture: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, cpu_bf16="memory")
    with Restorer("lite", device="cpu", options=WHOLE) as restorer, pytest.raises(OutOfMemoryError):
        restorer.restore(picture)


@pytest.mark.parametrize("fault", ["nan", "black"])
def test_what_is_no_picture_is_computed_again_in_fp32(
    fault: str, picture: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = machine(monkeypatch, cuda_fp16=fault)
    with Restorer("lite", device="cuda", options=WHOLE) as restorer:
        first, second = restorer.restore(picture), restorer.restore(picture)
    assert fake.opened == [("cuda", "fp16"), ("cuda", "fp32")]
    assert second.precision == "fp32"
    assert [note for note in first.notes if "gave no picture" in note] == [
        "lite gave no picture in fp16; from here on it runs on cuda in fp32"
    ]


def test_no_picture_in_fp32_either_is_an_error(picture: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, cpu_bf16="black", cpu_fp32="black")
    with (
        Restorer("lite", device="cpu", options=WHOLE) as restorer,
        pytest.raises(BrokenOutputError, match="black"),
    ):
        restorer.restore(picture)


def test_black_may_stay_black(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, cpu_bf16="black")
    with Restorer("lite", device="cpu", options=WHOLE) as restorer:
        result = restorer.restore(Image(np.zeros((600, 600, 3), np.uint8)))
    assert result.precision == "bf16" and not result.image.pixels.any()


def test_the_limit_goes_to_the_card(picture: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(monkeypatch)
    with Restorer("lite", device="cuda", memory="2GB", options=WHOLE) as restorer:
        restorer.restore(picture)
    with Restorer("lite", device="cpu", memory="2GB", options=WHOLE) as restorer:
        restorer.restore(picture)
    assert fake.limits == [2_000_000_000, None]
    provider, settings = onnxruntime._provider("cuda", "1", 2_000_000_000)
    assert provider == "CUDAExecutionProvider"
    assert settings["gpu_mem_limit"] == 2_000_000_000 and settings["device_id"] == 1
    assert "gpu_mem_limit" not in onnxruntime._provider("cuda", "", None)[1]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (RuntimeError("Check failed\nstd::bad_alloc"), True),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), True),
        (RuntimeError("Failed to allocate memory for requested buffer of size 4096"), True),
        (RuntimeError("[GPU] clEnqueueNDRangeKernel, error code: -5 CL_OUT_OF_RESOURCES"), True),
        (RuntimeError("CL_MEM_OBJECT_ALLOCATION_FAILURE"), True),
        (RuntimeError("DML allocator out of memory! E_OUTOFMEMORY 8007000E"), True),
        (RuntimeError("Invalid argument: Got invalid dimensions for input"), False),
        (RuntimeError("The input tensor size is not equal to the model input"), False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(error: Exception, memory: bool) -> None:
    assert is_want_of_memory(error) is memory
    made = failed("Engine", "cpu", "fp32", error)
    assert isinstance(made, EngineError) and isinstance(made, OutOfMemoryError) is memory
    assert "\n" not in str(made)


@pytest.mark.parametrize("engine", [openvino, onnxruntime])
def test_engines_fit_the_protocol(engine: Engine) -> None:
    assert callable(engine.open_session) and set(engine.devices()) <= set(engine.DEVICES)
