"""The processes of the demo: ``pymq up`` and the Spark job. Whatever happens, they are ended."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("job.py")
START_S = 30.0
GRACE_S = 15.0  # for the broker to bring its store in order
KILLED_S = 10.0
POLL_S = 0.02
LOG_LINES = 25  # shown of a process that failed


class DemoFailed(Exception):
    """The demo cannot go on, or found what it must not find."""


@contextlib.asynccontextmanager
async def running(
    *command: str, log: Path, grace_s: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process with its standard output in a pipe, and end it and all that it started.

    Its temporary files, and those of a JVM that it starts, lie beside the log and are removed
    with it, so that it may be killed without leaving any.

    Args:
        command: what to run, without relative paths.
        log: gets its standard error.
        grace_s: how long it may take to end by itself; 0: it is killed at once.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{log.stem}-", dir=log.parent))
    try:
        with log.open("wb") as errors:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    cwd=scratch,
                    env=_environment(scratch),
                    start_new_session=True,  # Ctrl-C reaches us alone, and we end the others
                )
            )
            try:
                process = await asyncio.shield(starting)  # one that has started has to be ended
            except asyncio.CancelledError:
                await _end(await starting, grace_s)
                raise
        try:
            yield process
        finally:
            await _end(process, grace_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a process that has ``scratch`` for its temporary files."""
    given = os.environ
    java = f'{given.get("JAVA_TOOL_OPTIONS", "")} -XX:-UsePerfData "-Djava.io.tmpdir={scratch}"'
    # A relative path, because a socket's must be short: about 100 characters.
    sockets = "--conf spark.python.unix.domain.socket.dir=."
    return {
        **given,
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        "JAVA_TOOL_OPTIONS": java.strip(),
        "PYSPARK_SUBMIT_ARGS": f"{sockets} {given.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


async def _end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """Ask a process to end; then end what is left of it and of all that it started."""
    try:
        if process.returncode is None and grace_s:
            # Not process.terminate(): for one that has just ended that takes the exit status
            # away from asyncio, which then warns.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            async with asyncio.timeout(grace_s):
                await process.wait()
    except TimeoutError:
        pass
    finally:
        await _kill_session(process.pid)
        await process.wait()


async def _kill_session(leader: int) -> None:
    """Kill all processes of a session and wait until there are none.

    One that is being killed may still write; whoever removes its files has to wait for its end.
    Where there is no ``/proc`` the leader's group is killed, and the rest (Spark's Python workers
    have a group of their own) ends by itself when it sees that the JVM has.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a zombie
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILLED_S):
            while members := _session(leader):
                for pid in members:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(POLL_S)


def _session(leader: int) -> list[int]:
    """Return the living processes of a session, by their ids."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent group session ...; a name may contain anything.
            state, _, _, session = file.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(file.parent.name))
    return found


def _last_words(log: Path, program: str) -> str:
    """Return what a program that failed said: its own last message, or the end of its log."""
    lines = log.read_text(errors="replace").splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith(f"{program}: ")]
    said = lines[own[-1] :] if own else lines[-LOG_LINES:]
    return "\n".join([*said, f"(the whole log: {log})"]) if said else "It logged nothing."


@contextlib.asynccontextmanager
async def cluster(store: Path, log: Path) -> AsyncIterator[str]:
    """Run ``pymq up`` on free ports and give the address of its name server.

    Args:
        store: where it keeps the messages; an absolute path.
        log: gets its log.

    Raises:
        DemoFailed: it does not start.
    """
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    command = (sys.executable, "-m", "pymq.cli", "up", "--store", str(store), *ports, "-o", "json")
    async with running(*command, log=log, grace_s=GRACE_S) as process:
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
        # Killed when it is cancelled: Spark takes seconds to stop, and has nothing to save.
        command = (sys.executable, str(JOB), *self.arguments)
        async with running(*command, log=self.log, grace_s=0) as process:
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
