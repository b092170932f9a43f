"""The command line of the demo: arguments, the folder of a run, and the exit status."""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import demonstration
import flights
from interruption import Interruption
from processes import DemoFailed
from rich.console import Console

from pymq import PymqError


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        prog="demo.py", description="All flights from New York in 2013 through pymq and Spark."
    )
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N flights")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", type=_absolute, metavar="DIR", help="keep the messages here")
    where.add_argument(
        "--name-server", metavar="HOST:PORT[;...]", help="use this cluster instead of starting one"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep store, checkpoint and logs of the run"
    )
    options = parser.parse_args()
    if options.rows is not None and not 1 <= options.rows <= flights.ROWS:
        parser.error(f"--rows {options.rows}: expected 1..{flights.ROWS}")
    return options


def _absolute(path: str) -> Path:
    return Path(path).absolute()  # the broker runs in another folder


def has_java() -> bool:
    """Can Spark find a Java?"""
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None


def tidy(folder: Path, *, keep: bool, failed: bool) -> None:
    """Remove a run's folder; after a failure its logs stay, but not the store's gigabyte."""
    if not keep:
        shutil.rmtree(folder / "store", ignore_errors=True)
        if not failed or not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def main(interruption: Interruption) -> int:
    """Run the demo and return its exit status."""
    options = arguments()
    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not has_java():
        errors.print(
            "demo.py: Spark needs Java 17 or 21 and there is none: run ./build.sh demo, which "
            "looks for one or installs it, or set JAVA_HOME to one"
        )
        return 2
    folder = Path(tempfile.mkdtemp(prefix="pymq-flights-"))
    run = partial(
        demonstration.run,
        rows=options.rows,
        name_server=options.name_server,
        store=options.store,
        folder=folder,
        console=console,
    )
    failed = False
    started = time.perf_counter()
    try:
        asyncio.run(interruption.guard(run))
    except (DemoFailed, PymqError, asyncio.CancelledError) as error:
        if interruption.came:  # what fails then fails because of it
            errors.print("demo.py: interrupted")
            return 130
        errors.print(f"demo.py: {error}")
        failed = True
        return 1
    else:
        console.print(f"done in {time.perf_counter() - started:.0f} s")
        return 0
    finally:
        tidy(folder, keep=options.keep, failed=failed)
        if folder.exists():
            errors.print(f"kept: {folder}")
