"""Runs ``java/Load.java``: how fast the official Java client sends to a broker, and reads."""

from __future__ import annotations

import json
import logging
import selectors
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

from tests.interop.jars import JarsUnavailable, class_path, java_executable, why_unavailable
from tests.interop.processes import OPEN_MODULES, PeerFailed

JAVA_OPTIONS: Final = ("-Xms512m", "-Xmx512m")
#: A run may take this much longer than its own times.
ANSWER_TIMEOUT_S: Final = 180.0
ERRORS_TAIL_CHARS: Final = 2_000

_log = logging.getLogger("bench.java_load")
_SOURCE: Final = Path(__file__).resolve().parent / "java" / "Load.java"


def unavailable(version: str) -> str | None:
    """Return why there is no official client and broker of this version here."""
    reason = why_unavailable(version)
    if reason is None:
        try:
            class_path(version)
        except JarsUnavailable as error:
            reason = str(error)
    return reason


class JavaLoad:
    """One JVM with the official client, used for all runs, so that it stays warm.

    Args:
        version: of the client, one of ``jars.VERSIONS``.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._home = tempfile.mkdtemp(prefix="pymq-java-load-")
        Path(self._home, "logback.xml").write_text(
            '<configuration><root level="ERROR"/></configuration>'
        )
        command = [
            str(java_executable()), *JAVA_OPTIONS, *OPEN_MODULES,
            f"-Duser.home={self._home}", f"-Drocketmq.client.logRoot={self._home}",
            f"-Dlogback.configurationFile={self._home}/logback.xml",
            "-cp", class_path(version), str(_SOURCE),
        ]  # fmt: skip
        self._errors = Path(self._home, "errors")
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, cwd=self._home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, bufsize=1,
            )  # fmt: skip

    def run(
        self,
        kind: str,
        name_server: str,
        topic: str,
        size: int,
        *,
        parallel: int,
        warm_up_s: float = 0.0,
        seconds: float = 0.0,
        argument: int = 0,
    ) -> dict[str, float]:
        """Do one run.

        Args:
            kind: see ``Load.java``.
            name_server: ``host:port``, real or pymq's.
            topic: should exist, with as many queues as the comparison wants.
            size: bytes of each body, which is not compressed.
            parallel: unanswered sends, or threads.
            warm_up_s: load before the clock starts.
            seconds: what is measured.
            argument: of the kind.

        Returns:
            messages, seconds, per_second, client_cpu_us (for each message), p50_ms and p99_ms
            (from the call to its answer), failed (the first reason is logged).

        Raises:
            PeerFailed: the JVM failed or did not answer in time.
        """
        line = f"{kind} {name_server} {topic} {size} {parallel} {warm_up_s} {seconds} {argument}"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            is_ready = selector.select(warm_up_s + seconds + ANSWER_TIMEOUT_S)
        text = self._process.stdout.readline() if is_ready else "nothing"
        if not text.startswith("{"):
            raise PeerFailed(
                f"Load {self._version}: {line}: answered {text!r}; its errors end with:\n"
                f"{self._errors.read_text()[-ERRORS_TAIL_CHARS:]}"
            )
        result: dict[str, float] = json.loads(text)
        if result["failed"]:
            _log.warning("%s: %s", line, self._last_error())
        return result

    def _last_error(self) -> str:
        """Return the last line about failures."""
        lines = self._errors.read_text().splitlines()
        return next((line for line in reversed(lines) if " failed, first: " in line), "unknown")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._home, ignore_errors=True)
