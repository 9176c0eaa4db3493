"""The models of this machine: which one to take, and where its graph file is.

A graph is shipped inside the package, or built once from a published checkpoint and kept in the cache.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leanface import registry, settings
from leanface.engine import parts
from leanface.engine.session import Graph
from leanface.errors import ModelError, UsageError
from leanface.registry import ASSETS, Model
from leanface.weights import manifest
from leanface.weights.store import Located, Store

if TYPE_CHECKING:
    from leanface.graphs.builder import Compute

EMBEDDED = "lite"
PREFERRED = ("gpen-512", "gpen-1024", "gpen-256", "gpen-2048")
"""Published models that ``auto`` takes when their weights are here, the best first."""

_TYPES: dict[str, Compute] = {"bf16": "bfloat16", "fp16": "float16"}
_BUILD = 2  # raised when a builder's output changes, so that cached graphs are made anew


@dataclass(frozen=True)
class Library:
    """Where models come from.

    Attributes:
        store: the weights of this machine.
        weights: a file or folder of the user's that is looked at first.
        allow_unverified: take weights whose sum is not the published one.
    """

    store: Store = field(default_factory=lambda: Store(settings.load()))
    weights: Path | None = None
    allow_unverified: bool = False

    def choose(self, model_id: str, size: int | None) -> Model:
        """The model of a name; ``auto`` is the best published one that is here, else the embedded one.

        Args:
            model_id: a name, or ``auto``.
            size: side of the crops in pixels that the model must take, or None.

        Raises:
            UsageError: no such model, or it does not take that size.
            ModelError: the weights that the user gave are not what they should be.
        """
        if model_id != "auto":
            model = registry.find(model_id)
        else:
            known = {m.variant.id: m for m in registry.models()}
            wanted = (known[name] for name in PREFERRED if name in known)
            fitting = (m for m in wanted if size in (None, *m.variant.sizes))
            model = next((m for m in fitting if self.find(m)), known[EMBEDDED])
        sizes = model.variant.sizes
        if size is not None and size not in sizes:
            allowed = " or ".join(map(str, sizes))
            raise UsageError(f"{model.variant.id} takes size {allowed}, not {size}")
        return model

    def file(self, name: str, like: Path | None = None) -> manifest.WeightFile:
        """The file of weights that a name stands for: a model's, with a published sum if there is such a one;
        or one of the manifest by its id.

        Args:
            name: of a model or a file.
            like: a file of the user's that it must be able to stand for: an ONNX export or a checkpoint.

        Raises:
            UsageError: neither; or a model that is embedded and has no file to fetch.
        """
        for model in registry.models():
            if model.variant.id == name:
                if not model.variant.files:
                    raise UsageError(f"{name} is inside the package; there is nothing to fetch or keep")
                files = [manifest.get(file_id) for file_id in model.variant.files]
                files = _alike(files, like)
                return next((file for file in files if file.sha256), files[0])
        return manifest.get(name)

    def find(self, model: Model) -> Located | None:
        """The published weights of a model, if they are here.

        Raises:
            ModelError: those that the user gave, or our own copy, are not what they should be.
        """
        given = self.weights if self.weights and self.weights.is_file() else None
        for file in _alike([manifest.get(file_id) for file_id in model.variant.files], given):
            located = self.store.find(file, weights=self.weights, allow_unverified=self.allow_unverified)
            if located:
                return located
        return None

    def remove(self, name: str) -> int:
        """Delete our copies of a model's weights and the graphs built from them; the bytes that this frees.

        Raises:
            UsageError: no such model or file.
            ModelError: there is nothing of ours to delete, or it cannot be deleted.
        """
        best = self.file(name)
        ids = next((m.variant.files for m in registry.models() if m.variant.id == name), (best.id,))
        kept = [file for file in map(manifest.get, ids) if (self.store.folder / file.name).is_file()]
        freed = sum(self.store.remove(file) for file in kept or [best])
        made = [*self._graphs.glob(f"{name}-*.onnx"), *self._compiled.glob(f"{name}-*/*/*.blob")]
        for file in made:
            freed += file.stat().st_size
            file.unlink()
        return freed

    @property
    def _graphs(self) -> Path:
        return self.store.settings.cache / "graphs"

    @property
    def _compiled(self) -> Path:
        return self.store.settings.cache / "compiled"

    def graph(self, model: Model, precision: str, *, exact: bool = False) -> Graph:
        """The graph of a model; the first call may build its file.

        Args:
            model: whose.
            precision: what the engine will compute in: ``fp32``, ``bf16`` or ``fp16``.
            exact: keep the weights of a graph in fp32 as float32; else they are stored as float16.

        Raises:
            ModelError: the weights are not here (says how to get them) or are not this network's.
        """
        variant = model.variant
        located = self.find(model)
        if located is None and variant.asset:
            return self._graph(ASSETS / variant.asset)
        if located is None:
            how = self.store.how_to_get(self.file(variant.id))
            raise ModelError(f"{how}, or run: leanface models get {variant.id}")
        published = located.path.suffix.lower() == ".onnx"
        if variant.build is None:
            return self._graph(located.path)
        form = precision if precision in _TYPES else "exact" if exact else "half"
        name = f"{variant.id}-{located.sha256[:16]}-{form}-{_BUILD}.onnx"
        target = self._graphs / name
        if not target.is_file():
            try:
                _build(model, located.path, target, form)
            except ValueError as error:
                if published:  # an export whose weights have other names runs as it is
                    return self._graph(located.path)
                raise ModelError(f"{located.path} does not hold {variant.id}: {error}") from error
        return self._graph(target, typed=form in _TYPES)

    def fixed_graphs(
        self, model: Model, folder: Path, height: int, width: int, *, exact: bool = False
    ) -> tuple[Graph, ...]:
        """The graphs of a model that enlarges pictures, for inputs of one size: one, or two to run in turn.

        Args:
            model: whose.
            folder: where they are written; they may be deleted once they are loaded.
            height: of the input.
            width: of the input.
            exact: as in ``graph``.

        Raises:
            ModelError: the weights are not here or are not this network's, or the folder cannot be written.
        """
        from leanface.graphs import fixed

        enlarging = model.variant.enlarging
        assert enlarging is not None
        sizes = [(height, width)]
        if enlarging.split:  # the features are the input unshuffled by its step
            high, wide = (parts.seen(n // enlarging.step, enlarging.seam) for n in (height, width))
            sizes.append((high, wide))
        source = self.graph(model, "fp32", exact=exact).path
        try:
            made = fixed.write(source, folder, sizes, enlarging.split)
        except ValueError as error:
            raise ModelError(f"{source} does not hold {model.variant.id}: {error}") from error
        except OSError as error:
            raise ModelError(f"{folder}: a graph cannot be written ({error.strerror or error})") from error
        return tuple(map(Graph, made))

    def _graph(self, path: Path, *, typed: bool = False) -> Graph:
        return Graph(path, typed, compiled=self._compiled / path.stem)


def _alike(files: list[manifest.WeightFile], path: Path | None) -> list[manifest.WeightFile]:
    """Those of the files that one of the user's can stand for, an ONNX export or a checkpoint; all where it
    can stand for none, or is not given."""
    export = path is not None and path.suffix.lower() == ".onnx"
    return [file for file in files if path and file.name.endswith(".onnx") == export] or files


def _build(model: Model, source: Path, target: Path, form: str) -> None:
    """Write the graph of a checkpoint, whole or not at all.

    The ``bf16`` form is typed so, since engines then keep its weights as they are, in half the memory;
    ``fp16`` likewise; ``half`` and ``exact`` compute in float32 with weights of 16 or 32 bits.

    Raises:
        ValueError: the checkpoint is another network's.
        ModelError: it cannot be read, or the cache cannot be written.
    """
    from leanface.graphs.builder import save
    from leanface.weights import formats

    assert model.variant.build is not None
    graph = model.variant.build(
        formats.load(source), name=model.variant.id, half=form != "exact",
        compute=_TYPES.get(form, "float32"), licence=model.variant.licence,
    )  # fmt: skip
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save(graph, temporary)
        temporary.replace(target)
    except OSError as error:
        raise ModelError(f"{target}: the graph cannot be kept there ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)
