"""LiteNet: the embedded face restorer, grown from realesr-animevideov3-x4.

python -m training.model     (its size and work, and a check that it starts equal to the published network)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ANIMEVIDEO = Path(__file__).parents[1] / "src/leanface/assets/realesr-animevideov3-x4.onnx"
SCALE = 4
"""The trunk works at 1/SCALE of the crop."""

MULTIPLE = 32
"""Height and width of an input must be multiples of this."""

_FEATURES = 64
_SUBPIXELS = SCALE * SCALE
_PACKED = 3 * _SUBPIXELS


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a PReLU, added to their input; starts as identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        _silence(self.conv2)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.conv2(self.act(self.conv1(x)))
        return x + change


class FaceContext(nn.Module):
    """A small U-shaped branch that sees the whole face: [N,64,h,w] -> [N,64,h,w], zero at the start.

    It works at 1/8, 1/16 and 1/32 of the crop, where a few convolutions span the whole face, so that what is
    destroyed in one place can be drawn from what is known of faces and of the rest of this one.
    """

    def __init__(
        self, widths: tuple[int, int, int] = (96, 192, 256), blocks: tuple[int, int] = (2, 3)
    ) -> None:
        super().__init__()
        w8, w16, w32 = widths
        self.down8 = nn.Conv2d(_FEATURES, w8, 3, stride=2, padding=1)
        self.act8 = nn.PReLU(w8)
        self.down16 = nn.Conv2d(w8, w16, 3, stride=2, padding=1)
        self.act16 = nn.PReLU(w16)
        self.down32 = nn.Conv2d(w16, w32, 3, stride=2, padding=1)
        self.act32 = nn.PReLU(w32)
        self.blocks32 = nn.Sequential(*(ResidualBlock(w32) for _ in range(blocks[1])))
        self.up16 = nn.Conv2d(w32, w16, 1)
        self.blocks16 = nn.Sequential(*(ResidualBlock(w16) for _ in range(blocks[0])))
        self.up8 = nn.Conv2d(w16, w8, 1)
        self.block8 = ResidualBlock(w8)
        self.out = nn.Conv2d(w8, 4 * _FEATURES, 1)
        _silence(self.out)

    def forward(self, x: Tensor) -> Tensor:
        x8 = self.act8(self.down8(x))
        x16 = self.act16(self.down16(x8))
        x32 = self.blocks32(self.act32(self.down32(x16)))
        x16 = self.blocks16(x16 + F.interpolate(self.up16(x32), scale_factor=2, mode="nearest"))
        x8 = self.block8(x8 + F.interpolate(self.up8(x16), scale_factor=2, mode="nearest"))
        return F.pixel_shuffle(self.out(x8), 2)


class Finish(nn.Module):
    """What to add to the picture at full size: [N,3,H,W] restored, the same of the crop, features [N,64,h,w].

    The body draws each block of SCALE x SCALE pixels for itself, so a texture it draws has seams between
    blocks, seen as a mesh. These convolutions go across them. Zero at the start.
    """

    def __init__(self, hints: int = 4, width: int = 12) -> None:
        super().__init__()
        self.hints = nn.Conv2d(_FEATURES, hints * _SUBPIXELS, 1)
        self.conv1 = nn.Conv2d(hints + 6, width, 3, padding=1)
        self.act = nn.PReLU(width)
        self.conv2 = nn.Conv2d(width, 3, 3, padding=1)
        _silence(self.conv2)

    def forward(self, picture: Tensor, crop: Tensor, features: Tensor) -> Tensor:
        seen = torch.cat([picture, crop, F.pixel_shuffle(self.hints(features), SCALE)], 1)
        change: Tensor = self.conv2(self.act(self.conv1(seen)))
        return change


class LiteNet(nn.Module):
    """Restores an aligned face crop: [N,3,H,W] RGB in [0,1] -> the same shape (not clipped).

    H and W are multiples of 32; the usual crop is 512x512. The crop is packed to 48 channels at a quarter of
    its resolution, so all of its detail reaches the trunk. The output is the sum of three parts:

    - `skip`: a 1x1 convolution of the packed crop, at the start the mean of each 4x4 block;
    - `body`: the trunk, at the start exactly realesr-animevideov3-x4 for the block-averaged crop;
    - `gate`: the share of the crop's own detail (crop minus block mean) to keep, at the start none. It lets a
      good face pass unharmed although the trunk is narrow.

    `finish` adds to it what takes away the seams between blocks, at the start nothing.
    """

    detail: Tensor

    def __init__(self, convs: int = 16, context_after: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(_PACKED, _FEATURES, 3, padding=1), nn.PReLU(_FEATURES)]
        for _ in range(convs):
            layers += [nn.Conv2d(_FEATURES, _FEATURES, 3, padding=1), nn.PReLU(_FEATURES)]
        layers.append(nn.Conv2d(_FEATURES, _PACKED, 3, padding=1))
        self.body = nn.ModuleList(layers)
        self.skip = nn.Conv2d(_PACKED, _PACKED, 1, bias=False)
        self.gate = nn.Conv2d(_FEATURES, _PACKED, 1)
        _silence(self.gate)
        self.context = FaceContext()
        self.context_after = 2 * (context_after + 1)
        self.finish = Finish()
        with torch.no_grad():
            self.skip.weight.copy_(_block_mean())
        # Not a parameter: what counts as "detail" must not drift.
        self.register_buffer("detail", torch.eye(_PACKED)[..., None, None] - _block_mean())

    def forward(self, x: Tensor) -> Tensor:
        packed = F.pixel_unshuffle(x, SCALE)
        features = packed
        for index, layer in enumerate(self.body[:-1]):
            if index == self.context_after:
                features = features + self.context(features)
            features = layer(features)
        out = self.skip(packed) + self.body[-1](features)
        out = out + self.gate(features) * F.conv2d(packed, self.detail.to(packed.dtype))
        picture = F.pixel_shuffle(out, SCALE)
        return picture + self.finish(picture, x, features)


def _silence(conv: nn.Conv2d) -> None:
    """Zero a convolution, so that what it feeds starts unchanged."""
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)


def _block_mean() -> Tensor:
    """[48,48,1,1]: a 1x1 convolution that replaces each colour's 16 sub-pixels by their mean."""
    return torch.kron(torch.eye(3), torch.full((_SUBPIXELS, _SUBPIXELS), 1 / _SUBPIXELS))[..., None, None]


