"""Checks of transactions: asks producers what became of those that nobody has ended.

Every round looks at each open half message once. One that is old enough is stored again, as a copy
that counts its checks, and one producer of its group is asked about the copy. So whatever is open
is near the end of the log, and the places from which a restart reads move on. After too many
checks, or when a message is older than files are kept, it is moved to a topic for administrators;
so is one whose copy the log would never take.

A message with an immunity time of its own is copied, too, but neither counted nor asked about.
(RocketMQ counts these copies as checks: a message that asks for more time than all checks take is
discarded without ever being checked.)

Source: RocketMQ TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import Done, Outcome
from pymq.broker.put_answer import is_in_log, is_never_stored
from pymq.broker.record_response import RecordResponses
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.transactions.transactions import Transactions
from pymq.clock import Clock
from pymq.errors import CorruptRecord
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks
from pymq.protocol.codes import CommandFlag, LanguageCode, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.transactions import CheckTransactionRequest
from pymq.protocol.message import PRODUCER_GROUP, UNIQUE_KEY, WAIT, find_property
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, topic_bytes_max
from pymq.protocol.parking import copy_of, real_place, with_properties
from pymq.protocol.record import (
    NewRecord,
    Record,
    decode_records,
    encode_record,
    offset_message_id,
    record_size,
    topic_field,
)
from pymq.protocol.transaction_records import (
    CHECK_IMMUNITY_S,
    QUEUE_ID,
    check_times,
    checked_copy,
    discarded_record,
    immune_copy,
)
from pymq.store import MessageStore, PutResult, StoreConfig

_log = logging.getLogger(__name__)

#: Half messages handled before others get their turn.
_BATCH_COUNT, _BATCH_BYTES = 64, 1 << 20
#: How long to wait for a producer that reads slowly, and how often to look.
_SLOW_PRODUCER_S, _LOOK_S = 1.0, 0.05
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class _Question:
    """A half message whose producer is to be asked, and the copy that was stored for that."""

    half: Record
    copy: NewRecord
    place: PutResult


class TransactionChecks:
    """The rounds of checks of one broker.

    Args:
        store_config: says how long files are kept, which may change while they are.
        responses: read half messages that are not in memory any more.
        clients: know the producers.
        store_host: our packed address.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        responses: RecordResponses,
        topics: TopicTable,
        clients: ClientTable,
        transactions: Transactions,
        *,
        store_config: StoreConfig,
        store_host: bytes,
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._responses = responses
        self._topics = topics
        self._clients = clients
        self._transactions = transactions
        self._store_config = store_config
        self._store_host = store_host
        self._tasks = Tasks("transactions")
        self._one_round = asyncio.Lock()
        self._turns = itertools.count()
        #: Of this round: groups without a producer that could be asked, and how often; those whose
        #: producers do not read.
        self._unasked: dict[str, int] = {}
        self._slow: set[str] = set()
        #: Of these messages: the producers of each group.
        self._connections: dict[str, list[ServerConnection]] = {}
        #: Of these messages: writes whose outcome is not known, what follows from them, those that
        #: can never be copied and why, and why nothing can be written.
        self._writing_count = 0
        self._written = asyncio.Event()
        self._questions: list[_Question] = []
        self._never_copied: list[tuple[Record, str | None]] = []
        self._refusal: str | None = None

    def start(self) -> None:
        """Begin; the first round comes after one interval."""
        interval_s = self._config.transaction_check_interval_ms / 1000
        self._tasks.repeat("checks", self.round, interval_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()

    async def look_again(self) -> None:
        """Look at every half message now."""
        await self.round()

    async def round(self) -> None:
        """Look at every half message that was open when this began, after the round in progress."""
        async with self._one_round:
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        table = self._transactions.table
        _, end = self._store.queue_bounds(HALF_TOPIC, QUEUE_ID)
        offset: int | None = table.half_cursor
        self._unasked.clear()
        self._slow.clear()
        while offset is not None:
            runs = table.open_runs(end, offset, count_max=_BATCH_COUNT)
            first, last = next(runs, (end, end))
            if first == end:
                break
            offset = await self._look_at(first, last)
        for group, count in self._unasked.items():
            _log.warning(
                "%d transactions of producer group %s are to be checked, but no producer of the "
                "group is connected and reads; after %d checks (transactionCheckMax) they are "
                "discarded",
                count,
                group,
                self._config.transaction_check_max,
            )

    async def _look_at(self, first: int, last: int) -> int | None:
        """Look at some adjacent half messages.

        Returns:
            Where to go on; None if the others are too young, or nothing can be written.
        """
        await self._responses.wait_entries(HALF_TOPIC, QUEUE_ID, first, last - first)
        result = self._store.read(
            HALF_TOPIC, QUEUE_ID, first, count_max=last - first, bytes_max=_BATCH_BYTES
        )
        await self._responses.wait_in_memory(result.buffers, result.starts)
        following = min(result.next_queue_offset, last)
        try:
            result.check()
            halves = [one for part in result.buffers for one in decode_records(part, verify=True)]
        except CorruptRecord as error:
            if following > first + 1:
                return await self._look_at(first, first + 1)
            _log.error("half message %d cannot be read, its transaction is lost: %s", first, error)
            halves = []
        self._lose(first, following, halves)
        is_last = False
        for half in halves:
            is_last = not self._handle(half)
            if is_last:
                break
        await self._wait_written()
        never_copied, self._never_copied = self._never_copied, []
        for half, remark in never_copied:
            if self._transactions.may_write(half.queue_offset):
                self._discard(half, f"its copy for a check can never be stored: {remark}")
        await self._wait_written()
        questions, self._questions = self._questions, []
        self._connections.clear()
        for question in questions:
            await self._ask(question)
        if self._refusal is not None:
            _log.error("checks of transactions cannot be written: %s", self._refusal)
            self._refusal = None
            return None
        return None if is_last or following <= first else following

    async def _wait_written(self) -> None:
        while self._writing_count:
            self._written.clear()
            await self._written.wait()

    def _lose(self, first: int, end: int, halves: Sequence[Record]) -> None:
        """Give up transactions whose half messages do not exist any more."""
        lost = set(range(first, end)) - {half.queue_offset for half in halves}
        if lost:
            _log.error("%d half messages do not exist any more from %d on", len(lost), first)
            self._transactions.table.restore(sorted(lost), None)

    def _handle(self, half: Record) -> bool:
        """Do what is due; return False if a message, and so all later ones, are too young."""
        transactions, offset = self._transactions, half.queue_offset
        if not transactions.may_write(offset):
            return True
        age_ms = self._clock.age_ms(half.born_timestamp)
        is_checked_enough = (check_times(half) or 0) >= self._config.transaction_check_max
        if is_checked_enough or age_ms > self._store_config.reserved_hours * _HOUR_MS:
            self._discard(half, "it is not checked any more")
            return True
        text = find_property(half.properties, CHECK_IMMUNITY_S.encode())
        if text is None:
            if 0 <= age_ms < self._config.transaction_timeout_ms:
                return False
        elif age_ms < self._immunity_ms(text):
            self._copy(half, immune_copy(half))
            return True
        self._check(half)
        return True

    def _immunity_ms(self, text: bytes) -> int:
        try:
            seconds = int(text)
        except ValueError:
            seconds = -1
        return self._config.transaction_timeout_ms if seconds == -1 else seconds * 1000

    def _begin_write(
        self, then: Callable[[PutResult], None], never: Callable[[str | None], None]
    ) -> Done:
        """Count a write that begins; return what to call with its outcome.

        Args:
            then: called with the place, if it is in the log.
            never: called with the reason, if the log would refuse it every time.
        """
        self._writing_count += 1

        def written(result: PutResult, outcome: Outcome) -> None:
            self._writing_count -= 1
            self._written.set()
            if is_in_log(outcome):
                then(result)
            elif is_never_stored(result, outcome):
                never(result.remark)
            else:
                self._refusal = result.remark or outcome.value

        return written

    def _discard(self, half: Record, why: str) -> None:
        self._topics.create(CHECK_MAX_TIME_TOPIC, queue_count=1)
        name = (
            f"message {_text(half, UNIQUE_KEY)} of producer group {_text(half, PRODUCER_GROUP)} "
            f"for {real_place(half.properties)}"
        )

        def then(place: PutResult) -> None:
            _log.error(
                "%s is moved to topic %s: %s, after %d checks, %d ms after it was born",
                name,
                CHECK_MAX_TIME_TOPIC,
                why,
                check_times(half) or 0,
                self._clock.age_ms(half.born_timestamp),
            )

        def never(remark: str | None) -> None:
            _log.error(
                "%s stays open and is not checked: %s, and it cannot be moved to topic %s: %s",
                name,
                why,
                CHECK_MAX_TIME_TOPIC,
                remark,
            )

        self._transactions.discard(half, discarded_record(half), self._begin_write(then, never))

    def _copy(
        self,
        half: Record,
        copy: NewRecord,
        then: Callable[[PutResult], None] = lambda place: None,
    ) -> None:
        done = self._begin_write(then, lambda remark: self._never_copied.append((half, remark)))
        self._transactions.copy(half.queue_offset, copy, done)

    def _check(self, half: Record) -> None:
        """Store a half message again; once it is stored, a producer is asked about it."""
        copy = checked_copy(half)
        self._copy(
            half, copy, lambda place: self._questions.append(_Question(half, copy, place))
        )

    async def _ask(self, question: _Question) -> None:
        """Ask a producer of the group of a half message."""
        group = _text(question.half, PRODUCER_GROUP)
        looks = 0
        while (connection := self._find_producer(group)) is None:
            if group in self._slow or not self._clients.producers(group):
                break
            self._connections.clear()
            looks += 1
            if looks * _LOOK_S >= _SLOW_PRODUCER_S:
                self._slow.add(group)
            await asyncio.sleep(_LOOK_S)
        if connection is None:
            self._unasked[group] = self._unasked.get(group, 0) + 1
        elif (frame := self._frame(question)) is not None:
            connection.send(frame)

    def _find_producer(self, group: str) -> ServerConnection | None:
        """Return the connection of a producer that reads; of several each in its turn."""
        connections = self._connections.get(group)
        if connections is None:
            connections = self._connections[group] = list(self._clients.producers(group))
        for _ in connections:
            connection = connections[next(self._turns) % len(connections)]
            if connection.is_open and connection.write_stuck_at is None:
                return connection
        return None

    def _frame(self, question: _Question) -> bytes | None:
        """Return a request with a half message as it was sent, and the place of its copy."""
        half, copy, place = question.half, question.copy, question.place
        real = real_place(half.properties)
        if real is None or len(real[0].encode()) > topic_bytes_max(real[0]):
            return None  # Whoever wrote this; it is discarded in the end.
        message = copy_of(half, *real)
        message.properties = with_properties(copy.properties, {WAIT: "false"})
        field = topic_field(message.topic.encode())
        hosts_bytes = len(message.born_host) + len(self._store_host)
        body = b"".join(
            encode_record(
                message,
                field,
                size=record_size(
                    len(message.body), len(field), len(message.properties), hosts_bytes
                ),
                queue_offset=place.queue_offset,
                physical_offset=place.physical_offset,
                store_timestamp=place.store_timestamp,
                store_host=self._store_host,
            )
        )
        key = find_property(half.properties, UNIQUE_KEY.encode())
        unique_key = None if key is None else key.decode(errors="replace")
        header = CheckTransactionRequest(
            topic=HALF_TOPIC,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            message_id=unique_key,
            transaction_id=unique_key,
            offset_message_id=offset_message_id(self._store_host, place.physical_offset),
            broker_name=self._config.name,
        )
        return encode_frame(
            Command(
                RequestCode.CHECK_TRANSACTION_STATE,
                header.to_fields(),
                body,
                flag=CommandFlag.ONE_WAY,
                language=LanguageCode.JAVA,
            )
        )


def _text(half: Record, name: str) -> str:
    """Return a property of a half message; empty if it has none."""
    return (find_property(half.properties, name.encode()) or b"").decode(errors="replace")
