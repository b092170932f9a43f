"""The shop's figures by a real Spark, read back by a plain client, against what was sent."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.interop.processes import guard
from tests.spark.two_brokers import ANSWER_S, TwoBrokers, wait_until

from pymq import Message, ReceivedMessage, blocking
from pymq.testing import Cluster
from shop.figures import NO_EMPTY, LateListener, start
from shop.topics import FIGURES_TOPIC, NO_GOODS, ORDER_TOPIC, PAY_TOPIC, Figure

pytestmark = pytest.mark.spark

MINUTE_MS = 60_000
GOODS = ("tea", "cups", "pots")
#: Until Spark has run, on a machine that has other things to do.
SPARK_S = 240.0
PAUSE_S = 0.5  # Spark has the processor meanwhile
Key = tuple[int, str]


@dataclass
class Truth:
    """What was sent, and what figures are to come of it: each group is a set of ids."""

    first: int
    dice: random.Random
    count: int = 0
    confirmed: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    converted: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    cancelled: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    paid: dict[Key, dict[str, Decimal]] = field(default_factory=lambda: defaultdict(dict))

    def orders(self, minutes: range, number: int) -> list[Message]:
        """Make orders of some minutes, each message one to three times, in no order."""
        made: list[Message] = []
        for _ in range(number):
            made += self._order(self.first + self.dice.choice(minutes) * MINUTE_MS) or []
        sent = [one for one in made for _ in range(self.dice.choice((1, 1, 2, 3)))]
        self.dice.shuffle(sent)
        return sent

    def _order(self, minute: int) -> list[Message]:
        self.count += 1
        name, goods = f"o{self.count}", self.dice.choice(GOODS)
        at = minute + self.dice.randrange(MINUTE_MS)
        self.confirmed[minute, goods].add(name)
        made = [confirmed(name, goods, at)]
        later = at + self.dice.randrange(3 * MINUTE_MS)
        key = (later // MINUTE_MS * MINUTE_MS, goods)
        if self.dice.random() < 0.3:
            self.cancelled[key].add(name)
            return [*made, cancelled(name, goods, later)]
        # Equal amounts of one minute are different payments.
        amount = Decimal(self.dice.randint(10, 14)) / 10
        self.paid[key][name] = amount
        self.converted[minute, goods].add(name)
        return [*made, paid(name, goods, at, later, amount)]

    def figures(self) -> dict[Key, Figure]:
        """What is to be found."""
        keys = {*self.confirmed, *self.converted, *self.cancelled, *self.paid}
        return {
            key: Figure(
                minute=key[0],
                goods_id=key[1],
                confirmed=len(self.confirmed[key]),
                converted=len(self.converted[key]),
                cancelled=len(self.cancelled[key]),
                paid=len(self.paid[key]),
                turnover=sum(self.paid[key].values(), Decimal(0)),
            )
            for key in keys
        }


def confirmed(order: str, goods: str, at: int) -> Message:
    body = {"orderId": order, "goodsId": goods, "goodsNumber": 1, "confirmTime": at}
    return message(ORDER_TOPIC, "order_confirmed", body)


def cancelled(order: str, goods: str, at: int) -> Message:
    body = {"orderId": order, "goodsId": goods, "couponId": None}
    return message(ORDER_TOPIC, "order_cancel", body, {"createTime": str(at)})


def paid(order: str, goods: str, confirm_time: int, pay_time: int, amount: Decimal) -> Message:
    body = {
        "payId": f"p-{order}",
        "orderId": order,
        "goodsId": goods,
        "payAmount": f"{amount:.2f}",
        "confirmTime": confirm_time,
        "payTime": pay_time,
    }
    return message(PAY_TOPIC, "paid", body)


def message(
    topic: str, tag: str, body: object, properties: dict[str, str] | None = None
) -> Message:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(topic, data, tags=tag, properties=properties or {})


def send(name_server: str, messages: list[Message]) -> None:
    with blocking.Producer(name_server, timeout_s=ANSWER_S, deadline_s=SPARK_S) as producer:
        for one in messages:
            producer.send(one)


def read(name_server: str) -> list[tuple[ReceivedMessage, Figure]]:
    """Return all figures that were written, those of a queue in their order."""
    found: list[ReceivedMessage] = []
    settings: dict[str, Any] = {"auto_commit": False, "timeout_s": ANSWER_S}
    with blocking.PullConsumer(name_server, "reader", **settings).assign([]) as consumer:
        queues = consumer.queues(FIGURES_TOPIC)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, "first")
        count = sum(consumer.end_offsets().values()) - sum(consumer.begin_offsets().values())
        while len(found) < count:
            found += consumer.poll(1_000, 10)
    return [(one, Figure.model_validate_json(one.body)) for one in found]


def newest(written: list[tuple[ReceivedMessage, Figure]]) -> dict[Key, Figure]:
    """Return the last figure of each minute and goods, as a reader of the queues finds it."""
    rows = {(figure.minute, figure.goods_id): figure for _, figure in written}
    return {key: row.model_copy(update={"as_of": 0}) for key, row in rows.items()}


def check_places(written: list[tuple[ReceivedMessage, Figure]]) -> None:
    """Each minute and goods has one queue, in which later figures come later, and none twice."""
    places: dict[Key, set[tuple[str, int]]] = defaultdict(set)
    last: dict[Key, int] = {}
    for one, figure in written:
        key = (figure.minute, figure.goods_id)
        places[key].add((one.broker_name, one.queue_id))
        assert len(places[key]) == 1, (key, places[key])
        assert last.get(key, 0) < figure.as_of, (key, figure)
        last[key] = figure.as_of


def recent(minutes: int) -> int:
    """The beginning of a minute, so long ago."""
    return (time.time_ns() // 1_000_000 // MINUTE_MS - minutes) * MINUTE_MS


# --- one query after the other, in the session of all tests


@dataclass
class Job:
    """The query on a cluster; each run reads what is there."""

    spark: SparkSession
    cluster: Cluster
    checkpoint: Path

    def run(self, *messages: Message) -> dict[Key, Figure]:
        send(self.cluster.name_server, list(messages))
        query = start(self.spark, self.cluster.name_server, str(self.checkpoint))
        assert query.awaitTermination(int(SPARK_S))
        return newest(read(self.cluster.name_server))


@pytest.fixture
def job(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    with blocking.Admin(cluster.name_server, timeout_s=ANSWER_S) as admin:
        for topic in (ORDER_TOPIC, PAY_TOPIC, FIGURES_TOPIC):
            admin.topics.create(topic, queue_count=2)
    # As in the job's own session; so the last micro-batch of a run has rows.
    spark.conf.set(NO_EMPTY[0], NO_EMPTY[1])
    yield Job(spark, cluster, tmp_path / "checkpoint")
    spark.conf.unset(NO_EMPTY[0])


def test_copies_late_ones_and_what_nobody_can_read(
    job: Job, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    truth = Truth(recent(50), random.Random(seed))
    first = truth.orders(range(40), 60)
    assert job.run(*first) == truth.figures()
    # Copies that come in another micro-batch, and out of order within an hour; and a payment from
    # before payments knew their goods, which counts, and has no conversion.
    now = recent(0)
    old = {"payId": "p-old", "orderId": "old", "payAmount": "5.00", "payTime": now - 1}
    truth.paid[now - MINUTE_MS, NO_GOODS]["old"] = Decimal(5)
    more = [*first[:50], *truth.orders(range(10), 10), message(PAY_TOPIC, "paid", old)]
    assert job.run(*more) == truth.figures()

    # The micro-batch was published, and then the driver died: it is run again.
    count = len(read(job.cluster.name_server))
    commits = job.checkpoint / "commits"
    last = max(int(one.name) for one in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    assert job.run() == truth.figures()
    assert len(read(job.cluster.name_server)) == count

    # 50 minutes before the newest event is in time, 2 hours are not.
    truth.confirmed[truth.first, "tea"].add("in time")
    truth.confirmed[now - MINUTE_MS, "tea"].add("good")
    said = [
        confirmed("late", "tea", now - 120 * MINUTE_MS),
        confirmed("in time", "tea", truth.first),
        *unreadable(now),
        confirmed("good", "tea", now - 1),
    ]
    listener = LateListener()
    job.spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.WARNING, "shop.figures"):
            found = job.run(*said)
            wait_until(lambda: "came more than 1 hour after" in caplog.text, "a warning")
    finally:
        job.spark.streams.removeListener(listener)
    bad = [one for one in found.values() if one.unreadable]
    assert {one.goods_id for one in bad} == {NO_GOODS}
    assert sum(one.unreadable for one in bad) == len(unreadable(now))
    places = [place for one in bad for place in one.unreadable_at]
    assert len(set(places)) == len(places) >= 5
    assert {place.split("/")[1] for place in places} == {job.cluster.broker_name}
    assert {key: sums for key, one in found.items() if (sums := counted(one)) is not None} == {
        key: counted(one) for key, one in truth.figures().items()
    }
    check_places(read(job.cluster.name_server))


def counted(figure: Figure) -> Figure | None:
    """Return it without what could not be read; ``None``: there is nothing else."""
    plain = figure.model_copy(update={"unreadable": 0, "unreadable_at": []})
    return plain if plain.confirmed or plain.converted or plain.cancelled or plain.paid else None


def unreadable(now: int) -> list[Message]:
    """Messages that say nothing that can be counted."""
    good = json.loads(paid("bad", "tea", now, now, Decimal(1)).body)
    future = now + 120 * MINUTE_MS
    return [
        message(PAY_TOPIC, "paid", b"\xff\x00 no JSON"),
        message(PAY_TOPIC, "paid", b"[]"),
        *(
            message(PAY_TOPIC, "paid", good | change)
            for change in (
                {"payAmount": "1.234"},
                {"payAmount": "many"},
                {"payAmount": None},
                {"payId": None},
                {"payTime": future},
                {"payTime": "now"},
                {"confirmTime": future},
            )
        ),
        message(ORDER_TOPIC, "order_confirmed", {"orderId": "bad", "confirmTime": now}),
        message(ORDER_TOPIC, "order_cancel", {"orderId": "bad", "goodsId": "tea"}),
        message(
            *(ORDER_TOPIC, "order_cancel", {"orderId": "bad", "goodsId": "tea"}),
            {"createTime": "yesterday"},
        ),
    ]


# --- the job as a process, which is killed; two brokers, one of which is restarted


class JobProcess:
    """``python -m shop.figures``."""

    def __init__(self, name_server: str, folder: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "shop.figures", "--every", "100 milliseconds"),
            *("--broker", name_server, "--checkpoint", str(folder / "checkpoint")),
        ]
        self._log = folder / "figures.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, process_group=0
            )
        guard.watch(self._process.pid)

    def kill(self) -> None:
        """End it and its JVM at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SPARK_S)

    def stop(self) -> None:
        """End it, and see that nothing of it stays."""
        assert self._process is not None
        group = self._process.pid
        self._process.terminate()
        self._process.wait(SPARK_S)
        wait_until(lambda: not is_group(group), "the end of the JVM")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.mark.by_turns(of="long queries")
