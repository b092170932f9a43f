"""A slave's tables follow its master's: topics, groups, offsets, and how far deliveries are.

What the log does not hold is asked for from time to time, over the protocol of clients. Offsets
speak of messages: they are taken over once the slave has the log that the master had when it told
them. Otherwise a slave that becomes a master could take messages for delivered or consumed that it
never got.

A master whose log is not followed is not asked: it may have lost its own, or be somebody else.

Source: RocketMQ SlaveSynchronize.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pymq.broker.disk_executor import DiskExecutor
from pymq.broker.ha.gone_topics import GoneTopics
from pymq.clock import Clock
from pymq.errors import ConnectionFailed, PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.bodies import KVTable, TopicTable
from pymq.protocol.codes import AWAIT_METADATA, LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import MetadataRequest, MetadataResponse

_log = logging.getLogger(__name__)

#: Between two times, however much is wanted.
LEAST_INTERVAL_S = 0.2
#: Who does not know yet that it is the master is asked again after this.
NOT_YET_S = 0.5
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 3.0, 10.0
#: How long to wait until the slave has the log that the tables speak of, and how often to look.
LEVEL_TIMEOUT_S, _LEVEL_PAUSE_S = 10.0, 0.02
#: How long a master keeps the question for changes.
CHANGE_WAIT_MS = 2_000
#: Clocks that are further apart than this are worth a warning.
CLOCKS_APART_S = 60.0


_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class Followed(Generic[_Told]):
    """A table of the master.

    Attributes:
        name: for logs.
        code: of the request that asks for it.
        decode: reads the body of the answer, in a thread: that takes long if there is much of it.
        take_over: applies it; may return work on the disk, for a thread.
        is_about_log: whether it speaks of messages.
        is_optional: whether some masters do not have it.
        is_wanted: returns whether it is to be asked for, and taken over.
    """

    name: str
    code: int
    decode: Callable[[bytes], _Told]
    take_over: Callable[[_Told], Callable[[], None] | None]
    is_about_log: bool = False
    is_optional: bool = False
    is_wanted: Callable[[], bool] = lambda: True


class MetadataSync:
    """Asks the master for its tables.

    Args:
        tables: others than the topics, in the order in which they are asked for.
        kept_end: returns the physical offset up to which the slave has the log of the master; None:
            that log is not followed.
        is_connected: returns whether it is, or is about to be.
        flushed: waits until all that is in the log is on the disk.
        gone: the topics.
        executor: for work on the disk, and what takes long.
        version: names the topics and groups that this slave has.
        on_deleted: called when topics may have been deleted here.
        clock: of this slave.
        broker_id: of this slave.
        interval_s: from one time to the next.

    Attributes:
        is_foreign: whether the master does not tell of changes, as RocketMQ's do not.
    """

    def __init__(
        self,
        tables: Sequence[Followed[Any]],
        kept_end: Callable[[], int | None],
        flushed: Callable[[], Awaitable[object]],
        gone: GoneTopics,
        executor: Executor,
        *,
        is_connected: Callable[[], bool],
        version: Callable[[], str],
        on_deleted: Callable[[], None],
        clock: Clock,
        broker_id: int,
        interval_s: float,
    ) -> None:
        self._version = version
        self._on_deleted = on_deleted
        self._clock = clock
        self._broker_id = broker_id
        self._tables = tables
        self._kept_end = kept_end
        self._is_connected = is_connected
        self._flushed = flushed
        self._gone = gone
        self._executor = executor
        self._disk = DiskExecutor(executor)
        self._interval_s = interval_s
        self._master: str | None = None
        self._channel: AsyncChannel | None = None
        self._wanted = asyncio.Event()
        self._asked = asyncio.Event()
        self._begun = asyncio.Event()
        self._said = SaidOnce(_log)
        self._tasks = Tasks("metadata")
        self.is_foreign = False

    def start(self) -> None:
        """Begin."""
        self._gone.look()
        self._tasks.start("following", self._run())
        self._tasks.start("changes", self._await_changes())

    def follow(self, master: str | None) -> None:
        """Ask the master at ``host:port``, and none other; None: nobody."""
        if master != self._master:
            self._master = master
            self.is_foreign = False
            self._close_channel()
            self.begin()

    def begin(self) -> None:
        """Ask at once: the master's log is followed from now on, or is about to be."""
        self._begun.set()
        self._wanted.set()

    def want(self) -> None:
        """Ask soon: something is there that only the master can explain."""
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await happens(self._wanted, self._interval_s)
            self._wanted.clear()
            soonest_s = asyncio.get_running_loop().time() + LEAST_INTERVAL_S
            master = self._master
            if master is None or self._kept_end() is None:
                self._asked.set()
                continue
            try:
                await self._follow(master)
            except PymqError as error:
                is_master = master == self._master
                if is_master:  # otherwise the connection is to the next one
                    self._close_channel()
                # That nobody is followed is said elsewhere.
                if is_master and self._kept_end() is not None:
                    self._said.warn(
                        "master",
                        "topics, groups and offsets are not those of master %s any more: %s; "
                        "trying again every %g s",
                        master,
                        error,
                        self._interval_s,
                    )
            except Exception:
                _log.exception("what master %s answered could not be used", master)
            else:
                self._said.over("master", "topics, groups and offsets follow master %s", master)
            self._asked.set()
            await asyncio.sleep(max(0.0, soonest_s - asyncio.get_running_loop().time()))

    async def _await_changes(self) -> None:
        """Have changes of topics and groups followed at once, if the master tells of them."""
        while True:
            pause_s = self._interval_s
            self._begun.clear()
            if self._master is not None and self._is_connected():
                try:
                    pause_s = await self._await_change(self._master)
                except PymqError as error:
                    _log.debug("master %s does not tell of changes: %s", self._master, error)
            await happens(self._begun, pause_s)

    async def _await_change(self, master: str) -> float:
        """Wait for one; return how long to wait before the next.

        Raises:
            PymqError: the master does not answer, or does not tell.
        """
        version = self._version()
        request = MetadataRequest(
            broker_id=self._broker_id, version=version, wait_ms=CHANGE_WAIT_MS
        )
        answer = await self._ask(master, AWAIT_METADATA, "changes", request.to_fields())
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return min(NOT_YET_S, self._interval_s)
        is_foreign = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if is_foreign and not self.is_foreign:
            self.want()
        self.is_foreign = is_foreign
        if answer.code != ResponseCode.SUCCESS or self._kept_end() is None:
            return self._interval_s
        told = MetadataResponse.from_fields(answer.fields)
        if told.time_ms is not None:
            self._compare_clocks(master, told.time_ms)
        if told.version == version:
            return 0.0
        self._gone.take_ids(bytes(answer.body))
        self._asked.clear()
        self.want()
        await happens(self._asked, REQUEST_TIMEOUT_S)
        return 0.0 if self._version() != version else self._interval_s

    def _compare_clocks(self, master: str, time_ms: int) -> None:
        ahead_s = (time_ms - self._clock.wall_ms()) / 1000
        if abs(ahead_s) < CLOCKS_APART_S:
            self._said.over("clocks", "the clocks of master %s and this slave agree again", master)
            return
        self._said.warn(
            "clocks",
            "the clock of master %s is %.0f s %s that of this slave. Delayed messages, checks of "
            "transactions and the deletion of old files go by the clock of whoever is the master, "
            "and would be early or late here: have both clocks set (NTP)",
            master,
            abs(ahead_s),
            "ahead of" if ahead_s > 0 else "behind",
        )

    async def _follow(self, master: str) -> None:
        """Ask for every table once."""
        own_end = self._kept_end() or 0
        if (end := await self._ask_log_end(master)) < own_end:
            # When its host has crashed, it takes a while until the connection is known to be lost.
            raise PymqError(
                f"its log ends at {end}, and that of this slave at {own_end}: it is not that of "
                "the master that is followed"
            )
        await self._ask_topics(master)
        told: list[tuple[Followed[Any], bytes]] = []
        for table in self._tables:
            if not table.is_wanted():
                continue
            answer = await self._ask(master, table.code, table.name)
            if answer.code == ResponseCode.SUCCESS:
                told.append((table, bytes(answer.body)))
            elif not table.is_optional:
                raise PymqError(f"{table.name}: code {answer.code}, {answer.remark or 'no remark'}")
        end = await self._ask_log_end(master)
        for table, body in told:
            if not table.is_about_log:
                await self._take_over(master, table, body)
        deadline_s = asyncio.get_running_loop().time() + LEVEL_TIMEOUT_S
        while (kept_end := self._kept_end()) is not None and kept_end < end:
            if asyncio.get_running_loop().time() > deadline_s:
                return  # far behind: another time
            await asyncio.sleep(_LEVEL_PAUSE_S)
        await self._flushed()  # what they speak of is on the disk before they are
        for table, body in told:
            if table.is_about_log:
                await self._take_over(master, table, body)
        if self._gone:
            await self._ask_topics(master)
            try:
                self._gone.delete(end)
            finally:
                self._on_deleted()  # some may be deleted although one could not be

    async def _ask_log_end(self, master: str) -> int:
        state = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO, "log end")
        return int(KVTable.decode(state.body).table.get("commitLogMaxOffset", 0))

    async def _ask_topics(self, master: str) -> None:
        answer = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG, "topics")
        if answer.code != ResponseCode.SUCCESS:
            raise PymqError(f"topics: code {answer.code}, {answer.remark or 'no remark'}")
        told = await self._decode(TopicTable.decode, bytes(answer.body))
        self._check_followed(master)
        self._gone.take_topics(told)

    async def _take_over(self, master: str, table: Followed[Any], body: bytes) -> None:
        told = await self._decode(table.decode, body)
        self._check_followed(master)
        if not table.is_wanted():
            return  # it is told in another way since, and more recent than this
        work = table.take_over(told)
        if work is not None:
            await self._disk.run(work, lambda: None)

    async def _decode(self, decode: Callable[[bytes], _Told], body: bytes) -> _Told:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, decode, body)

    async def _ask(
        self, master: str, code: int, name: str, fields: dict[str, str] | None = None
    ) -> Command:
        channel = await self._connected(master)
        answer = await channel.request(
            Command(code, fields, language=LanguageCode.JAVA), REQUEST_TIMEOUT_S, description=name
        )
        self._check_master(master)
        return answer

    async def _connected(self, master: str) -> AsyncChannel:
        self._check_master(master)  # otherwise the connection is to somebody else
        if self._channel is None or not self._channel.is_open:
            channel = await AsyncChannel.connect(master, CONNECT_TIMEOUT_S)
            if master != self._master or (self._channel is not None and self._channel.is_open):
                channel.close()  # there is another master, or the other task was faster
                return await self._connected(master)
            self._channel = channel
        return self._channel

    def _check_master(self, master: str) -> None:
        if master != self._master:
            raise ConnectionFailed(f"{master} is not the master any more")

    def _check_followed(self, master: str) -> None:
        self._check_master(master)
        if self._kept_end() is None:
            raise ConnectionFailed("its log is not followed any more")

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._disk.close(lambda error: _log.error("not kept of the master: %s", error))
        self._close_channel()
