"""The processes of the demo: ``pymq up`` and the Spark job. Whatever happens, they are ended."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("job.py")
START_S = 30.0
GRACE_S = 15.0
LOG_LINES = 25  # shown of a process that failed


class DemoFailed(Exception):
    """The demo cannot go on, or found what it must not find."""


@contextlib.asynccontextmanager
async def running(*command: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process with its standard output in a pipe, and end it.

    Args:
        command: what to run.
        log: gets its standard error.
    """
    workers = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **workers, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the others
        )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end; then end what is left of it and of all that it started."""
    try:
        if process.returncode is None:
            # Not process.terminate(): for one that has just ended that takes the exit status
            # away from asyncio, which then warns.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _last_words(log: Path, program: str) -> str:
    """Return what a program that failed said: its own last message, or the end of its log."""
    lines = log.read_text(errors="replace").splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith(f"{program}: ")]
    said = lines[own[-1] :] if own else lines[-LOG_LINES:]
    return "\n".join([*said, f"(the whole log: {log})"]) if said else "It logged nothing."


@contextlib.asynccontextmanager
async def cluster(store: Path, log: Path) -> AsyncIterator[str]:
    """Run ``pymq up`` on free ports and give the address of its name server.

    Raises:
        DemoFailed: it does not start.
    """
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    command = (sys.executable, "-m", "pymq.cli", "up", "--store", str(store), *ports, "-o", "json")
    async with running(*command, log=log) as process:
        assert process.stdout is not None
        failure = "pymq up did not start"
        line = b""
        try:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        except TimeoutError:
            failure = f"pymq up was not ready after {START_S:g} s"
        if not line:
            raise DemoFailed(f"{failure}:\n{_last_words(log, 'pymq up')}")
        yield json.loads(line)["nameServer"]


@dataclass(slots=True)
class Job:
    """One run of the Spark job.

    Args:
        arguments: of ``job.py``.
        log: gets what Spark logs.
        rows: messages read so far.
        results: messages written so far.
        busy_s: what its micro-batches have taken, without the first, which is empty: it fixes
            where the stream starts, and waits for Spark's Python processes to start.
        note: what it is doing.
    """

    arguments: list[str]
    log: Path
    rows: int = 0
    results: int = 0
    busy_s: float = 0.0
    note: str = "starting Spark"

    async def run(self) -> None:
        """Run it to its end.

        Raises:
            DemoFailed: it failed, or flights came too late for it.
        """
        async with running(sys.executable, str(JOB), *self.arguments, log=self.log) as process:
            assert process.stdout is not None
            async for line in process.stdout:
                self._add_batch(json.loads(line))
            status = await process.wait()
        if status:
            said = _last_words(self.log, "job.py")
            raise DemoFailed(f"the Spark job ended with status {status}:\n{said}")

    def _add_batch(self, batch: dict[str, Any]) -> None:
        self.rows = batch["rowsTotal"]
        self.results += batch["resultsWritten"]
        if batch["rows"] or batch["resultsWritten"]:
            self.busy_s += batch["seconds"]
        if batch["rowsTooLate"]:
            raise DemoFailed(
                f"{batch['rowsTooLate']} flights came later than the watermark allows: give "
                f"job.py more --lateness-days (LATENESS_DAYS is its default)"
            )
        closed = datetime.fromisoformat(batch["watermark"])
        self.note = f"hours closed until {closed:%d %b %Y}" if closed.year > 1970 else "reading"