def test_a_job_that_is_killed_and_a_broker_that_restarts(
    two_brokers: TwoBrokers, tmp_path: Path, seed: int
) -> None:
    bed, truth = two_brokers, Truth(recent(40), random.Random(seed))
    job = JobProcess(bed.name_server, tmp_path)
    for topic in (ORDER_TOPIC, PAY_TOPIC, FIGURES_TOPIC):
        bed.create_topic(topic, queue_count=2)

    def wait_for(holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SPARK_S
        while not holds():
            assert job.is_running, job.log
            assert time.monotonic() < deadline, f"{what}: not within {SPARK_S:g} s\n{job.log}"
            time.sleep(PAUSE_S)

    def is_right() -> bool:
        return newest(read(bed.name_server)) == truth.figures()

    job.start()
    try:
        send(bed.name_server, truth.orders(range(20), 40))
        wait_for(is_right, "figures of the first orders")
        send(bed.name_server, truth.orders(range(20), 80))
        job.kill()  # in the middle of what it was just sent
        send(bed.name_server, truth.orders(range(5, 25), 40))
        written = read(bed.name_server)
        job.start()
        wait_for(lambda: len(read(bed.name_server)) > len(written), "figures after the restart")
        # Where all figures are; messages are sent to the other one meanwhile.
        broker = written[0][0].broker_name
        bed.kill(broker)
        send(bed.name_server, truth.orders(range(30), 40))
        bed.start(broker)
        wait_for(is_right, "figures of all orders")
        job.stop()
    finally:
        if job.is_running:
            job.kill()
    check_places(read(bed.name_server))


def is_group(number: int) -> bool:
    """Is there a process in this group?"""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True