def initializers(path: Path) -> dict[str, np.ndarray]:
    """The named weights of an ONNX file as float32 arrays."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    return {t.name: numpy_helper.to_array(t).astype(np.float32) for t in graph.initializer}


def grow_from_animevideo(net: LiteNet, weights: Mapping[str, np.ndarray]) -> None:
    """Make `net` equal to realesr-animevideov3-x4 applied to the crop averaged over 4x4 blocks.

    `weights` has the keys `body.0.weight` [64,3,3,3] ... `body.34.bias` [48] of the published network.
    """
    state = net.state_dict()
    for name, array in weights.items():
        if name in state:
            value = torch.from_numpy(array)
            if name == "body.0.weight":
                value = value.repeat_interleave(_SUBPIXELS, dim=1) / _SUBPIXELS
            state[name] = value.reshape(state[name].shape)
    net.load_state_dict(state)


def load_exported(net: LiteNet, weights: Mapping[str, np.ndarray]) -> None:
    """Load the weights of an exported `lite.onnx` (initializers named by their state-dict keys)."""
    state = net.state_dict()
    missing = [key for key in state if key not in weights]
    if missing:
        raise ValueError(f"not a LiteNet export; missing {missing[:3]}")
    net.load_state_dict({key: torch.from_numpy(weights[key]).reshape(state[key].shape) for key in state})


def count_work(net: nn.Module, size: int = 512) -> tuple[int, float]:
    """(parameters, GFLOP of one `size` x `size` crop; a multiply-add counts two)."""
    flop = 0.0

    def hook(module: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal flop
        assert isinstance(module, nn.Conv2d)
        flop += 2.0 * module.weight.numel() * out.shape[-2] * out.shape[-1]

    handles = [m.register_forward_hook(hook) for m in net.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        net(torch.zeros(1, 3, size, size))
    for handle in handles:
        handle.remove()
    return sum(p.numel() for p in net.parameters()), flop / 1e9


def published_network(x: Tensor, weights: Mapping[str, np.ndarray]) -> Tensor:
    """realesr-animevideov3-x4, plainly: [N,3,h,w] RGB in [0,1] -> [N,3,4h,4w]."""
    features = x
    for index in range(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("body."))):
        weight = torch.from_numpy(weights[f"body.{index}.weight"])
        if index % 2:
            features = F.prelu(features, weight.reshape(-1))
        else:
            features = F.conv2d(features, weight, torch.from_numpy(weights[f"body.{index}.bias"]), padding=1)
    return F.pixel_shuffle(features, SCALE) + F.interpolate(x, scale_factor=SCALE, mode="nearest")


def main() -> None:
    net = LiteNet()
    weights = initializers(ANIMEVIDEO)
    grow_from_animevideo(net, weights)
    parameters, gflop = count_work(net)
    print(f"{parameters / 1e6:.2f} M parameters, {gflop:.1f} GFLOP for a 512x512 crop")
    crop = torch.from_numpy(np.random.default_rng(0).random((1, 3, 128, 192), np.float32))
    with torch.no_grad():
        error = (net(crop) - published_network(F.avg_pool2d(crop, SCALE), weights)).abs().max()
    print(f"differs from the published network at the start by {float(error):.1e}")
    if not error < 1e-5:
        raise SystemExit("the grown network does not start as the published one")


if __name__ == "__main__":
    main()
