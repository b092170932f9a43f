"""What the topic ``shop-figures`` says, whoever wrote it; made by ``shop.figures``, if that runs.

All queues are read, not as a member of a group: each page has all figures, also those that were
written before it started. Of a minute and goods the latest figure counts, so that one which comes
twice (brokers of RocketMQ take them at least once), or late, changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pymq import MessageQueue, PullConsumer, PymqError, ReceivedMessage, RouteNotFound
from shop.settings import PATIENT
from shop.topics import FIGURES_TOPIC, Figure

_log = logging.getLogger(__name__)

GROUP = "page-figures"
#: How long ago figures may have been written that are read.
SINCE = timedelta(hours=3)
#: How many minutes are kept, the newest.
MINUTES_MAX = 180
REFRESH_S = 10.0  # for queues of new brokers
PAUSE_S = 2.0
POLL_COUNT = 500
PLACES_MAX = 10


class Figures:
    """The newest figures.

    Args:
        minutes_max: how many minutes are kept.
    """

    def __init__(self, minutes_max: int = MINUTES_MAX) -> None:
        self._minutes_max = minutes_max
        self._found: dict[int, dict[str, Figure]] = {}  # by minute, then by goods

    def keep(self, body: bytes) -> None:
        """Take what a message says, unless something newer is known.

        Raises:
            ValueError: the body is not a figure.
        """
        figure = Figure.model_validate_json(body)
        goods = self._found.setdefault(figure.minute, {})
        known = goods.get(figure.goods_id)
        if known is None or known.as_of <= figure.as_of:
            goods[figure.goods_id] = figure
        while len(self._found) > self._minutes_max:
            del self._found[min(self._found)]

    def all(self) -> list[Figure]:
        """Return them, by minute and goods."""
        return [
            figure
            for _, goods in sorted(self._found.items())
            for _, figure in sorted(goods.items())
        ]

    @property
    def unreadable(self) -> list[str]:
        """Where some messages are that the job could not read, the newest ones last."""
        places = [place for figure in self.all() for place in figure.unreadable_at]
        return places[-PLACES_MAX:]


class FiguresReader:
    """Reads the topic into ``figures`` for as long as it is asked to.

    Args:
        broker: name servers.
        figures: what is read.
        since: how long ago what is read may have been written; ``None``: everything.
    """

    def __init__(
        self, broker: str, figures: Figures, since: timedelta | None = SINCE
    ) -> None:
        self._broker = broker
        self._figures = figures
        self._since = since

    async def run(self) -> None:
        """Read until this is cancelled; without a topic or a broker, wait for it."""
        while True:
            try:
                async with self._open() as consumer:
                    await self._read(consumer)
            except PymqError as error:
                _log.warning("%s cannot be read: %s", FIGURES_TOPIC, error)
            await asyncio.sleep(PAUSE_S)

    async def read_all(self) -> None:
        """Read what is there now.

        Raises:
            PymqError: some of it cannot be read.
        """
        async with self._open() as consumer:
            await self._choose(consumer)
            ends = await consumer.end_offsets()
            for queue, end in ends.items():
                while await consumer.position(queue) < end:
                    self._keep(await consumer.poll(POLL_COUNT, PAUSE_S))

    def _open(self) -> PullConsumer:
        consumer = PullConsumer(
            self._broker, GROUP, from_where="earliest", auto_commit=False, network=PATIENT
        )
        return consumer.assign([])

    async def _read(self, consumer: PullConsumer) -> None:
        refresh_s = 0.0
        while True:
            if time.monotonic() >= refresh_s:
                try:
                    await self._choose(consumer)
                except RouteNotFound:  # nobody has made figures yet
                    pass
                refresh_s = time.monotonic() + (REFRESH_S if consumer.assignment else PAUSE_S)
            self._keep(await consumer.poll(POLL_COUNT, PAUSE_S))

    async def _choose(self, consumer: PullConsumer) -> None:
        """Read all queues there are; those that are new from ``since`` on."""
        queues = await consumer.queues(FIGURES_TOPIC)
        new = set(queues) - set(consumer.assignment)
        if not new:
            return
        consumer.assign(sorted({*queues, *consumer.assignment}))
        if self._since is not None:
            await self._skip(consumer, new, datetime.now(UTC) - self._since)

    async def _skip(
        self, consumer: PullConsumer, queues: Iterable[MessageQueue], when: datetime
    ) -> None:
        for queue in queues:
            try:
                await consumer.seek(queue, when)
            except PymqError as error:  # its broker has gone: from the first one on, then
                _log.warning("%s: %s", queue, error)

    def _keep(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            try:
                self._figures.keep(message.body)
            except ValueError as error:
                _log.warning("message %s is no figure: %s", message.message_id, error)
