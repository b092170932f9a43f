"""Programs of users as ``mypy --strict`` sees them: right ones pass, slips are found."""

import os
import re
import sys
from pathlib import Path

import mypy.api
import pytest
from tests.readme import blocks

import pymq

PROJECT = Path(__file__).resolve().parents[2]

RIGHT = """\
import asyncio
from collections.abc import Sequence
from datetime import datetime

import pymq
import pymq.testing
from pymq import BrokerError, FlowLimits, Message, MessageQueue, ReceivedMessage, SendReceipt
from pymq import ConsumeHook, ConsumeOutcome, ConsumeResult, blocking
from pymq.testing import Cluster, LastingFault, wait_until
from pyspark_pymq import DefaultSource


def handle(message: ReceivedMessage) -> None:
    message.body.decode()


def handle_several(messages: list[ReceivedMessage]) -> int:
    for message in messages:
        if message.reconsume_times:
            message.reject("tried before")
        elif message.keys:
            message.retry(after_s=1.5)
        else:
            message.ack()
    return len(messages)


class Hook(ConsumeHook):
    def after(self, outcome: ConsumeOutcome) -> None:
        print(outcome.results.count(ConsumeResult.DONE))


def handle_sequence(messages: Sequence[ReceivedMessage]) -> None: ...


async def handle_async(message: ReceivedMessage) -> None: ...


async def handle_several_async(messages: list[ReceivedMessage]) -> None: ...


def with_threads(name_server: str) -> None:
    with blocking.Producer(name_server, retries=5) as producer:
        result: SendReceipt = producer.send(Message("T", b"x"))
        queue: MessageQueue = result.queue
        producer.send_nowait(Message("T", b"x"), queue=queue).result().queue_offset.bit_length()
    with blocking.PullConsumer(name_server, "g").subscribe("T") as puller:
        polled: list[ReceivedMessage] = puller.poll(8, timeout_s=1.0)
        offset: int = puller.seek(queue, "first") + puller.end_offsets()[queue]
        puller.commit({queue: offset})
        columns: list[pymq.ColumnBatch] = list(puller.batches(timeout_s=0.5))
        handle_several(polled).bit_length() + len(columns)
    with blocking.SimpleConsumer(name_server, "g").subscribe("T") as popper:
        for popped in popper.receive(8, 30.0):
            popper.ack(popped)
    with blocking.Reader(name_server) as reader:
        rows: int = sum(len(batch) for batch in reader.read("T", start=datetime.now()))
        rows.bit_length()
    consumer = blocking.Consumer(name_server, "g", from_where="earliest", limits=FlowLimits())
    with consumer.subscribe("T"):
        for message in consumer:
            handle(message)
        consumer.run(handle, timeout_s=1.0)
        consumer.run(handle_several, batch_size=8, concurrency=2)
        consumer.run(handle_async)
        consumer.commit()
        consumer.run(handle_sequence, batch_size=8)
        consumer.run(lambda message: message.body)


async def asynchronous(name_server: str) -> None:
    consumer = pymq.Consumer(
        name_server, "g", from_where=datetime.now(), hooks=[Hook()], consume_timeout_s=60
    )
    async with pymq.Producer(name_server) as producer, consumer.subscribe("T"):
        try:
            result = await producer.send(Message("T", b"x"))
        except BrokerError as error:
            print(error.code + 1)
        else:
            print(result.queue_offset + 1)
        async for message in consumer:
            await handle_async(message)
        await consumer.run(handle)
        await consumer.run(handle_async, concurrency=2, timeout_s=1)
        await consumer.run(handle_several_async, batch_size=8)


def embedded() -> None:
    with Cluster(flush="sync") as cluster, pymq.blocking.Admin(cluster.name_server) as admin:
        lags: list[pymq.QueueLag] = admin.offsets.lag("g")
        changes: list[pymq.OffsetChange] = admin.offsets.reset("g", "T", "latest", dry_run=True)
        admin.topics.create("T", queue_count=len(changes))
        print(sum(lag.lag for lag in lags), DefaultSource.name().upper())
        fault: LastingFault = cluster.broker("broker-a").delay(0.5)
        fault.end()
        with cluster.broker().disk_full():
            print(cluster.namesrv.drop_connections() + (cluster.lag("g") or 0))
        cluster.clock.advance(1)
        wait_until(lambda: cluster.messages("T"), timeout_s=1)[0].body.decode()


asyncio.run(asynchronous("127.0.0.1:9876"))
"""

