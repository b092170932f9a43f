"""What a slave asks its master for, without a master."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.ha.metadata import MetadataSync
from pymq.errors import ConnectionFailed, DiskFull, PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import KVTable, TopicTable
from pymq.protocol.codes import AWAIT_METADATA, RequestCode, ResponseCode
from pymq.protocol.command import Command


class Gone:
    """Topics to delete, of which one cannot be: the disk is full."""

    def take_topics(self, told: TopicTable) -> None:
        pass

    def delete(self, log_end: int) -> None:
        raise DiskFull("no space left")


class Topics:
    """The topics of a slave.

    Attributes:
        taken: how often they were taken over.
    """

    def __init__(self) -> None:
        self.taken = 0

    def look(self) -> None:
        pass

    def take_ids(self, body: bytes) -> None:
        pass

    def take_topics(self, told: TopicTable) -> None:
        self.taken += 1

    def __bool__(self) -> bool:
        return False


class Master:
    """Answers, and whether its log is followed.

    Attributes:
        answer: to the question for changes.
        kept_end: what a slave has of its log; None: it is not followed.
        asked: the codes of the requests.
        on_topics: called before topics are told.
    """

    def __init__(self, answer: ResponseCode) -> None:
        self.answer = answer
        self.kept_end: int | None = None
        self.asked: list[int] = []
        self.on_topics: Callable[[], None] = lambda: None

    async def ask(
        self, master: str, code: int, name: str, fields: dict[str, str] | None = None
    ) -> Command:
        self.asked.append(code)
        if code == AWAIT_METADATA:
            return Command(self.answer, {"version": "other"})
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            self.on_topics()
            return Command(ResponseCode.SUCCESS, None, TopicTable(topics={}).encode())
        table = KVTable(table={"commitLogMaxOffset": "0"})
        return Command(ResponseCode.SUCCESS, None, table.encode())


class Line:
    """A connection to a master.

    Attributes:
        codes: of what was asked over it.
    """

    def __init__(self, address: str, master: Master) -> None:
        self.address = address
        self.codes: list[int] = []
        self.is_open = True
        self._master = master

    async def request(self, command: Command, timeout_s: float, *, description: str) -> Command:
        self.codes.append(command.code)
        if command.code == AWAIT_METADATA:
            await asyncio.Event().wait()  # nothing changes
        return await self._master.ask(self.address, command.code, description)

    def close(self) -> None:
        self.is_open = False


class Network:
    """Connects, but to some not yet.

    Attributes:
        lines: in the order in which they were made.
        held: connections to these addresses are made when their event is set.
    """

    def __init__(self, master: Master) -> None:
        self.lines: list[Line] = []
        self.held: dict[str, asyncio.Event] = {}
        self._master = master

    async def connect(self, address: str, timeout_s: float) -> Line:
        if address in self.held:
            await self.held[address].wait()
        self.lines.append(Line(address, self._master))
        return self.lines[-1]


@asynccontextmanager
async def slave_of(
    master: Master, topics: Any, monkeypatch: pytest.MonkeyPatch, network: Network | None = None
) -> AsyncIterator[MetadataSync]:
    """Have a slave that is connected; its questions go over a network, if there is one."""

    async def flushed() -> None:
        pass

    with ThreadPoolExecutor(1) as executor:
        sync = MetadataSync(
            *([], lambda: master.kept_end, flushed, topics, executor),
            is_connected=lambda: True,
            version=lambda: "",
            on_deleted=lambda: None,
            clock=FakeClock(),
            broker_id=1,
            interval_s=3600.0,
        )
        if network is None:
            monkeypatch.setattr(sync, "_ask", master.ask)
        else:
            monkeypatch.setattr(AsyncChannel, "connect", network.connect)
        sync.follow("m:1")
        yield sync
        await sync.close()


async def settle() -> None:
    """Give what runs some turns of the event loop, and of the executor."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_nothing_is_taken_over_from_a_master_whose_log_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()

        def lose() -> None:
            master.kept_end = None

        async with slave_of(master, topics, monkeypatch) as sync:
            sync.start()
            await settle()
            assert set(master.asked) == {AWAIT_METADATA}
            master.kept_end = 0
            master.on_topics = lose
            with pytest.raises(ConnectionFailed):
                await sync._follow("m:1")
            assert not topics.taken

    asyncio.run(test())


