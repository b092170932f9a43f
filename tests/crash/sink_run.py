"""One run of a broker as far as exactly-once sinks are concerned: no sockets, no tasks of its own.

Its parts are the real ones; requests come from connections that end in a list, the clock stands
still until it is moved, disks work in the thread that asks.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.crash.simulation import Here, Simulation
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import BORN, HOST, FakeClock, config

from pymq.broker.config import BrokerConfig
from pymq.broker.delays.parking import park_delayed, park_staged
from pymq.broker.handlers.sinks import SinkHandlers
from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.record_response import RecordResponses
from pymq.broker.sinks.journal import SinkJournal
from pymq.broker.sinks.publishing import Publishing
from pymq.broker.sinks.staged_layouts import StagedLayouts
from pymq.broker.state.sinks import SinkTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.timers.parking import TimerParking
from pymq.net.dispatcher import Dispatcher
from pymq.protocol import fastjson
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.message import DELAY, TIMER_DELIVERY_MS
from pymq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pymq.protocol.new_records import SharedFields
from pymq.protocol.record import NewRecord, encode_record
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.protocol.sink_decisions import PublishRequest, StagedRuns
from pymq.protocol.staged_records import StagedRecords
from pymq.store import MessageStore, PutResult
from pymq.testing.faulty_files import FaultyFiles

TOPICS = ("T", "U")
QUEUE_COUNT = 2


class SinkRun(Simulation):
    """From one start to one stop or death; inside of an event loop.

    Args:
        root: of the store.
        clock: the time.
        files: the disk.
        saved: the text of ``sinks.json``; None: there is no file.
        settings: of the store.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        files: FaultyFiles,
        *,
        saved: str | None,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.files = files
        self.store_config = config(root, **settings)
        self.store = store = MessageStore.open(self.store_config, clock, files=files)
        self.table = SinkTable()
        if saved is not None:
            self.table.restore(fastjson.parse(saved))
        self.waiting: list[tuple[int, Callable[[str | None], None]]] = []
        self.writer = LogWriter(functools.partial(store.put, store_host=HOST), None)
        self.journal = SinkJournal(
            store,
            self.writer,
            self.table,
            clock,
            lambda end, done: self.waiting.append((end, done)),
            config=self.store_config,
            host=HOST,
        )
        responses = RecordResponses(store, executor=Here(), memory_bytes=3000)
        self.layouts = StagedLayouts()
        self.publishing = Publishing(
            store,
            responses,
            self.journal,
            self.table,
            self.layouts,
            lambda arrivals: None,
            delay_levels_ms=self.store_config.delay_levels_ms,
        )
        levels_ms = self.store_config.delay_levels_ms
        parking = TimerParking(
            clock.wall_ms,
            lambda due_ms: 0,
            precision_ms=1000,
            delay_ms_max=1 << 42,
            congestion_max=1,
        )
        self.hooks = MessageHooks()
        self.hooks.add(
            DELAY,
            functools.partial(park_delayed, len(levels_ms)),
            for_staged=functools.partial(park_staged, len(levels_ms)),
        )
        self.hooks.add(TIMER_DELIVERY_MS, parking.park, for_staged=parking.park_staged)
        topics = TopicTable(BrokerConfig(), clock)
        for topic in (*TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC):
            topics.put(
                TopicConfig(
                    topic=topic, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT, perm=6
                )
            )
        handlers = SinkHandlers(topics, self.table, self.journal, self.publishing)
        self.dispatcher = Dispatcher("test", handlers.table())
        self.journal.load()
        self.publishing.load()
        self.publishing.start()

    # --- time passes

    def on_idle(self) -> None:
        self.clock.now_ms += 10  # A full disk is tried again after a while.

    async def leave(self) -> None:
        """End all tasks."""
        await self.dispatcher.close()
        await self.publishing.close()

    # --- what writers do

    async def put(self, put: Any) -> PutResult | None:
        """Store something; None if it was refused."""
        told: asyncio.Future[PutResult | None] = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            told.set_result(result if outcome is Outcome.STORED else None)

        self.writer.append(put, done)

        async def wait() -> PutResult | None:
            return await told

        return await self.settle(wait())

    async def stage(
        self,
        topic: str,
        queue_id: int,
        bodies: Sequence[bytes],
        part: int,
        properties: bytes = b"",
    ) -> StagedRun | None:
        """Stage records; None if they were refused."""
        encoded = [
            b"".join(
                encode_record(
                    NewRecord(topic, queue_id, body, properties, bytes(8), 0),
                    bytes((len(topic),)) + topic.encode(),
                    size=91 + len(topic) + len(body) + len(properties),
                    queue_offset=0,
                    physical_offset=0,
                    store_timestamp=0,
                    store_host=bytes(8),
                )
            )
            for body in bodies
        ]
        shared = SharedFields(
            topic=topic,
            queue_id=queue_id,
            born_timestamp=1,
            born_host=BORN,
            store_host=HOST,
            record_crc=self.store_config.append_record_crc,
        )
        sizes = np.array(list(map(len, encoded)), np.int32)
        records = self.hooks.apply_to_staged(
            StagedRecords(b"".join(encoded), sizes, shared, part), {}
        )
        records.stage()
        result = await self.put(records)
        if result is None:
            return None
        self.layouts.add(records, result.physical_offset)
        return StagedRun(
            topic=records.topic,
            queue_id=records.queue_id,
            physical_offset=result.physical_offset,
            size_bytes=result.physical_end - result.physical_offset,
            count=len(bodies),
            part=part,
        )

    async def publish(self, *wanted: tuple[SinkBatch, Sequence[StagedRun]]) -> list[Command]:
        """Ask for batches to be published, all at the same time; return the answers."""
        connections = []
        for batch, runs in wanted:
            connection = FakeConnection()
            batch = replace(batch, row_count=sum(run.count for run in runs))
            body = PublishRequest(batch=batch, runs=StagedRuns.of(runs)).encode()
            command = Command(SinkRequest.PUBLISH_BATCH, {}, body, opaque=1)
            self.dispatcher.on_commands(connection.as_connection(), [command])
            connections.append(connection)

        async def answered() -> list[Command]:
            while not all(connection.responses for connection in connections):
                await asyncio.sleep(0)
            return [connection.responses[0][1] for connection in connections]

        return await self.settle(answered())
