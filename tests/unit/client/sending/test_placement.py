"""Where a message goes when its sender says so: queue, selector, sharding key."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pymq import selectors
from pymq.client.sending.placement import Placement, placement
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.send_template import SendTemplate
from pymq.errors import ConfigurationError, LocalProtocolError, RouteNotFound
from pymq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", name, n) for name in ("r1@a", "r1@b", "r2@a", "c") for n in range(2)]


def topic_queues(queues: Sequence[MessageQueue] = QUEUES) -> TopicQueues:
    return TopicQueues(
        [SendTemplate(one, "h:1", group="G", default_topic_queue_count=4) for one in queues]
    )


def chosen(where: Placement | None, queues: TopicQueues | None = None) -> MessageQueue:
    assert where is not None
    return where.choose(queues or topic_queues()).queue


def last(queues: Sequence[MessageQueue]) -> MessageQueue:
    return queues[-1]


def test_without_instructions_it_is_the_turn_that_counts() -> None:
    assert placement(None, None, None) is None


def test_a_queue_comes_before_a_key_and_so_does_a_selector() -> None:
    by_key = chosen(placement(None, None, "k"))
    other = next(queue for queue in QUEUES[:-1] if queue != by_key)
    assert chosen(placement(other, None, "k")) == other
    assert chosen(placement(None, last, "k")) == QUEUES[-1]
    assert chosen(placement(None, None, "k")) == by_key


def test_queue_and_selector_contradict_each_other() -> None:
    with pytest.raises(LocalProtocolError, match="expected one of the two"):
        placement(QUEUES[0], last, None)


@pytest.mark.parametrize("key", [5, 0, 1.5, "", b"k"])
def test_sharding_keys_that_choose_no_queue_are_refused(key: Any) -> None:
    with pytest.raises(LocalProtocolError, match="expected a str that is not empty"):
        placement(None, None, key)


def test_what_is_no_queue_and_no_selector_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(LocalProtocolError, match="queue=3, expected one of queues"):
        placement(wrong, None, None)
    with pytest.raises(LocalProtocolError, match="selector=3, expected a function"):
        placement(None, wrong, None)


def test_a_selector_returns_one_of_the_queues() -> None:
    def index(queues: Sequence[MessageQueue]) -> Any:
        return 0

    def foreign(queues: Sequence[MessageQueue]) -> MessageQueue:
        return dataclasses.replace(queues[0], queue_id=99)

    def away(queues: Sequence[MessageQueue]) -> MessageQueue:
        return MessageQueue("T", "elsewhere", 0)

    with pytest.raises(LocalProtocolError, match="returned 0, expected one of the queues"):
        chosen(placement(None, index, None))
    with pytest.raises(LocalProtocolError, match="cannot be sent to"):
        chosen(placement(None, foreign, None))
    with pytest.raises(RouteNotFound, match="'elsewhere' has no queue .* is it running"):
        chosen(placement(None, away, None))


def test_the_hash_chooses_as_a_sharding_key_does() -> None:
    for key in ("", "a", "polygenelubricants", "\U0001f600"):
        expected = topic_queues().of_key(key).queue
        assert chosen(placement(None, selectors.by_hash(key), None)) == expected


def test_at_random_every_queue_is_chosen(seed: int) -> None:
    select = selectors.at_random(random.Random(seed))
    assert {chosen(placement(None, select, None)) for _ in range(400)} == set(QUEUES)


def test_a_machine_room_has_its_brokers_in_turn() -> None:
    select = selectors.in_machine_room("r1")
    found = [chosen(placement(None, select, None)) for _ in range(8)]
    assert found == QUEUES[:4] * 2
    both = selectors.in_machine_room("r1", "r2")
    assert {chosen(placement(None, both, None)) for _ in range(6)} == set(QUEUES[:6])
    with pytest.raises(RouteNotFound, match="machine room r3: found c, r1@a, r1@b, r2@a"):
        chosen(placement(None, selectors.in_machine_room("r3"), None))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: selectors.by_hash(None), r"by_hash\(None\): expected the key as a str$"),  # type: ignore[arg-type]
        (lambda: selectors.by_hash(7), r"write by_hash\(str\(7\)\)"),  # type: ignore[arg-type]
        (lambda: selectors.at_random(7), r"at_random\(7\)"),  # type: ignore[arg-type]
        (lambda: selectors.in_machine_room(), "name of a room"),
        (lambda: selectors.in_machine_room(["r1"]), "expected the room as a str"),  # type: ignore[arg-type]
    ],
)
def test_selectors_of_wrong_values_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make()
