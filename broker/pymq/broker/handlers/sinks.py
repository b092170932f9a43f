"""Exactly-once sinks, an extension of pymq: PUBLISH_BATCH, SINK_STATE, SHOW_SINKS, FORGET_SINK.

STAGE_RECORDS is a send; see ``handlers.send``.
"""

from collections.abc import Mapping

from pymq.broker.sinks.journal import SinkJournal
from pymq.broker.sinks.publishing import Publishing
from pymq.broker.state.sinks import SinkTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import CorruptRecord, DurabilityUnknown, OffsetOutOfRange, refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.codes import ResponseCode, SinkCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.headers.sinks import ShowSinksRequest, SinkNameRequest, SinkResponse
from pymq.protocol.names import SINK_TOPIC
from pymq.protocol.sink_bodies import SinkBatch, SinkRows
from pymq.protocol.sink_decisions import (
    JOURNAL_VERSION,
    JOURNAL_VERSION_DELAYS,
    JournalEntry,
    JournalKind,
    PublishRequest,
)

#: Longest name of a sink, its query, its run; and of a digest.
TEXT_MAX = 255
#: Sinks in one answer to SHOW_SINKS.
SHOWN_MAX = 1000


class SinkHandlers:
    """Publishes batches, and shows what was published."""

    def __init__(
        self,
        topics: TopicTable,
        table: SinkTable,
        journal: SinkJournal,
        publishing: Publishing,
    ) -> None:
        self._topics = topics
        self._table = table
        self._journal = journal
        self._publishing = publishing

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            SinkRequest.PUBLISH_BATCH: self.publish,
            SinkRequest.SINK_STATE: self.state,
            SinkRequest.SHOW_SINKS: self.show,
            SinkRequest.FORGET_SINK: self.forget,
        }

    async def state(self, request: Request) -> Command:
        """SINK_STATE: say whether a batch was published already, and fence older runs."""
        batch = SinkBatch.decode(request.body)
        _check(batch)
        is_new = self._table.admit(batch)
        if self._table.has_unrecorded_run(batch.sink):
            # Older runs stay fenced after a restart.
            await self._journal.record(JournalEntry(kind=JournalKind.BEGUN.value, batch=batch))
        return self._answer(request, batch.sink, is_new=is_new)

    async def publish(self, request: Request) -> Command:
        """PUBLISH_BATCH: decide what a batch is, and answer when consumers see it."""
        body = PublishRequest.decode(request.body)
        batch = body.batch
        _check(batch)
        try:
            async with self._journal.lock(batch.sink):
                is_new = self._table.admit(batch)
                if is_new:
                    await self._decide(body)
                sink = self._table.find(batch.sink)
                assert sink is not None
                await self._journal.wait_secured(sink.decision_end)
            await self._publishing.wait(batch.sink)
        except DurabilityUnknown as error:
            return request.response(ResponseCode.FLUSH_DISK_TIMEOUT, str(error))
        if sink.row.lost_count:
            raise refusal(
                SinkCode.ROWS_LOST,
                f"batch {batch.batch} of sink {batch.sink} is published, but {sink.row.lost_count} "
                "of its rows were lost when it was decided already: what was staged is damaged or "
                "deleted, see the log of the broker. Write these rows in another way; the sink "
                "goes on with the next batch",
            )
        return self._answer(request, batch.sink, is_new=is_new)

    async def _decide(self, body: PublishRequest) -> None:
        count = body.runs.row_count
        if count != body.batch.row_count:
            # A task whose batch was published already, as it was told, stages nothing. If it is
            # not by now (the sink was forgotten), the rest must not pass for the whole batch.
            raise refusal(
                SinkCode.RUNS_LOST,
                f"batch {body.batch.batch} of sink {body.batch.sink} has {body.batch.row_count} "
                f"rows, and {count} are staged; nothing was published, write the batch again",
            )
        for topic in body.runs.topics:
            self._topics.require(topic)
        with self._publishing.keeping(body.runs):
            try:
                delayed = await self._publishing.check(body.runs)
            except (CorruptRecord, OffsetOutOfRange) as error:
                raise refusal(
                    SinkCode.RUNS_LOST, f"{error}; nothing was published, write the batch again"
                ) from error
            for topic in delayed:
                self._topics.require(topic)
            if SINK_TOPIC not in self._topics:
                self._topics.create(SINK_TOPIC, queue_count=1)
            # The one before may still be copied.
            await self._publishing.wait(body.batch.sink)
            # What took long may have let a newer run begin.
            self._table.admit(body.batch)
            if not body.is_lasting:
                self._journal.make_room()
            decided = JournalEntry(
                version=JOURNAL_VERSION_DELAYS if delayed else JOURNAL_VERSION,
                kind=JournalKind.DECIDED.value,
                batch=body.batch,
                is_lasting=body.is_lasting,
                runs=body.runs,
                kept_ms=body.kept_ms,
            )
            await self._journal.record(decided)
        sink = self._table.find(body.batch.sink)
        assert sink is not None
        self._publishing.begin(sink)

    def show(self, request: Request) -> Command:
        """SHOW_SINKS: what one sink has published, or some of all."""
        wanted = ShowSinksRequest.from_fields(request.fields)
        if wanted.sink is None:
            rows = self._table.page(wanted.after or "", SHOWN_MAX)
        else:
            sink = self._table.find(wanted.sink)
            rows = [] if sink is None else [sink.row]
        return request.response(ResponseCode.SUCCESS, body=SinkRows(sinks=rows).encode())

    async def forget(self, request: Request) -> Command:
        """FORGET_SINK: let a sink begin again, with any query and batch."""
        name = SinkNameRequest.from_fields(request.fields).sink
        sink = self._table.find(name)
        if sink is None:
            raise refusal(ResponseCode.QUERY_NOT_FOUND, f"there is no sink {name}")
        async with self._journal.lock(sink.row.last.sink):
            await self._publishing.wait(sink.row.last.sink)
            end = await self._journal.record(
                JournalEntry(kind=JournalKind.FORGOTTEN.value, batch=sink.row.last)
            )
            await self._journal.wait_secured(end)
        return request.response(ResponseCode.SUCCESS)

    def _answer(self, request: Request, name: str, *, is_new: bool) -> Command:
        sink = self._table.find(name)
        body = b"" if sink is None else sink.row.encode()
        return request.response(
            ResponseCode.SUCCESS, fields=SinkResponse(is_new=is_new).to_fields(), body=body
        )


def _check(batch: SinkBatch) -> None:
    for name in ("sink", "query", "run", "digest"):
        text = getattr(batch, name)
        if len(text) > TEXT_MAX or not (text or name == "digest") or not text.isprintable():
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"{name} {text[:32]!a} has {len(text)} characters, expected 1..{TEXT_MAX}, all of "
                "them printable",
            )
    if batch.batch < 0:
        raise refusal(ResponseCode.INVALID_PARAMETER, f"batch {batch.batch}, expected 0 or more")
