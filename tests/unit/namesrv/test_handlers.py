"""Requests to answers: codes, remarks, header fields and bodies as RocketMQ peers expect them."""

import json
import logging
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.net.connections import ask

from pymq.errors import ConfigurationError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.handlers import Handlers
from pymq.namesrv.kv import KVConfig
from pymq.namesrv.live_settings import LiveSettings
from pymq.namesrv.lowest_ids import LowestIds
from pymq.namesrv.routes import RouteTable
from pymq.net.dispatcher import Dispatcher
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion, TopicConfig, TopicTable
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.registration_body import RegisterBrokerBody
from pymq.settings import parse_properties

ADDRESS = "10.0.0.1:10911"
BODY = RegisterBrokerBody(
    topics=TopicTable(
        version=DataVersion(timestamp_ms=1795187246576, counter=3),
        topics={
            "T": TopicConfig(topic="T", read_queue_count=4, write_queue_count=4),
            "TBW102": TopicConfig(topic="TBW102", read_queue_count=8, write_queue_count=8, perm=7),
        },
    )
)
# What a 4.9 broker sends: no stateVersion, no attributes (remoting.md section 9).
BODY_OF_4_9 = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,'
    b'"timestamp":1795187246576},"topicConfigTable":{"T":{"order":false,"perm":6,'
    b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
    b'"writeQueueNums":4},"TBW102":{"order":false,"perm":7,"readQueueNums":8,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,'
    b'"writeQueueNums":8}}}}'
)


class StoppedClock:
    """A clock that stands still until it is moved."""

    now_s = 0.0

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s


class Server:
    """Handlers with what is around them, asked without a socket."""

    def __init__(self, kv_path: Path | None = None, **settings: Any) -> None:
        self.clock = StoppedClock()
        self.routes = RouteTable()
        config = NamesrvConfig(kv_config_path=kv_path, **settings)
        handlers = Handlers(
            config,
            LiveSettings(config),
            self.routes,
            KVConfig.load(kv_path),
            LowestIds(config, self.routes),
            self.clock,  # type: ignore[arg-type]  # the same two methods
        )
        self.dispatcher = Dispatcher("name server", handlers.table())

    def ask(self, code: int, body: bytes = b"", *, version: int = 479, **fields: object) -> Command:
        texts = {key: str(value) for key, value in fields.items()}
        request = Command(code, texts or None, body, opaque=7, version=version)
        answer = ask(self.dispatcher, request)
        assert answer.is_response
        assert answer.opaque == 7
        return answer

    def register(self, body: bytes | None = None, *, version: int = 479, **more: object) -> Command:
        fields: dict[str, object] = {
            "brokerName": "broker-a",
            "brokerAddr": ADDRESS,
            "clusterName": "DefaultCluster",
            "haServerAddr": "10.0.0.1:10912",
            "brokerId": 0,
            "compressed": "false",
            "bodyCrc32": 0,
            "enableActingMaster": "false",
            **more,
        }
        body = BODY.encode() if body is None else body
        return self.ask(RequestCode.REGISTER_BROKER, body, version=version, **fields)

    def route(self, topic: str = "T", **more: Any) -> Any:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **more)
        assert answer.code == 0, answer.remark
        return fastjson.parse(answer.body)


@pytest.fixture
def server() -> Server:
    return Server()


# -------------------------------------------------------------------------------- registration


def test_a_registration_of_5x_and_its_route(server: Server) -> None:
    answer = server.register(heartbeatTimeoutMillis=60000, __ZONE_NAME="z")
    assert (answer.code, answer.remark, answer.body) == (0, None, b"")
    assert answer.fields == {}
    assert server.route() == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": ADDRESS},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
                "zoneName": "z",
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert server.route("TBW102")["queueDatas"][0]["perm"] == 7


def test_a_registration_that_is_repeated_is_parsed_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    decode = RegisterBrokerBody.decode

    def counting(data: bytes) -> RegisterBrokerBody:
        parsed.append(len(data))
        return decode(data)

    monkeypatch.setattr(RegisterBrokerBody, "decode", counting)
    server.register()
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
    server.register()
    assert len(parsed) == 1
    assert server.route()["queueDatas"][0]["readQueueNums"] == 4  # the topic is there again
    topics = {
        **BODY.topics.topics,
        "T": TopicConfig(topic="T", read_queue_count=9, write_queue_count=9),
    }
    version = BODY.topics.version.next(1795187246577)
    server.register(RegisterBrokerBody(topics=TopicTable(version=version, topics=topics)).encode())
    assert len(parsed) == 2
    assert server.route()["queueDatas"][0]["readQueueNums"] == 9
    server.ask(
        RequestCode.UNREGISTER_BROKER,
        brokerName="broker-a",
        brokerAddr=ADDRESS,
        clusterName="DefaultCluster",
        brokerId=0,
    )
    server.register()
    assert len(parsed) == 3
    assert server.route()["queueDatas"][0]["readQueueNums"] == 4


