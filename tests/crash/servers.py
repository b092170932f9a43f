"""Name server and broker as child processes, through the command line, to be stopped or killed.

They are ``pymq namesrv`` and ``pymq broker`` with RocketMQ's own properties files. Port and store
stay over ``stop`` (SIGTERM, clean), ``kill`` (SIGKILL) and ``start`` again. Whatever ends the test
run also ends them: the guard of ``tests.interop.processes`` sees to it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.interop.peers import free_port
from tests.interop.processes import guard

READY_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.005
LOG_TAIL_CHARS: Final = 4_000
REPOSITORY: Final = Path(__file__).resolve().parents[2]

#: Small files, so that a test of seconds fills and rolls many of them.
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 2_000,  # 100 entries
}


class ServerFailed(Exception):
    """A server did not start, or did not stop cleanly; the text ends with what it wrote."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs.

    Attributes:
        host: the address at which it is reached.
        launcher: command that runs a command there, in the same process.
    """

    host: str = "127.0.0.1"
    launcher: tuple[str, ...] = ()


HERE: Final = Place()


class ServerProcess:
    """``pymq namesrv`` or ``pymq broker`` with a properties file.

    Args:
        command: the command's name.
        home: existing directory for its configuration and output.
        properties: of the file, as RocketMQ spells them; ``listenPort`` is chosen unless given.
        place: where it runs.
    """

    def __init__(
        self,
        command: str,
        home: Path,
        properties: dict[str, str | int],
        place: Place = HERE,
    ) -> None:
        self._command = command
        self._launcher = place.launcher
        self._config = home / f"{command}.conf"
        self._output = home / f"{command}.log"
        self._output_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.port = int(properties.setdefault("listenPort", free_port(-2, 0, 1)))
        self.address = f"{place.host}:{self.port}"
        if place is not HERE:
            properties.setdefault("bindAddress", place.host)
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        self._config.write_text("".join(lines))

    def spawn(self) -> Self:
        """Start it and return at once."""
        with self._output.open("ab") as output:
            self._output_start = output.tell()
            self._process = subprocess.Popen(
                [
                    *self._launcher,
                    *(sys.executable, "-m", "pymq.cli", self._command, "-c", str(self._config)),
                ],
                cwd=self._config.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self._process.pid)
        return self

    def start(self) -> Self:
        """Start it and wait until it serves.

        Raises:
            ServerFailed: it does not get there.
        """
        self.spawn().wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until it serves.

        Raises:
            ServerFailed: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready():
            if self._running.poll() is not None:
                raise ServerFailed(self.describe("ended before it was ready"))
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(self.describe(f"not ready in {READY_TIMEOUT_S:g} s"))
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        return any(line.startswith("ready") for line in self.output().splitlines())

    def output(self) -> str:
        """Return what its last start has written."""
        with self._output.open("rb") as output:
            output.seek(self._output_start)
            return output.read().decode(errors="replace")

    def every_output(self) -> str:
        """Return what all its starts have written."""
        return self._output.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        process = self._running
        process.send_signal(signal.SIGKILL)
        process.wait()
        guard.forget(process.pid)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, takes new ones, and says nothing until ``thaw``."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: go on after ``freeze``."""
        self._running.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and wait for its clean end.

        Raises:
            ServerFailed: it is not gone in time (it is killed then), or its exit is not 0.
        """
        process = self._running
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerFailed(self.describe(f"not gone in {STOP_TIMEOUT_S:g} s")) from error
        guard.forget(process.pid)
        if code != 0:
            raise ServerFailed(self.describe(f"exit {code} after SIGTERM"))

    def wait_end(self) -> int:
        """Wait until it ends by itself, and return its exit code.

        Raises:
            ServerFailed: it goes on.
        """
        try:
            code = self._running.wait(READY_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ServerFailed(self.describe(f"runs after {READY_TIMEOUT_S:g} s")) from error
        guard.forget(self._running.pid)
        return code

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed(f"pymq {self._command} was not started")
        return self._process

    def describe(self, what: str) -> str:
        """Return ``what`` with the end of its output."""
        text = self.output()[-LOG_TAIL_CHARS:]
        return f"pymq {self._command} at {self.address}: {what}; it wrote:\n{text}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self.is_running:
            self.kill()


def name_server_process(home: Path, place: Place = HERE, **properties: str | int) -> ServerProcess:
    """Return a name server, not yet started.

    Args:
        home: existing directory for its configuration and output.
        place: where it runs.
        properties: more of its file.
    """
    usual: dict[str, str | int] = {"kvConfigPath": str(home / "kvConfig.json")}
    return ServerProcess("namesrv", home, usual | properties, place)


def controller_process(home: Path, place: Place = HERE, **properties: str | int) -> ServerProcess:
    """Return a controller that keeps what it knows in a file, not yet started.

    Args:
        home: existing directory for its configuration, output and file.
        place: where it runs.
        properties: more of its file, or another store.
    """
    usual: dict[str, str | int] = {"pymqControllerStore": f"file:{home / 'controller'}"}
    return ServerProcess("controller", home, usual | properties, place)


def broker_process(
    home: Path, name_server: str, store: Path, place: Place = HERE, **properties: str | int
) -> ServerProcess:
    """Return a broker with small files, not yet started.

    Args:
        home: existing directory for its configuration and output.
        name_server: ``host:port``.
        store: directory of its store.
        place: where it runs.
        properties: more of its file, or others than the usual.
    """
    if place is not HERE:
        properties = {"brokerIP1": place.host, "pymqHaBindAddress": place.host} | properties
    usual: dict[str, str | int] = {
        "brokerName": "broker-a",
        "brokerClusterName": "DefaultCluster",
        "namesrvAddr": name_server,
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "flushDiskType": "ASYNC_FLUSH",
        "flushConsumerOffsetInterval": 200,
        "diskFreeEnoughBytes": 1,  # How full this machine's disk is must not matter.
        **SMALL_FILES,
    }
    return ServerProcess("broker", home, usual | properties, place)
