"""``pymq up`` as a user starts it, for a benchmark: a process of its own, free ports.

``pymq up`` takes no settings of a broker; who needs some runs ``pymq namesrv`` and ``pymq broker``.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.processes import guard

READY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A running name server and broker."""

    pid: int
    name_server: str
    broker: str
    ready_s: float
    store: Path

    def resident_bytes(self) -> int:
        """Return the resident set of the process now."""
        for row in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if row.startswith("VmRSS:"):
                return int(row.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def warm_log(self) -> None:
        """Have the kernel hold all pages of the commit log, written or not.

        A machine that has run for a while reuses memory. A virtual one whose host has taken
        back what was free gets it page by page on first touch, at several microseconds each:
        more than everything else that a message costs.
        """
        buffer = bytearray(1 << 20)
        for path in (self.store / "commitlog").iterdir():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


@contextmanager
def serving(flush: str, module: str = "pymq.cli") -> Iterator[Serving]:
    """Run ``pymq up`` on a temporary store, or another module with the same arguments."""
    directory = tempfile.mkdtemp(prefix="pymq-bench-")
    command = [module, "up", "--flush", flush]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--store", directory + "/store"]
    started = time.perf_counter()
    try:
        with _process(command) as (pid, facts):
            ready_s = time.perf_counter() - started
            store = Path(directory, "store")
            yield Serving(pid, facts["nameServer"], facts["broker"], ready_s, store)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def serving_with(flush: str, **settings: str | int) -> Iterator[Serving]:
    """Run ``pymq namesrv`` and ``pymq broker`` on a temporary store; the broker is measured.

    Args:
        flush: ``sync`` or ``async``.
        settings: of the broker, as in its configuration file.
    """
    directory = Path(tempfile.mkdtemp(prefix="pymq-bench-"))
    try:
        with (
            serving_names(directory) as name_server,
            serving_broker(directory / "store", name_server, flush, **settings) as served,
        ):
            yield served
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def serving_names(directory: Path) -> Iterator[str]:
    """Run ``pymq namesrv`` with its files in a directory; yield its ``host:port``."""
    file = directory / "namesrv.conf"
    file.write_text(f"listenPort=0\nkvConfigPath={directory}/kvConfig.json\n")
    with _process(["pymq.cli", "namesrv", "-c", str(file)]) as (_, facts):
        yield facts["nameServer"]


@contextmanager
def serving_broker(
    store: Path, name_server: str, flush: str, **settings: str | int
) -> Iterator[Serving]:
    """Run ``pymq broker`` on a store, which is kept; its configuration is beside it.

    Args:
        flush: ``sync`` or ``async``.
        settings: of the broker, as in its configuration file.
    """
    file = store.with_suffix(".conf")
    all_settings = {
        "listenPort": 0,
        "storePathRootDir": store,
        "flushDiskType": f"{flush.upper()}_FLUSH",
        **settings,
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in all_settings.items()))
    started = time.perf_counter()
    command = ["pymq.cli", "broker", "-q", "-c", str(file), "-n", name_server]
    with _process(command) as (pid, facts):
        ready_s = time.perf_counter() - started
        yield Serving(pid, name_server, facts["broker"], ready_s, store)


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Run a command of ours until the end of the block; yield its id and what it announces."""
    command = [sys.executable, "-m", *arguments, "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    guard.watch(process.pid)  # It ends with the benchmark, however that ends.
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(READY_TIMEOUT_S)
        guard.forget(process.pid)
