"""The C library's heap on Linux (glibc), which by itself keeps what it may need again; elsewhere nothing."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_SMALL, _LARGE, _KEPT = 1 << 16, 1 << 22, 1 << 23  # bytes


def share() -> None:
    """Have threads that begin from now on share one heap.

    Each would keep free memory of its own: 10 to 15 MB more in a long run, and never twice the same.
    """
    _libc("mallopt", _ARENA_MAX, 1)


class _Use(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcdefgh", "free", "top"))


def give_back(beyond: int = 0) -> None:
    """Give free memory back to the system, if there are more than ``beyond`` bytes of it.

    That takes about a millisecond; taking the memory anew for the next picture takes eight.
    """
    if beyond and sys.platform == "linux" and (use := getattr(ctypes.CDLL(None), "mallinfo2", None)):
        use.restype = _Use
        if use().free <= beyond:
            return
    _libc("malloc_trim", 0)


@contextmanager
def large_blocks_returned() -> Iterator[None]:
    """Have every freed block of 64 KiB or more given back at once.

    glibc learns to keep blocks of up to 32 MiB, and the holes that a network leaves then stay: 30 to 110 MB
    with 71 million weights, and never twice the same. Around it blocks of up to 4 MiB are kept: arrays of
    that size come and go there, and fresh memory is slow (mallopt(3)).
    """
    _libc("mallopt", _MMAP_THRESHOLD, _SMALL)
    try:
        yield
    finally:
        _libc("mallopt", _MMAP_THRESHOLD, _LARGE)
        _libc("mallopt", _TRIM_THRESHOLD, _KEPT)


def _libc(function: str, *arguments: int) -> None:
    if sys.platform == "linux" and (call := getattr(ctypes.CDLL(None), function, None)):
        call(*arguments)
