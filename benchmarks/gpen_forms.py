"""The forms in which GPEN's graph can be written, measured; the table of docs/engineering/gpen-graph.md.

    python -m benchmarks.gpen_forms [--variant gpen-512] [--threads 2] [--runs 7] [--forms NAME ...]

Weights and picture are drawn by the recipe of the tests. Each cell is a fresh process that loads one graph on
one engine and restores one face a few times. It reports

- seconds: the median of the wall clock, and in brackets the least processor time over the number of threads,
  which is the number to trust on a machine that does something else besides;
- MB: the peak of the process, which includes Python, numpy and the engine (about 55 MB);
- levels: the greatest and the mean difference from the published form in float32, in steps of 8 bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from leanface.graphs.builder import Compute, GraphBuilder, Weights
from leanface.graphs.gpen import Array, Network, Rows
from tests import recipe

CELLS = (("openvino", "fp32"), ("openvino", "bf16"), ("onnxruntime", "fp32"))


def published(weights: Weights, *, half: bool) -> onnx.ModelProto:
    """The published code operation by operation, as an exporter writes it down: nothing folded or shared."""
    g = GraphBuilder("published", half=half)
    depth = max(int(key[3:].split(".")[0]) for key in weights if key.startswith("ecd"))
    size = 4 << depth

    def scalar(value: float) -> str:
        return g.constant(f"scalar.{value!r}", np.array(value, np.float32))

    def activated(x: str, key: str, *shape: int) -> str:
        y = g.op("Add", x, g.weight(key, weights[key].reshape(shape)))
        return g.op("Mul", g.op("LeakyRelu", y, alpha=0.2), scalar(math.sqrt(2)))

    def linear(x: str, key: str, rate: float = 1, *, bias: bool = True) -> str:
        scale = rate / math.sqrt(weights[f"{key}.weight"].shape[1])
        weight = g.op("Mul", g.weight(f"{key}.weight", weights[f"{key}.weight"].T), scalar(scale))
        y = g.op("MatMul", x, weight)
        return g.op("Add", y, g.weight(f"{key}.bias", weights[f"{key}.bias"] * rate)) if bias else y

    def blur(x: str, channels: int, height: int, pad: int, gain: int) -> str:
        taps = np.array([1, 3, 3, 1], np.float32) / 8
        kernel = g.weight(f"kernel.{gain}", gain * np.outer(taps, taps).reshape(1, 1, 4, 4))
        y = g.conv(g.reshape(x, channels, 1, height, height), kernel, pads=[pad] * 4)
        return g.reshape(y, 1, channels, height + 2 * pad - 3, height + 2 * pad - 3)

    def modulated(x: str, key: str, latent: str, height: int, *, up: bool = False) -> str:
        weight = weights[f"{key}.conv.weight"]
        _, outputs, inputs, k, _ = weight.shape
        colours = outputs == 3
        style = g.reshape(linear(latent, f"{key}.conv.modulation"), 1, 1, inputs, 1, 1)
        kernel = g.op("Mul", g.weight(f"{key}.conv.weight", weight), scalar(1 / math.sqrt(inputs * k * k)))
        kernel = g.op("Mul", kernel, style)
        if not colours:
            power = g.op("Mul", kernel, kernel)
            for axis in (4, 3, 2):
                power = g.op("ReduceMean", power, axes=[axis], keepdims=1)
            power = g.op("Add", g.op("Mul", power, scalar(inputs * k * k)), scalar(1e-8))
            kernel = g.op("Div", kernel, g.op("Sqrt", power))
        if up:
            kernel = g.op("Transpose", g.reshape(kernel, outputs, inputs, k, k), perm=[1, 0, 2, 3])
            y = g.op("ConvTranspose", x, kernel, strides=[2, 2])
            return blur(y, outputs, 2 * height + 1, 1, 4)
        return g.conv(x, g.reshape(kernel, outputs, inputs, k, k), pads=[k // 2] * 4)

    def layer(x: str, key: str, latent: str, encoded: str, height: int, *, up: bool = False) -> str:
        y = modulated(x, key, latent, height, up=up)
        noise = g.op("Mul", encoded, g.weight(f"{key}.noise.weight", weights[f"{key}.noise.weight"]))
        return activated(g.op("Concat", y, noise, axis=1), f"{key}.activate.bias", -1, 1, 1)

    def colours(x: str, key: str, latent: str, rgb: str | None, height: int) -> str:
        y = g.op("Add", modulated(x, key, latent, height), g.weight(f"{key}.bias", weights[f"{key}.bias"]))
        if rgb is None:
            return y
        taps = np.array([1, 3, 3, 1], np.float32) / 8
        kernel = g.weight("enlarge", np.tile(4 * np.outer(taps, taps), (3, 1, 1, 1)))
        larger = g.op("ConvTranspose", rgb, kernel, group=3, strides=[2, 2], pads=[1] * 4)
        return g.op("Add", y, larger)

    def encoded(x: str, key: str, index: int, **attributes: Any) -> str:
        weight = weights[f"{key}.{index}.weight"]
        scale = scalar(1 / math.sqrt(math.prod(weight.shape[1:])))
        y = g.conv(x, g.op("Mul", g.weight(f"{key}.{index}.weight", weight), scale), **attributes)
        return activated(y, f"{key}.{index + 1}.bias", -1, 1, 1)

    maps = [encoded(g.input("input", [1, 3, size, size]), "ecd0.0", 0)]
    for i in range(1, depth + 1):
        channels = weights[f"ecd{i}.0.1.weight"].shape[1]
        maps.append(encoded(blur(maps[-1], channels, size >> (i - 1), 2, 1), f"ecd{i}.0", 1, strides=[2, 2]))
    z = activated(
        linear(g.reshape(maps[-1], 1, -1), "final_linear.0", bias=False), "final_linear.0.bias", 1, -1
    )
    mean = g.op("Add", g.op("ReduceMean", g.op("Mul", z, z), axes=[1], keepdims=1), scalar(1e-8))
    z = g.op("Div", z, g.op("Sqrt", mean))
    for i in range(1, 9):
        y = g.op("LeakyRelu", linear(z, f"generator.style.{i}", 0.01), alpha=0.2)
        z = g.op("Mul", y, scalar(math.sqrt(2)))
    x = g.weight("generator.input.input", weights["generator.input.input"])
    x = layer(x, "generator.conv1", z, maps[-1], 4)
    rgb = colours(x, "generator.to_rgb1", z, None, 4)
    for i, level in enumerate(reversed(range(depth))):
        height = size >> level
        x = layer(x, f"generator.convs.{2 * i}", z, maps[level], height // 2, up=True)
        x = layer(x, f"generator.convs.{2 * i + 1}", z, maps[level], height)
        rgb = colours(x, f"generator.to_rgbs.{i}", z, rgb, height)
    g.output(rgb, "output", [1, 3, size, size])
    return g.model()


class Whole(Network):
    """Every level in one piece."""

    banded = 0


class Level0(Network):
    """Level 0 alone in bands."""

    banded = 1


class Bands64(Network):
    """Bands of 64 rows."""

    band = 64


class Bands256(Network):
    """Bands of 256 rows."""

    band = 256


class MapKept(Whole):
    """The encoder map of level 0 is kept from the encoder to the end."""

    def noise(self, key: str, level: int, first: int, last: int) -> str:
        strength = self._take(f"{key}.noise.weight", 1) * np.sqrt(np.float32(2))
        bias = self._biases(key, level)[1].reshape(-1, 1, 1)
        self.maps[level] = self.maps[level] or self.full_map("ecd0.0", 1, 0, self.size)
        y = self.g.op("Mul", self.maps[level], self.g.weight(f"{key}.noise.weight", strength))
        return self.activation(self.g.op("Add", y, self.g.weight(f"{key}.bias.map", bias)))


class Threes(Network):
    """Styles are multiplied with weights of four dimensions, as they come."""

    def scaled(self, key: str, weight: Array, rows: str, columns: str) -> str:
        g, (height, width) = self.g, weight.shape[:2]
        y = g.op("Mul", g.weight(key, weight), g.reshape(g.narrow(columns), 1, width, 1, 1))
        return g.op("Mul", y, g.reshape(g.narrow(rows), height, 1, 1, 1))


class RowVectors(Network):
    """Vectors are rows, constant matrices on their right."""

    def product(self, key: str, matrix: Array, x: str, *, exact: bool = False) -> str:
        g = self.g
        weight = g.weight(key, matrix.T, wide=True, exact=exact)
        return g.reshape(g.op("MatMul", g.reshape(x, 1, matrix.shape[1]), weight), matrix.shape[0], 1)


class Separable(Network):
    """Each blur is two of 4 taps."""

    def blur(self, x: str, channels: int, *, pads: list[int], gain: int = 1, bias: str | None = None) -> str:
        taps = np.array([1, 3, 3, 1], np.float32) / 8 * math.sqrt(gain)
        down = self.g.weight(f"blur.down.{channels}.{gain}", np.tile(taps[:, None], (channels, 1, 1, 1)))
        across = self.g.weight(f"blur.across.{channels}.{gain}", np.tile(taps, (channels, 1, 1, 1)))
        y = self.g.conv(x, down, group=channels, pads=[pads[0], 0, pads[2], 0])
        return self.g.conv(y, across, bias, group=channels, pads=[0, pads[1], 0, pads[3]])


class Phases(Whole):
    """A transposed convolution is four small ones, of even and odd rows and columns, put together."""

    def upsampled(self, x: str, key: str, kernel: str, level: int, rows: Rows, needed: Rows) -> list[str]:
        g = self.g
        kernel = g.op("Transpose", kernel, perm=[1, 0, 2, 3])
        taps = {0: g.constant("even", np.array([2, 0])), 1: g.constant("odd", np.array([1]))}
        phases = []
        for dy in (0, 1):
            for dx in (0, 1):
                small = g.op("Gather", g.op("Gather", kernel, taps[dy], axis=2), taps[dx], axis=3)
                phases.append(g.conv(x, small, pads=[1 - dy, 1 - dx, 1, 1]))
        y = g.op("DepthToSpace", g.op("Concat", *phases, axis=1), blocksize=2, mode="DCR")
        bias = g.weight(f"{key}.bias.features", self._biases(key, level)[0])
        y = self.blur(y, self.channels[level], pads=[1, 1, 0, 0], gain=4, bias=bias)
        return [self.activation(y), self.noise(key, level, *rows)]


class Joined(Whole):
    """Features and encoder map are concatenated in every layer."""

    def convolved(
        self, x: Sequence[str], key: str, kernels: Sequence[str], level: int, first: int, last: int
    ) -> list[str]:
        return [self.g.op("Concat", *super().convolved(x, key, kernels, level, first, last), axis=1)]

    def upsampled(self, x: str, key: str, kernel: str, level: int, rows: Rows, needed: Rows) -> list[str]:
        return [self.g.op("Concat", *super().upsampled(x, key, kernel, level, rows, needed), axis=1)]

    def kernels(self, key: str, outputs: int, inputs: int, *, parts: int) -> list[str]:
        return super().kernels(key, outputs, inputs, parts=1)

    def colour_kernels(self, key: str, channels: int) -> list[str]:
        return [self.g.op("Concat", *super().colour_kernels(key, channels), axis=1)]


class OnActivations(Whole):
    """The style is multiplied into the input of a plain convolution, the demodulation into its output."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.factors: dict[str, tuple[list[str], str]] = {}

    def kernels(self, key: str, outputs: int, inputs: int, *, parts: int) -> list[str]:
        weights = np.split(self._weight(key, outputs, inputs, 3), parts, axis=1)
        styles = self.styles(key, weights)
        self.factors[key] = styles, self.demodulation(key, weights, styles)
        return [self.g.weight(f"{key}.conv.weight.{i}", weight) for i, weight in enumerate(weights)]

    def up_kernel(self, key: str, outputs: int, inputs: int) -> str:
        weight = self._weight(key, outputs, inputs, 3)
        styles = self.styles(key, [weight])
        self.factors[key] = styles, self.demodulation(key, [weight], styles)
        return self.g.weight(f"{key}.conv.weight", weight.transpose(1, 0, 2, 3))

    def convolved(
        self, x: Sequence[str], key: str, kernels: Sequence[str], level: int, first: int, last: int
    ) -> list[str]:
        styles, demodulation = self.factors[key]
        x = [self._times(part, style) for part, style in zip(x, styles, strict=True)]
        total = ""
        for part, kernel in zip(x, kernels, strict=True):
            y = self.g.conv(part, kernel, pads=[1, 1, 1, 1])
            total = self.g.op("Add", total, y) if total else y
        return [self._biased(total, key, level, demodulation), self.noise(key, level, first, last)]

    def upsampled(self, x: str, key: str, kernel: str, level: int, rows: Rows, needed: Rows) -> list[str]:
        (style,), demodulation = self.factors[key]
        y = self.g.op("ConvTranspose", self._times(x, style), kernel, strides=[2, 2])
        y = self.blur(y, self.channels[level], pads=[1, 1, 1, 1], gain=4)
        return [self._biased(y, key, level, demodulation), self.noise(key, level, *rows)]

    def _times(self, x: str, column: str) -> str:
        return self.g.op("Mul", x, self.g.reshape(column, 1, -1, 1, 1))

    def _biased(self, y: str, key: str, level: int, demodulation: str) -> str:
        bias = self.g.weight(f"{key}.bias.features", self._biases(key, level)[0].reshape(-1, 1, 1))
        return self.activation(self.g.op("Add", self._times(y, demodulation), bias))


