"""Runs ``java/AsyncLoad.java``: how fast the official Java client sends to a broker."""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.jars import class_path, java_executable
from tests.interop.processes import OPEN_MODULES, PeerFailed

DEFAULT_IN_FLIGHT: Final = 100
DEFAULT_WARM_UP_COUNT: Final = 50_000
DEFAULT_JAVA_OPTIONS: Final = ("-Xms512m", "-Xmx512m")
LOAD_TIMEOUT_S: Final = 300.0
STDERR_TAIL_CHARS: Final = 2_000

_log = logging.getLogger("bench.java_load")
_SOURCE: Final = Path(__file__).resolve().parent / "java" / "AsyncLoad.java"


def run_async_load(
    version: str,
    name_server: str,
    topic: str,
    size: int,
    count: int,
    in_flight: int = DEFAULT_IN_FLIGHT,
    *,
    warm_up_count: int = DEFAULT_WARM_UP_COUNT,
    java_options: Sequence[str] = DEFAULT_JAVA_OPTIONS,
) -> dict[str, float]:
    """Send with the official client in a JVM of its own, from a warm start.

    Args:
        version: of the client, one of ``jars.VERSIONS``.
        name_server: ``host:port``, real or pymq's.
        topic: should exist, with as many queues as the comparison wants.
        size: bytes of each body, which is not compressed.
        count: messages in the timed part.
        in_flight: sends without an answer at any time.
        warm_up_count: messages sent before the clock starts (they go to the same topic).
        java_options: heap and other options of the JVM.

    Returns:
        messages, seconds (first send to last answer), per_second (successful ones), p50_ms and
        p99_ms (from the call to its callback), failed (the first reason is logged).

    Raises:
        PeerFailed: the JVM failed or was not done in ``LOAD_TIMEOUT_S``; the text has its output.
    """
    arguments = [name_server, topic, str(size), str(count), str(in_flight), str(warm_up_count)]
    with tempfile.TemporaryDirectory(prefix="pymq-java-load-") as home:
        (Path(home) / "logback.xml").write_text(
            '<configuration><root level="WARN"/></configuration>'
        )
        command = [
            str(java_executable()), *java_options, *OPEN_MODULES,
            f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}",
            f"-Dlogback.configurationFile={home}/logback.xml",
            "-cp", class_path(version), str(_SOURCE), *arguments,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=home, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(
                f"AsyncLoad {version} {arguments}: not done in {LOAD_TIMEOUT_S} s:\n"
                f"{error.stderr!r}"
            ) from error
    results = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not results:
        raise PeerFailed(
            f"AsyncLoad {version} {arguments}: exit {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    result: dict[str, float] = json.loads(results[-1])
    if result["failed"]:
        _log.warning("AsyncLoad %s %s: %s", version, arguments, done.stderr[-STDERR_TAIL_CHARS:])
    return result
