"""A broker and a name server under random requests."""

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.cluster.fuzz_requests import RECORDED, RequestMaker, recorded_requests
from tests.cluster.fuzz_run import ANSWER_S, TURN_S, LoopThread, fuzz, resident_bytes, send_torn
from tests.crash.disk import log_records

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.client import operations
from pymq.client.cluster.routes import QUEUE_COUNT_MAX
from pymq.client.sockets.bulk_client import BulkClient
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.net.dispatcher import Handler
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.store import FlushMode, StoreConfig

LOG = logging.getLogger("pymq")
#: What memory may grow by after a quarter of the requests: tables of what random names created.
GROWTH_BYTES: Final = 64 << 20

#: Who says once that it is a client or a broker, and never again, is given up as in RocketMQ: its
#: connection is closed. Not here.
_LONG_MS = 3_600_000


class FuzzedServer(ABC):
    """A server in a thread of its own.

    Args:
        dice: of everything.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._thread = LoopThread()

    @abstractmethod
    async def _start(self) -> tuple[str, Mapping[int, Handler]]:
        """Start; return its address and its handlers."""

    @abstractmethod
    async def _close(self) -> None:
        """Stop."""

    def __enter__(self) -> Self:
        # Warnings about millions of requests would be kept, in case the test fails.
        self._log_level = LOG.level
        LOG.setLevel(logging.ERROR)
        self.address, handlers = self._thread.run(self._start())
        recorded = recorded_requests() if RECORDED.exists() else []
        self._recorded = [one for one in recorded if one.code in handlers]
        self._maker = RequestMaker(self._dice, handlers, self._recorded)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._close())
        self._thread.stop()
        LOG.setLevel(self._log_level)

    def fuzz(self, *, requests: int, torn: int) -> Counter[tuple[int, int]]:
        """Send random requests, and random bytes; check what must hold."""
        codes = fuzz(self.address, self._maker.make, count=requests // 4)
        self._ask_most()
        before = resident_bytes()
        codes += fuzz(self.address, self._maker.make, count=requests - requests // 4)
        for number in range(torn):
            send_torn(self.address, self._torn_frames(number))
        growth = resident_bytes() - before
        assert growth < GROWTH_BYTES, f"memory grew by {growth >> 20} MiB"
        assert self._thread.longest_turn_s < TURN_S
        return codes

    def _ask_most(self) -> None:  # noqa: B027
        """Have the longest answers made: whether that happens by chance must not matter."""

    def _torn_frames(self, number: int) -> bytes:
        dice = self._dice
        frames = bytearray()
        for _ in range(dice.randrange(1, 4)):
            request: Command = self._maker.make(number)
            try:
                frames += encode_frame(request)
            except Exception:
                continue
        for _ in range(dice.randrange(1, 6)):
            if frames:
                frames[dice.randrange(min(len(frames), 60))] = dice.randrange(256)
        return bytes(frames)


class FuzzedBroker(FuzzedServer):
    """A broker whose settings let requests reach everything."""

    def __init__(self, path: Path, dice: random.Random, **settings: Any) -> None:
        super().__init__(dice)
        self._path = path
        self._settings = settings

    async def _start(self) -> tuple[str, Mapping[int, Handler]]:
        config = BrokerConfig(
            client_expiry_ms=_LONG_MS,
            listen_port=0,
            property_filter=True,
            recall_messages=True,
            allow_config_update=False,
            **self._settings,
        )
        store = StoreConfig(
            root_path=self._path,
            flush_mode=FlushMode.ASYNC,
            segment_bytes=1 << 22,
            disk_free_enough_bytes=1,
        )
        self._broker = Broker(config, store)
        await self._broker.start()
        run = self._broker._run
        assert run is not None and run._parts is not None
        return self._broker.address, run._parts.dispatcher._handlers

    def _ask_most(self) -> None:
        topic, count = "as-wide-as-can-be", QUEUE_COUNT_MAX
        config = TopicConfig(topic=topic, read_queue_count=count, write_queue_count=count)
        with BulkClient(self.address, timeout_s=ANSWER_S) as client:
            client.ask(self.address, operations.update_topic(config))
            for _ in range(3):
                stats = client.ask(self.address, operations.topic_stats(topic))
                assert len(stats.offsets) == count
            client.ask(self.address, operations.delete_topic(topic))

    async def _close(self) -> None:
        await self._broker.close()
        # Whatever was stored can be read, by something else than what wrote it.
        self.record_count = sum(1 for _ in log_records(self._path))


class FuzzedNameServer(FuzzedServer):
    """A name server."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        super().__init__(dice)
        self._path = path

    async def _start(self) -> tuple[str, Mapping[int, Handler]]:
        config = NamesrvConfig(port=0, kv_config_path=self._path, scan_interval_ms=_LONG_MS)
        self._server = NameServer(config)
        await self._server.start()
        return self._server.address, self._server._dispatcher._handlers

    async def _close(self) -> None:
        await self._server.close()
