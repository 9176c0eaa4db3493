"""Every file of published weights that leanface knows: names, sizes, sums, places and licences. Pure data.

The sums live here and nowhere else; a file is what it claims to be when its SHA-256 is the one below. Where
no sum is public, ``sha256`` is None: the store records it at the first download and holds later ones to it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from leanface.errors import UsageError


@dataclass(frozen=True)
class Licence:
    """The terms that weights are published under.

    Attributes:
        id: short name; acceptance is remembered by it.
        title: name for people.
        text: one line to show after the title before the first download, in our own words.
        commercial: whether commercial use is permitted.
        url: where the terms stand.
    """

    id: str
    title: str
    text: str
    commercial: bool
    url: str

    def __post_init__(self) -> None:
        _require(bool(re.fullmatch(r"[a-z0-9.-]+", self.id)), f"licence id {self.id!r}")
        _require(bool(self.title and self.text) and "\n" not in self.text, f"the text of licence {self.id}")
        _require(self.url.startswith("https://"), f"the address of licence {self.id}")


@dataclass(frozen=True)
class WeightFile:
    """One published file.

    Attributes:
        id: the name users type.
        name: its published file name, also its name in our cache.
        licence: key into ``LICENCES``.
        urls: where it is published, in the order to try.
        sha256: lower-case hexadecimal sum, or None where none is public.
        size: exact bytes, or None where not known.
        about_size: bytes, roughly, where the exact number is not known but its order is.
        folder: the folder that a file of so common a name must lie in to be recognised outside our cache.
    """

    id: str
    name: str
    licence: str
    urls: tuple[str, ...]
    sha256: str | None = None
    size: int | None = None
    about_size: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        _require(bool(re.fullmatch(r"[a-z0-9.+-]+", self.id)), f"id {self.id!r}")
        _require(
            bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(pth|pt|onnx|safetensors)", self.name)),
            f"name of {self.id}",
        )
        _require(
            self.sha256 is None or bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256)), f"sha256 of {self.id}"
        )
        _require(self.size is None or self.size > 0, f"size of {self.id}")
        _require(all(re.match(r"https?://[^/\s]+/\S+$", url) for url in self.urls), f"addresses of {self.id}")

    @property
    def terms(self) -> Licence:
        return LICENCES[self.licence]


def get(file_id: str) -> WeightFile:
    """The file of that id.

    Raises:
        UsageError: there is none; names the nearest ones.
    """
    if file_id in FILES:
        return FILES[file_id]
    near = difflib.get_close_matches(file_id, FILES, n=3, cutoff=0.4) or FILES
    raise UsageError(f"there are no weights named {file_id!r}; did you mean {', '.join(near)}?")


def weight_format(head: bytes) -> str | None:
    """The format of weights that a file beginning with ``head`` (512 bytes do) can be, or None.

    Returns one of ``torch-zip``, ``torch-legacy``, ``safetensors``, ``onnx``.
    """
    if head.startswith(b"PK\x03\x04"):
        return "torch-zip"
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:  # PROTO n
        return "torch-legacy"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 24:
        return "safetensors"
    if len(head) > 1 and head[0] == 0x08 and 3 <= head[1] < 0x20:  # ModelProto.ir_version
        return "onnx"
    return None


def describe(head: bytes) -> str:
    """What a file beginning with ``head`` (512 bytes do) is, for a message: 'a PNG picture', 'a PDF' ..."""
    if not head:
        return "an empty file"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for start, what in _SIGNATURES:
        if head.startswith(start) or text.startswith(start):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive"
    if not any(head):
        return "nothing but zero bytes"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return "a text file"
    return "data of an unknown kind"


_SIGNATURES = (
    (b"<!doctype html", "a web page (HTML)"),
    (b"<html", "a web page (HTML)"),
    (b"<!--", "a web page (HTML)"),
    (b"<?xml", "an XML page"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file it stands for"),
    (b"{", "a JSON text"),
    (b"\x89png", "a PNG picture"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"gif8", "a GIF picture"),
    (b"riff", "a RIFF file (WebP picture, sound or video)"),
    (b"%pdf", "a PDF"),
    (b"PK", "a zip archive"),
    (b"\x80", "a pickle"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"rar!", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"7767517", "an ncnn network description"),
    (b"gguf", "a GGUF model"),
    (b"\x7fELF", "a program"),
    (b"mz", "a program"),
)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"the manifest is wrong: {what}")


def _facefusion(name: str) -> tuple[str, ...]:
    return (
        f"https://github.com/facefusion/facefusion-assets/releases/download/models-3.0.0/{name}",
        f"https://huggingface.co/facefusion/models-3.0.0/resolve/main/{name}",
    )


def _vigen(name: str) -> str:
    return f"https://public-vigen-video.oss-cn-shanghai.aliyuncs.com/robin/models/{name}"


def _github(path: str) -> tuple[str, ...]:
    return (f"https://github.com/{path}",)


_HIRES = "cv_gpen_image-portrait-enhancement-hires"
_MODELSCOPE = f"https://modelscope.cn/models/iic/{_HIRES}/resolve/master"

LICENCES: Mapping[str, Licence] = MappingProxyType(
    {
        licence.id: licence
        for licence in (
            Licence(
                "gpen",
                "GPEN, no licence stated",
                "the authors permit nothing expressly: treat the weights as for non-commercial use only",
                False,
                "https://github.com/yangxy/GPEN",
            ),
            Licence(
                "gfpgan",
                "Apache-2.0 with third-party parts",
                "parts come from StyleGAN2 under NVIDIA's licence, which permits non-commercial use only",
                False,
                "https://github.com/TencentARC/GFPGAN/blob/master/LICENSE",
            ),
            Licence(
                "s-lab-1.0",
                "S-Lab License 1.0",
                "non-commercial use only; commercial use needs the authors' permission",
                False,
                "https://github.com/sczhou/CodeFormer/blob/master/LICENSE",
            ),
            Licence(
                "apache-2.0",
                "Apache-2.0",
                "commercial use permitted; keep the notices when you pass the file on",
                True,
                "https://www.apache.org/licenses/LICENSE-2.0",
            ),
            Licence(
                "bsd-3-clause",
                "BSD-3-Clause",
                "commercial use permitted; keep the notice when you pass the file on",
                True,
                "https://github.com/xinntao/Real-ESRGAN/blob/master/LICENSE",
            ),
            Licence(
                "mit",
                "MIT",
                "commercial use permitted; keep the notice when you pass the file on",
                True,
                "https://opensource.org/license/mit",
            ),
        )
    }
)

FILES: Mapping[str, WeightFile] = MappingProxyType(
    {
        file.id: file
        for file in (
            WeightFile(
                "gpen-512",
                "GPEN-BFR-512.pth",
                "gpen",
                (
                    _vigen("GPEN-BFR-512.pth"),
                    "https://huggingface.co/akhaliq/GPEN-BFR-512/resolve/main/GPEN-BFR-512.pth",
                ),
                "f1002c41add95b0decad69604d80455576f7187dd99ca16bd611bcfd44c10b51",
                284085738,
            ),
            WeightFile("gpen-256", "GPEN-BFR-256.pth", "gpen", (_vigen("GPEN-BFR-256.pth"),)),
            WeightFile(
                "gpen-1024", "pytorch_model.pt", "gpen", (f"{_MODELSCOPE}/pytorch_model.pt",), folder=_HIRES
            ),
            WeightFile(
                "gpen-2048",
                "pytorch_model-2048.pt",
                "gpen",
                (f"{_MODELSCOPE}/pytorch_model-2048.pt",),
                folder=_HIRES,
            ),
            WeightFile(
                "gpen-256-onnx",
                "gpen_bfr_256.onnx",
                "gpen",
                _facefusion("gpen_bfr_256.onnx"),
                "bad8bf0426873828df2dbf4e3b3d9ababba9da7965b8b72426569486f7ae5c25",
                75792988,
            ),
            WeightFile(
                "gpen-512-onnx",
                "gpen_bfr_512.onnx",
                "gpen",
                _facefusion("gpen_bfr_512.onnx"),
                "d5f066b9068a8b74217f9712e28e875a6144629b108a6f7355acbdb3a2832c54",
                284340240,
            ),
            WeightFile(
                "gpen-1024-onnx",
                "gpen_bfr_1024.onnx",
                "gpen",
                _facefusion("gpen_bfr_1024.onnx"),
                "bcd31aa52110a2005efc96abbab4546d57e42482648f08715b552423d96b381b",
                285203703,
            ),
            WeightFile(
                "gpen-2048-onnx",
                "gpen_bfr_2048.onnx",
                "gpen",
                _facefusion("gpen_bfr_2048.onnx"),
                "66d12a637118d71b00f5a290b8dac13c81c1c0326a127a1978799c6e17bb8d1f",
                285582766,
            ),
            WeightFile(
                "gpen-colorize-1024",
                "GPEN-Colorization-1024.pth",
                "gpen",
                (_vigen("GPEN-Colorization-1024.pth"),),
            ),
            WeightFile(
                "gpen-inpaint-1024", "GPEN-Inpainting-1024.pth", "gpen", (_vigen("GPEN-Inpainting-1024.pth"),)
            ),
            WeightFile(
                "gpen-seg2face-512", "GPEN-Seg2face-512.pth", "gpen", (_vigen("GPEN-Seg2face-512.pth"),)
            ),
            WeightFile(
                "gfpgan-1.4-onnx",
                "gfpgan_1.4.onnx",
                "gfpgan",
                _facefusion("gfpgan_1.4.onnx"),
                "accc4757b26bdb89b32b4d3500d4f79c9dff97c1dd7c7104bf9dcb95e3311385",
                340299087,
            ),
            WeightFile(
                "gfpgan-1.4",
                "GFPGANv1.4.pth",
                "gfpgan",
                _github("TencentARC/GFPGAN/releases/download/v1.3.4/GFPGANv1.4.pth"),
                "e2cd4703ab14f4d01fd1383a8a8b266f9a5833dacee8e6a79d3bf21a1b6be5ad",
                348632874,
            ),
            WeightFile(
                "codeformer-onnx",
                "codeformer.onnx",
                "s-lab-1.0",
                _facefusion("codeformer.onnx"),
                "21710e7ab61c82683576c428e9c1b6fe1ed419586b7b39e394c3449c294b550f",
                about_size=377_000_000,
            ),
            WeightFile(
                "restoreformer++-onnx",
                "restoreformer_plus_plus.onnx",
                "apache-2.0",
                _facefusion("restoreformer_plus_plus.onnx"),
                about_size=294_000_000,
            ),
            WeightFile(
                "realesrgan-x4plus",
                "RealESRGAN_x4plus.pth",
                "bsd-3-clause",
                _github("xinntao/Real-ESRGAN/releases/download/v0.1.0/RealESRGAN_x4plus.pth"),
                "4fa0d38905f75ac06eb49a7951b426670021be3018265fd191d2125df9d682f1",
                67040989,
            ),
            WeightFile(
                "realesrgan-x2plus",
                "RealESRGAN_x2plus.pth",
                "bsd-3-clause",
                _github("xinntao/Real-ESRGAN/releases/download/v0.2.1/RealESRGAN_x2plus.pth"),
                "49fafd45f8fd7aa8d31ab2a22d14d91b536c34494a5cfe31eb5d89c2fa266abb",
                about_size=67_000_000,
            ),
            WeightFile(
                "realesr-general-x4v3",
                "realesr-general-x4v3.pth",
                "bsd-3-clause",
                _github("xinntao/Real-ESRGAN/releases/download/v0.2.5.0/realesr-general-x4v3.pth"),
                "8dc7edb9ac80ccdc30c3a5dca6616509367f05fbc184ad95b731f05bece96292",
                about_size=5_000_000,
            ),
            WeightFile(
                "retinaface-r50",
                "detection_Resnet50_Final.pth",
                "mit",
                _github("xinntao/facexlib/releases/download/v0.1.0/detection_Resnet50_Final.pth"),
                "6d1de9c2944f2ccddca5f5e010ea5ae64a39845a86311af6fdf30841b0a5a16d",
                109497761,
            ),
            WeightFile(
                "parsenet",
                "parsing_parsenet.pth",
                "mit",
                _github("xinntao/facexlib/releases/download/v0.2.2/parsing_parsenet.pth"),
                "3d558d8d0e42c20224f13cf5a29c79eba2d59913419f945545d8cf7b72920de2",
            ),
            WeightFile(
                "yunet-2026may",
                "face_detection_yunet_2026may.onnx",
                "mit",
                (
                    "https://huggingface.co/opencv/opencv_zoo/resolve/main/models/face_detection_yunet/"
                    "face_detection_yunet_2026may.onnx",
                ),
                "ebafce4e3c118d6554634be5c27ab333b4c047a9a8c3faf1d7cf93101c22f0f0",
                229738,
            ),
        )
    }
)
