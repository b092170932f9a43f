"""The process that sends messages for a time of their own and cancels some, and its ledger.

Runs until its standard input ends::

    python -m tests.crash.timer_producers <name server> <topic> <ledger> <seed>

Nothing is retried. What a request was is the last part of its name in the ledger: ``t`` a message
that waits, ``r`` the recall of one whose send was acknowledged; its place is that of the message,
and before it comes a line with the time, in ms, when the answer came::

    N <recall> <time>
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from pathlib import Path
from typing import Final

from tests.crash.delayed_producers import BrokerLine
from tests.crash.ledger import (
    Acknowledged,
    Attempted,
    Failed,
    LedgerWriter,
    Noted,
    body_of,
    make_key,
)
from tests.crash.producers import PAUSE_S

from pymq.errors import PymqError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.record import parse_offset_message_id

GROUP: Final = "ledger"
PRODUCER_COUNT: Final = 4
IN_FLIGHT: Final = 4
SIZE_MAX: Final = 1_000
#: Some wait for several rounds of the wheel, see ``test_timer_kill``.
DELAYS_MS: Final = (50, 500, 1000, 2500, 4000, 7000)
#: One message in this many is recalled, if it waits long enough for that.
RECALL_IN: Final = 4


class Sender:
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
        self._line = BrokerLine(name_server, topic)

    async def run(self, stopped: asyncio.Event) -> None:
        """Send one message after the other until it is stopped."""
        await asyncio.gather(*(self._work(stopped) for _ in range(IN_FLIGHT)))
        self._line.close()

    async def _work(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            if not await self._send():
                await asyncio.sleep(PAUSE_S)

    async def _send(self) -> bool:
        chance = self._random
        size = int(SIZE_MAX ** chance.random()) - 1
        key = make_key(self._number, next(self._messages), size)
        delay_ms = chance.choice(DELAYS_MS)
        answer = await self._ask("t", key, self._message(key, delay_ms), None)
        if answer is None or delay_ms < 1000 or chance.randrange(RECALL_IN):
            return answer is not None
        handle = (answer.fields or {}).get("recallHandle")
        if handle is None:
            return True  # Its time had come before it reached the broker.
        recall = Command(
            RequestCode.RECALL_MESSAGE,
            {"topic": self._topic, "recallHandle": handle, "producerGroup": GROUP},
        )
        return await self._ask("r", key, recall, _place(answer)) is not None

    async def _ask(
        self, kind: str, key: str, request: Command, place: tuple[int, int, int] | None
    ) -> Command | None:
        name = f"{self._number}.{next(self._requests)}.{kind}"
        self._ledger.write(Attempted(name, (key,)))
        try:
            answer = await self._line.send(request)
        except PymqError as error:
            self._ledger.write(Failed(name, False, f"{error!r}"))
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._ledger.write(Failed(name, False, f"{answer.code} {answer.remark}"))
            return None
        if kind == "r":
            self._ledger.write(Noted(name, (str(_now_ms()),)))
        queue_id, queue_offset, physical_offset = place or _place(answer)
        self._ledger.write(Acknowledged(name, queue_id, queue_offset, (physical_offset,)))
        return answer

    def _message(self, key: str, delay_ms: int) -> Command:
        now_ms = _now_ms()
        delivery_ms = now_ms + delay_ms
        properties = f"TIMER_DELIVER_MS\x01{delivery_ms}\x02UNIQ_KEY\x01{key}\x02"
        queue_id = self._random.randrange(4)
        request = SendRequest(
            GROUP, self._topic, "TBW102", 4, queue_id, 0, now_ms, 0, properties, 0, False, None,
            False,
        )  # fmt: skip
        return Command(RequestCode.SEND_MESSAGE_V2, request.to_v2(), body_of(key))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _place(answer: Command) -> tuple[int, int, int]:
    fields = answer.fields or {}
    _, physical_offset = parse_offset_message_id(fields["msgId"])
    return int(fields["queueId"]), int(fields["queueOffset"]), physical_offset


async def produce(name_server: str, topic: str, ledger: LedgerWriter, seed: int) -> None:
    """Send until standard input ends; returns when every request is answered or failed."""
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(PRODUCER_COUNT):
            sender = Sender(number, name_server, topic, ledger, seed)
            group.create_task(sender.run(stopped))
        await asyncio.to_thread(sys.stdin.read)
        stopped.set()


def main() -> None:
    """Run with the arguments of the command line."""
    name_server, topic, ledger, seed = sys.argv[1:]
    with LedgerWriter(Path(ledger)) as writer:
        asyncio.run(produce(name_server, topic, writer, int(seed)))


if __name__ == "__main__":
    main()
