"""Pre-encoded records over a real socket: stored as a batch would be, or refused whole."""

import base64
import random
from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, fields, records, serve
from tests.preencoded import NOWHERE, lay_out, takes_records

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import BrokerError
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RECORD_SIZES_FIELD, SEND_RECORDS, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import CLUSTER, REGION, TRACE_ON, encode_properties
from pymq.protocol.record import decode_records
from pymq.protocol.records_body import RecordsBody

#: What the broker adds to the properties of each message of a batch.
ADDED = encode_properties({REGION: "DefaultRegion", TRACE_ON: "true", CLUSTER: "DefaultCluster"})


def preencoded(topic: str, messages: list[tuple[bytes, bytes]]) -> RecordsBody:
    """Return (body, properties) messages as their sender would lay them out."""
    return lay_out(topic, encode_batch((0, body, properties) for body, properties in messages))


def test_records_are_read_as_messages_of_a_batch(
    client: BulkClient, queue: MessageQueue, seed: int
) -> None:
    """Frames small and large, records long and short, batches between them."""
    rng = random.Random(seed)
    assert takes_records(client, queue)
    messages = [
        (rng.randbytes(rng.randrange(500)), b"TAGS\x01%c\x02n\x01%d\x02" % (rng.choice(b"ab"), n))
        for n in range(6_000)
    ]
    bodies, stored = [], []
    first = 0
    while first < len(messages):
        some = messages[first : first + rng.choice([1, 30, 2_000])]
        first += len(some)
        if rng.random() < 0.2:
            bodies.append(encode_batch((0, body, text) for body, text in some))
            stored += [(body, text + ADDED) for body, text in some]
        else:
            bodies.append(preencoded(queue.topic, some))
            stored += some
    results = client.send_batches(queue, bodies)
    assert len(results) == len(bodies)
    found = [
        record
        for chunk in client.pull_range(queue, 0, len(messages))
        for record in decode_records(chunk.buffer, verify=True)
    ]
    assert [(record.body, record.properties) for record in found] == stored
    assert [record.queue_offset for record in found] == list(range(len(messages)))
    assert {(record.topic, record.queue_id) for record in found} == {(queue.topic, 0)}
    assert NOWHERE not in {record.born_host for record in found}
    assert all(record.born_timestamp and record.store_timestamp for record in found)
    tagged = sum(
        len(list(decode_records(chunk.buffer)))
        for chunk in client.pull_range(queue, 0, len(messages), tags="a")
    )
    assert tagged == sum(b"TAGS\x01a" in text for _, text in messages)


def test_wrong_records_are_refused_whole(client: BulkClient, queue: MessageQueue) -> None:
    good = preencoded(queue.topic, [(b"x", b"")] * 10)
    wrong = [
        good._replace(sizes=good.sizes[:-1]),
        good._replace(sizes=b""),
        good._replace(body=good.body[:-1]),
        preencoded("another", [(b"x", b"")]),
    ]
    for records_body in wrong:
        with pytest.raises(BrokerError) as caught:
            client.send_batches(queue, [records_body])
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    client.send_batches(queue, [good])
    assert client.bounds([queue]) == {queue: (0, 10)}


def test_they_survive_a_restart_and_the_end_of_a_segment(tmp_path: Path) -> None:
    body = preencoded("T", [(b"%04d" % n + bytes(500), b"TAGS\x01a\x02") for n in range(200)])
    rounds = 30  # of 125 kB, in segments of 1 MiB

    async def send(peer: Peer) -> None:
        for _ in range(rounds):
            answer = await ask(peer, "T", body)
            assert answer.code == ResponseCode.SUCCESS
            assert len(fields(answer)["msgId"]) == 32  # of the first: the others can be counted

    async def read(peer: Peer) -> None:
        offset = 0
        while offset < 200 * rounds:
            found = records(await peer.pull("T", offset))
            assert [record.queue_offset for record in found] == list(
                range(offset, offset + len(found))
            )
            assert all(record.body[:4] == b"%04d" % (record.queue_offset % 200) for record in found)
            offset += len(found)

    serve(tmp_path, send)
    serve(tmp_path, read)


def test_what_a_broker_says_about_them(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.ask(SEND_RECORDS)).code == ResponseCode.SUCCESS
        body = preencoded("T", [(bytes(600), b"")])
        for changed in ("", "no base64!", base64.b64encode(b"abc").decode()):
            answer = await ask(peer, "T", body, sizes=changed)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
        answer = await ask(peer, "T", preencoded("T", [(bytes(600), b"")] * 2))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "maxMessageSize" in (answer.remark or "")
        answer = await ask(peer, "%RETRY%g", preencoded("%RETRY%g", [(b"", b"")]))
        assert answer.code != ResponseCode.SUCCESS
        assert (await ask(peer, "T", body)).code == ResponseCode.SUCCESS

    serve(tmp_path, check, store={"message_bytes_max": 1000})


async def ask(peer: Peer, topic: str, body: RecordsBody, *, sizes: str | None = None) -> Command:
    request = SendRequest(
        "pg", topic, "TBW102", 4, 0, 0, 1700000000000, 0, "", 0, False, None, True
    )
    text = base64.b64encode(body.sizes).decode()
    more = {RECORD_SIZES_FIELD: text if sizes is None else sizes}
    command = Command(SEND_RECORDS, request.to_v2() | more, bytes(body.body))
    return await peer.channel.request(command, 60.0)
