"""Pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), with long polling and tag filter.

Source: RocketMQ PullMessageProcessor.
"""

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pymq.broker.config import BrokerConfig
from pymq.broker.long_poll import HeldRequest, LongPoll
from pymq.broker.record_response import RecordResponses
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.errors import LocalProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.bodies import Subscription
from pymq.protocol.codes import Permission, PullFlag, RequestCode, ResponseCode
from pymq.protocol.headers.pull import PullRequest, PullResponse
from pymq.store import Arrival, MessageStore, ReadResult, ReadStatus
from pymq.store.searches import among

_READ = int(Permission.READ)

TagCodes = npt.NDArray[np.int64]

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullHandlers:
    """Hands out messages, at once or when they arrive."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        clients: ClientTable,
        long_poll: LongPoll,
        responses: RecordResponses,
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._long_poll = long_poll
        self._responses = responses

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
        }

    def pull(self, request: Request) -> Answer:
        """Answer a pull, or hold it until a message arrives."""
        header = PullRequest.from_fields(request.fields)
        tag_codes = self._check(header)
        if header.sys_flag & PullFlag.COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        result = self._read(header, tag_codes)
        code = _response_code(result, header.queue_offset)
        may_wait = header.sys_flag & PullFlag.SUSPEND and code == ResponseCode.PULL_NOT_FOUND
        if may_wait and self._hold(request, header, tag_codes):
            return None
        return self._answer(request, result, code)

    # --- checks

    def _check(self, header: PullRequest) -> TagCodes | None:
        """Check that a pull may be served; return its tag filter, None if it has none."""
        config = self._config
        if not config.is_readable:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.name}] pulling message is forbidden "
                f"(broker permission {config.permission})",
            )
        group = self._groups.require(header.consumer_group)
        if not group.consume_enable:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
            )
        topic = self._topics.require(header.topic)
        if not topic.perm & _READ:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden "
                f"(topic permission {topic.perm})",
            )
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}]",
            )
        return self._tag_codes(header, group.consume_broadcast_enable)

    def _tag_codes(self, header: PullRequest, may_broadcast: bool) -> TagCodes | None:
        if header.sys_flag & PullFlag.SUBSCRIPTION:
            kind = header.expression_type or "TAG"
            if kind != "TAG":
                raise _not_tags(kind)
            return _codes_of_expression(header.topic, header.subscription)
        group = self._clients.consumer_group(header.consumer_group)
        if group is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {header.consumer_group} "
                "(no heartbeat yet)",
            )
        if group.is_broadcasting and not may_broadcast:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group}, "
                f"topic {header.topic}",
            )
        if subscription.version < header.sub_version:
            raise refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: {header.consumer_group} "
                f"{subscription.expression}",
            )
        if subscription.expression_type not in ("", "TAG"):
            raise _not_tags(subscription.expression_type)
        if subscription.class_filter_mode or not subscription.tag_codes:
            return None
        return _sorted_codes(subscription.tag_codes)

    # --- reading and answering

    def _read(self, header: PullRequest, tag_codes: TagCodes | None) -> ReadResult:
        config = self._config
        extended = header.extended_bytes_max
        if extended is None:
            count_max = min(header.message_count_max, config.pull_count_max)
            bytes_max = config.pull_bytes_max
        else:
            count_max = min(header.message_count_max, config.extended_pull_count_max)
            bytes_max = min(extended, config.extended_pull_bytes_max)
        return self._store.read(
            header.topic,
            header.queue_id,
            header.queue_offset,
            count_max=max(count_max, 1),
            bytes_max=max(bytes_max, 1),
            tag_codes=tag_codes,
        )

    def _hold(self, request: Request, header: PullRequest, tag_codes: TagCodes | None) -> bool:
        wait_ms = header.suspend_timeout_ms
        if not self._config.long_polling:
            wait_ms = self._config.short_polling_ms
        return self._long_poll.hold(
            HeldRequest(
                request,
                ((header.topic, header.queue_id),),
                functools.partial(is_wanted, header.queue_offset, tag_codes),
                self._clock.monotonic_s() + max(wait_ms, 0) / 1000,
                functools.partial(self._pull_again, request, header, tag_codes),
            )
        )

    def _pull_again(
        self, request: Request, header: PullRequest, tag_codes: TagCodes | None
    ) -> Answer:
        result = self._read(header, tag_codes)
        return self._answer(request, result, _response_code(result, header.queue_offset))

    def _answer(self, request: Request, result: ReadResult, code: int) -> Answer:
        fields = PullResponse(
            suggest_which_broker_id=0,
            next_begin_offset=result.next_queue_offset,
            min_offset=result.queue_first,
            max_offset=result.queue_end,
        ).to_fields()
        head = request.response(code, result.status.name, fields)
        return self._responses.make(head, result.buffers, result.starts, result.check)


def is_wanted(offset: int, tag_codes: TagCodes | None, arrival: Arrival) -> bool:
    """Return whether a held pull wants what has arrived in its queue.

    Args:
        offset: where it wants to read.
        tag_codes: its filter; None: all messages.
        arrival: what there is now.
    """
    if arrival.queue_end <= offset:
        return False
    return tag_codes is None or bool(among(arrival.tag_codes, tag_codes).any())


def _response_code(result: ReadResult, requested_offset: int) -> int:
    code = _CODES.get(result.status)
    if code is None:  # no such queue, or nothing in it
        return (
            ResponseCode.PULL_OFFSET_MOVED if requested_offset != 0 else ResponseCode.PULL_NOT_FOUND
        )
    return code


def _not_tags(kind: str) -> Exception:
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind}",
    )


@functools.lru_cache(1024)
def _sorted_codes(codes: frozenset[int]) -> TagCodes:
    return np.array(sorted(codes), np.int64)


@functools.lru_cache(1024)
def _codes_of_expression(topic: str, expression: str | None) -> TagCodes | None:
    try:
        subscription = Subscription.of_tags(topic, expression, 0)
    except LocalProtocolError as error:
        raise refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        ) from error
    if not subscription.tag_codes:
        return None
    return _sorted_codes(subscription.tag_codes)
