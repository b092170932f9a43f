"""Whoever asks for what is on the disk only waits for the disk alone: the broker goes on."""

import asyncio
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, records, serve
from tests.cluster.pops import PopConsumer
from tests.cluster.test_broker_queries import runtime_info

from pymq.protocol.codes import FITTING_RANGES, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.range_bodies import QueueRange, QueueRanges
from pymq.store import Files

COUNT = 50
#: For so long a read waits if the test does not let it go.
STUCK_S = 90.0
#: While one request waits for the disk, others are answered within this time on a busy machine.
SEND_S = 30.0
OK = ResponseCode.SUCCESS


class ColdDisk:
    """Nothing of the files is in memory, and reads wait until the test lets them go.

    What the indexer of keys reads in steps is not looked at: new records, and its newest file.

    Args:
        log_end: what follows has just been written.

    Attributes:
        loop_reads: where the event loop would have waited.
        waiting: reads of threads that wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log_end: int) -> None:
        self.loop_reads: list[str] = []
        self.waiting = 0
        self._may_go = threading.Event()
        self._may_go.set()
        self._loop_thread = threading.get_ident()
        monkeypatch.setattr(Files, "is_cached", lambda *arguments: self._may_go.is_set())
        monkeypatch.setattr(Files, "is_resident", lambda *arguments: self._may_go.is_set())
        real = Files.pread

        def pread(files: Files, fd: int, size: int, position: int) -> bytes:
            if not self._may_go.is_set():
                if threading.get_ident() == self._loop_thread:
                    path = os.readlink(f"/proc/self/fd/{fd}")
                    is_new = "commitlog" in path and position >= log_end
                    if not is_new and "/index/" not in path:
                        stack = "".join(traceback.format_stack(limit=8))
                        self.loop_reads.append(f"{path} at {position}:\n{stack}")
                else:
                    self.waiting += 1
                    self._may_go.wait(STUCK_S)
            return real(files, fd, size, position)

        monkeypatch.setattr(Files, "pread", pread)

    @contextmanager
    def stuck(self) -> Iterator[None]:
        self.waiting = 0
        self._may_go.clear()
        try:
            yield
        finally:
            self._may_go.set()


async def fill(peer: Peer) -> None:
    for number in range(COUNT):
        answer = await peer.send("T", b"%d" % number, properties=f"KEYS\x01k{number}")
        assert answer.code == OK
    group = b'{"groupName":"g","consumeEnable":true}'
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)).code == OK
    asked = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **asked)).code == OK


Asked = Callable[[Peer], Awaitable[Command]]


def requests(peer: Peer) -> dict[str, Asked]:
    queue = {"topic": "T", "queueId": 0}
    return {
        "pull": lambda peer: peer.pull("T", 0),
        "pull by tag": lambda peer: peer.pull("T", 1, subscription="A || B"),
        "pop": lambda peer: PopConsumer(peer, group="p").ask(),
        "offset of a new group": lambda peer: peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="new", **queue
        ),
        "offset by time": lambda peer: peer.ask(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, **queue
        ),
        "earliest time": lambda peer: peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue),
        "state": lambda peer: peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO),
        "view": lambda peer: peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=0, topic="T"),
        "key": lambda peer: peer.ask(
            RequestCode.QUERY_MESSAGE,
            topic="T",
            key="k7",
            maxNum=32,
            beginTimestamp=0,
            endTimestamp=1 << 60,
        ),
        "entries": lambda peer: peer.ask(
            RequestCode.QUERY_CONSUME_QUEUE, index=0, count=10, **queue
        ),
        "fitting ranges": lambda peer: peer.ask(
            FITTING_RANGES, QueueRanges.of([QueueRange("T", 0, 0, COUNT, 1000)]).encode()
        ),
        "progress": lambda peer: peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g"),
        "topic": lambda peer: peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T"),
        "send back": lambda peer: peer.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            group="g",
            offset=0,
            delayLevel=0,
            originMsgId="0",
            originTopic="T",
            maxReconsumeTimes=16,
        ),
        "reset": lambda peer: peer.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic="T",
            group="g",
            timestamp=1,
            isForce=True,
        ),
    }


#: Answered from memory.
AT_ONCE = {"state"}


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_requests_for_what_is_on_the_disk_only_stop_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None
) -> None:
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", STUCK_S)

    async def check(peer: Peer) -> None:
        end = int((await runtime_info(peer))["commitLogMaxOffset"])
        disk = ColdDisk(monkeypatch, end)
        other = await connect(peer.broker)
        found, at_once = {}, set()
        for name, ask in requests(peer).items():
            with disk.stuck():
                asked = asyncio.ensure_future(ask(peer))
                async with asyncio.timeout(DEADLINE_S):
                    while not disk.waiting and not asked.done():
                        await asyncio.sleep(0.001)
                for _ in range(3):
                    async with asyncio.timeout(SEND_S):
                        assert (await other.send("new", b"x")).code == OK
                is_waiting = not asked.done()
            async with asyncio.timeout(DEADLINE_S):
                answer = await asked
            found[name] = answer
            if not is_waiting:
                at_once.add(name)
        other.channel.close()
        assert not disk.loop_reads, "\n".join(disk.loop_reads)
        assert found.pop("pull by tag").code == ResponseCode.PULL_RETRY_IMMEDIATELY
        start = found.pop("offset of a new group")
        if memory_bytes is None:
            assert fields(start)["offset"] == "0"
        else:
            assert start.code == ResponseCode.QUERY_NOT_FOUND
        assert {name: answer.remark for name, answer in found.items() if answer.code != OK} == {}
        assert records(found["pull"])[0].body == b"0"
        assert records(found["key"])[0].body == b"7"
        assert at_once == AT_ONCE

    serve(tmp_path, fill)
    # Nothing is refused because a busy machine is late.
    serve(tmp_path, check, memory_bytes=memory_bytes, fast_failure=False)
