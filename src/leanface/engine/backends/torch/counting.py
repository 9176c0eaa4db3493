"""How many bytes PyTorch's tensors take of a device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Count:
    """Bytes of live tensors on a device: now, and at the highest. Views of one storage count once."""

    now: int = 0
    peak: int = 0

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


@contextmanager
def counting(device: str) -> Iterator[Count]:
    """Count every storage that PyTorch's operators give on a device within, until it is freed.

    It works on any device. What an operator takes and frees within itself is not seen.

    Args:
        device: ``cuda``, ``mps``, ``cpu`` or ``meta``.
    """
    from torch import Tensor
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    count = Count()
    live: set[int] = set()

    def freed(storage: int, nbytes: int) -> None:
        live.discard(storage)
        count.add(-nbytes)

    class Watch(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in _pytree.tree_leaves(made):
                if isinstance(tensor, Tensor) and tensor.device.type == device:
                    storage = tensor.untyped_storage()
                    if (key := storage_of(tensor)) not in live:
                        live.add(key)
                        count.add(storage.nbytes())
                        weakref.finalize(storage, freed, key, storage.nbytes())
            return made

    with Watch():  # type: ignore[no-untyped-call, unused-ignore]
        yield count


def storage_of(tensor: Any) -> int:
    """What tells one storage from another while both live."""
    return int(tensor.untyped_storage()._cdata)
