"""The process that sends transactional messages, ends them and answers checks, and its ledger.

Sends until its standard input ends, and answers checks until every transaction has ended, and none
has come for a while after that::

    python -m tests.crash.transaction_producers <name server> <topic> <ledger> <seed> <store>

Whether a transaction is to be committed follows from the key of its message, so that every check
is answered alike, also one about a message whose sender heard nothing. What a request was is the
last part of its name in the ledger: ``h`` a half message, ``c`` or ``r`` its end as its key wants
it, ``x`` the opposite, asked for only after the end was acknowledged; it must change nothing. The
place in a line ``K`` is that of the half message.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Final

from tests.crash.delayed_producers import BrokerLine
from tests.crash.disk import log_records
from tests.crash.ledger import (
    Acknowledged,
    Attempted,
    Failed,
    LedgerWriter,
    body_of,
    key_of,
    make_key,
)
from tests.crash.producers import PAUSE_S

from pymq.errors import PymqError, StoreError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import Heartbeat, ProducerData
from pymq.protocol.codes import CommandFlag, MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.record import decode_record, parse_offset_message_id

GROUP: Final = "ledger"
PRODUCER_COUNT: Final = 4
IN_FLIGHT: Final = 4
SIZE_MAX: Final = 1_000
#: How long no check must have come when everything has ended.
QUIET_S: Final = 1.5
#: How long that may take; the checker says what is open then.
END_TIMEOUT_S: Final = 240.0
PREPARED: Final = int(MessageFlag.TRANSACTION_PREPARED)


def is_committed(key: str) -> bool:
    """Is the transaction of a message to be committed?"""
    return zlib.crc32(key.encode()) % 5 < 3


def _decision(commit: bool) -> int:
    return int(MessageFlag.TRANSACTION_COMMIT if commit else MessageFlag.TRANSACTION_ROLLBACK)


class Producer:
    """One connection and the ledger's account of it."""

    def __init__(
        self, number: int, name_server: str, topic: str, ledger: LedgerWriter, seed: int
    ) -> None:
        self._number = number
        self._topic = topic
        self._ledger = ledger
        self._random = random.Random(f"{seed}/{number}")
        self._messages = itertools.count()
        self._requests = itertools.count()
        self._checked_s = 0.0
        body = Heartbeat(client_id=f"ledger-{number}", producers=[ProducerData(group=GROUP)])
        self._line = BrokerLine(
            name_server,
            topic,
            hello=Command(RequestCode.HEART_BEAT, {}, body.encode()),
            on_request=self._on_check,
        )

    async def begin(self, stopped: asyncio.Event) -> None:
        """Begin one transaction after the other."""
        await asyncio.gather(*(self._work(stopped) for _ in range(IN_FLIGHT)))

    async def answer(self, ended: asyncio.Event) -> None:
        """Answer checks until all transactions have ended, and then as long as some come."""
        while not ended.is_set() or time.monotonic() - self._checked_s < QUIET_S:
            with contextlib.suppress(PymqError):  # so that the connection is made again
                await self._line.ask(RequestCode.GET_MAX_OFFSET, topic=self._topic, queueId=0)
            await asyncio.sleep(PAUSE_S)
            if not ended.is_set():
                self._checked_s = time.monotonic()
        self._line.close()

    async def _work(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            if not await self._transact():
                await asyncio.sleep(PAUSE_S)

    async def _transact(self) -> bool:
        chance = self._random
        key = make_key(self._number, next(self._messages), int(SIZE_MAX ** chance.random()) - 1)
        half = await self._ask("h", key, None, self._half_message(key), body_of(key))
        if half is None:
            return False
        commit = is_committed(key)
        how = chance.random()
        if how < 0.3:
            return True  # a check will come
        end = self._end_of(half, commit=commit)
        if how < 0.45:
            self._tell(end)
            return True
        ended = await self._ask("c" if commit else "r", key, half, end, b"")
        if ended is not None and how > 0.7:
            opposite = self._end_of(half, commit=not commit)
            ended = await self._ask("x", key, half, opposite, b"")
        return ended is not None

    async def _ask(
        self, kind: str, key: str, half: Acknowledged | None, request: Command, body: bytes
    ) -> Acknowledged | None:
        """Send a request, and record it; return where the half message is, if it succeeded."""
        name = f"{self._number}.{next(self._requests)}.{kind}"
        self._ledger.write(Attempted(name, (key,)))
        try:
            answer = await self._line.send(Command(request.code, request.fields, body))
        except PymqError as error:
            self._ledger.write(Failed(name, False, f"{error!r}"))
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._ledger.write(Failed(name, False, f"{answer.code} {answer.remark}"))
            return None
        if half is None:
            fields = answer.fields or {}
            _, place = parse_offset_message_id(fields["msgId"])
            half = Acknowledged(name, int(fields["queueId"]), int(fields["queueOffset"]), (place,))
        done = Acknowledged(name, half.queue_id, half.first_offset, half.physical_offsets)
        self._ledger.write(done)
        return done

    def _half_message(self, key: str) -> Command:
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{key}\x02"
        now_ms = time.time_ns() // 1_000_000
        queue_id = self._random.randrange(4)
        request = SendRequest(
            GROUP, self._topic, "TBW102", 4, queue_id, PREPARED, now_ms, 0, properties, 0, False,
            None, False,
        )  # fmt: skip
        return Command(RequestCode.SEND_MESSAGE_V2, request.to_v2())

    def _end_of(self, half: Acknowledged, *, commit: bool) -> Command:
        return _end(half.first_offset, half.physical_offsets[0], _decision(commit))

    def _tell(self, command: Command) -> None:
        """Send a one-way request, as the official clients end transactions."""
        channel = self._line.channel
        if channel is not None:
            _send_one_way(channel, command)

    def _on_check(self, channel: AsyncChannel, command: Command) -> None:
        """Answer a check, now and then only the next one."""
        self._checked_s = time.monotonic()
        if command.code != RequestCode.CHECK_TRANSACTION_STATE or self._random.random() < 0.2:
            return
        key = key_of(decode_record(command.body, verify=True).body)
        assert key is not None
        fields = command.fields or {}
        offsets = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        end = _end(*offsets, _decision(is_committed(key)), is_checked=True)
        _send_one_way(channel, end)


def _end(
    queue_offset: int, physical_offset: int, decision: int, *, is_checked: bool = False
) -> Command:
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(physical_offset),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "true" if is_checked else "false",
        "msgId": "",
    }
    return Command(RequestCode.END_TRANSACTION, fields)


