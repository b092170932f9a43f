"""Receipt handles; the expected strings were made by ExtraInfoUtil of RocketMQ 5.3.3."""

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.receipt_handles import (
    ReceiptHandle,
    encode_handle,
    message_offset_info,
    start_offset_info,
)

HANDLE = ReceiptHandle(12, 1795189242816, 30000, 3, "broker-b")


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("TopicA", "12 1795189242816 30000 3 0 broker-b 2 14"),
        ("%RETRY%g_TopicA", "12 1795189242816 30000 3 1 broker-b 2 14"),
        ("%RETRY%g+TopicA", "12 1795189242816 30000 3 2 broker-b 2 14"),
    ],
)
def test_handles_are_those_of_the_official_client(topic: str, text: str) -> None:
    assert encode_handle(HANDLE, topic, 2, 14) == text
    assert ReceiptHandle.parse(text) == HANDLE


def test_the_parts_of_an_answer_are_those_of_the_official_broker() -> None:
    parts = [start_offset_info("TopicA", 3, 0), start_offset_info("%RETRY%g_TopicA", 0, 4)]
    assert ";".join(parts) == "0 3 0;1 0 4"
    parts = [
        message_offset_info("TopicA", 3, [0, 1, 5]),
        message_offset_info("%RETRY%g+TopicA", 0, [4]),
    ]
    assert ";".join(parts) == "0 3 0,1,5;2 0 4"


@pytest.mark.parametrize(
    "text", ["", "1 2 3 4 0", "1 2 3 x 0 b 0 0", "1 2 3 99999999999999999999 0 b", "-"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="receipt handle"):
        ReceiptHandle.parse(text)