class Narrow(Network):
    """All encoder maps in 16 bits."""

    wide_maps = 0


def _network(*forms: type[Network], compute: Compute = "float32") -> Callable[[Weights], onnx.ModelProto]:
    form = type("Form", forms, {})
    return lambda weights: form(weights, name="gpen", half=True, compute=compute).write()


FORMS: dict[str, Callable[[Weights], onnx.ModelProto]] = {
    "published, as exported": lambda weights: published(weights, half=True),
    "style on activations, concatenated": _network(Joined, OnActivations, MapKept, RowVectors),
    "style on activations, summed": _network(OnActivations, MapKept, RowVectors),
    "style on weights, concatenated": _network(Joined, Threes, MapKept, RowVectors),
    "style on weights, summed": _network(Threes, MapKept, RowVectors),
    "kept form": _network(Network),
    "kept, but level 0 alone in bands": _network(Level0),
    "kept, but bands of 64 rows": _network(Bands64),
    "kept, but bands of 256 rows": _network(Bands256),
    "kept, but no bands": _network(Whole),
    "kept, but no bands, map of level 0 kept": _network(MapKept),
    "kept, but styles multiplied in threes": _network(Threes),
    "kept, but vectors as rows": _network(RowVectors),
    "kept, but blurs separable": _network(Separable),
    "kept, but no bands, upsampled in phases": _network(Phases),
    "kept, typed in bfloat16": _network(Network, compute="bfloat16"),
    "the same, all encoder maps bfloat16": _network(Narrow, compute="bfloat16"),
}


