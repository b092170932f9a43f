"""The month from which the time in message ids counts."""

import datetime
import time
from collections.abc import Iterator

import pytest

from pymq.client.message_ids import MessageIds, month_around


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local_ms(*date: int) -> int:
    return int(datetime.datetime(*date).timestamp() * 1000)  # type: ignore[arg-type]


def test_the_month_begins_at_a_local_midnight(zone: str) -> None:
    """Also when the clocks have been changed since."""
    for now in ((2023, 10, 1), (2023, 10, 30, 12), (2024, 3, 31, 23, 59), (2024, 2, 29)):
        year, month = now[:2]
        wanted = local_ms(year, month, 1), local_ms(year, month + 1, 1)
        assert month_around(local_ms(*now)) == wanted
    december = local_ms(2023, 12, 1), local_ms(2024, 1, 1)
    assert month_around(december[1] - 1) == december
    assert month_around(december[1])[0] == december[1]


def test_an_id_has_the_time_since_then() -> None:
    ids = MessageIds()
    for now_ms in (local_ms(2023, 11, 14, 22), local_ms(2023, 11, 30), local_ms(2023, 12, 3)):
        assert int(ids.next(now_ms)[20:28], 16) == now_ms - month_around(now_ms)[0]
