"""Sends over a real socket: what is stored, when it is acknowledged, what is refused."""

import asyncio
import dataclasses
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, properties_sent, records, serve

from pymq.broker import assembly
from pymq.broker.flusher import Flusher
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import KVTable
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import HeaderForm
from pymq.protocol.message import decode_properties
from pymq.protocol.names import revive_topic
from pymq.protocol.record import NewRecord, parse_offset_message_id
from pymq.store import FlushMode

REVIVE_TOPIC = revive_topic("DefaultCluster")


@pytest.mark.parametrize("form", list(HeaderForm))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_sent_message_is_pulled_as_it_was(
    tmp_path: Path, code: RequestCode, form: HeaderForm
) -> None:
    async def check(peer: Peer) -> None:
        sent = await peer.send(
            "T",
            b"\x00body\xff",
            code=code,
            form=form,
            queue_id=2,
            flag=7,
            properties="TAGS\x01a\x02KEYS\x01k1 k2",
        )
        assert (sent.code, sent.form) == (ResponseCode.SUCCESS, form)
        assert fields(sent)["queueId"] == "2"
        assert fields(sent)["queueOffset"] == "0"
        assert fields(sent)["MSG_REGION"] and fields(sent)["TRACE_ON"] == "true"
        pulled = await peer.pull("T", 0, queueId=2)
        (record,) = records(pulled)
        assert (record.topic, record.queue_id, record.body) == ("T", 2, b"\x00body\xff")
        assert (record.flag, record.born_timestamp) == (7, 1700000000000)
        assert properties_sent(record) == {
            "TAGS": "a",
            "KEYS": "k1 k2",
        }
        host, offset = parse_offset_message_id(fields(sent)["msgId"])
        assert (host, offset) == (record.store_host, record.physical_offset)
        assert fields(pulled) == {
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
            "suggestWhichBrokerId": "0",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }

    serve(tmp_path, check)


