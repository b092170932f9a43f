"""Staging records of an exactly-once sink, an extension of pymq: no consumer sees them yet."""

import base64
from dataclasses import dataclass

from pymq.client.operations import Send, SendResult, SendStatus
from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import PART_FIELD, RECORD_SIZES_FIELD, ResponseCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.headers.sinks import StageResponse
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.sink_bodies import StagedRun


@dataclass(slots=True, kw_only=True)
class StagedResult(SendResult):
    """Where records were staged.

    Attributes:
        run: for the request that publishes them.
    """

    run: StagedRun


class Stage(Send):
    """STAGE_RECORDS: made of what sends the same records as a batch.

    Args:
        send: that.
        records: what it sends.
        part: see ``StagedRun``.
    """

    __slots__ = ("_part", "_records")

    def __init__(self, send: Send, records: RecordsBody, part: int) -> None:
        self.request = send.request
        self.queue = send.queue
        self._message_id = None
        self._records = records
        self._part = part
        self.request.code = int(SinkRequest.STAGE_RECORDS)
        assert self.request.fields is not None
        self.request.fields[RECORD_SIZES_FIELD] = base64.b64encode(records.sizes).decode()
        self.request.fields[PART_FIELD] = str(part)

    @property
    def description(self) -> str:
        return f"to stage records for topic {self.queue.topic!r}, queue {self.queue.queue_id}"

    def result(self, response: Command, *, peer: str) -> StagedResult:
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, peer)
        try:
            place = StageResponse.from_fields(response.fields)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{peer} answered {self.description}: {error}") from error
        run = StagedRun(
            topic=place.topic or self.queue.topic,
            queue_id=self.queue.queue_id if place.queue_id is None else place.queue_id,
            physical_offset=place.physical_offset,
            size_bytes=place.size_bytes,
            count=self._records.record_count,
            part=self._part,
        )
        return StagedResult(SendStatus.OK, None, "", self.queue, -1, run=run)
