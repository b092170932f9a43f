"""An event loop that stood still is told of, once; and again when it did not for a while."""

import logging

import pytest

from pymq.client.cluster.loop_watch import QUIET_S, STANDSTILL_S, WATCH_S, LoopWatch


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


def test_a_standstill_is_over_some_minutes_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now_s = 100.0
    watch = LoopWatch(lambda: now_s)

    def go_on(seconds: float) -> None:
        nonlocal now_s
        for _ in range(int(seconds / WATCH_S)):
            now_s += WATCH_S
            watch.step()

    def stand_still() -> None:
        nonlocal now_s
        now_s += WATCH_S + 12.0
        watch.step()

    go_on(2 * QUIET_S)
    stand_still()
    go_on(QUIET_S / 2)
    stand_still()
    go_on(QUIET_S - WATCH_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    go_on(QUIET_S)
    stand_still()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert "has not stood still again for 300 s" in caplog.text
