"""Headers of requests about exactly-once sinks, an extension of pymq; see ``sink_bodies``."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class StageResponse(Header):
    """Where records were staged.

    Attributes:
        topic, queue_id: for which queue, if that is not the one of the request: where delayed ones
            will wait.
    """

    physical_offset: int
    size_bytes: int = wire("bytes")
    topic: str | None = None
    queue_id: int | None = None


@dataclass(slots=True, kw_only=True)
class SinkNameRequest(Header):
    """A sink."""

    sink: str


@dataclass(slots=True, kw_only=True)
class ShowSinksRequest(Header):
    """One sink, or the first ones of all, by name.

    Attributes:
        after: of those that come after this one.
    """

    sink: str | None = None
    after: str | None = None


@dataclass(slots=True, kw_only=True)
class SinkResponse(Header):
    """Was a batch new, or had the sink published it already?"""

    is_new: bool = wire("new")
