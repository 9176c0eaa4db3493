"""What makes restored faces look real: a patch critic, and the features of the shipped face detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class Critic(nn.Module):
    """Judges patches: [N,3,S,S] in [0,1] -> scores [N,1,S/8,S/8] and the features that led to them.

    Spectrally normalised, so that its slope stays bounded without a gradient penalty.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = width
        self.layers = nn.ModuleList(
            [
                spectral_norm(nn.Conv2d(3, w, 4, stride=2, padding=1)),
                spectral_norm(nn.Conv2d(w, 2 * w, 4, stride=2, padding=1)),
                spectral_norm(nn.Conv2d(2 * w, 4 * w, 4, stride=2, padding=1)),
                spectral_norm(nn.Conv2d(4 * w, 4 * w, 3, padding=1)),
            ]
        )
        self.score = nn.Conv2d(4 * w, 1, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = []
        x = 2 * x - 1
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return self.score(x), features


class FaceFeatures(nn.Module):
    """The backbone of the shipped RetinaFace as a fixed extractor: RGB [N,3,H,W] in [0,1] -> features at 1/4
    to 1/16.

    The backbone is a plain chain, read from the ONNX file: convolutions (some of them one channel wide
    groups), each followed by a leaky ReLU.
    """

    mean: Tensor

    def __init__(self, model: Path, convs: int = 23, taps: tuple[int, ...] = (4, 8, 12, 22)) -> None:
        super().__init__()
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(str(model)).graph
        arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        nodes = [node for node in graph.node if node.op_type == "Conv"][:convs]
        self.layers = nn.ModuleList(_convolution(node, arrays) for node in nodes)
        self.taps = taps
        self.register_buffer("mean", torch.from_numpy(arrays["mean"].copy()))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = x * 255 - self.mean
        features = []
        for index, layer in enumerate(self.layers):
            x = F.leaky_relu(layer(x), 0.1)
            if index in self.taps:
                features.append(x)
        return features


def _convolution(node: Any, arrays: dict[str, Any]) -> nn.Conv2d:
    given: dict[str, Any] = {a.name: list(a.ints) if a.ints else a.i for a in node.attribute}
    weight, bias = (torch.from_numpy(arrays[name].copy()) for name in node.input[1:3])
    groups = given.get("group", 1)
    conv = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        weight.shape[2],
        stride=given["strides"][0],
        padding=given["pads"][0],
        groups=groups,
    )
    conv.weight.data, conv.bias.data = weight, bias  # type: ignore[union-attr]
    return conv


def feature_distance(found: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Mean L1 between features, each layer measured by its own usual size."""
    terms = [
        (f.float() - w.float()).abs().mean() / (w.float().abs().mean() + 1e-6)
        for f, w in zip(found, wanted, strict=True)
    ]
    return torch.stack(terms).mean()


class Realism:
    """The critic with its optimizer and the three terms it adds to a restorer's gradient.

    The terms are balanced where they meet, at the restored picture: `push` is the gradient of the realism
    terms scaled to `weight` times the usual size of the restoration loss's gradient there. No loss has to be
    tuned against another.
    """

    WARM_UP = 300
    """Steps over which the weight rises, since a fresh critic knows nothing."""

    AHEAD = 0.5
    """Loss of the critic (chance is 0.69) below which it waits: one that is always right teaches nothing."""

    def __init__(self, detector: Path, weight: float, lr: float = 2e-4, device: str = "cpu") -> None:
        self.critic = Critic().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.features = FaceFeatures(detector).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.weight, self._lr = weight, lr
        self._optimizer = torch.optim.Adam(self.critic.parameters(), lr, betas=(0.5, 0.99))
        self._usual: dict[str, float] = {}
        self._lessons = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "usual": self._usual,
            "lessons": self._lessons,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr
        self._usual = state["usual"]
        self._lessons = state["lessons"]

    def teach_critic(self, restored: Tensor, truth: Tensor) -> dict[str, float]:
        """One step of the critic, unless it is ahead: each true patch should score above the restored one in
        its place."""
        with torch.autocast(truth.device.type, torch.bfloat16):
            scores, _ = self.critic(torch.cat([restored.detach(), truth]))
        fake, real = scores.float().chunk(2)
        loss = F.softplus(fake - real).mean()
        if loss > self.AHEAD:
            self._optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self._optimizer.step()
        self._lessons += 1
        return {"critic": float(loss.detach()), "fooled": float((fake > real).float().mean())}

    def push(self, restored: Tensor, truth: Tensor, usual_slope: float) -> tuple[Tensor, dict[str, float]]:
        """Gradient of the realism terms with respect to `restored`, ready to be added to the restoration
        loss's.

        `usual_slope` is the norm of the restoration loss's gradient at the picture.
        """
        picture = restored.detach().requires_grad_(True)
        with torch.autocast(truth.device.type, torch.bfloat16):
            with torch.no_grad():
                real, real_features = self.critic(truth)
                real_face = self.features(truth)
            fake, fake_features = self.critic(picture)
            fake_face = self.features(picture)
        terms = {
            "fool": (1.0, F.softplus(real.float() - fake.float()).mean()),
            "match": (0.5, feature_distance(fake_features, real_features)),
            "face": (0.5, feature_distance(fake_face, real_face)),
        }
        total = torch.zeros_like(picture)
        weight = self.weight * min(1.0, self._lessons / self.WARM_UP)
        for name, (share, term) in terms.items():
            (slope,) = torch.autograd.grad(term, picture, retain_graph=True)
            size = float(slope.norm())
            usual = self._usual.get(name, size)
            self._usual[name] = usual + 0.02 * (size - usual)
            total += slope * (share * weight * usual_slope / max(self._usual[name], size, 1e-12))
        return total, {name: float(term.detach()) for name, (_, term) in terms.items()}
