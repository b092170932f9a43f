"""The inbox that keeps the order of each queue, against a model."""

import asyncio
import random

import pytest

from pymq.client.consuming.ordered_inbox import OrderedInbox
from pymq.client.group.inbox import Delivery, FlowLimits
from pymq.client.group.process_queue import ProcessQueue
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage

QUEUE_COUNT = 3


def message(queue_id: int, offset: int) -> ReceivedMessage:
    return ReceivedMessage("T", b"x", {}, "b", queue_id, offset, 0, 0, 0, b"", b"")


class World:
    """Queues of one inbox, and what the model says of them."""

    def __init__(self) -> None:
        self.not_ours: set[int] = set()
        self.inbox = OrderedInbox(FlowLimits(), lambda queue: queue.queue_id not in self.not_ours)
        self.queues = [ProcessQueue(MessageQueue("T", "b", n), 0) for n in range(QUEUE_COUNT)]

    def deliver(self, queue_id: int, count: int) -> None:
        queue = self.queues[queue_id]
        first = queue.next_offset
        messages = [message(queue_id, n) for n in range(first, first + count)]
        self.inbox.deliver(queue, messages, first + count)

    def take(self) -> tuple[int, int] | None:
        delivery = self.inbox.take_nowait()
        return None if delivery is None else place(delivery)


def place(delivery: Delivery) -> tuple[int, int]:
    return delivery.message.queue_id, delivery.message.queue_offset


@pytest.fixture
def world() -> World:
    return World()


def take(world: World) -> Delivery:
    delivery = world.inbox.take_nowait()
    assert delivery is not None
    return delivery


def test_one_of_each_queue_at_a_time(world: World) -> None:
    world.deliver(0, 2)
    world.deliver(1, 1)
    first, other = take(world), take(world)
    assert (place(first), place(other), world.take()) == ((0, 0), (1, 0), None)
    world.inbox.acknowledge(first)
    assert world.take() == (0, 1)


def test_what_is_put_back_comes_first_and_a_batch_is_of_one_queue(world: World) -> None:
    world.deliver(0, 4)
    world.deliver(1, 4)
    first = take(world)
    second = world.inbox.take_with(first)
    assert second is not None
    assert (place(first), place(second)) == ((0, 0), (0, 1))
    world.inbox.put_back(second)
    assert world.take() == (1, 0), "the first one is still at work"
    world.inbox.put_back(first)
    again = take(world)
    assert again is first
    world.inbox.acknowledge(again)
    assert world.take() == (0, 1)


def test_once_more_is_another_delivery(world: World) -> None:
    world.deliver(0, 2)
    first = take(world)
    world.inbox.begin_again(first)
    again = take(world)
    assert (place(again), again.message.reconsume_times) == ((0, 0), 1)
    assert again is not first
    world.inbox.acknowledge(again)
    world.inbox.acknowledge(first)  # its handler comes back late
    assert world.take() == (0, 1)
    assert world.queues[0].commit_offset == 1


def test_queues_that_are_not_ours_or_paused_wait(world: World) -> None:
    world.deliver(0, 1)
    world.deliver(1, 1)
    world.not_ours.add(0)
    assert (world.take(), world.take()) == ((1, 0), None)
    assert "has not confirmed the lock" in world.inbox.why_unfinished(world.queues[0])
    world.not_ours.clear()
    world.inbox.locks_changed()
    world.queues[0].is_paused = True
    assert world.take() is None
    world.inbox.resume(world.queues[0])
    assert world.take() == (0, 0)


def test_waiting_takers_are_woken(world: World) -> None:
    async def test() -> None:
        taking = [asyncio.ensure_future(world.inbox.take()) for _ in range(3)]
        await asyncio.sleep(0)
        world.deliver(0, 3)
        for number in range(3):
            done, _ = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            (task,) = done
            taking.remove(task)
            delivery = task.result()
            assert delivery is not None
            assert place(delivery) == (0, number)
            world.inbox.acknowledge(delivery)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_suspended_queue_waits_for_the_longer_time(world: World) -> None:
    async def test() -> None:
        world.deliver(0, 1)
        world.inbox.put_back(take(world))
        begun_s = asyncio.get_running_loop().time()
        for seconds in (0.02, 0.1, 0.01):
            world.inbox.suspend(world.queues[0], seconds)
        first = world.inbox.take_nowait()
        assert first is None
        delivery = await world.inbox.take()
        assert delivery is not None
        assert asyncio.get_running_loop().time() - begun_s >= 0.1

    asyncio.run(asyncio.wait_for(test(), 60))


def test_giving_up_waits_for_the_handler(world: World) -> None:
    async def test() -> None:
        world.deliver(0, 2)
        first = take(world)
        waiting = asyncio.ensure_future(world.inbox.wait_idle(world.queues[0]))
        await asyncio.sleep(0)
        assert not waiting.done()
        world.inbox.acknowledge(first)
        await waiting
        assert world.take() is None, "nothing more of it"
        assert world.queues[0].commit_offset == 1
        world.inbox.drop(world.queues[0])
        assert world.inbox.message_count == 0

    asyncio.run(asyncio.wait_for(test(), 60))


def test_random_operations_keep_the_order() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    world = World()
    at_work: dict[int, list[Delivery]] = {}
    finished = [0] * QUEUE_COUNT
    for _ in range(3_000):
        what = dice.randrange(5)
        if what == 0:
            world.deliver(dice.randrange(QUEUE_COUNT), dice.randrange(4))
        elif what == 1:
            delivery = world.inbox.take_nowait()
            if delivery is None:
                continue
            queue_id, offset = place(delivery)
            assert queue_id not in at_work
            assert offset == finished[queue_id]
            at_work[queue_id] = [delivery]
            for n in range(dice.randrange(3)):
                more = world.inbox.take_with(delivery)
                if more is not None:
                    assert place(more) == (queue_id, offset + n + 1)
                    at_work[queue_id].append(more)
        elif at_work:
            queue_id = dice.choice(list(at_work))
            batch = at_work.pop(queue_id)
            count = dice.randrange(len(batch) + 1)
            for delivery in batch[:count]:
                world.inbox.acknowledge(delivery)
                finished[queue_id] += 1
            once_more = world.inbox.begin_again if what == 2 else world.inbox.put_back
            for delivery in reversed(batch[count:]):
                once_more(delivery)
    unfinished = sum(queue.message_count for queue in world.queues)
    assert world.inbox.message_count == unfinished
    assert [queue.commit_offset for queue in world.queues] == finished