# Each line with `# E: code` has that error, and no other line has one.
WRONG = """\
from pymq import Message, Producer, ReceivedMessage, Consumer, SendReceipt, blocking
from pymq import Prodcer  # E: attr-defined
from pymq.blocking import Prodcer as Another  # E: attr-defined
from pymq.testing import Clustr  # E: attr-defined
from pymq.namesrv import NameSrver  # E: attr-defined
from pyspark_pymq import DefaultSorce  # E: attr-defined
from pymq.testing import Cluster


def handle(message: ReceivedMessage) -> None:
    message.retry(5)  # E: call-arg
    message.retry(after_s="5")  # E: arg-type
    message.reject(ValueError("no"))  # E: arg-type
    message.nack()  # E: attr-defined


def handle_several(messages: list[ReceivedMessage]) -> None: ...


blocking.Producer("n:1", retires=5)  # E: call-arg
blocking.Producer("n:1", retries="5")  # E: arg-type
blocking.Consumer("n:1", "g", form_where="earliest")  # E: call-arg
Producer("n:1", retires=5)  # E: call-arg
Consumer("n:1")  # E: call-arg
Cluster(flsh="sync")  # E: call-arg
Cluster().broker().kil()  # E: attr-defined
Cluster().namesrv.disk_full()  # E: attr-defined
Cluster().clock.advance("1 h")  # E: arg-type


def with_threads(producer: blocking.Producer, consumer: blocking.Consumer) -> None:
    producer.send("text")  # E: arg-type
    producer.send(Message("T", "text"))  # E: arg-type
    producer.sned(Message("T", b"x"))  # E: attr-defined
    consumer.run(handle_several)  # E: arg-type
    consumer.run(handle, batch_size=8)  # E: arg-type
    consumer.run(handle, concurency=8)  # E: call-overload
    for message in consumer:
        print(message.boddy)  # E: attr-defined
    consumer.receive().body  # E: union-attr


async def asynchronous(producer: Producer, consumer: Consumer) -> None:
    producer.send(Message("T", b"x"))  # E: unused-coroutine
    result: SendReceipt = producer.send(Message("T", b"x"))  # E: assignment
    await consumer.run(handle_several)  # E: arg-type
    await consumer.run(handle, batch_size=8)  # E: arg-type
    await consumer.run(handle, timeout=8)  # E: call-overload
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[int, str]]]:
    """File -> (line, code) of what mypy finds in it, all checked in one go."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "names.py").write_text(f"from pymq import {', '.join(pymq.__all__)}\n")
    tour = [block for block in blocks("README.md") if block.language == "python"]
    for number, block in enumerate(tour):
        (folder / f"readme_{number}.py").write_text(block.text)
    before = Path.cwd()
    os.chdir(folder)
    try:
        out, err, _ = mypy.api.run(
            [
                *("--strict", "--config-file=", "--no-error-summary", "--no-pretty"),
                f"--python-executable={sys.executable}",
                f"--cache-dir={PROJECT / '.mypy_cache' / 'users'}",
                *("right.py", "wrong.py", "names.py"),
                *(f"readme_{number}.py" for number in range(len(tour))),
            ]
        )
    finally:
        os.chdir(before)
    assert not err, err
    files: dict[str, set[tuple[int, str]]] = {}
    for line in out.splitlines():
        match = re.fullmatch(r"([^:]+):(\d+): (?:error: .*\[([a-z-]+)\]|note: .*)", line)
        assert match, out
        if match[3]:
            files.setdefault(match[1], set()).add((int(match[2]), match[3]))
    return files


def test_right_programs_pass(found: dict[str, set[tuple[int, str]]]) -> None:
    assert "right.py" not in found and "names.py" not in found, found


def test_the_programs_of_the_readme_pass(found: dict[str, set[tuple[int, str]]]) -> None:
    assert not [name for name in found if name.startswith("readme_")], found


def test_slips_are_found(found: dict[str, set[tuple[int, str]]]) -> None:
    expected = {
        (number, line.rpartition("# E: ")[2])
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "# E: " in line
    }
    assert found["wrong.py"] == expected
    assert set(found) == {"wrong.py"}, "the errors of other files"
