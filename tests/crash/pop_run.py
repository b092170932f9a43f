"""One run of a broker as far as popping is concerned: no sockets, no tasks of its own.

Its parts are the real ones; requests come from connections that end in a list, the clock stands
still until it is moved, disks work in the thread that asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.crash.simulation import Here, Simulation
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import HOST, FakeClock, config

from pymq.broker.arrivals import Arrivals
from pymq.broker.config import BrokerConfig
from pymq.broker.deletions import Deletions
from pymq.broker.ha.takeovers import Takeovers
from pymq.broker.log_writer import LogWriter
from pymq.broker.parts import Core, Site, Tables
from pymq.broker.pop.in_flight import InFlight
from pymq.broker.pop.pop_polls import PopPolls
from pymq.broker.pop_feature import make_pop
from pymq.broker.record_response import RecordResponses
from pymq.broker.replication_config import ReplicationConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filters import FilterTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.request_modes import RequestModes
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import StateSaving
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.net.dispatcher import Dispatcher
from pymq.protocol import fastjson
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.record import NewRecord
from pymq.store import FlushMode, MessageStore, PutResult
from pymq.store.state.sealed_file import SealedFile
from pymq.testing.faulty_files import FaultyFiles

ADDRESS = "127.0.0.1:31911"
OFFSETS = "consumerOffset.json"
#: What ``PopRun.save`` saves.
TABLES = 2


class Asked:
    """Requests that were sent together, and their answers as far as there are any."""

    def __init__(self, requests: Sequence[Command]) -> None:
        self.connection = FakeConnection()
        self.requests = requests
        for number, request in enumerate(requests):
            request.opaque = number

    @property
    def count(self) -> int:
        return len(self.connection.responses)

    def answers(self) -> list[Command | None]:
        """Return the answers in the order of the requests; None: there is none yet."""
        found: dict[int, Command] = {}
        for request, response, parts in self.connection.responses:
            response.body = b"".join(parts) or response.body
            found[request.opaque] = response
        return [found.get(number) for number in range(len(self.requests))]


class PopRun(Simulation):
    """From one start to one stop or death.

    Args:
        root: of the store.
        clock: the time.
        files: the disk.
        tables: directory of the tables' files, on a disk that keeps them whatever happens.
        broker: settings of the broker.
        seed: of what is left to chance, such as the queue where a pop begins.
        settings: of the store.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        files: FaultyFiles,
        *,
        tables: Path,
        broker: dict[str, Any],
        seed: int,
        **settings: Any,
    ) -> None:
        self.root = root
        self.clock = clock
        self.files = files
        self.tables = tables
        self.config = BrokerConfig(**broker)
        self.store_config = config(root, **settings)
        self.store = MessageStore.open(self.store_config, clock, files=files)
        self.waiting: list[tuple[int, Callable[[str | None], None]]] = []
        self._asked: list[Asked] = []
        self._make()
        handler = self.feature.handlers[RequestCode.POP_MESSAGE]
        handler.__self__._popping._random.seed(seed)  # type: ignore[attr-defined]
        self.saving.load()
        self.topics.adopt(self.store.queues())
        for opening in self.feature.openings:
            opening()
        self.arrivals.start()

    def _make(self) -> None:
        filters = FilterTable(self.config, self.clock)
        site = Site(
            config=self.config,
            store_config=self.store_config,
            replication=ReplicationConfig(),
            clock=self.clock,
            store=self.store,
            filters=filters,
            clients=ClientTable(self.clock, expiry_s=1e9),
            address=ADDRESS,
            store_host=HOST,
            ha_socket=None,
            ha_address=None,
            group=None,
            writers=Here(),
            readers=Here(),
            trials=Here(),
        )
        tables = Tables(
            topics=TopicTable(self.config, self.clock),
            groups=GroupTable(self.config, self.clock),
            offsets=OffsetTable(),
            locks=QueueLocks(self.clock),
            clients=site.clients,
            filters=filters,
            modes=RequestModes(),
        )
        self.topics, self.offsets = tables.topics, tables.offsets
        is_sync = self.store_config.flush_mode is FlushMode.SYNC
        self.writer = LogWriter(
            functools.partial(self.store.put, store_host=HOST),
            (lambda end, done: self.waiting.append((end, done))) if is_sync else None,
        )
        self.arrivals = Arrivals(self.store.dispatch)
        self.saving = StateSaving(
            self.tables, Here(), announced=_nothing, flushed=self._wait_flushed
        )
        tables.topics.on_change = self.saving.add("topics.json", tables.topics)
        tables.groups.on_change = self.saving.add("subscriptionGroup.json", tables.groups)
        self.saving.add_periodic(OFFSETS, tables.offsets, interval_s=5)
        core = SimpleNamespace(
            saving=self.saving,
            log_writer=self.writer,
            arrivals=self.arrivals,
            responses=RecordResponses(self.store, executor=Here(), memory_bytes=6000),
            statistics=BrokerStatistics(self.config.cluster, 0),
            deletions=Deletions(),
            takeovers=Takeovers(),
        )
        self.feature = make_pop(site, tables, cast(Core, core))
        self.dispatcher = Dispatcher("test", self.feature.handlers)
        self.in_flight = next(one for one in self.feature.duties if isinstance(one, InFlight))
        self.polls = [one for one in self.feature.holders if isinstance(one, PopPolls)]

    # --- time passes

    def is_settled(self) -> bool:
        """Is there no request without an answer that is not held?"""
        return self.unanswered == self.held

    @property
    def held(self) -> int:
        """Number of requests that are held."""
        return sum(map(len, self.polls))

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        return sum(len(asked.requests) - asked.count for asked in self._asked)

    async def _wait_flushed(self) -> None:
        self.flush()

    async def save(self, number: int) -> None:
        """Save one of the tables that are saved from time to time: offsets, or orders."""
        await self.settle(self.saving._save_changed(*self.saving._busy[number]))

    def saved(self, name: str) -> object:
        """Return what the file of a table holds; None: there is none."""
        found: list[object] = []
        SealedFile(self.tables / name).load(lambda text: found.append(fastjson.parse(text)))
        return found[0] if found else None

    async def revive(self) -> None:
        """Revive what is due, shorten the journal, and answer requests that waited long enough."""
        await self.settle(self.in_flight.revive())
        self.in_flight._journal.shorten()
        for duty in self.feature.duties[1:]:
            duty._step()  # type: ignore[attr-defined]  # Periodic
        for polls in self.polls:
            polls.expire()
        await self.settle_all()

    async def close(self) -> None:
        """Stop cleanly: what is held is answered."""
        for polls in self.polls:
            await polls.close()
        await self.settle_all()
        await self.leave()
        await self.saving.save()
        self.store.close()

    async def leave(self) -> None:
        """End all tasks."""
        await self.arrivals.close()
        await self.dispatcher.close()
        await self.in_flight.close()
        await self.saving._tasks.close()

    # --- what others do

    def ask(self, *requests: Command) -> Asked:
        """Send requests that arrive together; the answers can be had when all is settled."""
        asked = Asked(requests)
        self._asked = [one for one in self._asked if one.count < len(one.requests)] + [asked]
        self.dispatcher.on_commands(asked.connection.as_connection(), list(requests))
        return asked

    async def create_topic(self, topic: str, queue_count: int) -> None:
        """Create a topic, for good."""
        self.topics.put(
            TopicConfig(topic=topic, read_queue_count=queue_count, write_queue_count=queue_count)
        )
        await self.saving.save()

    async def put(self, records: Sequence[NewRecord]) -> list[PutResult]:
        """Store messages; return where they are."""
        results: list[PutResult] = []
        for record in records:
            self.writer.append(record, lambda result, outcome: results.append(result))
        await self.settle_all()
        return results


async def _nothing() -> None:
    pass


def command(code: int, body: bytes = b"", **fields: Any) -> Command:
    """Return a request."""
    texts = {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in fields.items()
    }
    return Command(code, texts, body)
