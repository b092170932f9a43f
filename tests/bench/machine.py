"""What a benchmark prints about where it ran, and how it prints figures."""

import importlib.metadata
import mmap
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Part of the free memory that ``used_memory`` uses.
USED_SHARE = 0.75


def describe() -> str:
    """Return the machine, the interpreter and the versions of what matters, in lines."""
    packages = []
    for name in ("uvloop", "numpy", "pyarrow", "pyspark"):
        try:
            packages.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            packages.append(f"{name} not installed")
    return "\n".join(
        [
            f"machine   {_processor()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
            f"{platform.system()} {platform.release()}",
            f"python    {platform.python_implementation()} {sys.version.split()[0]}, "
            + ", ".join(packages),
            f"memory    {first_touch_us():.1f} us per page of 4 KiB touched first",
            "units     messages per second unless stated; ratios are of one run",
        ]
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def first_touch_us() -> float:
    """Return what the first touch of a fresh page takes; below one where no host is involved."""
    pages = (64 << 20) // mmap.PAGESIZE
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        started = time.perf_counter()
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        return (time.perf_counter() - started) / pages * 1e6


@contextmanager
def used_memory() -> Iterator[None]:
    """Have most free memory of the machine hold pages of a file, which the kernel reuses.

    A machine that has run for a while is like that. A virtual one that is fresh, or whose host
    takes back what is free, pays several microseconds for every page that a log, whose ever, grows
    by; it pays them here.
    """
    with tempfile.TemporaryFile() as file:
        file.truncate(int(_available_bytes() * USED_SHARE))
        buffer = bytearray(1 << 20)
        while os.readv(file.fileno(), [buffer]):
            pass
        yield


def _available_bytes() -> int:
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1]) * 1024
    raise AssertionError("no MemAvailable")


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has taken so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(what: str, figure: float, unit: str = "/s", *, goal: str = "", note: str = "") -> None:
    """Print one figure."""
    number = f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
    print(f"  {what:<58}{number:>12} {unit:<8}{goal:<22}{note}".rstrip(), flush=True)
