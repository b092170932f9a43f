"""Transactions that were checked too often, and so are open no more, though nobody decided them.

Their producers may still do so, hours later, and administrators may have them checked again. They
are not kept in memory: the key index knows them by their message in the topic for discarded ones,
and every decision about a message that had been checked by the key of its op.

RocketMQ carries out every late decision, however many there are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeAlias

from pymq.errors import StoreError
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_OP_TOPIC
from pymq.protocol.parking import real_place
from pymq.protocol.record import Record, decode_record
from pymq.protocol.transaction_records import Identity, decision_key, identity, is_committed
from pymq.store.keys import Keys

_log = logging.getLogger(__name__)

#: The remark where nobody can tell.
UNKNOWN = "the transaction is not open; whether it was discarded cannot be looked up; try again"
#: The remark where nobody ever can.
NO_INDEX = (
    "the transaction is not open; without a key index (messageIndexEnable=false) this broker "
    "cannot tell whether it was decided, or discarded after too many checks, as some were: nothing "
    "was changed. Look for the message in its topic, and send it again if it was to be committed "
    "and is missing; with messageIndexEnable=true transactions that are discarded from then on can "
    "still be ended"
)
#: How long to wait until all messages are in the key index.
INDEX_WAIT_S = 2.0
#: Questions that may wait for their turn.
WAITING_COUNT_MAX = 1_000
_KEY_COUNT = 64
_EVER_MS = (1 << 63) - 1

#: Gets whether a transaction is discarded and undecided, None if that cannot be known now; must not
#: raise.
Act: TypeAlias = Callable[[bool | None], Coroutine[Any, Any, None]]


class DiscardedTransactions:
    """Answers whether a transaction was discarded, and is still undecided.

    Args:
        keys: of the store; None without a key index.
        wait_indexed: returns when everything that is visible now can be found by its keys.
        executor: reads the files.
        is_any: tells whether any transaction has ever been discarded; asked without a key index.
    """

    def __init__(
        self,
        keys: Keys | None,
        wait_indexed: Callable[[], Awaitable[None]],
        executor: Executor,
        is_any: Callable[[], bool] = lambda: True,
    ) -> None:
        self._keys = keys
        self._wait_indexed = wait_indexed
        self._executor = executor
        self._is_any = is_any
        self._tasks = Tasks("discarded transactions")
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    def start(self) -> None:
        """Questions may be asked from now on."""

    async def close(self) -> None:
        """Give up what is in progress; idempotent."""
        await self._tasks.close()

    def ask(self, half: Record, own: Identity, act: Act) -> tuple[int, str] | None:
        """Look a transaction up, and have somebody act on what was found.

        The next one is looked up when ``act`` has returned: two decisions about one transaction
        do not meet.

        Args:
            half: its half message, or a copy of it.
            own: the identity of that.
            act: gets what was found.

        Returns:
            The response code and the remark if it cannot be looked up, and nothing happens;
            otherwise None.
        """
        if self._keys is None and self._is_any():
            _log.warning("message %r: %s", own.unique_key, NO_INDEX)
            return ResponseCode.ILLEGAL_OPERATION, NO_INDEX  # clients do not repeat it
        if self._waiting_count >= WAITING_COUNT_MAX:
            return ResponseCode.SYSTEM_BUSY, UNKNOWN
        self._waiting_count += 1
        self._tasks.start("look-up", self._look_up(half, own, act))
        return None

    async def _look_up(
        self, half: Record, own: Identity, act: Act
    ) -> None:
        try:
            async with self._turn:
                await act(await self._is_undecided(half, own))
        finally:
            self._waiting_count -= 1

    async def _is_undecided(self, half: Record, own: Identity) -> bool | None:
        if self._keys is None:
            return False  # none has been discarded
        try:
            await asyncio.wait_for(self._wait_indexed(), INDEX_WAIT_S)
            key = own.unique_key.decode(errors="replace")
            discarded = await self._find(CHECK_MAX_TIME_TOPIC, key)
            if not any(identity(record) == own for record in discarded):
                return False
            if await self._find(HALF_OP_TOPIC, decision_key(own)):
                return False
            # The op may be missing, if the power was lost when both were written.
            place = real_place(half.properties)
            messages = [] if place is None else await self._find(place[0], key)
            return not any(is_committed(one) and identity(one) == own for one in messages)
        except (StoreError, TimeoutError) as error:
            _log.warning("it is not known whether a closed transaction was discarded: %r", error)
            return None

    async def _find(self, topic: str, key: str) -> list[Record]:
        assert self._keys is not None
        keys = self._keys
        job = keys.begin_query(topic, key, count_max=_KEY_COUNT, begin_ms=0, end_ms=_EVER_MS)
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        return [decode_record(buffer) for buffer in keys.finish_query(job).buffers]