def _send_one_way(channel: AsyncChannel, command: Command) -> None:
    command.flag |= int(CommandFlag.ONE_WAY)
    channel.send(encode_frame(command))


def has_ended(store: Path) -> bool:
    """Return whether every transaction has ended, or False if that cannot be read just now."""
    halves: set[int] = set()
    closed: set[int] = set()
    try:
        for record in log_records(store):
            if record.topic == HALF_TOPIC:
                halves.add(record.queue_offset)
            elif record.topic == HALF_OP_TOPIC:
                closed.add(int(record.body))
    except (StoreError, AssertionError):
        return False
    return halves <= closed


async def wait_ended(store: Path) -> None:
    """Wait until every transaction has ended."""
    deadline = time.monotonic() + END_TIMEOUT_S
    count = 0
    # Twice: what was written to one file of the log while the next one was read was not seen.
    while count < 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        count = count + 1 if await asyncio.to_thread(has_ended, store) else 0


async def produce(
    name_server: str, topic: str, ledger: LedgerWriter, seed: int, store: Path
) -> None:
    """Work until standard input ends, all transactions have ended, and all is quiet."""
    stopped, ended = asyncio.Event(), asyncio.Event()
    producers = [
        Producer(number, name_server, topic, ledger, seed) for number in range(PRODUCER_COUNT)
    ]
    async with asyncio.TaskGroup() as group:
        async with asyncio.TaskGroup() as beginners:
            for producer in producers:
                beginners.create_task(producer.begin(stopped))
            await asyncio.to_thread(sys.stdin.read)
            stopped.set()
        for producer in producers:
            group.create_task(producer.answer(ended))
        await wait_ended(store)
        ended.set()


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed, store = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(produce(name_server, topic, writer, int(seed), Path(store)))


if __name__ == "__main__":
    main()
