"""The outbox: what is committed is sent at least once, whoever dies; the rest is not sent."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from tests.shop.in_process import quick_cluster

from pymq import Producer
from pymq.testing import Cluster
from shop import outbox
from shop.columns import now_ms
from shop.database import Database
from shop.faults import Faults
from shop.orders.tables import Outbox
from shop.topics import ORDER_TIMEOUT, ORDER_TOPIC, OrderTimedOut

#: When what messages tell has happened.
AT_MS = 1_767_225_600_123
#: Nobody is taken for dead, and nothing sent again, because the machine is slow.
ANSWER_S, SEND_S, CLAIM_S = 30.0, 60.0, 3600.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SEND_S", SEND_S)
    monkeypatch.setattr(outbox, "CLAIM_S", CLAIM_S)


def producer_of(cluster: Cluster) -> Producer:
    return Producer(cluster.name_server, timeout_s=ANSWER_S)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url.replace("{service}", "orders"), sqlite_sync="normal")
    yield made
    made.close()


def put(session: Session, key: str, deliver_ms: int = 0) -> None:
    outbox.put(
        session,
        Outbox,
        group="orders",
        topic=ORDER_TOPIC,
        tag=ORDER_TIMEOUT,
        key=key,
        body=OrderTimedOut(order_id=key),
        deliver_ms=deliver_ms,
        at_ms=AT_MS,
    )


async def count(database: Database) -> int:
    return await database.read(
        lambda session: session.scalar(select(func.count()).select_from(Outbox)) or 0
    )


def keys(cluster: Cluster) -> list[str]:
    return sorted(message.keys[0] for message in cluster.messages(ORDER_TOPIC))


def test_two_relays_and_what_was_rolled_back(database: Database) -> None:
    def put_and_fail(session: Session) -> None:
        put(session, "never")
        raise ValueError("rolled back")

    async def main() -> None:
        async with quick_cluster() as cluster, producer_of(cluster) as producer:
            for number in range(500):
                await database.transaction(lambda session, key=f"{number:03}": put(session, key))
            with pytest.raises(ValueError, match="rolled back"):
                await database.transaction(put_and_fail)
            relays = [
                outbox.Relay(database, Outbox, producer, Faults(process=False)) for _ in range(2)
            ]
            while await count(database):
                await asyncio.gather(*(relay.step() for relay in relays))
            sent = Counter(keys(cluster))
            assert sorted(sent) == [f"{number:03}" for number in range(500)]
            assert sent.total() == 500  # claims keep two relays apart

    asyncio.run(main())


@pytest.mark.parametrize("step", ["relay.claimed", "relay.sent"])
def test_a_relay_dies(database: Database, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else sends its rows when its claim is over; a broker is restarted in between."""

    async def main() -> None:
        async with quick_cluster() as cluster, producer_of(cluster) as producer:
            await database.transaction(lambda session: put(session, "a"))
            faults = Faults({step: "kill"}, process=False)
            dying = asyncio.create_task(
                outbox.Relay(database, Outbox, producer, faults).step()
            )
            while not faults.met:
                await asyncio.sleep(0.01)
            dying.cancel()
            await asyncio.to_thread(cluster.broker().restart)
            assert await count(database) == 1
            relay = outbox.Relay(database, Outbox, producer, Faults(process=False))
            assert await relay.step() == 0  # it may still be at work
            monkeypatch.setattr(outbox, "CLAIM_S", 0.0)
            await asyncio.sleep(0.01)
            assert await relay.step() == 1
            assert await count(database) == 0
            assert keys(cluster) == (["a", "a"] if step == "relay.sent" else ["a"])
            times = {one.properties["createTime"] for one in cluster.messages(ORDER_TOPIC)}
            assert times == {str(AT_MS)}  # the same in each copy

    asyncio.run(main())


def test_without_a_broker_rows_stay(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with quick_cluster() as cluster, producer_of(cluster) as producer:
            await database.transaction(lambda session: put(session, "a"))
            relay = outbox.Relay(database, Outbox, producer, Faults(process=False))
            monkeypatch.setattr(outbox, "SEND_S", 0.3)
            with cluster.broker().disk_full():
                assert await relay.step() == 0
                assert await count(database) == 1
            monkeypatch.setattr(outbox, "SEND_S", SEND_S)
            assert await relay.step() == 1
            assert keys(cluster) == ["a"]

    asyncio.run(main())


def test_a_delayed_message_comes_when_it_is_due(database: Database) -> None:
    async def main() -> None:
        async with quick_cluster() as cluster, producer_of(cluster) as producer:
            await database.transaction(lambda session: put(session, "past", now_ms() - 5_000))
            await database.transaction(lambda session: put(session, "soon", now_ms() + 3_600_000))
            relay = outbox.Relay(database, Outbox, producer, Faults(process=False))
            assert await relay.step() == 2
            assert keys(cluster) == ["past"]
            await asyncio.to_thread(cluster.clock.advance, 3_700)
            async with asyncio.timeout(SEND_S):
                while keys(cluster) != ["past", "soon"]:
                    await asyncio.sleep(0.05)

    asyncio.run(main())
