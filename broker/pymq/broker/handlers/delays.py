"""Delayed messages: GET_ALL_DELAY_OFFSET (45).

Source: RocketMQ AdminBrokerProcessor.getAllDelayOffset.
"""

from collections.abc import Callable, Mapping

from pymq.net.dispatcher import Handler, Request
from pymq.protocol import fastjson
from pymq.protocol.bodies import DelayOffsetTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


class FollowedDelayHandlers:
    """Tells how far they were at the master of this slave."""

    def __init__(self, table: Callable[[], DelayOffsetTable]) -> None:
        self._table = table

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.every}

    def every(self, request: Request) -> Command:
        """GET_ALL_DELAY_OFFSET (45): a master that is about to be online asks its slaves."""
        return request.response(ResponseCode.SUCCESS, body=self._table().encode())


class DelayHandlers:
    """Tells slaves how far the deliveries are.

    Args:
        table: returns that, in the log.
    """

    def __init__(self, table: Callable[[], DelayOffsetTable]) -> None:
        self._table = table

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.every}

    def every(self, request: Request) -> Command:
        """GET_ALL_DELAY_OFFSET (45): what the file would say if all of the log were on the disk."""
        text = fastjson.dump_pretty(self._table().to_json())
        return request.response(ResponseCode.SUCCESS, body=text.encode())
