"""Which messages a consumer gets, by its subscription: what a request says, or the heartbeats.

Source: RocketMQ PullMessageProcessor, ExpressionMessageFilter, FilterAPI.
"""

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filter_turns import COSTLY_WEIGHT, FilterTurns, TurnBudget
from pymq.broker.state.filters import SQL92, TAG_TYPES, FilterTable
from pymq.broker.state.message_filter import MessageFilter
from pymq.errors import LocalProtocolError, refusal
from pymq.filter.evaluate import (
    Compiled,
    SqlFilter,
    find_sql92,
    known_sql92,
    remember_sql92,
    try_sql92,
)
from pymq.filter.sql92 import EXPRESSION_LENGTH_MAX
from pymq.net.said_once import SaidOnce
from pymq.protocol import names
from pymq.protocol.bodies import GroupConfig, Subscription
from pymq.protocol.codes import ResponseCode
from pymq.protocol.headers.pull import FORBIDDEN_FIELD, Forbidden
from pymq.protocol.message import RETRY_TOPIC, find_property
from pymq.store import EVERYTHING, BitMapTest, Selection

_log = logging.getLogger(__name__)

#: No expression has more tags: each takes a character, and two join it to the next one.
_TAG_COUNT_MAX = (EXPRESSION_LENGTH_MAX + 2) // 3
#: Expressions up to this size, and so many codes, are what consumers usually have: many are
#: remembered, of larger ones a few.
_USUAL_LENGTH, _USUAL_COUNT = 1024, 128
_REMEMBERED_COUNT, _REMEMBERED_LARGE_COUNT = 1024, 16
#: SQL92 expressions of more characters are compiled in a thread: that takes over 5 ms.
_LONG_LENGTH = 2_000


