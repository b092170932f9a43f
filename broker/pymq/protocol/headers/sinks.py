"""Headers of requests about exactly-once sinks, an extension of pymq; see ``sink_bodies``."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class StageResponse(Header):
    """Where records were staged."""

    physical_offset: int
    size_bytes: int = wire("bytes")


@dataclass(slots=True, kw_only=True)
class SinkNameRequest(Header):
    """A sink; all of them if none is named."""

    sink: str | None = None


@dataclass(slots=True, kw_only=True)
class SinkResponse(Header):
    """Was a batch new, or had the sink published it already?"""

    is_new: bool = wire("new")
