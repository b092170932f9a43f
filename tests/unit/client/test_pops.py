"""Pops: handles are made as the official client makes them."""

import pytest
from tests.unit.client.test_ranges import record

from pymq.client import operations
from pymq.errors import BrokerError, RemoteProtocolError
from pymq.protocol.bodies import Subscription
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command


def pop() -> operations.Pop:
    return operations.Pop(
        "T",
        "broker-a",
        group="g",
        count_max=8,
        invisible_ms=30_000,
        subscription=Subscription.of_tags("T", "a || b", 7),
        from_first=True,
    )


def answer(code: int, body: bytes = b"", **fields: str) -> Command:
    return Command(code, fields, body)


SAID = {"popTime": "1000", "invisibleTime": "30000", "reviveQid": "3", "restNum": "0"}


def test_a_request_does_not_wait_and_says_what_is_wanted() -> None:
    fields = pop().request.fields
    assert fields is not None
    wanted = {
        "queueId": "-1",
        "maxMsgNums": "8",
        "invisibleTime": "30000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "a || b",
    }
    assert wanted.items() <= fields.items()


def test_the_broker_counts_the_wait_for_news_by_its_own_clock() -> None:
    fields = operations.wait_popped("g", "T", poll_ms=1000).request.fields
    assert fields is not None
    assert {"pollTime": "1000", "bornTime": "0"}.items() <= fields.items()


@pytest.mark.parametrize(
    ("starts", "handles"),
    [
        ("0 0 4", ["4 1000 30000 3 0 broker-a 0 5", "4 1000 30000 3 0 broker-a 0 6"]),
        (None, ["5 1000 30000 3 0 broker-a 0 5", "5 1000 30000 3 0 broker-a 0 6"]),
    ],
)
def test_handles(starts: str | None, handles: list[str]) -> None:
    fields = SAID | ({"startOffsetInfo": starts} if starts else {})
    found = pop().result(answer(0, record(5) + record(6), **fields), peer="p")
    assert [handle for _, handle in found] == handles
    assert [one.queue_offset for one, _ in found] == [5, 6]


def test_nothing_and_refusals() -> None:
    for code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL):
        assert pop().result(answer(int(code)), peer="p") == []
    with pytest.raises(BrokerError, match="p refused a pop of topic 'T'"):
        pop().result(answer(1), peer="p")
    with pytest.raises(RemoteProtocolError, match="p answered a pop"):
        pop().result(answer(0, **SAID | {"startOffsetInfo": "0 x"}), peer="p")


def test_acknowledgements_name_the_topic_that_the_message_lies_in() -> None:
    for kind, topic in (("0", "T"), ("1", "%RETRY%g_T"), ("2", "%RETRY%g+T")):
        handle = f"4 1000 30000 3 {kind} broker-a 2 6"
        fields = operations.acknowledge("g", "T", handle).request.fields
        assert fields is not None
        place = {"topic": topic, "queueId": "2", "offset": "6", "extraInfo": handle}
        assert place.items() <= fields.items()


def test_a_changed_time_makes_another_handle() -> None:
    change = operations.change_invisible("g", "T", "4 1000 30000 3 1 broker-a 2 6", 5)
    fields = {"popTime": "2000", "invisibleTime": "5", "reviveQid": "1"}
    assert change.result(answer(0, **fields), peer="p") == "6 2000 5 1 1 broker-a 2 6"
