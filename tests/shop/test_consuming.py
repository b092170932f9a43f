"""Messages that come twice, fail, or were in the hands of somebody who died."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from tests.shop.in_process import SETTLE_S, quick_cluster

from pymq import Consumer, Message, Producer
from pymq.testing import Cluster, wait_until_async
from shop.consuming import FAILURES_MAX, IdempotentConsumer, Reaction
from shop.database import Database
from shop.errors import Unavailable
from shop.faults import Faults
from shop.journal.tables import Consumed
from shop.topics import ORDER_TIMEOUT, ORDER_TOPIC, OrderTimedOut

GROUP = "tests-timeout"
Effect = Callable[[Session, Any, Any], None]
Row = tuple[str, str, int]


class Bed:
    """A database with what was consumed, and a consumer."""

    def __init__(self, url: str, effect: Effect, lease_s: float = 0.3, **more: Any) -> None:
        self.database = Database(url.replace("{service}", "journal"), sqlite_sync="normal")
        self.faults = Faults(process=False)
        reaction = Reaction(GROUP, ORDER_TOPIC, ORDER_TIMEOUT, OrderTimedOut, effect, **more)
        self.consumer = IdempotentConsumer(
            *(self.database, Consumed, reaction), lease_s=lease_s, retry_s=0.0, faults=self.faults
        )

    async def rows(self) -> list[Row]:
        def read(session: Session) -> list[Row]:
            found = session.scalars(select(Consumed).order_by(Consumed.msg_key))
            return [(row.msg_key, row.state, row.failures) for row in found]

        return await self.database.read(read)

    async def consume_until(
        self, cluster: Cluster, condition: Callable[[], object | Awaitable[object]]
    ) -> None:
        member = Consumer(cluster.name_server, GROUP, from_where="earliest", close_timeout_s=0.2)
        async with member.subscribe(ORDER_TOPIC, ORDER_TIMEOUT):
            running = asyncio.create_task(member.run(self.consumer.handle))
            await wait_until_async(condition, timeout_s=SETTLE_S)
            running.cancel()

    async def wait_rows(self, *wanted: Row) -> None:
        """Wait until a transaction is there that an effect has been in."""

        async def are_there() -> bool:
            return await self.rows() == [*wanted]

        await wait_until_async(are_there, timeout_s=SETTLE_S)


async def send(cluster: Cluster, *keys: str, body: bytes | None = None) -> None:
    async with Producer(cluster.name_server) as producer:
        for key in keys:
            told = body or OrderTimedOut(order_id=key).json_text().encode()
            await producer.send(Message(ORDER_TOPIC, told, tags=ORDER_TIMEOUT, keys=key))


def drained(cluster: Cluster) -> Callable[[], bool]:
    return lambda: cluster.lag(GROUP) == 0


def test_what_comes_twice_is_done_once(url: str) -> None:
    done: list[str] = []
    bed = Bed(url, lambda session, body, _: done.append(body.order_id))

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "a", "b", "a", "a", "b")
            await bed.consume_until(cluster, drained(cluster))
            assert sorted(done) == ["a", "b"]
            assert await bed.rows() == [("a", "done", 0), ("b", "done", 0)]

    asyncio.run(main())
    bed.database.close()


def test_what_fails_too_often_is_a_dead_letter_and_an_alarm(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def fail(session: Session, body: OrderTimedOut, _: Any) -> None:
        tries.append(body.order_id)
        if body.order_id == "bad":
            raise ValueError("no such thing")

    bed = Bed(url, fail)

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "bad", "good")
            dead = f"%DLQ%{GROUP}"
            await bed.consume_until(cluster, lambda: cluster.messages(dead) and "good" in tries)
            await bed.wait_rows(("bad", "dead", FAILURES_MAX + 1), ("good", "done", 0))
            assert [message.keys for message in cluster.messages(dead)] == [["bad"]]

    asyncio.run(main())
    bed.database.close()
    assert (tries.count("bad"), tries.count("good")) == (FAILURES_MAX + 1, 1)
    assert any("ALARM" in record.message and "bad" in record.message for record in caplog.records)


def test_what_is_no_message_of_ours_is_a_dead_letter_at_once(url: str) -> None:
    bed = Bed(url, lambda session, body, _: None)

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "x", body=b'{"orderId": 7, "more": true}')
            dead = f"%DLQ%{GROUP}"
            await bed.consume_until(cluster, lambda: cluster.messages(dead))
            assert await bed.rows() == []

    asyncio.run(main())
    bed.database.close()


def test_services_that_do_not_answer_are_not_the_messages_fault(url: str) -> None:
    asked: list[str] = []

    async def prepare(body: OrderTimedOut) -> int:
        asked.append(body.order_id)
        if len(asked) < 7:  # more often than a message may fail
            raise Unavailable("payments")
        return 42

    given: list[int] = []
    bed = Bed(url, lambda session, body, found: given.append(found), prepare=prepare)

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "a")
            await bed.consume_until(cluster, lambda: given)
            await bed.wait_rows(("a", "done", 0))
            assert given == [42]

    asyncio.run(main())
    bed.database.close()


@pytest.mark.parametrize("moment", ["claimed", "before_commit", "after_commit"])
def test_who_dies_is_followed_by_somebody_else(url: str, moment: str) -> None:
    """The broker is restarted meanwhile, so the message comes from its disk."""
    done: list[str] = []
    bed = Bed(url, lambda session, body, _: done.append(body.order_id))

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "a")
            bed.faults.plan[f"{GROUP}.{moment}"] = "kill"
            await bed.consume_until(cluster, lambda: bed.faults.met)
            (row,) = await bed.rows()
            assert row == ("a", "done" if moment == "after_commit" else "processing", 0)
            await asyncio.to_thread(cluster.broker().restart)

            async def is_over() -> bool:
                return drained(cluster)() and await bed.rows() == [("a", "done", 0)]

            await bed.consume_until(cluster, is_over)
            # The effect of a transaction that was rolled back is not in the database.
            assert len(done) == (2 if moment == "before_commit" else 1)

    asyncio.run(main())
    bed.database.close()


def test_who_is_slow_and_was_taken_for_dead_does_no_harm(url: str) -> None:
    done: list[str] = []
    waits = [asyncio.Event()]

    async def prepare(body: OrderTimedOut) -> None:
        if waits:
            await waits.pop().wait()

    bed = Bed(url, lambda session, body, _: done.append(body.order_id), prepare=prepare)
    slow = waits[0]

    async def main() -> None:
        async with quick_cluster() as cluster:
            await send(cluster, "a", "a")  # the second copy waits until the lease is over
            member = Consumer(cluster.name_server, GROUP, from_where="earliest")
            async with member.subscribe(ORDER_TOPIC, ORDER_TIMEOUT):
                running = asyncio.create_task(member.run(bed.consumer.handle))
                await wait_until_async(lambda: done == ["a"], timeout_s=SETTLE_S)
                slow.set()
                await wait_until_async(drained(cluster), timeout_s=SETTLE_S)
                running.cancel()
            assert done == ["a"]

    asyncio.run(main())
    bed.database.close()
