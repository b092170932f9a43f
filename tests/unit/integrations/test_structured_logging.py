"""Log records as JSON: each is one line that can be read again, whatever is in it."""

import asyncio
import json
import logging
import math
from decimal import Decimal
from typing import Any

import pytest

from pymq import ReceivedMessage
from pymq.integrations.structured_logging import JsonLines, logged, message_fields


def line(text: str = "booked", *, stack: str | None = None, **extra: object) -> dict[str, Any]:
    """Return what a record is in JSON, read as a strict reader does, from UTF-8."""
    record = logging.makeLogRecord(
        {"name": "shop", "levelname": "INFO", "msg": text, "stack_info": stack, **extra}
    )
    written = JsonLines().format(record)
    assert "\n" not in written

    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(written.encode(), parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_fields_of_a_record_keep_their_names() -> None:
    found = line(level=3, time="noon", logger=None, message="?", price=Decimal("1.50"))
    assert (found["level"], found["logger"], found["message"]) == ("INFO", "shop", "booked")
    assert (found["level_"], found["time_"], found["logger_"]) == (3, "noon", None)
    assert found["price"] == "Decimal('1.50')"


@pytest.mark.parametrize("value", [{(1, 2): 3}, math.nan, [math.inf]])
def test_what_json_does_not_know_is_its_repr(value: object) -> None:
    found = line(seats=value, price=12)
    assert found["seats"] == repr(value) and found["price"] == 12


def test_circles() -> None:
    seats: list[object] = []
    seats.append(seats)
    assert line(seats=seats)["seats"] == "[[...]]"


def test_half_of_a_surrogate_pair() -> None:
    assert line("a \ud800 b")["message"] == "a \ud800 b"


def test_a_stack_is_not_left_out() -> None:
    assert line(stack="Stack (most recent call last): ...")["stack"].startswith("Stack")


def test_an_object_that_is_called_like_a_coroutine_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Handler:
        async def __call__(self, message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            assert message_fields()["mq_topic"] == message.topic
            raise ZeroDivisionError

    message = ReceivedMessage("T", b"x", {}, "broker-a", 0, 0, 0, 0, 0, bytes(8), bytes(8))
    with caplog.at_level(logging.INFO), pytest.raises(ZeroDivisionError):
        asyncio.run(logged(Handler())(message))
    assert [one.getMessage().partition(" ")[0] for one in caplog.records] == ["failed"]
