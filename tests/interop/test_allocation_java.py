"""The division of queues among members, beside the official Java classes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from tests.interop.conftest import some
from tests.interop.jvm import JavaClient

from pymq import allocation
from pymq.client.group.allocation import Allocation
from pymq.protocol.allocation import java_order, sort_queues
from pymq.protocol.bodies import MessageQueue

pytestmark = pytest.mark.interop

ROUNDS: Final = 25


class _Rooms:
    """``AllocateMachineRoomNearby.MachineRoomResolver``."""

    def brokerDeployIn(self, queue: Any) -> str:
        return str(queue.getBrokerName()).partition("@")[0]

    def consumerDeployIn(self, client_id: str) -> str:
        return client_id.partition("-")[0]

    def toString(self) -> str:
        return type(self).__name__

    class Java:
        implements: Final = [
            "org.apache.rocketmq.client.consumer.rebalance."
            "AllocateMachineRoomNearby$MachineRoomResolver"
        ]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


def ways(
    client: JavaClient, configured: Sequence[MessageQueue]
) -> dict[str, tuple[Any, Allocation]]:
    """Return Java's strategies and ours, by name."""
    java = client.jvm.org.apache.rocketmq.client.consumer.rebalance
    rooms = client.jvm.java.util.HashSet()
    for room in ("r1", "r2"):
        rooms.add(room)
    in_rooms = java.AllocateMessageQueueByMachineRoom()
    in_rooms.setConsumeridcs(rooms)
    listed = java.AllocateMessageQueueByConfig()
    listed.setMessageQueueList(java_queues(client, configured))
    averagely = java.AllocateMessageQueueAveragely()
    return {
        "averagely": (averagely, allocation.averagely),
        "circle": (java.AllocateMessageQueueAveragelyByCircle(), allocation.by_circle),
        "hash": (java.AllocateMessageQueueConsistentHash(), allocation.consistent_hash()),
        "hash 3": (java.AllocateMessageQueueConsistentHash(3), allocation.consistent_hash(3)),
        "rooms": (in_rooms, allocation.by_machine_room("r1", "r2")),
        "config": (listed, allocation.by_config(*configured)),
        "nearby": (
            java.AllocateMachineRoomNearby(averagely, _Rooms()),
            allocation.machine_room_nearby(room_of_queue, room_of_client),
        ),
        "nearby hash": (
            java.AllocateMachineRoomNearby(java.AllocateMessageQueueConsistentHash(), _Rooms()),
            allocation.machine_room_nearby(
                room_of_queue, room_of_client, allocation.consistent_hash()
            ),
        ),
    }


def java_queues(client: JavaClient, queues: Sequence[MessageQueue]) -> Any:
    made = client.jvm.org.apache.rocketmq.common.message.MessageQueue
    return client.array_list([made(q.topic, q.broker_name, q.queue_id) for q in queues])


@pytest.mark.parametrize(("version",), some([("4.9.7",), ("5.3.3",)], ("5.3.3",)))
def test_the_same_queues_for_the_same_member(
    version: str, java_client: Callable[[str], JavaClient]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    client = java_client(version)
    compared = 0
    for _ in range(ROUNDS):
        rooms = [f"r{n}" for n in range(dice.randint(1, 4))]
        names = [f"{dice.choice(rooms)}@b-{n}" for n in range(dice.randint(1, 4))]
        names += dice.sample(["r1@", "@x", "r1@b@c", "r2@d@@", "\u00fcber", "\U0001f600@x"], 2)
        queues = sort_queues(
            MessageQueue("T\u00f6", name, n) for name in names for n in range(dice.randint(1, 9))
        )
        if any(not room_of_queue(queue) for queue in queues):
            skipped = {"nearby", "nearby hash"}
        else:
            skipped = set()
        members = [f"{dice.choice(rooms)}-10.0.0.{n}@{n}#1" for n in range(dice.randint(1, 6))]
        members = sorted([*members, *dice.sample(members, 1)], key=java_order)  # one twice
        configured = dice.sample(queues, min(3, len(queues)))
        own = dice.choice(members)
        java_arguments = java_queues(client, queues), client.array_list(members)
        for name, (java, ours) in ways(client, configured).items():
            if name in skipped:
                continue
            found = java.allocate("g", own, *java_arguments)
            expected = [(q.getTopic(), q.getBrokerName(), q.getQueueId()) for q in found]
            mine = [(q.topic, q.broker_name, q.queue_id) for q in ours(queues, members, own)]
            assert mine == expected, f"{name}: {members}, {queues}, {own}"
            compared += 1
    print(f"{version}: {compared} divisions alike")