def test_a_registration_of_4_9(server: Server) -> None:
    assert server.register(BODY_OF_4_9, version=407).code == 0
    assert server.route()["queueDatas"][0]["writeQueueNums"] == 4


@pytest.mark.parametrize("version", [313, 407, 479])
def test_a_compressed_registration(server: Server, version: int) -> None:
    body = BODY.encode_compressed(version)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    answer = server.register(body, version=version, compressed="true", bodyCrc32=crc)
    assert answer.code == 0, answer.remark
    assert server.route("TBW102")["queueDatas"][0]["perm"] == 7


def test_a_damaged_registration_is_refused(server: Server) -> None:
    answer = server.register(bodyCrc32=(zlib.crc32(BODY.encode()) & 0x7FFFFFFF) ^ 1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert server.register(b'{"topicConfigSerializeWrapper":[').code == 1
    assert server.register(b"no zlib", compressed="true").code == 1
    assert server.register(brokerId="first").code == 1
    assert server.ask(RequestCode.REGISTER_BROKER, BODY.encode()).code == 1
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code == 17


def test_a_single_topic_of_a_new_broker_is_refused(server: Server) -> None:
    body = RegisterBrokerBody(topics=TopicTable(topics={"T": TopicConfig(topic="T")}))
    answer = server.register(body.encode())
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("register broker failed")


def test_a_slave_is_told_its_master_and_the_order_topics(server: Server) -> None:
    server.register()
    server.ask(
        RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"
    )
    answer = server.register(brokerId=1, brokerAddr="10.0.0.2:10911", haServerAddr="x:1")
    assert answer.fields == {"masterAddr": ADDRESS, "haServerAddr": "10.0.0.1:10912"}
    assert json.loads(bytes(answer.body)) == {"table": {"T": "broker-a:4"}}


def test_order_topics_can_be_kept_from_brokers() -> None:
    server = Server(return_order_topic_config=False)
    server.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="b:4")
    assert server.register().body == b""


def test_unregistration(server: Server) -> None:
    server.register()
    answer = server.ask(
        RequestCode.UNREGISTER_BROKER,
        brokerName="broker-a",
        brokerAddr=ADDRESS,
        clusterName="DefaultCluster",
        brokerId=0,
    )
    assert answer.code == 0
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert (answer.code, answer.remark) == (
        17,
        "No topic route info in name server for the topic: T",
    )


def test_data_version_and_signs_of_life(server: Server) -> None:
    broker = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": 0}
    version = BODY.topics.version
    answer = server.ask(RequestCode.QUERY_DATA_VERSION, version.encode(), **broker)
    assert (answer.code, answer.fields, answer.body) == (0, {"changed": "true"}, b"")
    server.register()
    server.clock.now_s = 100.0
    answer = server.ask(RequestCode.QUERY_DATA_VERSION, version.encode(), **broker)
    assert answer.fields == {"changed": "false"}
    assert DataVersion.decode(answer.body) == version
    server.clock.now_s = 200.0
    assert server.routes.expire(200.0) == []
    answer = server.ask(
        RequestCode.QUERY_DATA_VERSION, DataVersion(timestamp_ms=2).encode(), **broker
    )
    assert answer.fields == {"changed": "true"}
    server.clock.now_s = 300.0
    assert server.ask(RequestCode.BROKER_HEARTBEAT, **broker).code == 0
    assert server.routes.expire(400.0) == []
    assert len(server.routes.expire(421.0)) == 1
    assert server.ask(RequestCode.BROKER_HEARTBEAT, **broker).code == 0  # as in Java
    answer = server.ask(RequestCode.QUERY_DATA_VERSION, b"", **broker)
    assert (answer.code, answer.fields) == (0, {"changed": "true"})


