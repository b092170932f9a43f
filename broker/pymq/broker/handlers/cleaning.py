"""Cleaning on request: 306, 316, 329."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from pymq.broker.cleaner import with_removals
from pymq.broker.config import BrokerConfig
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.errors import StoreError
from pymq.net.dispatcher import Handler, Request
from pymq.protocol import names
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.multi_dispatch import is_light
from pymq.store import MessageStore, QueueRemoval

_log = logging.getLogger(__name__)

#: Queues deleted before the event loop gets to do something else.
_QUEUES_A_STEP = 16


class CleaningHandlers:
    """Deletes what has expired, without waiting for the hour.

    Args:
        clean_soon: starts a pass over the log.
        remove: removes the files of deleted queues; see ``Cleaner.remove``.
        answer_saved: see ``StateSaving.answer_saved``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        offsets: OffsetTable,
        clean_soon: Callable[[], None],
        remove: Callable[[QueueRemoval], asyncio.Task[None]],
        answer_saved: AnswerSaved,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clean_soon = clean_soon
        self._remove = remove
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_log_files,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
        }

    def delete_log_files(self, request: Request) -> Command:
        """DELETE_EXPIRED_COMMITLOG (329): delete now and in the next pass, whatever the hour.

        Answered at once, as in RocketMQ: deletion may take a while.
        """
        self._store.retention.clean_now()
        self._clean_soon()
        return request.response(ResponseCode.SUCCESS)

    async def clean_queues(self, request: Request) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306): delete queues that are empty and belong to no topic.

        RocketMQ also deletes those of existing topics that are merely idle. Their offsets then
        start from 0 again, and a group with a higher offset misses what comes next: so here they
        stay, at one file each. Light queues belong to no topic, and go.
        """
        try:
            while found := self._store.retention.delete_expired_queues(
                self._is_left_over, count_max=_QUEUES_A_STEP
            ):
                for topic, queue_id in found:
                    _log.info("queue %d of topic %s is empty: deleted", queue_id, topic)
                    self._offsets.delete_queue(topic, queue_id)
                await asyncio.sleep(0)
        except StoreError as error:
            raise StoreError(f"expired queues could not be deleted: {error}") from error
        return await self._answer_saved(request)

    async def clean_topics(self, request: Request) -> Command:
        """CLEAN_UNUSED_TOPIC (316): delete the queues of topics that do not exist any more."""
        unused = {topic for topic, _ in self._store.queues() if self._is_unused(topic)}
        removals = self._store.retention.begin_delete_topics(unused)
        for topic in sorted(unused):
            self._offsets.delete_topic(topic)
        for one in removals:
            _log.info("topic %s does not exist: %d queues are deleted", one.topic, len(one))
        tasks = [self._remove(one) for one in removals]
        return await with_removals(self._answer_saved(request), tasks)

    def _is_unused(self, topic: str) -> bool:
        return not (
            topic in self._topics
            or is_light(topic)
            or names.is_system_topic(topic, cluster=self._config.cluster, broker=self._config.name)
        )

    def _is_left_over(self, topic: str, queue_id: int) -> bool:
        if names.is_system_topic(topic, cluster=self._config.cluster, broker=self._config.name):
            return False
        if is_light(topic):  # nobody deletes them one by one
            return True
        known = self._topics.find(topic)
        return known is None or queue_id >= max(known.read_queue_count, known.write_queue_count)
