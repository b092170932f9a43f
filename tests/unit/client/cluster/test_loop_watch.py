"""An event loop that stood still is told of, once."""

import logging

import pytest

from pymq.client.cluster.loop_watch import STANDSTILL_S, WATCH_S, LoopWatch


def test_a_standstill_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now_s = 100.0
    watch = LoopWatch(lambda: now_s)
    for passed_s in (WATCH_S, WATCH_S + 0.9 * STANDSTILL_S):
        now_s += passed_s
        watch.step()
    assert not caplog.records
    for passed_s in (12.0, 60.0):
        now_s += WATCH_S + passed_s
        watch.step()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("the event loop stood still for 12.0 s") and "asyncio.to_thread" in text
