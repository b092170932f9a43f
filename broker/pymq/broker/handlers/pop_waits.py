"""Waiting for messages to pop: NOTIFICATION (200054), POLLING_INFO (200055).

Source: RocketMQ NotificationProcessor, PollingInfoProcessor.
"""

import functools
from collections.abc import Mapping

from pymq.broker.held_requests import waited_ms
from pymq.broker.pop.access import PopAccess
from pymq.broker.pop.pop_polls import HeldPop, Holding, PopPolls
from pymq.broker.pop.popping import Popping
from pymq.clock import Clock
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pop import (
    NotificationRequest,
    NotificationResponse,
    PollingInfoRequest,
    PollingInfoResponse,
)


class PopWaitHandlers:
    """Tells consumers that there is something to pop.

    Args:
        pops: the held pops.
        polls: the held notifications.
    """

    def __init__(
        self, clock: Clock, access: PopAccess, popping: Popping, pops: PopPolls, polls: PopPolls
    ) -> None:
        self._clock = clock
        self._access = access
        self._popping = popping
        self._pops = pops
        self._polls = polls

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.count,
        }

    def notify(self, request: Request) -> Answer:
        """NOTIFICATION (200054)."""
        header = NotificationRequest.from_fields(request.fields)
        waits_ms = header.poll_ms - waited_ms(request)
        return self._notify(request, header, self._clock.monotonic_s() + waits_ms / 1000)

    def _notify(self, request: Request, header: NotificationRequest, deadline_s: float) -> Answer:
        self._access.check_broker("peeking message")
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        self._access.check_reading(topic, queue_id, group)
        has_message = self._popping.has_any(
            topic, group, queue_id, in_order=header.order, attempt_id=header.attempt_id
        )
        holding = Holding.LATE
        if not has_message and header.poll_ms > 0:
            holding = self._polls.hold(
                HeldPop(
                    request,
                    deadline_s,
                    functools.partial(self._notify, request, header, deadline_s),
                    (topic, group, queue_id),
                    self._popping.retry_topics(topic, group),
                    lambda arrival: True,
                )
            )
        if holding is Holding.HELD:
            return None
        fields = NotificationResponse(
            has_message=has_message, polling_full=holding is Holding.FULL
        ).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields)

    def count(self, request: Request) -> Command:
        """POLLING_INFO (200055)."""
        header = PollingInfoRequest.from_fields(request.fields)
        self._access.check_broker("peeking message")
        self._access.check_reading(header.topic, header.queue_id, header.consumer_group)
        count = self._pops.count_in((header.topic, header.consumer_group, header.queue_id))
        fields = PollingInfoResponse(polling_count=count).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields)
