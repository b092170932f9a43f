"""Message ids, and the month from which their time counts."""

import datetime
import time
from collections.abc import Iterator

import pytest

from pymq.protocol.unique_keys import UniqueKeys, month_around


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


def test_unique_key_vector() -> None:
    keys = UniqueKeys(address=bytes([127, 0, 0, 1]), pid=18869, salt=0x30946E09, start_ms=1000)
    found = [keys.next(1000 + 0x65202251) for _ in range(4)]
    assert found[3] == "7F00000149B530946E09652022510003"
    assert len(set(found)) == 4


def test_unique_keys_wrap() -> None:
    keys = UniqueKeys(address=bytes(16), pid=0x12345, salt=-1, start_ms=0)
    first = keys.next((1 << 32) + 5)
    assert first == "00" * 16 + "2345" + "FFFFFFFF" + "00000005" + "0000"
    assert len(first) == 56
    for _ in range(65535):
        last = keys.next(7)
    assert last.endswith("00000007FFFF")
    assert keys.next(7).endswith("000000070000")
    keys.restart(6)
    assert keys.next(7).endswith("000000010001")
    assert keys.next(5).endswith("FFFFFFFF0002")  # a clock that was set back


def test_no_unique_key_comes_twice_however_many_belong_to_one_moment() -> None:
    keys = UniqueKeys(address=bytes(4), pid=1, salt=0xFFFFFFFF, start_ms=0)
    found = [keys.next(7) for _ in range(150_000)]
    assert len(set(found)) == len(found)
    assert {len(key) for key in found} == {32}
    assert {key[20:28] for key in found} == {"00000007"}
