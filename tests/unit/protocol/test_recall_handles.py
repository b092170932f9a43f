"""Recall handles: those that RocketMQ 5.3.3 gave, and strings that are none."""

import base64

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.recall_handles import RecallHandle

#: What the official broker answered to sends.
OFFICIAL = {
    "djEgdGltZXJ0IGJyb2tlci1hIDE3OTUzNDQ2NjEwMDEgVTEw": ("1795344661001", "U10"),
    "djEgdGltZXJ0IGJyb2tlci1hIDE3OTUzNDQ2NjAwMDEgVTI=": ("1795344660001", "U2"),
    "djEgdGltZXJ0IGJyb2tlci1hIDE3OTUzNDQ2NjAwMDEgRkQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDI3NzZC"
    "NUZGRDJCMjc2RTc5ODc5NDAwMDA=": (
        "1795344660001",
        "FD000000000000000000000000000002776B5FFD2B276E7987940000",
    ),
}


@pytest.mark.parametrize("text", OFFICIAL)
def test_official_handles(text: str) -> None:
    handle = RecallHandle("timert", "broker-a", *OFFICIAL[text])
    assert handle.encode() == text
    assert RecallHandle.decode(text) == RecallHandle.decode(text.rstrip("=")) == handle


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", "v1 t b 1 k", "====", "=", "djE", "A", encoded("v1 t b 1"), encoded("v1 t b 1 ")),
        *(encoded("v2 t b 1 k"), encoded("v1"), encoded("v1 t b 1 k") + "\n", "é", "AA==AA"),
        *(encoded("v1 t b 1 k>>>???").replace("-", "+").replace("_", "/"), "AAA=="),
    ],
)
def test_strings_that_are_none(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="recall handle is invalid"):
        RecallHandle.decode(text)


def test_more_than_is_needed_is_ignored() -> None:
    """As in RocketMQ, where values are separated by single blanks."""
    assert RecallHandle.decode(encoded("v1 t b x k more")) == RecallHandle("t", "b", "x", "k")
    assert RecallHandle.decode(encoded("v1  b 1 \xff")).topic == ""
