"""The time of records while the clock goes back, and what is said of that."""

import logging
from pathlib import Path

import pytest
from tests.unit.store.stores import TOPIC, FakeClock, open_store, put_ok, record

from pymq.store.log_time import BEHIND_MS, span_text

HOUR_MS = 3_600_000


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        one.getMessage()
        for one in caplog.records
        if one.levelno == logging.WARNING and "ahead of this machine's clock" in one.getMessage()
    ]
    caplog.clear()
    return found


def test_it_is_said_once_that_the_clock_was_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    put_ok(store, record())
    clock.now_ms -= BEHIND_MS - 1  # as when it is set by a little
    put_ok(store, record())
    assert not warnings(caplog)
    clock.now_ms -= 5 * HOUR_MS
    put_ok(store, record())
    put_ok(store, record())
    (text,) = warnings(caplog)
    assert str(tmp_path) in text and "the last stored message is 5 h ahead" in text
    times = {store.message_time(TOPIC, 0, offset) for offset in range(4)}
    assert len(times) == 1, "they do not go back"
    clock.now_ms += 6 * HOUR_MS
    put_ok(store, record())
    clock.now_ms -= 72 * HOUR_MS
    put_ok(store, record())
    (text,) = warnings(caplog)
    assert "3 days ahead" in text
    store.close()


def test_it_is_said_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    assert not warnings(caplog)
    put_ok(store, record())
    store.close()
    clock.now_ms -= BEHIND_MS
    store = open_store(tmp_path, clock)
    (text,) = warnings(caplog)
    assert "60 s ahead" in text and "If the clock is wrong now, set it right" in text
    put_ok(store, record())
    assert not warnings(caplog)
    store.close()


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (999, "999 ms"),
        (90_000, "90 s"),
        (120_000, "2 min"),
        (47 * HOUR_MS, "47 h"),
        (48 * HOUR_MS, "2 days"),
    ],
)
def test_spans(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text
