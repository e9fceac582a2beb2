"""Peak memory of a piece of work, medians of rounds, and plain tables."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _status_kib(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def peak_mib(work: Callable[[], object]) -> float:
    """Largest resident memory during `work` minus that just before it, in MiB.

    On Linux the kernel's high-water mark is reset first. Elsewhere the growth of the mark since the start of the
    process is returned, which is too small where an earlier peak was higher. Freed memory that the allocator still
    holds is given back before, as far as the C library can, so that it does not hide a part of the peak.
    """
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        _CLEAR.write_text("5")
        before = _status_kib("VmRSS")
        work()
        return (_status_kib("VmHWM") - before) / 1024
    except (OSError, KeyError):
        unit = 2**20 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of a figure over the rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """`spread` of the ratio of two arms, taken round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text: the first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join([cells[0].ljust(widths[0]), *rest])

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])
