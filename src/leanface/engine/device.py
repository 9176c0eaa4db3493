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


def free_bytes() -> int:
    """Memory that this process can still take, in bytes: what the system calls available, less where a
    container's limit (cgroup v2) is nearer; 0 where the system does not tell."""
    if sys.platform == "win32":
        return _windows_free()
    free = _linux_available() or _sysconf_free()
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, min(free, limit - used))
    except (OSError, ValueError):
        return free  # no cgroup, or no limit ("max")


def resident_bytes() -> int:
    """Memory of this process that is in RAM right now, in bytes; 0 where the system does not tell."""
    return _memory()[0]


def peak_bytes() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where the system does not tell."""
    return max(_memory())  # Linux updates its peak a little late


def _linux_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _sysconf_free() -> int:
    try:  # macOS tells only the total; half of it is a careful guess
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (OSError, ValueError):
        return 0


def _windows_free() -> int:
    import ctypes

    class Status(ctypes.Structure):  # MEMORYSTATUSEX of the Windows API
        _fields_ = (
            ("dwLength", ctypes.c_uint32),
            ("dwMemoryLoad", ctypes.c_uint32),
            ("ullTotalPhys", ctypes.c_uint64),
            ("ullAvailPhys", ctypes.c_uint64),
            ("ullTotalPageFile", ctypes.c_uint64),
            ("ullAvailPageFile", ctypes.c_uint64),
            ("ullTotalVirtual", ctypes.c_uint64),
            ("ullAvailVirtual", ctypes.c_uint64),
            ("ullAvailExtendedVirtual", ctypes.c_uint64),
        )

    status = Status()
    status.dwLength = ctypes.sizeof(status)
    windll = getattr(ctypes, "windll")  # noqa: B009 (absent from the type stubs elsewhere)
    return int(status.ullAvailPhys) if windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else 0


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