def runner(engine: str, precision: str, model: str, threads: int) -> Callable[[Array], NDArray[np.float32]]:
    """What restores one picture; a graph typed in bfloat16 is run in the precisions that it states."""
    if engine == "openvino":
        import openvino as ov

        hint = {"fp32": "f32", "bf16": "bf16", "typed": "f32"}[precision]
        config = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": str(threads)}
        core = ov.Core()
        request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()

        def run(picture: Array) -> Array:
            request.infer({"input": picture}, share_inputs=True, share_outputs=True)
            output: Array = request.get_tensor("output").data
            return output

        return run
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda picture: session.run(None, {"input": picture})[0]


def measure(
    engine: str, precision: str, model: str, folder: Path, threads: int, runs: int
) -> dict[str, float]:
    """One cell, in this process."""
    picture = np.load(folder / "picture.npy")
    start = time.perf_counter()
    run = runner(engine, precision, model, threads)
    output = run(picture).copy()
    cold = time.perf_counter() - start
    walls, processors = [], []
    for _ in range(runs):
        wall, processor = time.perf_counter(), time.process_time()
        run(picture)
        walls.append(time.perf_counter() - wall)
        processors.append((time.process_time() - processor) / threads)
    result = {"cold": cold, "wall": statistics.median(walls), "processor": min(processors), "peak": peak()}
    if (folder / "reference.npy").exists():
        difference = np.abs(output - np.load(folder / "reference.npy")) * 127.5
        result |= {"max": float(difference.max()), "mean": float(difference.mean())}
    else:
        np.save(folder / "reference.npy", output)
    return result


