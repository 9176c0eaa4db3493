"""Real-ESRGAN's graphs against the published networks, on OpenVINO."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import openvino as ov
import pytest

from leanface.graphs.realesrgan import rrdbnet, srvgg
from tests import recipe

BUILDERS = {"realesrgan-x4plus": rrdbnet, "realesrgan-x2plus": rrdbnet, "realesr-general-x4v3": srvgg}


def run(model: onnx.ModelProto, picture: recipe.Array) -> recipe.Array:
    compiled = ov.Core().compile_model(
        ov.Core().read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    output: recipe.Array = compiled({"input": picture})["output"]
    return output


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-4), (True, 1e-3)])
@pytest.mark.parametrize("variant", BUILDERS)
def test_computes_what_the_published_network_does(variant: str, half: bool, tolerance: float) -> None:
    build: Callable[..., onnx.ModelProto] = BUILDERS[variant]
    _, _, height, width = recipe.shapes("sr", variant)["input"]
    model = build(recipe.sr_weights(variant), name=variant, half=half)
    output = run(model, recipe.sr_picture(height, width))
    expected = recipe.golden("sr", variant)["output"]
    assert output.shape == expected.shape
    assert np.abs(output - expected).max() <= tolerance * np.abs(expected).max()
