"""The command ``pymq`` as a process of its own."""

import json
import multiprocessing
import os
import pkgutil
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymq import cli
from pymq.cli.main import main

FILES = Path(__file__).parents[1] / "unit/cli/files"
COMMAND = (sys.executable, "-m", "pymq.cli")
#: Options that count where neither a test nor NAMESRV_ADDR says otherwise.
PATIENT = Path(__file__).with_name("patient.toml")
DEADLINE_S = 120.0
#: Much more than a stop takes, and less than what it must not wait for: the 15 s for which a pull
#: is held, the 24 s after which a registration is given up.
STOP_S = 10.0
#: Warns of a disk that is slow, as a shared one is now and then.
DISK_LOGGER = " pymq.broker.pressure.disk_pressure: "
#: What a process that is forked heeds as if it had been started with it.
HEEDED = {"NAMESRV_ADDR", "PYMQ_CONFIG"}
#: Forks processes in which everything is imported: that takes longer than most commands do.
FORKS = multiprocessing.get_context("forkserver")
_MODULES = {one.name for one in pkgutil.iter_modules(cli.__path__)} - {"__main__"}
_LATE = ("encodings.idna", "rich.table", "tomllib", "typer._adapters")  # when a command runs
FORKS.set_forkserver_preload([*(f"pymq.cli.{name}" for name in _MODULES), *_LATE])


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return clean | {"PYTHONUNBUFFERED": "1", "PYMQ_CONFIG": str(PATIENT)} | more


def pymq(
    *arguments: str | Path, given: bytes | None = None, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    words = [str(one) for one in arguments]
    if more.keys() <= HEEDED:
        return _fork(words, given or b"", str(cwd or Path.cwd()), environment(**more))
    done = subprocess.run(
        [*COMMAND, *words],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        cwd=cwd,
        env=environment(**more),
        timeout=DEADLINE_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def _fork(
    words: list[str], given: bytes, cwd: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with TemporaryDirectory() as name:
        streams = [Path(name, one) for one in ("stdin", "stdout", "stderr")]
        for file, content in zip(streams, (given, b"", b""), strict=True):
            file.write_bytes(content)
        process = FORKS.Process(target=_command, args=(words, streams, cwd, env))
        process.start()
        process.join(DEADLINE_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, DEADLINE_S, *map(Path.read_bytes, streams[1:]))
        out, err = (file.read_bytes().decode() for file in streams[1:])
    return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _command(words: list[str], streams: list[Path], cwd: str, env: dict[str, str]) -> None:
    """Be the command, in a process of its own."""
    for fd, file in enumerate(streams):
        os.dup2(os.open(file, os.O_RDWR), fd)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv[1:] = words
    sys.exit(main())


class Running:
    """A process and what it prints."""

    def __init__(self, *arguments: str | Path, cwd: Path | None = None, **more: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(**more),
        )

    def line(self) -> str:
        """Return the next line of its standard output, waiting for it."""
        stream = self.process.stdout
        assert stream is not None
        read = b""
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not read.endswith(b"\n"):
                left = deadline - time.monotonic()
                assert left > 0 and selector.select(left), f"no line in time, only {read!r}"
                byte = os.read(stream.fileno(), 1)
                if not byte:
                    raise AssertionError(f"it ended: {self.finish()}")
                read += byte
        return read.decode().rstrip("\n")

    def finish(self) -> tuple[int, str]:
        """Wait for its end; return its status and its standard error."""
        _, err = self.process.communicate(timeout=DEADLINE_S)
        lines = err.decode().splitlines(keepends=True)
        return self.process.returncode, "".join(one for one in lines if DISK_LOGGER not in one)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it, within the time that is promised; return status and standard error."""
        began = time.monotonic()
        self.process.send_signal(number)
        ended = self.finish()
        took = time.monotonic() - began
        assert took < STOP_S, f"stopping took {took:.1f} s"
        return ended

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def running(*arguments: str | Path, cwd: Path | None = None, **more: str) -> Iterator[Running]:
    process = Running(*arguments, cwd=cwd, **more)
    try:
        yield process
    finally:
        process.kill()


def up(store: Path, *more: str) -> Any:
    return running(
        "up", "--store", store, "--namesrv-port", "0", "--broker-port", "0", "-o", "json", *more
    )


@dataclass
class Refusal:
    status: int
    line: str


def refusal(done: subprocess.CompletedProcess[str]) -> Refusal:
    """Return status and the one line on standard error; nothing else was printed."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
    return Refusal(done.returncode, done.stderr.rstrip("\n"))


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def array(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    (found,) = rows(done)
    assert isinstance(found, list)
    return found


def missing(folder: Path, module: str) -> str:
    """Return a PYTHONPATH on which a package is as if it were not installed."""
    (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError('none', name='{module}')\n")
    return str(folder)


def write_file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file
