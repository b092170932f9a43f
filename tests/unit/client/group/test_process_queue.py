"""What may be committed, whatever the order in which messages are finished."""

import random

from pymq.client.group.process_queue import ProcessQueue
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage

QUEUE = MessageQueue("T", "broker-a", 0)


def message(offset: int, body: bytes = b"body") -> ReceivedMessage:
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    return ReceivedMessage("T", body, {}, "broker-a", 0, offset, offset * 100, 1, 2, host, host)


def pulled(first: int, *offsets: int, end: int) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, first)
    queue.pulled([message(offset) for offset in offsets], end)
    return queue


def test_nothing_pulled_commits_where_it_began() -> None:
    assert ProcessQueue(QUEUE, 7).commit_offset == 7


def test_an_unfinished_message_holds_the_commit_back() -> None:
    queue = pulled(5, 5, 6, 7, end=8)
    queue.acknowledge(6)
    queue.acknowledge(7)
    assert queue.commit_offset == 5
    queue.acknowledge(5)
    assert queue.commit_offset == 8


def test_what_the_filter_left_out_is_committed() -> None:
    queue = pulled(0, 3, end=10)
    assert queue.commit_offset == 3
    queue.acknowledge(3)
    assert queue.commit_offset == 10
    queue.pulled([], 20)
    assert queue.commit_offset == 20


def test_finishing_twice_counts_once() -> None:
    queue = pulled(0, 0, 1, end=2)
    queue.acknowledge(0)
    queue.acknowledge(0)
    assert (queue.message_count, queue.message_bytes) == (1, 4)


def test_random_orders_never_commit_past_an_unfinished_message(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        queue = ProcessQueue(QUEUE, 0)
        unfinished: set[int] = set()
        next_offset = last_commit = 0
        for _ in range(200):
            if rng.random() < 0.3:
                end = next_offset + rng.randrange(1, 8)
                offsets = [n for n in range(next_offset, end) if rng.random() < 0.7]
                queue.pulled([message(n, b"x" * n) for n in offsets], end)
                unfinished.update(offsets)
                next_offset = end
            elif unfinished:
                done = rng.choice(sorted(unfinished))
                unfinished.discard(done)
                queue.acknowledge(done)
            assert queue.commit_offset == min(unfinished, default=next_offset)
            assert queue.commit_offset >= last_commit
            assert queue.message_count == len(unfinished)
            assert queue.message_bytes == sum(unfinished)
            assert queue.span == next_offset - queue.commit_offset
            last_commit = queue.commit_offset
