"""The topics of this broker, and how new ones are created.

Source: RocketMQ TopicConfigManager.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.state.topic_ids import TopicIds
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.protocol import fastjson, names
from pymq.protocol.bodies import DataVersion, TopicConfig
from pymq.protocol.bodies import TopicTable as TopicTableBody
from pymq.protocol.codes import Permission, ResponseCode
from pymq.protocol.multi_dispatch import is_light
from pymq.store import QueueKey, same_files

_log = logging.getLogger(__name__)

#: Most queues of a topic on one broker.
QUEUE_COUNT_MAX = 65_536
_READ_WRITE = int(Permission.READ | Permission.WRITE)
_INHERIT = int(Permission.INHERIT)


class TopicTable:
    """Topic name -> settings, with a version that tells name servers when they have changed.

    A light queue is a topic with one queue that is not in the table.

    Args:
        has_light_queues: whether there are such.
        folds_case: whether topics that differ only in case would have the same files, of which
            there can be only one then.

    Attributes:
        on_change: called after every change; to be set by whoever needs to know.
        ids: tell a topic from an earlier one of its name.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        *,
        has_light_queues: bool = False,
        folds_case: bool = False,
    ) -> None:
        self._has_light_queues = has_light_queues
        self._folds_case = folds_case
        self._config = config
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self.ids = TopicIds()
        self._topics: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        self.system_topics = self._create_system_topics()

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics or self._light(topic) is not None

    def _light(self, topic: str) -> TopicConfig | None:
        """Return the settings of a light queue; None for other topics."""
        if not self._has_light_queues or not is_light(topic):
            return None
        return TopicConfig(topic=topic, read_queue_count=1, write_queue_count=1, perm=_READ_WRITE)

    def find(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, or None if there is no such topic."""
        return self._topics.get(topic) or self._light(topic)

    def require(self, topic: str) -> TopicConfig:
        """Return a topic's settings.

        Raises:
            TopicNotExist: there is no such topic on this broker.
        """
        config = self.find(topic)
        if config is None:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! "
                f"It is not on broker {self._config.name}; create it there",
            )
        return config

    def check_new(self, topics: Iterable[str]) -> None:
        """Check that topics can be there beside those that are, and beside each other.

        Raises:
            BrokerError: one would have the files of another.
        """
        if not self._folds_case:
            return
        known = {topic.casefold(): topic for topic in self._topics}
        for topic in topics:
            other = known.setdefault(topic.casefold(), topic)
            if other != topic and topic not in self._topics:
                raise refusal(ResponseCode.INVALID_PARAMETER, same_files(topic, other))

    def put(self, config: TopicConfig) -> None:
        """Create a topic, or replace its settings; those of a light queue cannot be changed.

        Raises:
            BrokerError: it would have the files of another one.
        """
        if self._light(config.topic) is not None:
            return
        if config.topic not in self._topics:
            self.check_new((config.topic,))
            self.ids.created(config.topic)
        self._topics[config.topic] = config
        self._changed()

    def delete(self, topic: str) -> bool:
        """Delete a topic; False if there was none."""
        if self._topics.pop(topic, None) is None:
            return False
        self.ids.deleted(topic)
        self._changed()
        return True

    def id_of(self, topic: str) -> str | None:
        """Return a topic's id; None if it is not in the table."""
        return self.ids.find(topic) if topic in self._topics else None

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def create_for_send(
        self, topic: str, default_topic: str, queue_count: int
    ) -> TopicConfig | None:
        """Create a topic for a send, from a template topic that may be inherited.

        Returns:
            Its settings, or None if no template allows it.

        Raises:
            BrokerError: as ``put``.
        """
        template = self._topics.get(default_topic)
        if template is None or not template.perm & _INHERIT:
            if topic.startswith(names.RETRY_PREFIX):
                return self.create(topic, queue_count=1)
            return None
        count = min(queue_count, template.write_queue_count)
        perm = template.perm & ~_INHERIT
        return self.create(topic, queue_count=max(count, 1), perm=perm)

    def create(
        self, topic: str, *, queue_count: int, perm: int = _READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic's settings; create it with this many queues if it does not exist.

        No topic gets more than ``QUEUE_COUNT_MAX``.

        Raises:
            BrokerError: as ``put``.
        """
        config = self._topics.get(topic)
        if config is None:
            config = _with_queues(topic, queue_count, perm=perm, sys_flag=sys_flag)
            self.put(config)
            _log.info("topic %s created with %d queues", topic, config.write_queue_count)
        return config

    def is_ordered(self, topic: str) -> bool:
        """Is this an order topic?"""
        config = self._topics.get(topic)
        return config is not None and config.order

    def order(self, topics: Iterable[str], *, is_wanted: bool = True) -> None:
        """Make order topics of those that exist here, or ordinary ones."""
        changed = [
            dataclasses.replace(config, order=is_wanted)
            for config in map(self._topics.get, topics)
            if config is not None and config.order != is_wanted
        ]
        for config in changed:
            self._topics[config.topic] = config
            _log.info("topic %s: order=%s", config.topic, is_wanted)
        if changed:
            self._changed()

    def adopt(self, queues: list[QueueKey]) -> None:
        """Create the topics of queues that are in the store but not in the table.

        A crash can lose the last change of the table, never the messages.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            if topic not in self._topics and not is_light(topic):
                _log.warning("topic %s has messages but no settings; created again", topic)
                self._topics[topic] = _with_queues(topic, count)  # It keeps its id.
                self._changed()

    def body(self) -> TopicTableBody:
        """Return the table as sent to name servers, slaves and tools."""
        return TopicTableBody(version=self.version, topics=self._topics)

    def begin_term(self, number: int) -> None:
        """Have name servers prefer what this broker says to what masters of earlier terms say."""
        if self.version.state_version < number:
            self.version = dataclasses.replace(self.version, state_version=number)
            self._changed()

    def take_over(self, body: TopicTableBody) -> list[str]:
        """Have the topics of a master, and its version; return the names of those that are gone."""
        if body.version == self.version:
            return []
        gone = sorted(self._topics.keys() - body.topics.keys())
        for topic in gone:
            self.ids.deleted(topic)
        self._topics = _limited(body.topics)
        self.version = body.version
        self.on_change()
        return gone

    def to_text(self) -> str:
        """Return the text of ``topics.json``."""
        return fastjson.dump_pretty(self.body().to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``topics.json``, its system topics included."""
        body = TopicTableBody.from_json(value)
        self._topics |= _limited(body.topics)
        self.version = body.version
        self._topics.pop(names.DEFAULT_TOPIC, None)
        self._create_system_topics()

    def settings_changed(self) -> None:
        """Offer the template of automatically created topics, or take it away."""
        self._topics.pop(names.DEFAULT_TOPIC, None)
        self._create_system_topics()
        self._changed()

    def _create_system_topics(self) -> frozenset[str]:
        config = self._config
        inherit = int(Permission.INHERIT)
        cluster_perm = inherit | (_READ_WRITE if config.cluster_topic else 0)
        broker_perm = inherit | (_READ_WRITE if config.broker_topic else 0)
        wanted = [
            (names.SELF_TEST_TOPIC, 1, _READ_WRITE),
            (names.BENCHMARK_TOPIC, 1024, _READ_WRITE),
            (config.cluster, 16, cluster_perm),
            (config.name, 1, broker_perm),
            (names.MEMBERS_PREFIX + config.name, 1, inherit),
            (names.OFFSET_MOVED_TOPIC, 1, _READ_WRITE),
            (names.SCHEDULE_TOPIC, 18, _READ_WRITE),
            (config.cluster + names.REPLY_SUFFIX, 1, _READ_WRITE),
            (names.HALF_TOPIC, 1, _READ_WRITE),
            (names.HALF_OP_TOPIC, 1, _READ_WRITE),
            (names.TIMER_TOPIC, 1, _READ_WRITE),
            (names.revive_topic(config.cluster), config.revive_queue_count, _READ_WRITE),
        ]
        if config.trace_topic:
            wanted.append((config.trace_topic_name, 1, _READ_WRITE))
        if config.auto_create_topic:
            count = config.default_topic_queue_count
            wanted.append((names.DEFAULT_TOPIC, count, inherit | _READ_WRITE))
        for topic, count, perm in wanted:
            if topic not in self._topics:
                self._topics[topic] = _with_queues(topic, count, perm=perm)
        return frozenset(topic for topic, _, _ in wanted)

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.wall_ms())
        self.on_change()


def _limited(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Return topics that somebody else has made, with as many queues as one can have."""
    found = dict(topics)
    for name, config in topics.items():
        if max(config.read_queue_count, config.write_queue_count) > QUEUE_COUNT_MAX:
            found[name] = dataclasses.replace(
                config,
                read_queue_count=min(config.read_queue_count, QUEUE_COUNT_MAX),
                write_queue_count=min(config.write_queue_count, QUEUE_COUNT_MAX),
            )
            _log.error(
                "topic %s has %d and %d queues (readQueueNums, writeQueueNums); taken with at "
                "most %d",
                name,
                config.read_queue_count,
                config.write_queue_count,
                QUEUE_COUNT_MAX,
            )
    return found


def _with_queues(
    topic: str, count: int, *, perm: int = _READ_WRITE, sys_flag: int = 0
) -> TopicConfig:
    count = min(count, QUEUE_COUNT_MAX)
    return TopicConfig(
        topic=topic,
        read_queue_count=count,
        write_queue_count=count,
        perm=perm,
        topic_sys_flag=sys_flag,
    )
