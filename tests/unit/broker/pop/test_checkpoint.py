"""Checkpoints and their records; the expected bodies were written by RocketMQ 5.3.3."""

import dataclasses
import json
import random
from typing import Any

import pytest

from pymq.broker.pop.checkpoint import (
    Acknowledgement,
    Checkpoint,
    acknowledgement_record,
    checkpoint_record,
    read_revive_record,
)
from pymq.errors import RemoteProtocolError
from pymq.protocol.message import decode_properties
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.tag_codes import tag_code

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def checkpoint(**changes: Any) -> Checkpoint:
    given: dict[str, Any] = {
        "topic": "TopicA",
        "group": "g",
        "queue_id": 2,
        "start_offset": 12,
        "pop_time": 1795189242816,
        "invisible_ms": 60000,
        "broker_name": "broker-a",
        "differences": (0, 1, 5),
        "revive_queue_id": 3,
    }
    return Checkpoint(**(given | changes))


def stored(new: NewRecord, queue_offset: int = 77) -> Record:
    return Record(
        new.topic, new.queue_id, queue_offset, 0, bytes(new.body), new.properties, 0, 0, 0, HOST,
        0, HOST, 0, 0, 0, 0,
    )  # fmt: skip


def test_records_are_those_of_the_official_broker() -> None:
    one = checkpoint(acknowledged=5)
    record = checkpoint_record(one, "revive", host=HOST, now_ms=1)
    assert record.body == (
        b'{"bm":5,"bn":"broker-a","c":"g","d":[0,1,5],"it":60000,"n":3,"pt":1795189242816,"q":2,'
        b'"reviveTime":1795189302816,"ro":0,"so":12,"t":"TopicA"}'
    )
    assert (record.topic, record.queue_id, record.tag_code) == ("revive", 3, tag_code("ck"))
    properties = {"TAGS": "ck", "TIMER_DELIVER_MS": "1795189301816"}
    assert decode_properties(record.properties) == properties
    again = checkpoint_record(
        checkpoint(acknowledged=5, failed_count=2), "revive", host=HOST, now_ms=1
    )
    assert b'"ro":0,"rp":"2","so":12' in bytes(again.body)
    record = acknowledgement_record(one, [14], "revive", host=HOST, now_ms=1)
    assert record.body == (
        b'{"ao":14,"bn":"broker-a","c":"g","pt":1795189242816,"q":2,"so":12,"t":"TopicA"}'
    )
    properties = {"TAGS": "ack", "TIMER_DELIVER_MS": "1795189302816"}
    assert decode_properties(record.properties) == properties
    record = acknowledgement_record(one, [12, 17], "revive", host=HOST, now_ms=1)
    assert record.body == (
        b'{"ao":-1,"aol":[12,17],"bn":"broker-a","c":"g","pt":1795189242816,"q":2,"so":12,'
        b'"t":"TopicA"}'
    )
    assert decode_properties(record.properties)["TAGS"] == "bAck"


def test_what_was_written_is_read() -> None:
    chooser = random.Random(7)
    for _ in range(200):
        count = chooser.randint(0, 32)
        one = checkpoint(
            differences=tuple(sorted(chooser.sample(range(1000), count))),
            acknowledged=chooser.getrandbits(count),
            failed_count=chooser.randint(0, 3),
            broker_name=chooser.choice(["b", 'a "b"', "名"]),
        )
        record = stored(checkpoint_record(one, "revive", host=HOST, now_ms=1))
        found = read_revive_record(record, broker_name="me")
        assert isinstance(found, Checkpoint)
        assert dataclasses.asdict(found) == dataclasses.asdict(one) | {"revive_offset": 77}
        offsets = one.offsets_of(one.all_bits)
        assert one.bits_of(offsets) == one.all_bits
        if offsets:
            record = stored(acknowledgement_record(one, offsets, "revive", host=HOST, now_ms=1))
            found = read_revive_record(record, broker_name="me")
            assert found == Acknowledgement(one.key, offsets)


def with_body(tag: str, body: bytes) -> Record:
    return stored(NewRecord("revive", 3, body, f"TAGS\x01{tag}\x02".encode(), HOST, 0))


def test_records_of_old_brokers_are_read() -> None:
    body = b'{"bm":0,"c":"g","it":60000,"n":3,"pt":5,"q":2,"ro":0,"so":12,"t":"TopicA"}'
    found = read_revive_record(with_body("ck", body), broker_name="me")
    assert isinstance(found, Checkpoint)
    assert found.differences == (0, 1, 2)
    body = (
        b'{"ackOffset":14,"startOffset":12,"consumerGroup":"g","topic":"TopicA","queueId":2,'
        b'"popTime":5}'
    )
    found = read_revive_record(with_body("ack", body), broker_name="me")
    assert found == Acknowledgement(("TopicA", "g", 2, 12, 5, "me"), [14])


def test_other_records_are_left_alone() -> None:
    assert read_revive_record(with_body("other", b"x"), broker_name="me") is None
    for tag, body in [
        ("ck", b""),
        ("ck", b"[]"),
        ("ck", b"{}"),
        ("ck", b'{"n":"x"}'),
        ("ack", b"1"),
        ("ack", b'{"ao":{}}'),
        ("bAck", b'{"ao":1}'),
    ]:
        with pytest.raises(RemoteProtocolError):
            read_revive_record(with_body(tag, body), broker_name="me")


def checkpoint_body(**changes: Any) -> bytes:
    given = {"n": 1, "d": [0], "t": "x", "c": "g", "q": 0, "so": 0, "pt": 0, "it": 0}
    return json.dumps(given | changes).encode()


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        *(("ck", checkpoint_body(n=count)) for count in (33, 10**9, 10**15, -1)),
        *(("ck", checkpoint_body(n=count, d=None)) for count in (33, 10**15, -1)),
        ("ck", checkpoint_body(n=2, d=[0, 1, 2])),
        ("ck", checkpoint_body(d=[10**30])),
        *(("ck", checkpoint_body(**{name: 1 << 63})) for name in ("so", "pt", "it")),
        ("ck", checkpoint_body(so=-(1 << 63) - 1)),
        *(("ck", checkpoint_body(q=number)) for number in (-1, 1 << 31)),
        ("ck", checkpoint_body(so=1e999)),
        ("ack", checkpoint_body(ao=10**30)),
        ("ack", checkpoint_body(ao=1, so=10**30)),
        ("bAck", checkpoint_body(aol=[1, 10**30])),
    ],
)
def test_numbers_that_no_broker_writes_are_refused(tag: str, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_revive_record(with_body(tag, body), broker_name="me")


def test_the_largest_numbers_are_read() -> None:
    most = (1 << 63) - 1
    body = checkpoint_body(n=32, d=[*range(32)], bm=-1, so=most, pt=most, it=most, rp=str(most))
    found = read_revive_record(with_body("ck", body), broker_name="me")
    assert isinstance(found, Checkpoint)
    assert (found.is_done, found.start_offset, found.failed_count) == (True, most, most)
    body = checkpoint_body(rp="1" * 5000)
    found = read_revive_record(with_body("ck", body), broker_name="me")
    assert isinstance(found, Checkpoint)
    assert found.failed_count == 0
