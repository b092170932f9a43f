"""Hooks around the handling of messages, and the message trace of consumers."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import DEADLINE_S, receive, send_numbers, wait_until
from tests.handling import handle_until_async

from pymq import (
    ConsumeHook,
    ConsumeOutcome,
    Consumer,
    ConsumeResult,
    Message,
    Producer,
    ReceivedMessage,
    blocking,
)
from pymq.protocol.names import TRACE_TOPIC
from pymq.testing import Cluster

pytestmark = pytest.mark.usefixtures("quick_local_retry")


class Recorder(ConsumeHook):
    """Counts what begins, and remembers outcomes and the threads they came from."""

    def __init__(self) -> None:
        self.begun = 0
        self.outcomes: list[ConsumeOutcome] = []
        self.threads: set[str] = set()

    def before(self, messages: Sequence[ReceivedMessage]) -> None:
        self.begun += len(messages)

    def after(self, outcome: ConsumeOutcome) -> None:
        self.outcomes.append(outcome)
        self.threads.add(threading.current_thread().name)

    def results(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for outcome in self.outcomes:
            for message, result in zip(outcome.messages, outcome.results, strict=True):
                found.setdefault(int(message.body), []).append(str(result))
        return found


class Broken(ConsumeHook):
    def after(self, outcome: ConsumeOutcome) -> None:
        raise ValueError("a hook that fails")


class Refusing(ConsumeHook):
    def before(self, messages: Sequence[ReceivedMessage]) -> None:
        if messages[0].reconsume_times == 0:
            raise PermissionError("not the first time")


def settle(message: ReceivedMessage) -> None:
    number = int(message.body)
    if message.reconsume_times == 0:
        if number == 1:
            raise ValueError("not the first time")
        if number == 2:
            message.retry()
    if number == 3:
        message.reject()


async def settle_later(message: ReceivedMessage) -> None:
    settle(message)


RESULTS = {0: ["done"], 1: ["retry", "done"], 2: ["retry", "done"], 3: ["dead letter"]}


@pytest.mark.parametrize("handler", [settle, settle_later])
def test_hooks_see_every_call_and_what_became_of_its_messages(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    recorder = Recorder()

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", hooks=[Broken(), recorder]
        )
        async with consumer.subscribe("T"):
            running = asyncio.ensure_future(consumer.run(handler))
            await wait_until(lambda: len(recorder.outcomes) == 6, "all calls")
        await running

    run(work())
    assert recorder.results() == RESULTS and recorder.begun == 6
    for outcome in recorder.outcomes:
        assert outcome.group == "g" and outcome.took_s >= 0 and outcome.started_ms > 1.7e12
        failed = [int(one.body) for one in outcome.messages if one.reconsume_times == 0] == [1]
        assert isinstance(outcome.error, ValueError) == failed
    in_loop = threading.main_thread().name in recorder.threads
    assert in_loop == (handler is settle_later)
    assert "a hook that fails" in caplog.text


def test_a_hook_that_refuses_counts_as_a_failure_of_the_handler(pymq_cluster: Cluster) -> None:
    handled: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.reconsume_times)

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(2))
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", hooks=[Refusing()]
        )
        async with consumer.subscribe("T"):
            running = asyncio.ensure_future(consumer.run(handler))
            await wait_until(lambda: handled == [1, 1], "both come again")
        await running

    run(work())


def test_hooks_see_turns_of_loops(pymq_cluster: Cluster) -> None:
    recorder = Recorder()

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(3))
        consumer = Consumer(
            pymq_cluster.name_server, "g", from_where="earliest", hooks=[recorder]
        ).subscribe("T")
        async with consumer:
            async for _ in consumer:
                break
            await receive(consumer, 3)

    run(work())
    left = [outcome for outcome in recorder.outcomes if outcome.results == [ConsumeResult.RETRY]]
    assert len(left) == 1 and len(recorder.outcomes) == 4 and recorder.begun == 4

    recorder = Recorder()
    asyncio.run(send_numbers(pymq_cluster.name_server, "T", range(3)))
    with blocking.Consumer(pymq_cluster.name_server, "g", hooks=[recorder]).subscribe(
        "T"
    ) as consumer:
        for _ in consumer:
            break
        messages = consumer.messages(timeout_s=DEADLINE_S)
        assert len([next(messages) for _ in range(3)]) == 3
    results = [outcome.results[0] for outcome in recorder.outcomes]
    assert sorted(results) == ["done", "done", "done", "retry"]


@pytest.mark.parametrize("handler", [settle, settle_later])
def test_the_trace_tells_of_every_call(handler: Any) -> None:
    delays = {"delay_levels_ms": (100,) * 18}
    recorder = Recorder()
    with Cluster(broker={"trace_topic": True}, store_settings=delays) as cluster:

        async def work() -> None:
            async with Producer(cluster.name_server) as producer:
                sent = [
                    await producer.send(Message("T", b"%d" % number, keys=["k", f"k{number}"]))
                    for number in range(4)
                ]
            consumer = Consumer(
                cluster.name_server,
                "g",
                from_where="earliest",
                trace_topic=TRACE_TOPIC,
                hooks=[recorder],
            )
            async with consumer.subscribe("T"):
                await handle_until_async(consumer, handler, lambda: len(recorder.outcomes) == 6)
            lines: list[list[str]] = []
            keys: set[str] = set()
            reader = Consumer(cluster.name_server, "t", from_where="earliest")
            async with asyncio.timeout(DEADLINE_S), reader.subscribe(TRACE_TOPIC):
                async for trace in reader:
                    keys |= set(trace.keys)
                    assert trace.body.endswith(b"\x02")
                    text = trace.body.decode()[:-1]
                    lines += [line.split("\x01") for line in text.split("\x02")]
                    if len(lines) >= 12:
                        break
            assert keys == {one.message_id for one in sent} | {"k", "k0", "k1", "k2", "k3"}
            begins = {line[4]: line for line in lines if line[0] == "SubBefore"}
            ends = {line[1]: line for line in lines if line[0] == "SubAfter"}
            assert begins.keys() == ends.keys() and len(begins) == 6
            told = []
            for request_id, begin in begins.items():
                assert len(begin) == 8 and begin[2:4] == ["DefaultRegion", "g"]
                end = ends[request_id]
                assert len(end) == 9 and end[8] == "g" and end[2] == begin[5]
                assert begin[7] == end[5]
                told.append((begin[7].split()[1], begin[6], end[4], end[6]))
            assert sorted(told) == [
                ("k0", "0", "true", "0"),
                ("k1", "0", "false", "2"),
                ("k1", "1", "true", "0"),
                ("k2", "0", "false", "4"),
                ("k2", "1", "true", "0"),
                ("k3", "0", "false", "4"),
            ]

        run(work())


def test_a_trace_that_cannot_be_written_harms_no_message(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = Consumer(
            pymq_cluster.name_server,
            "g",
            from_where="earliest",
            trace_topic="SCHEDULE_TOPIC_XXXX",
            hooks=[recorder],
        )
        async with consumer.subscribe("T"):
            await handle_until_async(consumer, settle_later, lambda: len(recorder.outcomes) == 6)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert recorder.results() == RESULTS
    assert caplog.text.count("is dropped: ") == 1
