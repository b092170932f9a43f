"""What a broker asks running consumers for, on behalf of administrators."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.cluster.broker_peer import DEADLINE_S, TIMEOUT_S, Peer, connect, fields, serve

from pymq.broker.handlers import consumers
from pymq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    GroupConfig,
    Heartbeat,
    MessageQueue,
    ProducerConnections,
    ProducerData,
    Subscription,
)
from pymq.protocol.client_bodies import ConsumerStatus, LiveProducers
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import decode_records

RUNNING_INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
#: How long an official tool waits for most of its answers.
TOOL_S = 5.0
MEMBER = {"consumerGroup": "g", "clientId": "one"}


def consumer(group: str) -> ConsumerData:
    return ConsumerData(group=group, subscriptions=[Subscription.of_tags("T", "*", 1)])


def test_running_info_is_the_answer_of_the_consumer(tmp_path: Path) -> None:
    async def check(admin: Peer) -> None:
        member, other = await connect(admin.broker), await connect(admin.broker)
        await member.heartbeat("one", consumer("g"))
        await other.heartbeat("two", consumer("g"))
        member.answers[RUNNING_INFO] = lambda command: command.reply(0, None, {"a": "b"}, b"info")
        other.answers[RUNNING_INFO] = lambda command: command.reply(1, "no such group here")
        answer = await admin.ask(RUNNING_INFO, **MEMBER, jstackEnable=True)
        assert (answer.code, answer.fields, answer.body) == (0, {"a": "b"}, b"info")
        (asked,) = (notice for notice in member.notices if notice.code == RUNNING_INFO)
        assert asked.fields == {**MEMBER, "jstackEnable": "true"} and not asked.is_one_way
        answer = await admin.ask(RUNNING_INFO, consumerGroup="g", clientId="two")
        assert (answer.code, answer.remark) == (1, "no such group here")

    serve(tmp_path, check)


def test_a_consumer_that_is_not_there(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.heartbeat("one", consumer("g"))
        for group, client_id in (("g", "two"), ("other", "one")):
            answer = await peer.ask(RUNNING_INFO, consumerGroup=group, clientId=client_id)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"The Consumer <{group}> <{client_id}> not online"

    serve(tmp_path, check)


def test_a_consumer_that_is_too_old_silent_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(admin: Peer) -> None:
        member = await connect(admin.broker)
        await member.heartbeat("one", consumer("g"))
        monkeypatch.setattr(consumers, "ANSWER_S", 0.05)
        answer = await admin.ask(RUNNING_INFO, **MEMBER)
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert (answer.remark or "").startswith("consumer <g> <one> Timeout: ")
        monkeypatch.undo()
        asking = asyncio.ensure_future(admin.ask(RUNNING_INFO, **MEMBER))
        while sum(notice.code == RUNNING_INFO for notice in member.notices) < 2:
            await asyncio.sleep(0.005)
        member.channel.close()
        answer = await asking
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("invoke consumer <g> <one> Exception: ")
        old = await connect(admin.broker)
        body = Heartbeat(client_id="one", consumers=[consumer("g")]).encode()
        beat = Command(RequestCode.HEART_BEAT, body=body, version=61)
        await old.channel.request(beat, TIMEOUT_S)
        answer = await admin.ask(RUNNING_INFO, **MEMBER)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "too low to finish, please upgrade it to V3_1_8" in (answer.remark or "")

    serve(tmp_path, check)


def test_the_latest_connection_of_a_client_is_asked(tmp_path: Path) -> None:
    async def check(first: Peer) -> None:
        second = await connect(first.broker)
        for peer, body in ((first, b"first"), (second, b"second")):
            await peer.heartbeat("one", consumer("g"))
            peer.answers[RUNNING_INFO] = lambda command, body=body: command.reply(0, body=body)
        assert (await first.ask(RUNNING_INFO, **MEMBER)).body == b"second"
        second.channel.close()
        async with asyncio.timeout(DEADLINE_S):
            while (await first.ask(RUNNING_INFO, **MEMBER)).body != b"first":
                await asyncio.sleep(0.005)

    serve(tmp_path, check)


# --- consuming one message


DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY


def test_a_consumer_gets_one_message_to_consume(tmp_path: Path) -> None:
    async def check(admin: Peer) -> None:
        member = await connect(admin.broker)
        await member.heartbeat("one", consumer("g"))
        group = GroupConfig(group="g", group_sys_flag=2)
        await admin.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode())
        sent = fields(await admin.send("T", b"body"))
        member.answers[DIRECTLY] = lambda command: command.reply(0, body=b"result")
        answer = await admin.ask(DIRECTLY, **MEMBER, msgId=sent["msgId"], topic="T")
        assert (answer.code, answer.body) == (0, b"result")
        (asked,) = (notice for notice in member.notices if notice.code == DIRECTLY)
        assert asked.fields == {
            **MEMBER,
            "msgId": sent["msgId"],
            "topic": "T",
            "brokerName": "broker-a",
            "topicSysFlag": "0",
            "groupSysFlag": "2",
        }
        (record,) = decode_records(asked.body, verify=True)
        assert record.body == b"body"

    serve(tmp_path, check)


def test_a_message_that_is_not_there_is_consumed_by_nobody(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.heartbeat("one", consumer("g"))
        sent = fields(await peer.send("T", b"body"))["msgId"]
        for wrong in ("", "nonsense", sent[:-2] + "01", sent[:16] + "7" * 16):
            answer = await peer.ask(DIRECTLY, **MEMBER, msgId=wrong)
            assert answer.code == ResponseCode.SYSTEM_ERROR and wrong in (answer.remark or "")
        answer = await peer.ask(DIRECTLY, consumerGroup="g", msgId=sent)
        assert answer.remark == "The Consumer <g> <null> not online"

    serve(tmp_path, check)


# --- where consumers are


def test_every_member_is_asked_where_it_is(tmp_path: Path) -> None:
    status = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    from_client = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    queue = MessageQueue("T", "broker-a", 0)

    async def check(admin: Peer) -> None:
        for number, name in enumerate(("one", "two", "refuses")):
            member = await connect(admin.broker)
            await member.heartbeat(name, consumer("g"))
            body = ConsumerStatus(offsets={queue: number}).encode()
            code = int(name == "refuses")
            member.answers[from_client] = lambda command, code=code, body=body: command.reply(
                code, body=body
            )
        answer = await admin.ask(status, topic="T", group="g")
        assert ConsumerStatus.decode(answer.body).members == {"one": {queue: 0}, "two": {queue: 1}}
        answer = await admin.ask(status, topic="T", group="g", clientAddr="two")
        assert ConsumerStatus.decode(answer.body).members == {"two": {queue: 1}}
        answer = await admin.ask(status, topic="T", group="unknown")
        assert answer.remark == "No Any Consumer online in the consumer group: [unknown]"

    serve(tmp_path, check)


def test_a_silent_member_is_left_out_before_tools_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert consumers.STATUS_S <= TOOL_S - 1
    monkeypatch.setattr(consumers, "STATUS_S", 0.1)

    async def check(admin: Peer) -> None:
        member, silent = await connect(admin.broker), await connect(admin.broker)
        await member.heartbeat("one", consumer("g"))
        await silent.heartbeat("two", consumer("g"))
        offsets = {MessageQueue("T", "broker-a", 1): 7}
        body = ConsumerStatus(offsets=offsets).encode()
        member.answers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = lambda command: command.reply(
            0, body=body
        )
        answer = await admin.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g", clientAddr=""
        )
        assert ConsumerStatus.decode(answer.body).members == {"one": offsets}

    serve(tmp_path, check)


# --- who is connected


def test_connections_of_groups(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        begun_ms = time.time() * 1000
        await peer.heartbeat("one", consumer("g"), producers=[ProducerData(group="p")])
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        consumers = ConsumerConnections.decode(answer.body)
        assert list(consumers.subscriptions) == ["T"]
        assert consumers.consume_type == "CONSUME_PASSIVELY"
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        producers = ProducerConnections.decode(answer.body)
        (client,) = producers.connections
        assert (
            producers.connections
            == consumers.connections
            == [
                ClientConnection(
                    client_id="one",
                    client_address=client.client_address,
                    language=LanguageCode.PYTHON.name,
                    version=479,
                )
            ]
        )
        answer = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        ((group, (one,)),) = LiveProducers.decode(answer.body).groups.items()
        assert (group, one.client_id, one.version) == ("p", "one", 479)
        assert one.remote_address == f"/{client.client_address}"
        assert begun_ms - 100 <= one.updated_ms <= time.time() * 1000 + 100

    serve(tmp_path, check)


def test_groups_that_are_not_connected(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == "the consumer group[g] not online"
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "the producer group[p] not exist"
        answer = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        assert json.loads(bytes(answer.body)) == {"data": {}}
        await peer.heartbeat("one", producers=[ProducerData(group="p")])
        await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", producerGroup="p")
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
        assert answer.remark == "the producer group[p] not exist"

    serve(tmp_path, check)