class Selections:
    """Makes selections of subscriptions."""

    def __init__(self, config: BrokerConfig, clients: ClientTable, filters: FilterTable) -> None:
        self._config = config
        self._clients = clients
        self._filters = filters
        self._said = SaidOnce(_log)
        self._compiling = asyncio.Lock()

    @property
    def turns(self) -> FilterTurns:
        """The turns of the reads that apply filters; the same for all who make selections."""
        return self._filters.turns

    def is_ready(self, topic: str, group: str | None, expression: str | None) -> bool:
        """Return whether an SQL92 expression can be used without compiling it for long.

        Args:
            topic, group: whose filter it may already be; None: nobody's.
            expression: of any length; None: there is none.
        """
        if expression is None or not _LONG_LENGTH < len(expression) <= EXPRESSION_LENGTH_MAX:
            return True
        if known_sql92(expression) is not None:
            return True
        known = None if group is None else self._filters.find(topic, group)
        return known is not None and known.entry.expression == expression

    async def prepare(self, expression: str) -> Compiled:
        """Compile a long expression in a thread, while others have their turns.

        It is remembered, but only until others have been: use it before anything is waited for.
        """
        async with self._compiling:  # one at a time: threads take time from the event loop, too
            known = known_sql92(expression)
            if known is not None:
                return known
            return remember_sql92(expression, await asyncio.to_thread(try_sql92, expression))

    def using(self, prepared: Mapping[str, Compiled]) -> AbstractContextManager[None]:
        """Have groups subscribe with expressions that were prepared, however many they are."""
        return self._filters.using(prepared)

    def check_size(self, subscription: Subscription) -> None:
        """Check what a heartbeat subscribes to: it is kept, whether it parses or not.

        Raises:
            BrokerError: it is too long.
        """
        topic, tags, codes = subscription.topic, subscription.tags, subscription.tag_codes
        _check_length(topic, subscription.expression)
        if max(len(tags), len(codes)) > _TAG_COUNT_MAX:
            raise _too_long(topic, f"{len(tags)} tags, {len(codes)} codes of tags")
        length = sum(map(len, tags))
        if length > EXPRESSION_LENGTH_MAX:
            raise _too_long(topic, f"tags of {length} characters")

    def check(self, subscription: Subscription) -> None:
        """Check a filter before its consumer starts.

        Raises:
            BrokerError: it is too long or does not parse, or filters of its kind are not supported.
        """
        self.check_size(subscription)
        kind = subscription.expression_type
        if kind in TAG_TYPES:
            return
        self._check_supported(kind)
        found = find_sql92(subscription.expression) if kind == SQL92 else f"{kind} is not known"
        if not isinstance(found, SqlFilter):
            raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(found))

    def of_expression(
        self,
        topic: str,
        expression: str | None,
        kind: str | None,
        *,
        group: str,
        is_allowed: bool = False,
    ) -> Selection:
        """Return the selection of an expression that a request carries.

        Args:
            topic, expression, kind: what it subscribes to.
            group: who does.
            is_allowed: whether SQL92 is supported here whatever the settings say.

        Raises:
            BrokerError: it is too long or does not parse, or filters of its kind are not supported.
                (RocketMQ ignores an SQL92 expression that does not parse, and hands out all
                messages.)
        """
        if expression is not None:
            _check_length(topic, expression)
        if (kind or "") in TAG_TYPES:
            return _of_tags(topic, expression)
        if kind == SQL92 and expression:
            compiled = find_sql92(expression)
            if isinstance(compiled, SqlFilter):
                if not is_allowed:
                    self._check_supported(kind)
                return self._selection(topic, group, _matcher(compiled))
        elif kind is not None:
            self._check_supported(kind)
        raise _not_parsed()

    def of_group(self, config: GroupConfig, topic: str, version: int) -> Selection:
        """Return the selection that the members of a group subscribe to.

        Args:
            config: the group.
            topic: read by one of its members.
            version: of this member's subscription, ms.

        Raises:
            BrokerError: the broker does not know this subscription (yet), or does not allow it.
        """
        group = self._clients.consumer_group(config.group)
        if group is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {config.group} (no heartbeat yet)",
            )
        if group.is_broadcasting and not config.consume_broadcast_enable:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{config.group}] can not consume by broadcast way",
                {FORBIDDEN_FIELD: str(int(Forbidden.BROADCASTING))},
            )
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {config.group}, topic {topic}",
            )
        if subscription.version < version:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: {config.group} {subscription.expression}",
            )
        if subscription.expression_type not in TAG_TYPES:
            return self._of_filter(config.group, subscription, version)
        if subscription.class_filter_mode or not subscription.tag_codes:
            return EVERYTHING
        return _of_codes(subscription.tag_codes)

    def _of_filter(self, group: str, subscription: Subscription, version: int) -> Selection:
        found = self._filters.find(subscription.topic, group)
        if found is None:
            raise refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.version < version:
            raise refusal(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._check_supported(subscription.expression_type)
        if subscription.class_filter_mode:
            return EVERYTHING
        return self._selection(subscription.topic, group, found.matches, found.bit_maps)

    def _selection(
        self, topic: str, group: str, matches: MessageFilter, bit_maps: BitMapTest | None = None
    ) -> Selection:
        if matches.slow_ms:
            self._warn_slow(topic, group, matches)
        if self._config.filter_retries and names.is_retry_topic(topic):
            group = topic.removeprefix(names.RETRY_PREFIX)
            return Selection(
                matches=functools.partial(self._matches_retried, group),
                weight=self._filters.weight_of(group),
            )
        return Selection(
            bit_maps=bit_maps, matches=matches, verdicts=matches.verdicts, weight=matches.weight
        )

    def _warn_slow(self, topic: str, group: str, matches: MessageFilter) -> None:
        self._said.warn(
            (topic, group),
            "group %.80s: its filter of topic %.80s takes %.1f ms a message. The broker looks at a "
            "few at a time, so that others need not wait, and this group gets its messages late. "
            "Compare a property with many values by p IN ('x', 'y'), shorten the expression, or "
            "use tags; this is said once for a group and a topic: %.200r",
            group,
            topic,
            matches.slow_ms,
            matches.compiled.expression,
        )

    def _matches_retried(self, group: str, messages: Sequence[bytes]) -> list[bool]:
        """Apply the group's filter for the topic from which each message came to be retried."""
        outcomes: list[bool] = []
        is_costly = self._filters.weight_of(group) > COSTLY_WEIGHT
        budget = TurnBudget(1)
        for properties in messages:
            if is_costly and outcomes and budget.is_spent:
                break  # the others next time
            topic = find_property(properties, RETRY_TOPIC.encode())
            name = None if topic is None else str(topic, "utf-8", "replace")
            found = None if name is None else self._filters.find(name, group)
            outcomes.append(found is None or found.matches((properties,))[0])
        return outcomes

    def _check_supported(self, kind: str) -> None:
        if not self._config.property_filter:
            raise _not_supported(kind)


@functools.lru_cache(100)
def _matcher(compiled: SqlFilter) -> MessageFilter:
    return MessageFilter(compiled)


def _of_tags(topic: str, expression: str | None) -> Selection:
    if expression is None or len(expression) <= _USUAL_LENGTH:
        return _of_usual_tags(topic, expression)
    return _of_many_tags(topic, expression)


def _parsed(topic: str, expression: str | None) -> Selection:
    try:
        subscription = Subscription.of_tags(topic, expression, 0)
    except LocalProtocolError as error:
        raise _not_parsed() from error
    return _of_codes(subscription.tag_codes) if subscription.tag_codes else EVERYTHING


def _of_codes(codes: frozenset[int]) -> Selection:
    return (_of_usual_codes if len(codes) <= _USUAL_COUNT else _of_many_codes)(codes)


def _selected(codes: frozenset[int]) -> Selection:
    return Selection(tag_codes=np.array(sorted(codes), np.int64))


_of_usual_tags = functools.lru_cache(_REMEMBERED_COUNT)(_parsed)
_of_many_tags = functools.lru_cache(_REMEMBERED_LARGE_COUNT)(_parsed)
_of_usual_codes = functools.lru_cache(_REMEMBERED_COUNT)(_selected)
_of_many_codes = functools.lru_cache(_REMEMBERED_LARGE_COUNT)(_selected)


def _check_length(topic: str, expression: str) -> None:
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise _too_long(topic, f"{len(expression)} characters")


def _too_long(topic: str, what: str) -> Exception:
    most = f"{EXPRESSION_LENGTH_MAX} characters, {_TAG_COUNT_MAX} tags"
    return refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"the subscription to {topic:.127} has {what}, at most {most}",
    )


def _not_parsed() -> Exception:
    return refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
    )


def _not_supported(kind: str) -> Exception:
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind}",
    )
