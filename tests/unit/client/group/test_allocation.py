"""How queues are divided among members: known results of Java's classes, and wrong functions."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from pymq import allocation
from pymq.client.group.allocation import Allocation, own_share
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue


def queues(*brokers: str, count: int = 4, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, n) for broker in brokers for n in range(count)]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


WAYS: dict[str, Allocation] = {
    "averagely": allocation.averagely,
    "by_circle": allocation.by_circle,
    "consistent_hash": allocation.consistent_hash(),
    "nearby": allocation.machine_room_nearby(room_of_queue, room_of_client),
    "nearby_circle": allocation.machine_room_nearby(
        room_of_queue, room_of_client, allocation.by_circle
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_queue_is_read_by_one_member(name: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    for _ in range(50):
        rooms = [f"r{n}" for n in range(dice.randint(1, 4))]
        every = queues(*(f"{dice.choice(rooms)}@b{n}" for n in range(dice.randint(1, 4))))
        members = [f"{dice.choice(rooms)}-{n}" for n in range(dice.randint(1, 7))]
        shares = [own_share(WAYS[name], every, members, own) for own in members]
        assert Counter(q for share in shares for q in share) == Counter(every)


# The same comes of AllocateMessageQueueConsistentHash; the interop tests compare more.
HASHED = {"10.0.0.1@1": [3, 4, 7], "10.0.0.2@2": [2, 5], "10.0.0.3@3": [0, 1, 6]}


def test_the_ring_is_javas() -> None:
    every = queues("broker-a", count=8)
    for own, expected in HASHED.items():
        share = allocation.consistent_hash()(every, sorted(HASHED), own)
        assert [queue.queue_id for queue in share] == expected


def test_machine_rooms_take_what_is_left_at_the_end() -> None:
    every = queues("r1@a", "r2@b", "r3@c", count=3)
    share = allocation.by_machine_room("r1", "r3")
    members = ["a", "b", "c", "d"]
    # Six queues among four: one each, and the last two to the first two.
    assert [share(every, members, own) for own in members] == [
        [every[0], every[7]],
        [every[1], every[8]],
        [every[2]],
        [every[6]],
    ]
    assert share(queues("a", "r1@b@c", "r1", "@"), members, "a") == []
    assert share(every, members, "nobody") == []


def test_a_list_is_read_as_far_as_it_exists() -> None:
    every = queues("a")
    share = allocation.by_config(every[2], MessageQueue("T", "gone", 0), every[0], every[2])
    assert share(every, ["x", "y"], "x") == [every[2], every[0]]
    assert share(queues("a", topic="other"), ["x"], "x") == []
    retry = queues("a", count=1, topic="%RETRY%g")
    assert share(retry, ["x", "y"], "x") == retry
    assert share(retry, ["x", "y"], "y") == []


def test_queues_in_rooms_without_members_are_everybodys() -> None:
    every = queues("r1@a", "r2@b", count=4)
    near = allocation.machine_room_nearby(room_of_queue, room_of_client)
    members = ["r1-0", "r1-1", "r3-0"]
    assert near(every, members, "r1-0") == [*every[:2], every[4], every[5]]
    assert near(every, members, "r3-0") == [every[7]]


def test_more_places_on_the_ring_make_shares_more_equal() -> None:
    every, members = queues("a", "b", "c", "d", count=64), [f"10.0.0.{n}@1" for n in range(4)]

    def widest(share: Allocation) -> int:
        return max(len(own_share(share, every, members, own)) for own in members)

    assert widest(allocation.consistent_hash(200)) <= widest(allocation.consistent_hash(1))


def test_an_own_hash_is_asked_for_members_and_queues() -> None:
    places = {"x-0": 10, "y-0": 20}
    share = allocation.consistent_hash(1, lambda text: places.get(text, 15))
    assert share(queues("a"), ["x", "y"], "y") == queues("a")
    beyond = allocation.consistent_hash(1, lambda text: places.get(text, 25))
    assert beyond(queues("a"), ["x", "y"], "x") == queues("a")  # the ring is closed


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: allocation.by_config("T:0"), "by_config: 'T:0': expected a MessageQueue"),  # type: ignore[arg-type]
        (lambda: allocation.by_machine_room(), "expected names of rooms"),
        (lambda: allocation.by_machine_room(1), "expected names of rooms"),  # type: ignore[arg-type]
        (lambda: allocation.consistent_hash(0), "virtual_nodes=0: expected"),
    ],
)
def test_wrong_arguments_say_what_is_right(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=reason):
        make()


def foreign(_: Sequence[MessageQueue], __: Sequence[str], ___: str) -> list[MessageQueue]:
    return [MessageQueue("other", "b", 0)]


def doubled(every: Sequence[MessageQueue], _: Sequence[str], __: str) -> list[MessageQueue]:
    return [*every, every[0]]


def silent(every: Sequence[MessageQueue], _: Sequence[str], __: str) -> None:
    return None


def failing(every: Sequence[MessageQueue], _: Sequence[str], __: str) -> list[MessageQueue]:
    raise ZeroDivisionError("no reason")


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (foreign, "allocation=foreign was given 4 queues and returned .*'other'.*not one of them"),
        (doubled, "allocation=doubled was given 4 queues and returned a queue twice"),
        (silent, "allocation=silent failed for 4 queues and 2 members.*NoneType"),
        (failing, "allocation=failing failed.*keeps the queues it has: ZeroDivisionError"),
        (
            allocation.machine_room_nearby(lambda queue: "", lambda client: "r"),
            r"allocation=machine_room_nearby failed.*room_of_queue.*is '', expected the name",
        ),
    ],
)
def test_a_wrong_function_is_told_so(own: Allocation, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        own_share(own, queues("a"), ["x", "y"], "x")


def test_functions_get_what_is_sorted_and_may_keep_it() -> None:
    seen: list[tuple[list[MessageQueue], list[str]]] = []

    def own(
        every: Sequence[MessageQueue], members: Sequence[str], own_id: str
    ) -> set[MessageQueue]:
        seen.append((list(every), list(members)))
        every.clear()  # type: ignore[attr-defined]
        return set()

    assert own_share(own, reversed(queues("a", "b")), ["y", "x"], "x") == set()
    assert seen == [(queues("a", "b"), ["x", "y"])]
    assert own_share(failing, [], ["x"], "x") == set(), "nothing to divide"
