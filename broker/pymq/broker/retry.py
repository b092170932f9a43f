"""Messages that consumers failed at: to the retry topic of their group, or to the dead letters.

A consumer sends a message back by its place in the log; the broker stores it once more in the retry
topic ``%RETRY%group``, delayed for longer after each try, and in ``%DLQ%group`` when it was tried
often enough. A consumer that cannot do that, or that consumes in order, sends the message to its
retry topic itself.

Source: RocketMQ AbstractSendMessageProcessor.consumerSendMsgBack,
SendMessageProcessor.handleRetryAndDLQ.
"""

import dataclasses
import logging
import random

from pymq.broker.delays.parking import park_delayed
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import QUEUE_COUNT_MAX, TopicTable
from pymq.errors import refusal
from pymq.protocol import names
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.codes import Permission, ResponseCode
from pymq.protocol.message import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    decode_properties,
)
from pymq.protocol.parking import copy_of, with_properties
from pymq.protocol.record import NewRecord, Record, offset_message_id

_log = logging.getLogger(__name__)

_WRITE = int(Permission.WRITE)
#: Delay level of the first retry: 10 s, unless messageDelayLevel says otherwise.
_FIRST_LEVEL = 3
#: Says of a topic that groups of units retry there (RocketMQ TopicSysFlag).
_UNIT_RETRIES = 2


class Retries:
    """Decides what becomes of messages to be consumed again.

    Args:
        topics: gets the retry topics and the dead-letter topics.
        groups: know how often their members try.
        locks: tell which groups consume in order.
        level_count: how many delay levels there are.
    """

    def __init__(
        self, topics: TopicTable, groups: GroupTable, locks: QueueLocks, *, level_count: int
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._level_count = level_count
        self._random = random.Random()
        self._said: set[str] = set()

    def check_group(self, group: str) -> GroupConfig:
        """Return a group's settings.

        Raises:
            BrokerError: the group does not exist.
        """
        config = self._groups.find(group)
        if config is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}: create it on this broker",
            )
        return config

    # --- sent to a retry topic

    def destination(
        self, topic: str, queue_id: int, reconsume_times: int, times_max: int | None
    ) -> tuple[str, int]:
        """Return topic and queue of a message that was sent to a retry topic.

        Args:
            topic, queue_id: the retry topic, and the queue that was chosen.
            reconsume_times: how often it was tried.
            times_max: how often its consumer wants to try; None: the group's setting.

        Raises:
            BrokerError: the group does not exist.
        """
        config = self.check_group(topic[len(names.RETRY_PREFIX) :])
        most = config.retry_max_times if times_max is None else times_max
        if reconsume_times <= most and not self._locks.is_held(config.group):
            return topic, queue_id
        # Consumers in order send here what they have given up.
        return self._dead_letters(config.group), 0

    # --- sent back

    def retry_queue(self, group: str, *, is_unit: bool) -> tuple[GroupConfig, int | None]:
        """Return a group's settings and a queue of its retry topic, created if necessary.

        Args:
            group: consumer group.
            is_unit: whether the group belongs to a unit.

        Returns:
            No queue if the group retries nothing.

        Raises:
            BrokerError: the group does not exist, or its retry topic must not be written.
        """
        config = self.check_group(group)
        if len(names.retry_topic(group)) > names.DERIVED_TOPIC_BYTES_MAX:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the name of group {group:.40}... has {len(group)} characters, expected at most "
                f"{names.DERIVED_TOPIC_BYTES_MAX - len(names.RETRY_PREFIX)}",
            )
        if config.retry_queue_count <= 0:
            if group not in self._said:
                self._said.add(group)
                _log.warning(
                    "group %s has retryQueueNums %d: what its consumers send back is dropped; give "
                    "the group a retry queue to have it delivered again",
                    group,
                    config.retry_queue_count,
                )
            return config, None
        topic = self._topics.create(
            names.retry_topic(group),
            queue_count=config.retry_queue_count,
            sys_flag=_UNIT_RETRIES if is_unit else 0,
        )
        if not topic.perm & _WRITE:
            raise refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic}] sending message is forbidden"
            )
        return config, self._random.randrange(min(config.retry_queue_count, QUEUE_COUNT_MAX))

    def next_try(
        self,
        record: Record,
        config: GroupConfig,
        queue_id: int,
        *,
        delay_level: int,
        times_max: int | None,
    ) -> NewRecord:
        """Return what is stored of a message that was sent back.

        Args:
            record: the message, as it was delivered.
            config: of the group that failed at it.
            queue_id: of the retry topic.
            delay_level: chosen by the consumer; 0: it grows with each try; below 0: a dead letter.
            times_max: how often the consumer wants to try; None: the group's setting.
        """
        group = config.group
        most = config.retry_max_times if times_max is None else times_max
        is_dead = delay_level < 0 or record.reconsume_times >= most
        level = 0 if is_dead else delay_level or _FIRST_LEVEL + record.reconsume_times
        known = decode_properties(record.properties)
        changes: dict[str, str | None] = {WAIT: "false", DELAY: str(level)}
        if RETRY_TOPIC not in known:
            changes[RETRY_TOPIC] = record.topic
        if not known.get(ORIGIN_MESSAGE_ID, "").strip():
            changes[ORIGIN_MESSAGE_ID] = offset_message_id(
                record.store_host, record.physical_offset
            )
        topic = self._dead_letters(group) if is_dead else names.retry_topic(group)
        again = dataclasses.replace(
            copy_of(record, topic, 0 if is_dead else queue_id),
            reconsume_times=record.reconsume_times + 1,
            properties=with_properties(record.properties, changes),
        )
        if is_dead:
            return again
        return park_delayed(self._level_count, again, decode_properties(again.properties))

    def _dead_letters(self, group: str) -> str:
        return self._topics.create(names.dead_letter_topic(group), queue_count=1).topic
