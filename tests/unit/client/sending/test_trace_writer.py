"""What is said of a trace that cannot be written: once, and once more when it can."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.sending import trace_writer
from pymq.client.sending.trace_writer import QUIET_S, TraceWriter


class Client:
    """Sends as the test says, at a time that it sets.

    Attributes:
        failure: what becomes of sends; ``None``: they succeed.
    """

    def __init__(self) -> None:
        self.now_s, self.is_open, self.failure = 1000.0, True, None
        self.loop = SimpleNamespace(time=lambda: self.now_s, call_later=self._call_later)

    def _call_later(self, delay_s: float, call: object) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def prepare(self, message: object, where: object, deadline_s: object) -> object:
        return message

    def begin(self, send: object) -> "asyncio.Future[None]":
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is None:
            sent.set_result(None)
        else:
            sent.set_exception(self.failure)
        return sent


def writer_of(client: Any) -> TraceWriter:
    return TraceWriter(client, client, client, "traces")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()[:30]) for one in caplog.records]


def test_each_outage_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, trace_writer.__name__)
    client: Any = Client()
    writer = writer_of(client)

    async def test() -> None:
        for failure in (None, ValueError("no"), ValueError("no"), None, None, ValueError("no")):
            client.failure = failure
            writer.add([("line", ["key"])])
            writer.flush()
            await asyncio.sleep(0)

    asyncio.run(test())
    failed = ("WARNING", "the trace of messages cannot b")
    assert said(caplog) == [failed, ("INFO", "the trace is written to topic "), failed]


def test_lines_that_are_dropped_are_said_again_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, trace_writer.__name__)
    monkeypatch.setattr(trace_writer, "WAITING_MAX", 1)
    client: Any = Client()
    writer = writer_of(client)

    async def test() -> None:
        for later_s in (1.0, QUIET_S, 2 * QUIET_S):
            for line in ("one", "two"):
                writer.add([(line, [])])
            writer.flush()
            client.now_s += later_s
            writer.flush()
        await asyncio.sleep(0)

    asyncio.run(test())
    full = ("WARNING", "1 lines of trace wait to be se")
    assert said(caplog) == [full, ("INFO", "no lines of trace are dropped ")]
    for line in ("one", "two"):
        writer.add([(line, [])])
    assert said(caplog)[2:] == [full]