def test_the_members_of_a_broker(server: Server) -> None:
    def members() -> Any:
        answer = server.ask(
            RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="DefaultCluster", brokerName="broker-a"
        )
        assert answer.code == 0
        return json.loads(bytes(answer.body))["brokerMemberGroup"]

    assert members()["brokerAddrs"] == {}
    server.register()
    found = members()
    assert found["brokerAddrs"] == {"0": ADDRESS}
    assert (found["brokerName"], found["cluster"]) == ("broker-a", "DefaultCluster")


def test_cluster_info(server: Server) -> None:
    server.register()
    answer = server.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert json.loads(bytes(answer.body)) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": ADDRESS},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
    }


# -------------------------------------------------------------------------------------- routes


@pytest.mark.parametrize(
    ("version", "fields", "strict"),
    [
        (313, {}, False),
        (400, {}, False),
        (401, {}, True),
        (479, {}, True),
        (313, {"acceptStandardJsonOnly": "true"}, True),
        (313, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_the_form_of_a_route_follows_the_client(
    server: Server, version: int, fields: dict[str, object], strict: bool
) -> None:
    server.register()
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=version, topic="T", **fields)
    found = bytes(answer.body)
    assert (b'{"0":"10.0.0.1:10911"}' in found) is strict
    assert (b'{0:"10.0.0.1:10911"}' in found) is not strict
    assert fastjson.parse(found) == server.route()


def test_order_topic_configuration_in_routes() -> None:
    for enabled in (False, True):
        server = Server(order_message_enable=enabled)
        server.register()
        assert "orderTopicConf" not in server.route()
        server.ask(
            RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"
        )
        assert server.route().get("orderTopicConf") == ("broker-a:4" if enabled else None)
        assert "orderTopicConf" not in server.route("TBW102")


def test_write_permission(server: Server) -> None:
    server.register()
    answer = server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert (answer.code, answer.fields) == (0, {"wipeTopicCount": "2"})
    assert server.route()["queueDatas"][0]["perm"] == 4
    answer = server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert (answer.code, answer.fields) == (0, {"addTopicCount": "2"})
    assert server.route()["queueDatas"][0]["perm"] == 6


def test_a_topic_registered_and_deleted(server: Server) -> None:
    server.register()
    body = (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":2}]}'
    )
    assert server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="New").code == 0
    assert server.route("New")["queueDatas"][0]["writeQueueNums"] == 2
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert server.ask(delete, topic="New", clusterName="Other").code == 0
    assert server.route("New")
    assert server.ask(delete, topic="New", clusterName="DefaultCluster").code == 0
    assert server.ask(delete, topic="T").code == 0
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New").code == 17
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T").code == 17
    unknown = body.replace(b"broker-a", b"nobody")
    assert server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, unknown, topic="New").code == 0
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New").code == 17


def topic_list(answer: Command) -> list[str]:
    assert answer.code == 0, answer.remark
    return sorted(json.loads(bytes(answer.body))["topicList"])


def test_topic_lists(server: Server) -> None:
    server.register()
    assert topic_list(server.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["T", "TBW102"]
    by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    assert topic_list(server.ask(by_cluster, cluster="DefaultCluster")) == ["T", "TBW102"]
    assert topic_list(server.ask(by_cluster, cluster="Other")) == []
    system = server.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert topic_list(system) == ["DefaultCluster", "broker-a"]
    assert json.loads(bytes(system.body))["brokerAddr"] == ADDRESS
    for code in (311, 312, 313):
        assert topic_list(server.ask(code)) == []


def test_topic_lists_can_be_switched_off() -> None:
    server = Server(enable_all_topic_list=False, enable_topic_list=False)
    for code in (206, 304, 311, 312, 313):
        assert server.ask(code).code == 16
    assert server.ask(224, cluster="C").code == 16


# ------------------------------------------------------------------------------- configuration


def test_key_values(server: Server) -> None:
    assert server.ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k").code == 22
    assert server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N").code == 22
    assert server.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v").code == 0
    answer = server.ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k")
    assert (answer.code, answer.fields) == (0, {"value": "v"})
    answer = server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="N")
    assert json.loads(bytes(answer.body)) == {"table": {"k": "v"}}
    assert server.ask(RequestCode.DELETE_KV_CONFIG, namespace="N", key="k").code == 0
    assert server.ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k").code == 22
    assert server.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k").code == 1


