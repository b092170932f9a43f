"""The official administration tools (``mqadmin``) against our broker."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer
from tests.interop.java_values import JavaError
from tests.interop.jvm import JavaClient

from pymq.protocol.request_totals import decode_request_totals, encode_request_totals
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

NO_MESSAGE = 208  # ResponseCode of the client


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one version, our cluster, and a topic nobody used before."""

    client: JavaClient
    cluster: Cluster
    admin: JavaAdmin
    topic: str

    def producer(self) -> JavaProducer:
        return JavaProducer(self.client, f"producer-{self.topic}", self.cluster.name_server)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(params=["4.9.7", "5.3.3"])
def tools(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> Tools:
    client = java_client(request.param)
    admin = java_admin(request.param, cluster.name_server)
    topic = f"tools-{uuid.uuid4().hex[:12]}"
    admin.create_topic(topic, 2)
    return Tools(client, cluster, admin, topic)


def test_the_state_of_a_broker(tools: Tools) -> None:
    address = tools.cluster.broker_address
    before = tools.admin.broker_state(address)
    with tools.producer() as producer:
        for i in range(5):
            producer.send(tools.topic, b"%d" % i)
    after = tools.admin.broker_state(address)
    # A send that waited too long for its answer was sent again.
    assert int(after["putMessageTimesTotal"]) >= int(before["putMessageTimesTotal"]) + 5
    assert int(after["commitLogMaxOffset"]) > int(before["commitLogMaxOffset"])
    printed = tools.admin.command_output("brokerStatus", "-b", address)
    assert "Exception" not in printed
    shown = dict(
        (part.strip() for part in line.split(":", 1)) for line in printed.splitlines() if line
    )
    # A code has a line from its first request on: one may have come in between.
    assert _fixed(shown) == _fixed(after)
    assert shown["putMessageTimesTotal"] == after["putMessageTimesTotal"], (after, printed)


def _fixed(state: dict[str, str]) -> set[str]:
    return state.keys() - encode_request_totals(decode_request_totals(state)).keys()


def test_a_message_by_its_offset_id(tools: Tools) -> None:
    with tools.producer() as producer:
        sent = producer.send(tools.topic, b"\x00find me\xff", tags="a", keys="k1 k2")
    found = tools.admin.view_message(tools.topic, sent.offset_msg_id)
    assert (found.topic, found.body, found.tags) == (tools.topic, b"\x00find me\xff", "a")
    assert (found.msg_id, found.keys) == (sent.msg_id, "k1 k2")
    topic = ["-t", tools.topic] if tools.client.version.startswith("5.") else []
    printed = tools.admin.command_output("queryMsgById", "-i", sent.offset_msg_id, *topic)
    assert "Exception" not in printed
    assert sent.msg_id in printed


def test_messages_by_key_and_by_the_id_of_their_producer(tools: Tools) -> None:
    with tools.producer() as producer:
        sent = [
            producer.send(tools.topic, b"%d" % i, keys=f"all k{i % 3}", queue_id=i % 2)
            for i in range(9)
        ]
    found = tools.admin.query(tools.topic, "k1")
    assert [message.body for message in found] == [b"1", b"4", b"7"]
    assert [message.msg_id for message in found] == [sent[i].msg_id for i in (1, 4, 7)]
    assert len(tools.admin.query(tools.topic, "all", count_max=4)) == 4
    at = found[1].store_timestamp
    bodies = [m.body for m in tools.admin.query(tools.topic, "k1", begin_ms=at, end_ms=at)]
    assert b"4" in bodies
    for key, span in (("none", {}), ("k1", {"end_ms": found[0].store_timestamp - 1})):
        with pytest.raises(JavaError) as refused:
            tools.admin.query(tools.topic, key, **span)
        assert refused.value.response_code == NO_MESSAGE
    one = tools.admin.view_message(tools.topic, sent[5].msg_id)
    assert (one.body, one.keys) == (b"5", "all k2")
    printed = tools.admin.command_output("queryMsgByKey", "-t", tools.topic, "-k", "k1")
    assert "Exception" not in printed
    assert all(sent[i].msg_id in printed for i in (1, 4, 7))
    printed = tools.admin.command_output(
        "queryMsgByUniqueKey", "-t", tools.topic, "-i", sent[5].msg_id
    )
    assert "Exception" not in printed
    assert tools.topic in printed


def test_the_list_of_clusters(tools: Tools) -> None:
    printed = tools.admin.command_output("clusterList")
    assert "Exception" not in printed
    (line,) = [line for line in printed.splitlines() if tools.cluster.broker_address in line]
    assert "V5_3_3" in line
    assert "null" not in line
    printed = tools.admin.command_output("clusterList", "-m")
    assert "Exception" not in printed
    (line,) = [line for line in printed.splitlines() if tools.cluster.broker_name in line]
    in_today, out_today = line.split()[-2:]
    assert int(in_today) >= 0 and int(out_today) >= 0


@pytest.mark.parametrize("command", ["deleteExpiredCommitLog", "cleanExpiredCQ"])
def test_cleaning_on_request(tools: Tools, command: str) -> None:
    printed = tools.admin.command_output(command, "-b", tools.cluster.broker_address)
    assert "Exception" not in printed
    assert "success" in printed, printed
