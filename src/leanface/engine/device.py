"""What this process has at hand: memory used and processor cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use: its affinity, and a container's quota (cgroup v2)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        usable = min(usable, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no cgroup, or no quota ("max")
    return usable


def resident_bytes() -> int:
    """Memory of this process that is in RAM right now, in bytes; 0 where the system does not tell."""
    return _memory()[0]


def peak_bytes() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where the system does not tell."""
    return max(_memory())  # Linux updates its peak a little late


def _memory() -> tuple[int, int]:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        status = Path("/proc/self/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(values["VmRSS"].split()[0]) * 1024, int(values["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        import resource

        # macOS has no current figure without a library; the peak is the honest upper bound.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


def _windows_memory() -> tuple[int, int]:
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS of the Windows API
        _fields_ = (
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("WorkingSetSize", ctypes.c_size_t),
            ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
            ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
            ("PagefileUsage", ctypes.c_size_t),
            ("PeakPagefileUsage", ctypes.c_size_t),
        )

    counters = Counters()
    counters.cb = ctypes.sizeof(counters)
    windll = getattr(ctypes, "windll")  # noqa: B009 (absent from the type stubs elsewhere)
    windll.kernel32.GetCurrentProcess.restype = wintypes.HANDLE
    read = windll.psapi.GetProcessMemoryInfo
    read.argtypes = (wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD)
    if not read(windll.kernel32.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        return 0, 0
    return int(counters.WorkingSetSize), int(counters.PeakWorkingSetSize)
