"""Where a database server runs: here, unprivileged, or in a container (``tests/interop``)."""

import contextlib
import glob
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.interop.peers import free_port
from tests.interop.processes import guard

#: An account that owns nothing, for servers that refuse to run as root.
NOBODY = "nobody"
STOP_S = 15.0


class Host(Protocol):
    """A machine for one server.

    Attributes:
        folder: what the server's account may write to, empty at first.
        listen, listen_port: where the server listens.
        port: where clients on this machine find it, at 127.0.0.1.
    """

    folder: str
    listen: str
    listen_port: int
    port: int

    def find(self, pattern: str) -> str | None:
        """Return the path that matches and has the greatest number in it."""

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, for the server to read."""

    def run(self, *command: str) -> None:
        """Run a tool of the server, as its account."""

    def start(self, command: Sequence[str]) -> None:
        """Start the server."""

    def is_running(self) -> bool:
        """Does the server run?"""

    def log(self) -> str:
        """Return what the server has said."""

    def cpu_s(self) -> float:
        """Return the processor time of the server since it was started, in seconds."""

    def kill(self) -> None:
        """End the server with SIGKILL."""

    def close(self, signal_number: int) -> None:
        """Stop the server and leave nothing behind."""


def newest(paths: Sequence[str]) -> str | None:
    """Return the path with the greatest number in it: of a version."""
    numbers = {path: [int(one) for one in re.findall(r"\d+", path)] for path in paths}
    return max(numbers, key=numbers.__getitem__, default=None)


class Loopback:
    """This machine: an account without rights, a temporary folder, loopback only."""

    listen = "127.0.0.1"

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="pymq-shop-db-")
        self._account: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam(NOBODY)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._account = {
                "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []
            }
        self.port: int = free_port(0)
        self.listen_port = self.port
        self._process: subprocess.Popen[bytes] | None = None

    def find(self, pattern: str) -> str | None:
        return newest(glob.glob(pattern))

    def write(self, name: str, text: str) -> None:
        path = Path(self.folder, name)
        path.write_text(text)
        path.chmod(0o644)

    def run(self, *command: str) -> None:
        result = subprocess.run(
            command, capture_output=True, cwd=self.folder, check=False, **self._account
        )
        assert result.returncode == 0, (command, result.stdout, result.stderr)

    def start(self, command: Sequence[str]) -> None:
        with Path(self.folder, "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._account,
            )
        guard.watch(self._process.pid)  # it does not outlive a run of tests that is killed

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return Path(self.folder, "log").read_text(errors="replace")

    def cpu_s(self) -> float:
        assert self._process is not None
        pid = self._process.pid
        # PostgreSQL has a process for each connection; user and system, of those that have ended.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        guard.forget(self._process.pid)

    def close(self, signal_number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)  # does nothing once it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