def peak() -> float:
    """Megabytes of this process at its highest."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike getrusage, not the parent's where that was larger at the fork
        return float(re.findall(r"VmHWM:\s+(\d+)", status.read_text("utf-8"))[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def spawn(*arguments: str) -> dict[str, float] | None:
    """One cell in a process of its own, or None where the engine does not take the graph."""
    command = [sys.executable, "-m", "benchmarks.gpen_forms", "--cell", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print((done.stderr.strip().splitlines() or ["no message"])[-1], file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the forms of GPEN's graph.")
    parser.add_argument("--variant", default="gpen-512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--forms", nargs="*", default=list(FORMS), metavar="NAME")
    parser.add_argument("--cell", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        engine, precision, model, folder, threads, runs = options.cell
        print(json.dumps(measure(engine, precision, model, Path(folder), int(threads), int(runs))))
        return

    weights = recipe.gpen_weights(options.variant)
    versions = ", ".join(f"{name} {version(name)}" for name in ("openvino", "onnxruntime", "numpy"))
    print(
        f"{options.variant}, {options.threads} of {os.cpu_count()} threads, {processor_name()}, {versions}\n"
    )
    print("| form | file | " + " | ".join(f"{engine} {precision}" for engine, precision in CELLS) + " |")
    print("|---|---|" + "---|" * len(CELLS))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        np.save(here / "picture.npy", recipe.gpen_picture(int(options.variant.removeprefix("gpen-"))))
        tail = (folder, str(options.threads), str(options.runs))
        exact = here / "exact.onnx"
        onnx.save(published(weights, half=False), exact)
        spawn("openvino", "fp32", str(exact), folder, str(options.threads), "1")
        exact.unlink()
        for name in options.forms:
            model = here / "model.onnx"
            onnx.save(FORMS[name](weights), model)
            typed = "bfloat16" in name
            row = [name, f"{model.stat().st_size / 1e6:.0f} MB"]
            for engine, precision in CELLS:
                if typed and (engine, precision) != ("openvino", "bf16"):
                    row.append("")
                    continue
                cell = spawn(engine, "typed" if typed else precision, str(model), *tail)
                row.append(
                    f"{cell['wall']:.2f} ({cell['processor']:.2f}) s, {cell['peak']:.0f} MB, "
                    f"{cell['max']:.2f}/{cell['mean']:.2f}"
                    if cell
                    else "does not run"
                )
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
