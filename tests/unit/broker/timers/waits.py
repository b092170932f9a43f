"""A store with timer messages and what delivers them: no broker, no threads, and a clock to set."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from tests.unit.store.stores import BORN, HOST, FakeClock, QuickFiles, open_store, read_all

from pymq.broker.log_writer import LogWriter, Put
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.broker.timers.parking import TimerParking
from pymq.broker.timers.timers import Timers, TimerSettings
from pymq.protocol.message import parse_properties
from pymq.protocol.record import NewRecord, Record
from pymq.store import Files, PutResult, PutStatus
from pymq.testing.faulty_files import Crashed

DAY_MS = 24 * 3600 * 1000
NOW_MS = 1_700_000_000_000


class Inline(Executor):
    """Runs work at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what goes wrong in a callback, unless the process dies there."""
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


class Waits:
    """One run of a broker, as far as timer messages are concerned.

    Attributes:
        refuses: which messages the log refuses, although it takes others of the same append.
        stored: bodies of the messages that were put back, and how often.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        *,
        files: Files | None = None,
        delay_ms_max: int = 3 * DAY_MS,
        congestion_max: int = 1 << 30,
        stops_enqueue: bool = False,
        stops_dequeue: bool = False,
        keeps_rounds: bool = False,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.store = open_store(root, clock, files or QuickFiles(), **settings)
        assert self.store.timers is not None
        self.files = self.store.timers
        self.refuses: Callable[[NewRecord], bool] = lambda record: False
        self.stored: Counter[bytes] = Counter()
        self.writer = LogWriter(self.put, None)
        self.metrics = TimerMetrics(clock)
        precision_ms = settings.get("timer_precision_ms", 1000)
        self.timers = Timers(
            self.files,
            self.writer,
            clock,
            self.metrics,
            TimerSettings(
                precision_ms=precision_ms,
                flush_interval_ms=1000,
                stops_enqueue=stops_enqueue,
                stops_dequeue=stops_dequeue,
                keeps_rounds=keeps_rounds,
            ),
            readers=Inline(),
            writers=Inline(),
        )
        self.parking = TimerParking(
            self.timers.now_ms,
            self.files.congestion,
            precision_ms=precision_ms,
            delay_ms_max=delay_ms_max,
            congestion_max=congestion_max,
        )
        self._loop = asyncio.Runner()
        self._loop.get_loop().set_exception_handler(_tell)
        self._death: Crashed | None = None

    def put(self, puts: Sequence[Put]) -> list[PutResult]:
        try:
            return self._put(puts)
        except Crashed as death:
            # Raised in a callback, it leaves whoever waits waiting for ever.
            self._death = death
            asyncio.get_running_loop().stop()
            raise

    def _put(self, puts: Sequence[Put]) -> list[PutResult]:
        refused = [isinstance(put, NewRecord) and self.refuses(put) for put in puts]
        results = iter(
            self.store.put([put for put, no in zip(puts, refused, strict=True) if not no], HOST)
        )
        found = [
            PutResult(PutStatus.BUSY, remark="refused by the test") if no else next(results)
            for no in refused
        ]
        for put, result in zip(puts, found, strict=True):
            if result.status is PutStatus.OK and isinstance(put, NewRecord):
                self.stored[bytes(put.body)] += 1
        return found

    def send(self, body: bytes, properties: str, topic: str = "T", queue_id: int = 0) -> PutResult:
        """Store a message with timer properties the way a send does."""
        sent = NewRecord(topic, queue_id, body, properties.encode(), BORN, 1, 7, 0, 2)
        (result,) = self.store.put([self.parking.park(sent, parse_properties(properties))], HOST)
        assert result.status is PutStatus.OK, result
        return result

    def delay(self, body: bytes, delay_ms: int, more: str = "", **place: Any) -> PutResult:
        """Store a message that is to be delivered after some time."""
        key = f"UNIQ_KEY\x01{body[:20].decode()}\x02"
        return self.send(body, f"TIMER_DELAY_MS\x01{delay_ms}\x02{key}{more}", **place)

    def cancel(self, body: bytes, delivery_ms: int, topic: str = "T") -> PutResult:
        """Cancel a message that is to be delivered at some time."""
        key = body[:20].decode()
        more = f"TIMER_DEL_UNIQKEY\x01{topic}+{key}\x02UNIQ_KEY\x01{key}\x02"
        return self.send(b"0", f"TIMER_DELIVER_MS\x01{delivery_ms}\x02{more}", topic)

    def run(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine function."""

        async def running() -> Any:
            return await work()

        try:
            return self._loop.run(running())
        except RuntimeError:
            if self._death is not None:
                raise self._death from None
            raise

    async def settle(self) -> None:
        """Take up what has arrived and deliver what is due, until nothing happens any more."""
        await self.timers.dequeue()
        while await self.timers.enqueue() + await self.timers.dequeue():
            pass

    def deliver(self, after_ms: int = 0) -> list[bytes]:
        """Deliver what is due some time later; return all bodies delivered so far."""
        self.clock.now_ms += after_ms
        self.run(self.settle)
        return self.bodies()

    def flush(self) -> None:
        """Flush the log, then the files of timers."""
        self.store.durability.flush()
        self.run(self.timers.flush)

    def stop(self) -> None:
        """Stop cleanly."""
        self.run(self.timers.close)
        self.store.close()
        self._loop.close()

    def abandon(self) -> None:
        """Forget what the dead process was about."""
        self._loop.close()

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        return read_all(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]
