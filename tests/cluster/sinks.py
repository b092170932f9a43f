"""A writer of an exactly-once sink, request by request."""

import base64
import itertools
from collections.abc import Sequence

from tests.cluster.broker_peer import Peer, fields, records
from tests.cluster.test_preencoded_records import preencoded

from pymq.protocol.codes import PART_FIELD, RECORD_SIZES_FIELD, ResponseCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.headers.sinks import StageResponse
from pymq.protocol.record import Record
from pymq.protocol.sink_bodies import SinkBatch, SinkRow, SinkRows, StagedRun
from pymq.protocol.sink_decisions import PublishRequest, StagedRuns

TIMEOUT_S = 30.0


class SinkWriter:
    """One run of a query.

    Args:
        peer: the broker.
        sink, query, run, planned_ms: see ``SinkBatch``.
    """

    _parts = itertools.count(1)

    def __init__(
        self,
        peer: Peer,
        sink: str = "s",
        query: str = "q",
        run: str = "r1",
        planned_ms: int = 0,
    ) -> None:
        self.peer = peer
        self.planned_ms = planned_ms
        self.sink, self.query, self.run = sink, query, run

    def batch(self, number: int, row_count: int = 0) -> SinkBatch:
        return SinkBatch(
            sink=self.sink,
            query=self.query,
            run=self.run,
            batch=number,
            row_count=row_count,
            planned_ms=self.planned_ms,
        )

    async def stage(
        self, bodies: Sequence[bytes], topic: str = "T", queue_id: int = 0, properties: bytes = b""
    ) -> StagedRun:
        part = next(self._parts)
        messages = [(body, properties) for body in bodies]
        answer = await self.ask_stage(messages, topic, queue_id, part)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        place = StageResponse.from_fields(answer.fields)
        return StagedRun(
            topic=place.topic or topic,
            queue_id=queue_id if place.queue_id is None else place.queue_id,
            physical_offset=place.physical_offset,
            size_bytes=place.size_bytes,
            count=len(bodies),
            part=part,
        )

    async def ask_stage(
        self, messages: list[tuple[bytes, bytes]], topic: str, queue_id: int, part: int
    ) -> Command:
        """Ask for messages to be staged: body and properties of each."""
        body = preencoded(topic, messages)
        request = SendRequest(
            "pg", topic, "TBW102", 4, queue_id, 0, 1700000000000, 0, "", 0, False, None, True
        )
        more = {RECORD_SIZES_FIELD: base64.b64encode(body.sizes).decode(), PART_FIELD: str(part)}
        command = Command(SinkRequest.STAGE_RECORDS, request.to_v2() | more, bytes(body.body))
        return await self.peer.channel.request(command, TIMEOUT_S)

    async def publish(
        self,
        number: int,
        *runs: StagedRun,
        is_lasting: bool = True,
        row_count: int | None = None,
    ) -> Command:
        if row_count is None:
            row_count = sum(run.count for run in runs)
        batch = self.batch(number, row_count)
        body = PublishRequest(batch=batch, runs=StagedRuns.of(runs), is_lasting=is_lasting).encode()
        return await self.peer.ask(SinkRequest.PUBLISH_BATCH, body)

    async def is_new(self, number: int) -> bool:
        answer = await self.peer.ask(SinkRequest.SINK_STATE, self.batch(number).encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return fields(answer)["new"] == "true"


async def shown(peer: Peer, **which: str) -> list[SinkRow]:
    answer = await peer.ask(SinkRequest.SHOW_SINKS, **which)
    return SinkRows.decode(answer.body).sinks


async def seen(peer: Peer, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """Return what consumers see of a queue."""
    found: list[Record] = []
    while True:
        answer = await peer.pull(topic, len(found), queueId=queue_id)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += records(answer)


async def bodies(peer: Peer, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await seen(peer, topic, queue_id)]