def test_nor_from_one_that_has_less_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lost its disk, and the slave does not know yet that the connection is lost."""

    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()
        async with slave_of(master, topics, monkeypatch) as sync:
            master.kept_end = 1
            with pytest.raises(PymqError, match="its log ends at 0, and that of this slave at 1"):
                await sync._follow("m:1")
            assert not topics.taken

    asyncio.run(test())


def test_it_is_at_once_when_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()
        async with slave_of(master, topics, monkeypatch) as sync:
            sync.start()
            await settle()
            master.kept_end = 0
            sync.begin()
            async with asyncio.timeout(60):
                while not topics.taken:
                    await asyncio.sleep(0)

    asyncio.run(test())


def test_a_master_of_rocketmqs_may_say_nothing_before_its_first_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refuses nobody. That it is one, the slave finds out when it is connected."""

    async def test() -> None:
        master, topics = Master(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), Topics()
        async with slave_of(master, topics, monkeypatch) as sync:
            monkeypatch.setattr(sync, "_kept_end", lambda: 0 if sync.is_foreign else None)
            sync.start()
            async with asyncio.timeout(60):
                while not topics.taken:
                    await asyncio.sleep(0)

    asyncio.run(test())


def test_questions_that_connect_at_the_same_time_share_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()
        network = Network(master)
        network.held["m:1"] = asyncio.Event()
        master.kept_end = 0
        async with slave_of(master, topics, monkeypatch, network) as sync:
            sync.start()
            await settle()
            network.held["m:1"].set()
            async with asyncio.timeout(60):
                while not (topics.taken and any(AWAIT_METADATA in x.codes for x in network.lines)):
                    await asyncio.sleep(0)
            assert len([line for line in network.lines if line.is_open]) == 1
        assert not any(line.is_open for line in network.lines)

    asyncio.run(test())


def test_who_was_the_master_is_not_asked_when_a_connection_to_it_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()
        network = Network(master)
        network.held["m:1"] = asyncio.Event()
        async with slave_of(master, topics, monkeypatch, network) as sync:
            sync.start()
            await settle()  # the question for changes connects
            master.kept_end = 0
            sync.follow("other:1")
            async with asyncio.timeout(60):
                while not topics.taken:
                    await asyncio.sleep(0)
            network.held["m:1"].set()
            await settle()
            await sync._follow("other:1")
            assert [line.address for line in network.lines if line.codes] == ["other:1"]
            assert [line.address for line in network.lines if line.is_open] == ["other:1"]

    asyncio.run(test())


def test_nor_does_it_end_the_connection_to_who_is_the_master(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topics are asked for; what fails then says nothing about the other one."""

    async def test() -> None:
        master, topics = Master(ResponseCode.SUCCESS), Topics()
        network = Network(master)
        network.held["m:1"] = asyncio.Event()
        master.kept_end = 0
        async with slave_of(master, topics, monkeypatch, network) as sync:
            sync._tasks.start("following", sync._run())
            await settle()  # connects
            sync.follow("other:1")
            assert await sync._ask("other:1", RequestCode.GET_ALL_TOPIC_CONFIG, "topics")
            network.held["m:1"].set()
            async with asyncio.timeout(60):
                while not topics.taken:
                    await asyncio.sleep(0)
            assert [line.address for line in network.lines if line.is_open] == ["other:1"]
            assert "not those of master" not in caplog.text

    asyncio.run(test())


def test_offsets_are_asked_for_again_when_only_some_topics_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(master: str, code: int, name: str) -> Command:
        table = KVTable(table={"commitLogMaxOffset": "7"})
        return Command(ResponseCode.SUCCESS, None, table.encode())

    async def flushed() -> None:
        pass

    async def test() -> None:
        asked_again: list[bool] = []
        gone: Any = Gone()
        with ThreadPoolExecutor(1) as executor:
            sync = MetadataSync(
                *([], lambda: 7, flushed, gone, executor),
                is_connected=lambda: True,
                version=lambda: "",
                on_deleted=lambda: asked_again.append(True),
                clock=FakeClock(),
                broker_id=1,
                interval_s=3600.0,
            )
            monkeypatch.setattr(sync, "_ask", ask)
            sync.follow("m:1")
            with pytest.raises(DiskFull):
                await sync._follow("m:1")
            assert asked_again
            await sync.close()

    asyncio.run(test())