def test_a_batch_becomes_consecutive_records(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        body = encode_batch([(n, b"body-%d" % n, b"TAGS\x01t%d" % (n % 2)) for n in range(20)])
        sent = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert sent.code == ResponseCode.SUCCESS
        ids = fields(sent)["msgId"].split(",")
        found = records(await peer.pull("T", 0))
        assert [record.body for record in found] == [b"body-%d" % n for n in range(20)]
        assert [record.flag for record in found] == list(range(20))
        assert [record.queue_offset for record in found] == list(range(20))
        assert [parse_offset_message_id(text)[1] for text in ids] == [
            record.physical_offset for record in found
        ]
        tagged = records(await peer.pull("T", 0, subscription="t1"))
        assert [record.flag for record in tagged] == list(range(1, 20, 2))

    serve(tmp_path, check)


def test_what_is_acknowledged_is_there_after_a_clean_restart(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        for n in range(40):
            assert (await peer.send("T", b"%d" % n * 1000, queue_id=n % 4)).code == 0
        await peer.pull("T", 0)  # creates the group
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="T",
            queueId=1,
            commitOffset=5,
        )

    async def look(peer: Peer) -> None:
        found = [
            int(record.body[: len(record.body) // 1000])
            for queue_id in range(4)
            for record in records(await peer.pull("T", 0, queueId=queue_id))
        ]
        assert sorted(found) == list(range(40))
        offset = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=1
        )
        assert fields(offset)["offset"] == "5"
        assert (await peer.send("T", b"more", queue_id=0)).fields["queueOffset"] == "10"  # type: ignore[index]

    serve(tmp_path, fill)
    serve(tmp_path, look)


def test_sync_flush_answers_after_the_flush(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answers = await asyncio.gather(*(peer.send("T", b"%d" % n) for n in range(50)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        state = KVTable.decode((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        assert state["remainHowManyDataToFlush"] == "0 B"
        assert len(records(await peer.pull("T", 0, maxMsgNums=50))) == 32

    serve(tmp_path, check, flush=FlushMode.SYNC)


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ("AWAIT\x01false\x02", True),
        ("x\x01WAIT\x01false\x02", True),
        ("WAIT\x01falsetto\x02", True),
        ("WAIT\x01false\x02WAIT\x01true\x02", True),
        ("", True),
        ("WAIT\x01false", False),
        ("WAIT\x01False\x02TAGS\x01a\x02", False),
    ],
)
def test_only_the_property_wait_lets_a_send_go_on_before_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: str, waits: bool
) -> None:
    """Nothing is flushed before the broker closes: a send that is answered did not wait for it."""

    async def check(peer: Peer) -> None:
        may_flush = asyncio.Event()

        async def later(flusher: Flusher) -> None:
            await may_flush.wait()

        monkeypatch.setattr(Flusher, "flush", later)
        answer = asyncio.ensure_future(peer.send("T", b"x", properties=properties))
        probe = await peer.send("T", b"y", properties="WAIT\x01false\x02")
        assert probe.code == ResponseCode.SUCCESS
        if waits:
            await asyncio.sleep(0.05)  # an answer would have come before that of the probe
            assert not answer.done()
            answer.cancel()
        else:
            assert (await answer).code == ResponseCode.SUCCESS
        monkeypatch.undo()
        may_flush.set()

    serve(tmp_path, check, flush=FlushMode.SYNC)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "no/slash"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": ".."}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER, "blank"),
        ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER, "longer than topic max length"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"topic": REVIVE_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        (
            {"topic": REVIVE_TOPIC, "code": RequestCode.SEND_BATCH_MESSAGE, "batch": True},
            ResponseCode.NO_PERMISSION,
            "forbidden",
        ),
        (
            {"topic": REVIVE_TOPIC, "properties": "TRAN_MSG\x01true\x02PGROUP\x01g", "sys_flag": 4},
            ResponseCode.NO_PERMISSION,
            "forbidden",
        ),
        (
            {"topic": REVIVE_TOPIC, "properties": "DELAY\x011"},
            ResponseCode.NO_PERMISSION,
            "forbidden",
        ),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER, r"queueId\[99\]"),
        (
            {"topic": "New", "default_topic": "nothing"},
            ResponseCode.TOPIC_NOT_EXIST,
            "autoCreateTopicEnable",
        ),
        ({"properties": "DELAY\x01soon"}, ResponseCode.SYSTEM_ERROR, "DELAY"),
        (
            {"properties": "a\x01b\x02TRAN_MSG\x01true"},
            ResponseCode.MESSAGE_ILLEGAL,
            "PGROUP",
        ),
        ({"properties": "p\x01" + "x" * 33_000}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_send_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("Known", b"good")
        request = {"topic": "Known", **changes}
        answer = await peer.send(request.pop("topic"), b"bad", **request)
        assert answer.code == code
        assert fields(answer)["MSG_REGION"]
        assert re.search(remark, answer.remark or "")
        assert [record.body for record in records(await peer.pull("Known", 0))] == [b"good"]

    serve(tmp_path, check)


def test_a_delay_that_means_none_is_an_ordinary_message(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for text in (
            *("DELAY\x010\x02", "x\x01DELAY", "TRAN_MSG\x01false", "MYDELAY\x013"),
            *("POP_CK\x01c\x02MY_POP_CK\x01mine\x02", "MYCLUSTER\x01x"),
            *("MSG_REGION\x01mine\x02a\x01b", "TRACE_ON\x01false\x02UNIQ_KEY\x01mine"),
            "CLUSTER\x01mine\x02UNIQ_KEY\x01\x02",
        ):
            assert (await peer.send("T", b"", properties=text)).code == ResponseCode.SUCCESS
        found = records(await peer.pull("T", 0))
        stored = [properties_sent(record) for record in found]
        assert stored[2:6] == [
            {"TRAN_MSG": "false"},
            {"MYDELAY": "3"},
            {"MY_POP_CK": "mine"},
            {"MYCLUSTER": "x"},
        ]
        assert stored[6:] == [{"a": "b"}, {"UNIQ_KEY": "mine"}, {}]
        given = [decode_properties(record.properties)["UNIQ_KEY"] for record in found]
        assert len(set(given)) == len(given)

    serve(tmp_path, check)


def test_a_special_message_inside_a_batch_is_refused_with_its_batch(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for special in (b"DELAY\x013\x02", b"k\x01v\x02TRAN_MSG\x01true"):
            body = encode_batch([(0, b"a", b"TAGS\x01a\x02"), (0, b"b", special)])
            answer = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "message 1" in (answer.remark or "")
        assert (await peer.send("T", b"good")).code == ResponseCode.SUCCESS
        assert [record.body for record in records(await peer.pull("T", 0))] == [b"good"]

    serve(tmp_path, check)


def test_a_body_over_the_limit_is_refused_and_its_neighbours_are_kept(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answers = await asyncio.gather(
            peer.send("T", b"before"), peer.send("T", b"x" * 2000), peer.send("T", b"after")
        )
        assert [answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert "1000" in (answers[1].remark or "")
        assert [r.body for r in records(await peer.pull("T", 0))] == [b"before", b"after"]

    serve(tmp_path, check, store={"message_bytes_max": 1000})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        struct.pack(">I", 0) * 6,
        struct.pack(">IIIII", 1 << 31, 0, 0, 0, 0) + b"\0\0",
        encode_batch([(0, b"a", b"")])[:-1],
        encode_batch([(0, b"a", b"")]) + b"x",
    ],
)
def test_a_malformed_batch_is_refused_whole(tmp_path: Path, body: bytes) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send("T", b"good")).code == ResponseCode.SUCCESS
        assert [record.body for record in records(await peer.pull("T", 0))] == [b"good"]

    serve(tmp_path, check)


def test_a_retry_topic_sends_to_dead_letters_when_it_was_tried_enough(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("%RETRY%g", b"again", reconsume_times=1)).code == 0
        answer = await peer.send(
            "%RETRY%g",
            b"dead",
            reconsume_times=4,
            max_reconsume_times=3,
            properties="DELAY\x015\x02KEYS\x01k\x02",
        )
        assert answer.code == ResponseCode.SUCCESS
        (dead,) = records(await peer.pull("%DLQ%g", 0))
        assert (dead.body, dead.topic) == (b"dead", "%DLQ%g")
        properties = decode_properties(dead.properties)
        assert (properties["DELAY"], properties["KEYS"]) == ("-1", "k")
        assert [r.body for r in records(await peer.pull("%RETRY%g", 0))] == [b"again"]

    serve(tmp_path, check)


def test_an_answer_names_the_queue_that_was_chosen_wherever_a_hook_moves_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(record: NewRecord, _: Mapping[str, str]) -> NewRecord:
        return dataclasses.replace(record, topic="LATER", queue_id=1)

    def make(site: Site, tables: Tables, core: Core) -> Feature:
        core.hooks.add("DELAY", later)
        return Feature()

    async def check(peer: Peer) -> None:
        await create_topic(peer, "LATER", queues=2)
        answer = await peer.send("T", b"x", queue_id=3, properties="DELAY\x013")
        assert (answer.code, fields(answer)["queueId"]) == (0, "3")
        assert [record.body for record in records(await peer.pull("LATER", 0, queueId=1))] == [b"x"]

    monkeypatch.setattr(assembly, "MASTER_FEATURES", [make])
    serve(tmp_path, check)


def test_topics_are_not_created_where_that_is_switched_off(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("T", b"x")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await create_topic(peer, "T", queues=2)
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    serve(tmp_path, check, auto_create_topic=False)
