"""The store as administrators of 5.x see and steer it: 908, 2001 to 2004.

Source: RocketMQ AdminBrokerProcessor.
"""

from collections.abc import Mapping

from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.admin_bodies import ColdReadLimits
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.administration import ReadAheadRequest
from pymq.store import MessageStore

_READ_AHEAD, _RANDOM = 0, 1


class StoreStateHandlers:
    """Answers for a master that keeps one copy, and limits no cold reads."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_flushed,
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.limit_cold_reads,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.limit_cold_reads,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.cold_read_limits,
            RequestCode.SET_COMMITLOG_READ_MODE: self.read_ahead,
        }

    def reset_flushed(self, request: Request) -> Command:
        """RESET_MASTER_FLUSH_OFFSET (908): concerns slaves; a master answers SUCCESS."""
        return request.response(ResponseCode.SUCCESS)

    def limit_cold_reads(self, request: Request) -> Command:
        """UPDATE_ and REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2001, 2002).

        RocketMQ takes limits also while they have no effect (coldDataFlowControlEnable).
        """
        raise refusal(
            ResponseCode.SYSTEM_ERROR,
            "this broker limits no cold reads: they wait in threads of their own and delay nobody",
        )

    def cold_read_limits(self, request: Request) -> Command:
        """GET_COLD_DATA_FLOW_CTR_INFO (2003)."""
        return request.response(ResponseCode.SUCCESS, body=ColdReadLimits().encode())

    def read_ahead(self, request: Request) -> Command:
        """SET_COMMITLOG_READ_MODE (2004)."""
        mode = ReadAheadRequest.from_fields(request.fields).mode
        if mode is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error")
        if mode not in (_READ_AHEAD, _RANDOM):
            raise refusal(
                ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error"
            )
        self._store.read_ahead(mode == _READ_AHEAD)
        return request.response(
            ResponseCode.SUCCESS, f"set commitlog readahead mode success, mode: {mode}"
        )
