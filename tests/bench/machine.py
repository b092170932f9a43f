"""What a benchmark prints about where it ran, and how it prints figures."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path


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
            "units     messages per second unless told otherwise; ratios are of one run",
        ]
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def line(what: str, figure: float, unit: str = "/s", *, goal: str = "", note: str = "") -> None:
    """Print one figure."""
    number = f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
    print(f"  {what:<58}{number:>12} {unit:<8}{goal:<22}{note}".rstrip(), flush=True)
