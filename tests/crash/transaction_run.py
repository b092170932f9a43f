"""One run of a broker as far as transactions are concerned: no sockets, no tasks of its own.

Its parts are the real ones; requests come from connections that end in a list, the clock stands
still until it is moved, disks work in the thread that asks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from tests.crash.simulation import Here, Simulation
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import BORN, HOST, FakeClock, config

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.handlers.transactions import TransactionHandlers
from pymq.broker.key_indexing import KeyIndexing
from pymq.broker.log_writer import LogWriter
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.record_response import RecordResponses
from pymq.broker.state.clients import Client, ClientTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.transactions.checks import TransactionChecks
from pymq.broker.transactions.discarded import DiscardedTransactions
from pymq.broker.transactions.end_runs import EndRuns
from pymq.broker.transactions.messages import TransactionalMessages
from pymq.broker.transactions.transactions import Transactions
from pymq.net.dispatcher import Dispatcher, RequestRun
from pymq.protocol import fastjson
from pymq.protocol.codes import CommandFlag, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder
from pymq.protocol.headers.transactions import EndTransactionRequest
from pymq.protocol.message import TIMER_DELAY_MS, TRANSACTION_PREPARED, parse_properties
from pymq.protocol.plain_ends import PlainEnds
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.store import FlushMode, MessageStore
from pymq.testing.faulty_files import FaultyFiles

GROUP = "pg"
RESERVED_HOURS = 2


def _later(record: NewRecord, properties: object) -> NewRecord:
    """Delay a message, as it seems."""
    return dataclasses.replace(record, topic="LATER", queue_id=0)


@dataclasses.dataclass(slots=True)
class _Ends:
    """Ends that arrived together; see ``PlainEnds``."""

    header: EndTransactionRequest
    queue_offsets: list[int]
    physical_offsets: list[int]
    decisions: list[int]


class _EndRun:
    """A run of ends whose answer is kept; see ``RequestRun``."""

    def __init__(self, requests: Sequence[dict[str, object]]) -> None:
        ends = [EndTransactionRequest.from_fields(_texts(one)) for one in requests]
        self.plain = _Ends(
            ends[0],
            [one.queue_offset for one in ends],
            [one.physical_offset for one in ends],
            [one.decision for one in ends],
        )
        self.code: int | None = None

    def respond_encoded(self, code: int, frames: bytes) -> None:
        assert self.code is None and not frames
        self.code = code


def _texts(fields: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


class TransactionRun(Simulation):
    """From one start to one stop or death.

    Args:
        root: of the store.
        clock: the time.
        files: the disk.
        saved: the text of ``consumerOffset.json``; None: there is no file.
        broker: settings of the broker.
        memory_bytes: how much of the end of the log counts as in memory.
        settings: of the store.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        files: FaultyFiles,
        *,
        saved: str | None,
        broker: dict[str, Any],
        memory_bytes: int,
        **settings: Any,
    ) -> None:
        self.root = root
        self.clock = clock
        self.files = files
        self.saved = saved
        self.config = BrokerConfig(**broker)
        self.store_config = config(root, reserved_hours=RESERVED_HOURS, **settings)
        self.store = store = MessageStore.open(self.store_config, clock, files=files)
        self.offsets = OffsetTable()
        if saved is not None:
            self.offsets.restore(fastjson.parse(saved))
        self.waiting: list[tuple[int, Callable[[str | None], None]]] = []
        is_sync = self.store_config.flush_mode is FlushMode.SYNC
        self.writer = LogWriter(
            functools.partial(store.put, store_host=HOST),
            (lambda end, done: self.waiting.append((end, done))) if is_sync else None,
        )
        self.hooks = MessageHooks()
        messages = TransactionalMessages(self.config, self.hooks, HOST)
        self.hooks.add(TRANSACTION_PREPARED, messages.prepare, messages.prepare_many)
        self.hooks.add(TIMER_DELAY_MS, _later)
        indexing = KeyIndexing(store.keys)
        self.discarded = DiscardedTransactions(store.keys, indexing.wait_indexed, Here())
        self.transactions = Transactions(
            clock, store, self.offsets, messages, self.writer, self.discarded, HOST
        )
        self.clients = ClientTable(clock, expiry_s=1e9)
        responses = RecordResponses(store, executor=Here(), memory_bytes=memory_bytes)
        cold_reads = ColdReads(store, responses, Here())
        self.checks = TransactionChecks(
            self.config,
            clock,
            store,
            responses,
            TopicTable(self.config, clock),
            self.clients,
            self.transactions,
            store_config=self.store_config,
            store_host=HOST,
        )
        handlers = TransactionHandlers(self.config, clock, store, cold_reads, self.transactions)
        self.end_runs = EndRuns(self.store_config, store, cold_reads, self.transactions, HOST)
        self.dispatcher = Dispatcher("test", handlers.table())
        self.producers: list[FakeConnection] = []
        self.together_count = 0  # transactions that were ended in runs
        self.transactions.load()

    def save(self) -> None:
        """Save the offsets, on a disk that keeps them whatever happens."""
        self.transactions.save_cursors()
        self.saved = self.offsets.to_text()

    async def close(self) -> None:
        """Stop cleanly."""
        await self.leave()
        self.save()
        self.store.close()

    async def leave(self) -> None:
        """End all tasks."""
        await self.discarded.close()
        await self.checks.close()
        await self.dispatcher.close()

    # --- what producers do

    def prepare(self, number: int, topic: str, *, more: str = "") -> NewRecord:
        """Return the half message of a new message."""
        text = self._text(number) + more
        sent = NewRecord(
            topic, 0, b"%d" % number, text.encode(), BORN, self.clock.wall_ms(), sys_flag=4
        )
        return self.hooks.apply(sent, parse_properties(text))

    def prepare_together(
        self, numbers: Sequence[int], topic: str, born_ms: Sequence[int]
    ) -> PlainRecords:
        """Return the half messages of new messages that were sent at once."""
        texts = [self._text(number) for number in numbers]
        sent = PlainRecords(
            topic,
            [0] * len(numbers),
            [b"%d" % number for number in numbers],
            [text.encode() for text in texts],
            born_host=BORN,
            born_timestamps=born_ms,
            flags=[0] * len(numbers),
            sys_flag=4,
            tag_codes=[0] * len(numbers),
        )
        halves = self.hooks.apply_to_many(sent, "".join(f"\x02{text}" for text in texts).encode())
        assert halves is not None
        return halves

    @staticmethod
    def _text(number: int) -> str:
        # Every two messages have the same unique key, as a send and its repetition do.
        return f"TRAN_MSG\x01true\x02UNIQ_KEY\x01K{number // 2}\x02PGROUP\x01{GROUP}\x02"

    def ask(self, code: int, *requests: dict[str, object]) -> Callable[[], list[Command]]:
        """Send requests that arrive together; the answers can be had when all is settled."""
        connection = FakeConnection()
        commands = [
            Command(code, _texts(fields), opaque=number) for number, fields in enumerate(requests)
        ]
        self.dispatcher.on_commands(connection.as_connection(), commands)

        def answers() -> list[Command]:
            found = {request.opaque: answer for request, answer, _ in connection.responses}
            return [found[number] for number in range(len(requests)) if number in found]

        return answers

    def end_together(self, *requests: dict[str, object]) -> Callable[[], list[Command]]:
        """Send ends that arrive as a run, as ``ask`` does."""
        run = _EndRun(requests)
        if not self.end_runs.take(cast(RequestRun[PlainEnds], run)):
            return self.ask(RequestCode.END_TRANSACTION, *requests)
        self.together_count += len(requests)

        def answers() -> list[Command]:
            return [] if run.code is None else [Command(run.code)] * len(requests)

        return answers

    def join(self) -> None:
        """Connect one more producer."""
        producer = FakeConnection()
        self.producers.append(producer)
        client = Client(f"producer-{len(self.producers)}", 0, 0, 0.0)
        self.clients.register_producer(producer.as_connection(), client, GROUP)

    def part(self) -> None:
        """Disconnect the producer that was first."""
        if self.producers:
            gone = self.producers.pop(0)
            gone.is_open = False
            self.clients.drop(gone.as_connection())

    def questions(self) -> list[Record]:
        """Return the half messages of the checks since the last call, in their order."""
        found = []
        for producer in self.producers:
            for frame in producer.frames:
                (command,) = FrameDecoder().feed(frame)
                assert isinstance(command, Command)
                assert command.code == RequestCode.CHECK_TRANSACTION_STATE
                assert command.flag == CommandFlag.ONE_WAY
                found.append(decode_record(command.body, verify=True))
            producer.frames.clear()
        return sorted(found, key=lambda half: half.queue_offset)
