"""Headers of RECALL_MESSAGE (370)."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class RecallRequest(Header):
    """Cancel a timer message (RecallMessageRequestHeader)."""

    topic: str = ""
    recall_handle: str = ""
    producer_group: str | None = None


@dataclass(slots=True, kw_only=True)
class RecallResponse(Header):
    """Which message it was (RecallMessageResponseHeader)."""

    message_id: str = wire("msgId")
