"""``store.progress``: a line now and then, and none for what is done soon."""

import logging

import pytest
from tests.unit.store.stores import FakeClock

from pymq.store.progress import INTERVAL_S, LoggedProgress

GIB = 1 << 30


def test_a_line_every_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    progress = LoggedProgress("recovery", clock)
    with caplog.at_level(logging.DEBUG):
        for second in range(1, 21):
            clock.now_ms += 1000
            progress(second * GIB, 40 * GIB)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 20 // int(INTERVAL_S)
    assert lines[0] == "recovery: 12 % of 40960 MiB read, about 35 s left"


def test_no_line_for_what_is_done_soon(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    progress = LoggedProgress("recovery", clock)
    with caplog.at_level(logging.DEBUG):
        for _ in range(4):
            clock.now_ms += 1000
            progress(GIB, GIB)
    assert not caplog.records