def test_a_key_value_file_that_cannot_be_written(tmp_path: Path) -> None:
    server = Server(tmp_path / "kvConfig.json")
    (tmp_path / "kvConfig.json.tmp").mkdir()
    answer = server.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
    assert answer.code == 1
    assert "kvConfig.json" in (answer.remark or "")


def test_the_configuration_is_shown_and_fixed(server: Server) -> None:
    answer = server.ask(RequestCode.GET_NAMESRV_CONFIG)
    shown = parse_properties(bytes(answer.body).decode())
    assert shown["listenPort"] == "9876"
    assert shown["orderMessageEnable"] == "false"
    assert list(shown) == sorted(shown)
    answer = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
    assert answer.code == 16


def test_the_configuration_changes_when_that_is_allowed() -> None:
    server = Server(allow_config_update=True)
    update = RequestCode.UPDATE_NAMESRV_CONFIG
    assert server.ask(update, b"orderMessageEnable=true\n").code == 0
    shown = parse_properties(bytes(server.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode())
    assert shown["orderMessageEnable"] == "true"
    for body in (b"kvConfigPath=/etc/x\n", b"listenPort=1\n", b"pymqAllowConfigUpdate=false\n"):
        assert server.ask(update, body + b"enableTopicList=false\n").code == 16
    assert server.ask(update, b"enableTopicList=false\norderMessageEnable=maybe\n").code == 29
    assert server.ask(update, b"\xff").code == 1
    assert server.ask(update).code == 0
    assert server.ask(304).code == 0
    assert server.ask(update, b"enableTopicList=false\n").code == 0
    assert server.ask(304).code == 16


def test_changed_settings_outlive_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    update = RequestCode.UPDATE_NAMESRV_CONFIG
    first = Server(path, allow_config_update=True)
    assert first.ask(update, b"enableTopicList=false\n").code == 0
    assert first.ask(update, b"orderMessageEnable=true\n").code == 0
    assert not caplog.records
    second = Server(path)  # also when nothing more may change
    assert second.ask(304).code == 16
    shown = parse_properties(bytes(second.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode())
    assert shown["orderMessageEnable"] == "true"
    assert "enableTopicList=false was set while the name server ran" in caplog.text
    file = path.with_name("liveSettings.json")
    assert json.loads(file.read_text()) == {
        "properties": {"enableTopicList": "false", "orderMessageEnable": "true"}
    }
    file.write_text('{"properties":{"listenPort":"1","enableTopicList":"false"}}')
    assert Server(path).ask(304).code == 16
    assert "listenPort, set while the name server ran, has no effect any more" in caplog.text


def test_settings_that_cannot_be_read_are_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "liveSettings.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"liveSettings\.json"):
        Server(tmp_path / "kvConfig.json")


def test_a_setting_that_another_version_accepted_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "liveSettings.json").write_text(
        '{"properties":{"enableTopicList":"false","orderMessageEnable":"perhaps"}}'
    )
    assert Server(tmp_path / "kvConfig.json").ask(304).code == 16
    (line,) = [record.message for record in caplog.records if "is dropped" in record.message]
    assert "orderMessageEnable='perhaps'" in line and "liveSettings.json" in line


def test_settings_that_cannot_be_written_do_not_change(tmp_path: Path) -> None:
    server = Server(tmp_path / "kvConfig.json", allow_config_update=True)
    (tmp_path / "liveSettings.json.tmp").mkdir()
    answer = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=false\n")
    assert answer.code == 1 and "liveSettings.json" in (answer.remark or "")
    assert server.ask(304).code == 0


# ----------------------------------------------------------------------------- everything else


@pytest.mark.parametrize("code", [0, 10, 105_000, -2, RequestCode.SEND_MESSAGE_V2])
def test_other_codes_are_not_supported(server: Server, code: int) -> None:
    answer = server.ask(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_a_binary_request_gets_a_binary_answer(server: Server) -> None:
    request = Command(105, {"topic": "T"}, form=HeaderForm.BINARY)
    assert ask(server.dispatcher, request).form is HeaderForm.BINARY


def test_a_bug_becomes_an_answer_and_a_traceback(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unawaited: list[str],
) -> None:
    def broken(self: RouteTable) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(RouteTable, "topics", broken)
    with caplog.at_level(logging.ERROR, "pymq"):
        answer = server.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert (answer.code, answer.remark) == (1, "KeyError: 'lost'")
    assert "Traceback" in caplog.text
    unawaited.clear()
