"""The SQL92 filters that consumer groups subscribe with, remembered when they are away.

A filter is compiled once, when its group registers it. The file ``consumerFilter.json`` keeps it
for a day after its group has left: bit maps of messages that are stored in the meantime take
account of it, so that the group need not look at each of them when it is back.

Source: RocketMQ ConsumerFilterManager, ConsumerFilterData.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pymq.broker.config import BrokerConfig
from pymq.broker.state.filter_turns import COSTLY_WEIGHT, FilterTurns
from pymq.broker.state.message_filter import MessageFilter
from pymq.clock import Clock
from pymq.errors import CorruptRecord
from pymq.filter.bloom import BloomFilter
from pymq.filter.evaluate import Compiled, SqlFilter, find_sql92
from pymq.protocol import fastjson
from pymq.protocol.bodies import Subscription
from pymq.protocol.filter_body import (
    BloomPositions,
    ConsumerFilter,
    ConsumerFilterTable,
    TopicFilters,
)
from pymq.protocol.message import decode_properties
from pymq.protocol.record import record_properties
from pymq.store import BitMapTest

_log = logging.getLogger(__name__)

SQL92 = "SQL92"
#: What subscriptions to tags are called.
TAG_TYPES = ("", "TAG")
#: After a restart, groups count as gone since this long before it, until they come back.
_GONE_BEFORE_RESTART_MS = 30_000


@dataclass(slots=True)
class GroupFilter:
    """The filter of a group for a topic.

    Attributes:
        entry: its line in the file.
        bit_maps: what the bit maps of messages say of it.
        has_warned: was it said that there are messages which it cannot compare?
        matches: tells of messages whether the group wants them.
    """

    entry: ConsumerFilter
    compiled: SqlFilter
    bit_maps: BitMapTest
    has_warned: bool = False
    matches: MessageFilter = field(init=False)

    def __post_init__(self) -> None:
        self.matches = MessageFilter(self.compiled, self._warn)

    @property
    def version(self) -> int:
        """The version of the subscription, ms."""
        return self.entry.version

    @property
    def is_dead(self) -> bool:
        """Has its group left, or given up the topic?"""
        return self.entry.dead_ms >= self.entry.born_ms

    def _warn(self, error: ValueError) -> None:
        """Say what would be hard to find out: messages that are there, and never arrive."""
        if self.has_warned:
            return
        self.has_warned = True
        _log.warning(
            "group %s never gets messages of topic %s that its filter cannot compare, as in "
            "RocketMQ: %.200r: %s. Compare text with text (a = '5'), write 5.0 for 5 where a value "
            "may have a fraction, or have producers send what the filter expects; this is said "
            "once for each subscription",
            self.entry.group,
            self.entry.topic,
            self.compiled.expression,
            error,
        )


class FilterTable:
    """Topic, group -> filter.

    Attributes:
        latest_ms: returns the store time of the last message that is visible, which may lie
            before or after the clock's time; to be set by whoever has a store.
        turns: of the reads that apply filters.
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._clock = clock
        self._bloom = BloomFilter(
            error_percent=config.bloom_error_percent, name_count=config.bloom_name_count
        )
        self._expiry_ms = config.filter_expiry_ms
        self._topics: dict[str, dict[str, GroupFilter]] = {}
        self._topics_of: dict[str, set[str]] = {}
        #: Expressions that need not be compiled, for the time of one call.
        self._prepared: Mapping[str, Compiled] = {}
        #: Expressions that did not compile and were warned of, by topic and group.
        self._warned: dict[tuple[str, str], str] = {}
        #: Topics and groups of which was said that members filter by different expressions.
        self._warned_older: set[tuple[str, str]] = set()
        self.latest_ms: Callable[[], int] = lambda: 0
        self.turns = FilterTurns()
        self.is_changed = False

    def find(self, topic: str, group: str) -> GroupFilter | None:
        """Return the filter of a group for a topic, or None."""
        return self._topics.get(topic, {}).get(group)

    def weight_of(self, group: str) -> int:
        """Return how many comparisons one of a group's filters may need for a message."""
        topics = self._topics_of.get(group, ())
        return max((self._topics[topic][group].matches.weight for topic in topics), default=1)

    def bit_map(self, topic: str, record: memoryview) -> bytes | None:
        """Return which filters a record passes; None if there are none for its topic.

        Of costly ones that is not found out here, where everybody waits: it counts as passed, and
        whoever reads has a look.

        Source: RocketMQ CommitLogDispatcherCalcBitMap.
        """
        filters = self._topics.get(topic)
        if not filters:
            return None
        try:
            _, _, encoded = record_properties(record, 0, len(record))
        except CorruptRecord as error:
            _log.error("no bit map for a message of topic %s: %s", topic, error)
            return None
        properties = decode_properties(encoded)
        return self._bloom.bit_map(
            one.bit_maps.positions
            for one in filters.values()
            if one.matches.weight > COSTLY_WEIGHT or one.compiled.matches(properties)
        )

    # --- registration

    @contextmanager
    def using(self, prepared: Mapping[str, Compiled]) -> Iterator[None]:
        """Take what these expressions compile to from here; for one turn of the event loop.

        ``find_sql92`` remembers too few for all that a client may subscribe with at once.
        """
        self._prepared = prepared
        try:
            yield
        finally:
            self._prepared = {}

    def subscribe(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Take over what a member of a group subscribes to."""
        topics = set()
        for one in subscriptions:
            topics.add(one.topic)
            if one.expression_type not in TAG_TYPES and one.expression:
                self._register(group, one)
        for topic in self._topics_of.get(group, set()) - topics:
            self._bury(self._topics[topic][group])

    def unsubscribe(self, group: str) -> None:
        """Take note that the last member of a group has left."""
        for topic in self._topics_of.get(group, ()):
            self._bury(self._topics[topic][group])
        for key in [key for key in self._warned if key[1] == group]:
            del self._warned[key]
        self._warned_older = {key for key in self._warned_older if key[1] != group}

    def _register(self, group: str, subscription: Subscription) -> None:
        """Register a filter; one that does not compile removes an older one."""
        topic, version = subscription.topic, subscription.version
        known = self.find(topic, group)
        if known is not None:
            entry = known.entry
            same = (
                entry.expression == subscription.expression
                and entry.expression_type == subscription.expression_type
            )
            if not known.is_dead and version <= known.version:
                if version < known.version and not same:
                    self._warn_older(known, subscription)
                return
            # Versions are times of clients, and clocks differ: of a group that was gone, what it
            # comes back with counts. (RocketMQ goes on with the old one.)
            if version == known.version or same:
                entry.version = version
                entry.dead_ms = 0
                self.is_changed = True
                return
        compiled = self._compile(group, subscription)
        if compiled is None:
            self._remove(topic, group)
            return
        positions = list(self._bloom.positions(f"{group}#{topic}"))
        entry = ConsumerFilter(
            group=group,
            topic=topic,
            expression=subscription.expression,
            expression_type=subscription.expression_type,
            # The bit maps of messages that are visible already know nothing of it.
            born_ms=max(self._clock.wall_ms(), self.latest_ms()),
            version=version,
            bloom=BloomPositions(bit_count=self._bloom.bit_count, positions=positions),
        )
        self._put(entry, compiled)
        _log.info(
            "group %.80s filters topic %.80s by %.200r", group, topic, subscription.expression
        )

    def _warn_older(self, known: GroupFilter, subscription: Subscription) -> None:
        topic, group = known.entry.topic, known.entry.group
        if (topic, group) in self._warned_older:
            return
        self._warned_older.add((topic, group))
        _log.warning(
            "group %.80s: a member filters topic %.80s by %.200r, and that is ignored: the "
            "subscription of another one is %d ms newer by their clocks, and filters by %.200r. "
            "All members must subscribe to the same, and their clocks agree; restart those with "
            "the old expression; this is said once",
            group,
            topic,
            subscription.expression,
            known.version - subscription.version,
            known.entry.expression,
        )

    def _compile(self, group: str, subscription: Subscription) -> SqlFilter | None:
        topic, expression = subscription.topic, subscription.expression
        if subscription.expression_type == SQL92:
            compiled = self._prepared.get(expression) or find_sql92(expression)
            if isinstance(compiled, SqlFilter):
                return compiled
            reason = str(compiled)
        else:
            reason = f"filters of type {subscription.expression_type} are not known"
        if self._warned.get((topic, group)) != expression:
            self._warned[topic, group] = expression
            _log.warning(
                "group %.80s: its filter of topic %.80s is refused, and so are its pulls, until it "
                "subscribes with another one: %.200r (%.200s)",
                group,
                topic,
                expression,
                reason,
            )
        return None

    def _put(self, entry: ConsumerFilter, compiled: SqlFilter) -> None:
        topic, group = entry.topic, entry.group
        assert entry.bloom is not None  # otherwise it would not be ours
        test = BitMapTest(
            tuple(entry.bloom.positions), self._bloom.bit_count // 8, since_ms=entry.born_ms
        )
        self._topics.setdefault(topic, {})[group] = GroupFilter(entry, compiled, test)
        self._topics_of.setdefault(group, set()).add(topic)
        self._warned.pop((topic, group), None)
        self._warned_older.discard((topic, group))
        self.is_changed = True

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic, {})
        if groups.pop(group, None) is None:
            return
        if not groups:
            del self._topics[topic]
        topics = self._topics_of[group]
        topics.discard(topic)
        if not topics:
            del self._topics_of[group]
        self.is_changed = True

    def _bury(self, found: GroupFilter) -> None:
        if not found.is_dead:
            found.entry.dead_ms = self._clock.wall_ms()
            self.is_changed = True

    def expire(self) -> int:
        """Forget the filters whose groups left long ago; return how many."""
        latest = self._clock.wall_ms() - self._expiry_ms
        gone = [
            (topic, group)
            for topic, groups in self._topics.items()
            for group, found in groups.items()
            if found.is_dead and found.entry.dead_ms <= latest
        ]
        for topic, group in gone:
            self._remove(topic, group)
        return len(gone)

    # --- file

    def to_text(self) -> str:
        """Return the text of ``consumerFilter.json``."""
        table = ConsumerFilterTable()
        for topic, groups in self._topics.items():
            for found in groups.values():
                found.entry.is_dead = found.is_dead
            table.topics[topic] = TopicFilters(
                topic=topic, groups={group: found.entry for group, found in groups.items()}
            )
        return fastjson.dump_pretty(table.to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``consumerFilter.json``.

        If the sizes of bit maps are others by now, nothing of it: all filters would be needed to
        understand the bit maps that were stored.
        """
        entries = [
            entry
            for topic in ConsumerFilterTable.from_json(value).topics.values()
            for entry in topic.groups.values()
        ]
        if not all(map(self._is_ours, entries)):
            _log.warning(
                "consumerFilter.json is of other sizes of bit maps (maxErrorRateOfBloomFilter, "
                "expectConsumerNumUseFilter): its %d filters are registered again when their "
                "groups come back",
                len(entries),
            )
            return
        gone_ms = self._clock.wall_ms() - _GONE_BEFORE_RESTART_MS
        for entry in entries:
            compiled = find_sql92(entry.expression)
            if entry.expression_type != SQL92 or not isinstance(compiled, SqlFilter):
                _log.warning(
                    "consumerFilter.json: the filter of group %s for topic %s is left out: %.200s",
                    entry.group,
                    entry.topic,
                    compiled,
                )
                continue
            known = self.find(entry.topic, entry.group)
            if known is not None and not known.is_dead:
                continue  # Of a run before, whose clients are still connected.
            if entry.dead_ms == 0:
                entry.dead_ms = max(gone_ms, entry.born_ms)
            self._put(entry, compiled)

    def _is_ours(self, entry: ConsumerFilter) -> bool:
        found = entry.bloom
        return (
            found is not None
            and found.bit_count == self._bloom.bit_count
            and len(found.positions) == self._bloom.hash_count
            and all(0 <= one < found.bit_count for one in found.positions)
        )
