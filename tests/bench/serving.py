"""``pymq up`` as a user starts it, for a benchmark: a process of its own, free ports."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    command = [sys.executable, "-m", module, "up", "-o", "json", "--flush", flush]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--store", directory + "/store"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = process.stdout.readline()
        ready_s = time.perf_counter() - started
        facts = json.loads(text)
        store = Path(directory, "store")
        yield Serving(process.pid, facts["nameServer"], facts["broker"], ready_s, store)
    finally:
        process.terminate()
        process.wait(READY_TIMEOUT_S)
        shutil.rmtree(directory, ignore_errors=True)
