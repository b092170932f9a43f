"""Exactly-once sinks, an extension of pymq: whether a batch is new, and publishing it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.codes import SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.headers.sinks import ShowSinksRequest, SinkNameRequest, SinkResponse
from pymq.protocol.sink_bodies import SinkBatch, SinkRow, SinkRows

if TYPE_CHECKING:  # It needs more than the standard library.
    from pymq.protocol.sink_decisions import PublishRequest


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a broker says of a batch.

    Attributes:
        is_new: whether it was not published before.
        row: what the sink has published last; None: nothing.
    """

    is_new: bool
    row: SinkRow | None


def sink_state(batch: SinkBatch) -> Operation[SinkState]:
    """Was a batch published already? Fences older runs of its query."""
    request = new_request(SinkRequest.SINK_STATE, body=batch.encode())
    return Plain(request, f"what sink {batch.sink!r} has published", _read_state)


def publish_batch(wanted: "PublishRequest") -> Operation[SinkState]:
    """Publish what was staged; it may be asked for again if there is no answer."""
    request = new_request(SinkRequest.PUBLISH_BATCH, body=wanted.encode())
    what = f"to publish batch {wanted.batch.batch} of sink {wanted.batch.sink!r}"
    return Plain(request, what, _read_state)


def show_sinks(sink: str) -> Operation[list[SinkRow]]:
    """What has a sink published? No row: nothing."""
    request = new_request(SinkRequest.SHOW_SINKS, ShowSinksRequest(sink=sink))
    return Plain(request, f"what sink {sink!r} has published", _read_rows)


def list_sinks(after: str | None = None) -> Operation[list[SinkRow]]:
    """What have the sinks of a broker published: some of them, by name; no row: there are no more.

    Args:
        after: the name of the last one that is known; None: none is.
    """
    request = new_request(SinkRequest.SHOW_SINKS, ShowSinksRequest(after=after))
    return Plain(request, "what sinks have published", _read_rows)


def forget_sink(sink: str) -> Operation[None]:
    """Let a sink begin again."""
    request = new_request(SinkRequest.FORGET_SINK, SinkNameRequest(sink=sink))
    return Plain(request, f"to forget sink {sink!r}", nothing)


def _read_rows(response: Command) -> list[SinkRow]:
    return SinkRows.decode(response.body).sinks


def _read_state(response: Command) -> SinkState:
    is_new = SinkResponse.from_fields(response.fields).is_new
    return SinkState(is_new, SinkRow.decode(response.body) if response.body else None)
