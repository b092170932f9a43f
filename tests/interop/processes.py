"""Java child processes that never outlive the test run.

Each child leads its own process group, so that Ctrl-C in the terminal reaches pytest alone, which
then stops its children in order. Against every other end of the run (SIGKILL, SIGTERM, a crash)
there is a guard: a small process that holds the other end of a pipe, knows all living groups, and
kills them when the pipe closes. ``PR_SET_PDEATHSIG`` would be shorter but fires when the starting
*thread* ends, and tests do start brokers from threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.interop.jars import java_executable

# Needed by RocketMQ 4.x on Java 17 and later (direct buffers, client of 4.5.1); 5.x ignores them.
OPEN_MODULES: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
LOG_TAIL_CHARS: Final = 4_000
POLL_INTERVAL_S: Final = 0.02
#: A clean stop of a 5.x broker takes up to seventeen seconds on a quiet machine.
STOP_TIMEOUT_S: Final = 120.0

_GUARD_PROGRAM: Final = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class PeerFailed(Exception):
    """A Java peer did not start, ended by itself or would not stop; the text has its log's end."""


class _Guard:
    """Tells the guard process which groups live; started with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-c", _GUARD_PROGRAM],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


# One per run: the guard's work is to outlive whatever this process forgot.
guard: Final = _Guard()


class JavaProcess:
    """One Java main class running as a child; its output goes to ``<home>/output.log``.

    Args:
        name: how errors call it.
        home: existing directory; the child's working directory, ``user.home`` and ROCKETMQ_HOME,
            and where its temporary files are: Netty leaves those of a certificate behind.
        command: everything after ``java``: options, class path, main class, arguments.
        environment: added to ours.
    """

    def __init__(
        self, name: str, home: Path, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log_path = home / "output.log"
        environ = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"} | dict(environment)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [
                    str(java_executable()),
                    f"-Duser.home={home}",
                    f"-Djava.io.tmpdir={home}",
                    *OPEN_MODULES,
                    *command,
                ],
                cwd=home,
                env={**environ, "ROCKETMQ_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for_text(self, text: str, *, timeout_s: float) -> None:
        """Wait until the child has written ``text``.

        Raises:
            PeerFailed: it ended first, or did not write it in time (it is killed then).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            is_running, is_late = self.running, time.monotonic() > deadline
            if text in self.output():  # looked at after that: its last word counts
                return
            if not is_running:
                raise PeerFailed(f"{self._describe()} ended before {text!r}")
            if is_late:
                self.kill()
                raise PeerFailed(f"{self._describe()} did not write {text!r} in {timeout_s} s")
            time.sleep(POLL_INTERVAL_S)

    def output(self) -> str:
        """Return what this start of the child has written so far."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then wait: shutdown hooks run, files are flushed. Nothing to do when it ended.

        Raises:
            PeerFailed: it was still there after ``timeout_s`` (it is killed then).
        """
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                self.kill()
                raise PeerFailed(f"{self._describe()} ignored SIGTERM {timeout_s} s") from error
        guard.forget(self.pid)

    def kill(self) -> None:
        """SIGKILL to the whole group, then wait. Nothing to do when it ended."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        guard.forget(self.pid)

    def _describe(self) -> str:
        state = "running" if self.running else f"exit {self._process.returncode}"
        # 5.x opens with some hundred lines about its logging set-up, and logs to files.
        told = [line for line in self.output().splitlines() if "|-INFO in" not in line]
        tails = ["\n".join(told)[-LOG_TAIL_CHARS:]]
        for path in sorted((self.log_path.parent / "logs").rglob("*.log")):
            if path.stat().st_size:
                text = path.read_text(errors="replace")[-LOG_TAIL_CHARS // 2 :]
                tails.append(f"-- end of {path.name}:\n{text}")
        text = "\n".join(tails)
        return f"{self.name} (pid {self.pid}, {state}, log {self.log_path}):\n{text}\n^ {self.name}"
