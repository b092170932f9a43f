"""The name server behind real sockets, asked with bare frames."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
from tests.cluster.addresses import has_ipv6

from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.namesrv import NameServer, NamesrvConfig
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion, TopicConfig, TopicTable
from pymq.protocol.codes import CommandFlag, RequestCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.framing import FrameDecoder, encode_frame
from pymq.protocol.registration_body import RegisterBrokerBody

DEADLINE_S = 60.0


class Peer:
    """One connection to a name server; sends commands and awaits what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._received: list[Command] = []
        self._opaque = 0

    @classmethod
    async def connect(cls, server: NameServer) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def send_command(
        self, code: int, body: bytes = b"", *, flag: int = 0, form: HeaderForm = HeaderForm.JSON,
        **fields: object,
    ) -> int:  # fmt: skip
        self._opaque += 1
        texts = {key: str(value) for key, value in fields.items()}
        command = Command(code, texts or None, body, opaque=self._opaque, flag=flag, form=form)
        self.send(encode_frame(command))
        return self._opaque

    async def receive(self) -> Command:
        while not self._received:
            data = await asyncio.wait_for(self._reader.read(1 << 16), DEADLINE_S)
            assert data, "the server closed the connection"
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    async def wait_closed(self) -> None:
        """Wait until the server closes the connection without having answered."""
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 16), DEADLINE_S)
        except ConnectionResetError:
            return
        assert data == b"", f"answered {data!r}"

    async def ask(self, code: int, body: bytes = b"", **fields: Any) -> Command:
        opaque = self.send_command(code, body, **fields)
        answer = await self.receive()
        assert answer.is_response
        assert answer.opaque == opaque
        return answer

    async def register(
        self, name: str = "broker-a", *topics: str, port: int = 10911, **fields: object
    ) -> None:
        table = {topic: TopicConfig(topic=topic) for topic in (name, "TBW102", *topics)}
        body = RegisterBrokerBody(
            topics=TopicTable(version=DataVersion(timestamp_ms=1), topics=table)
        )
        answer = await self.ask(
            RequestCode.REGISTER_BROKER,
            body.encode(),
            brokerName=name,
            brokerAddr=f"127.0.0.1:{port}",
            clusterName="C",
            haServerAddr=f"127.0.0.1:{port + 1}",
            **{"brokerId": 0, "compressed": "false", "bodyCrc32": 0, **fields},
        )
        assert answer.code == 0, answer.remark

    async def addresses(self, topic: str) -> set[str]:
        """Addresses in the topic's route; empty when there is none."""
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        if answer.code == 17:
            return set()
        assert answer.code == 0, answer.remark
        brokers = fastjson.parse(answer.body)["brokerDatas"]
        return {address for broker in brokers for address in broker["brokerAddrs"].values()}

    async def wait_for_addresses(self, topic: str, expected: set[str]) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while (found := await self.addresses(topic)) != expected:
            assert asyncio.get_running_loop().time() < deadline, f"{topic}: {found}"
            await asyncio.sleep(0.005)


class MovedClock(Clock):
    """A clock that tests move."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def serve(
    check: Callable[..., Awaitable[None]],
    *,
    count: int = 1,
    clock: Clock | None = None,
    **settings: Any,
) -> None:
    """Run ``check`` against ``count`` name servers on ports of their own."""

    async def run() -> None:
        config = NamesrvConfig(port=0, **settings)
        servers = [NameServer(config, clock) for _ in range(count)]
        try:
            for server in servers:
                await server.start()
            await check(*servers)
        finally:
            for server in servers:
                await server.close()
                await server.close()

    asyncio.run(asyncio.wait_for(run(), 3 * DEADLINE_S))


def test_register_route_and_leave() -> None:
    async def check(server: NameServer) -> None:
        assert server.address == f"127.0.0.1:{server.port}"
        async with await Peer.connect(server) as client:
            broker = await Peer.connect(server)
            await broker.register("broker-a", "T")
            assert await client.addresses("T") == {"127.0.0.1:10911"}
            await broker.close()
            await client.wait_for_addresses("T", set())

    serve(check)


def test_a_reconnected_broker_outlives_its_old_connection() -> None:
    async def check(server: NameServer) -> None:
        first, second = await Peer.connect(server), await Peer.connect(server)
        async with await Peer.connect(server) as client, second:
            await first.register("broker-a", "T")
            await second.register("broker-a", "T")
            async with await Peer.connect(server) as third:
                await third.register("broker-b", "T", port=20911)
                await first.close()
                await third.close()
                await client.wait_for_addresses("T", {"127.0.0.1:10911"})

    serve(check)


def test_two_name_servers_know_nothing_of_each_other() -> None:
    async def check(one: NameServer, other: NameServer) -> None:
        async with await Peer.connect(one) as at_one, await Peer.connect(other) as at_other:
            await at_one.register("broker-a", "T")
            assert await at_one.addresses("T") == {"127.0.0.1:10911"}
            assert await at_other.addresses("T") == set()
            await at_other.register("broker-b", "T", port=20911)
            assert await at_one.addresses("T") == {"127.0.0.1:10911"}
            assert await at_other.addresses("T") == {"127.0.0.1:20911"}

    serve(check, count=2)


def test_a_silent_broker_expires_and_its_connection_is_closed() -> None:
    async def run() -> None:
        clock = MovedClock()
        server = NameServer(NamesrvConfig(port=0), clock)
        await server.start()
        try:
            async with await Peer.connect(server) as broker, await Peer.connect(server) as client:
                await broker.register("broker-a", "T")
                for now_s in range(5, 121, 5):
                    clock.now_s = now_s
                    assert server.expire_brokers() == 0
                clock.now_s = 121.0
                assert server.expire_brokers() == 1
                assert await client.addresses("T") == set()
                await broker.wait_closed()
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_standstill_of_the_name_server_is_no_silence_of_brokers() -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as broker, await Peer.connect(server) as client:
            await broker.register("broker-a", "T")
            clock.now_s += 500.0
            assert server.expire_brokers() == 0
            assert await client.addresses("T") == {"127.0.0.1:10911"}
            expired = 0
            for _ in range(25):
                clock.now_s += 5.0
                expired += server.expire_brokers()
            assert expired == 1

    clock = MovedClock()
    serve(check, clock=clock)


def test_who_leaves_when_a_name_server_stops_is_not_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as master, await Peer.connect(server) as slave:
            for broker_id, peer in enumerate((master, slave)):
                await peer.register(
                    "broker-a",
                    port=10911 + broker_id,
                    brokerId=broker_id,
                    enableActingMaster="true",
                )
            await server.close()
            await master.wait_closed()
            await slave.wait_closed()
        assert not [one for one in caplog.messages if "lowest id" in one or "removed" in one]

    with caplog.at_level(logging.INFO):
        serve(check, notify_lowest_id=True)


def test_the_scan_runs_by_itself() -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as broker, await Peer.connect(server) as client:
            await broker.register("broker-a", "T")
            await client.wait_for_addresses("T", set())

    serve(check, scan_interval_ms=5, broker_expiry_s=0.05)


def test_unknown_codes_are_answered_and_one_way_requests_never() -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as peer:
            answer = await peer.ask(4711)
            assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
            for code in (4711, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PUT_KV_CONFIG):
                peer.send_command(code, flag=CommandFlag.ONE_WAY)
            peer.send_command(0, flag=CommandFlag.RESPONSE)
            answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert answer.code == 0

    serve(check)


def test_many_requests_in_one_write_are_answered_in_order() -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as peer:
            asked = [
                peer.send_command(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=f"T{n}", form=HeaderForm(n % 2)
                )
                for n in range(200)
            ]
            answers = [await peer.receive() for _ in asked]
            assert [answer.opaque for answer in answers] == asked
            assert [answer.form for answer in answers] == [n % 2 for n in range(200)]
            assert {answer.code for answer in answers} == {17}

    serve(check)


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xff\xff\xff\xff\x00\x00\x00\x10",
    b"\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x00\x00\x00\x08\x00\x00\x00\xff{}{}",
    b"\x00\x00\x00\x08\x07\x00\x00\x04{}{}",
    b"\x00\x00\x00\x08\x00\x00\x00\x04{}{}",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_closes_its_own_connection_only(garbage: bytes) -> None:
    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as peer, await Peer.connect(server) as broker:
            await broker.register("broker-a", "T")
            peer.send(garbage)
            await peer.wait_closed()
            assert await broker.addresses("T") == {"127.0.0.1:10911"}

    serve(check)


def test_random_bodies_and_fields_get_an_answer(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ("brokerName", "brokerAddr", "clusterName", "brokerId", "topic", "namespace", "key")
    more = ("value", "compressed", "bodyCrc32", "cluster", "heartbeatTimeoutMillis")
    values = ("", "a", "0", "-1", "true", "99999999999999999999", "é")

    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as peer:
            for _ in range(500):
                code = rng.choice([*RequestCode, 0, 9999])
                fields = {
                    name: rng.choice(values) for name in (*names, *more) if rng.random() < 0.7
                }
                body = rng.choice((b"", b"{}", b"[]", b"\xff" * 9, b'{"dataVersion":3}'))
                answer = await peer.ask(code, body, **fields)
                assert answer.code in (0, 1, 3, 16, 17, 22), (code, fields, body, answer)

    # No scan comes meanwhile: some say that they expire at once, on the only connection.
    serve(check, scan_interval_ms=3_600_000)


def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    async def put(server: NameServer) -> None:
        async with await Peer.connect(server) as peer:
            answer = await peer.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
            assert answer.code == 0

    async def check(server: NameServer) -> None:
        async with await Peer.connect(server) as peer:
            answer = await peer.ask(RequestCode.GET_KV_CONFIG, namespace="N", key="k")
            assert answer.fields == {"value": "v"}

    path = tmp_path / "kvConfig.json"
    serve(put, kv_config_path=path)
    serve(check, kv_config_path=path)
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"kvConfig\.json"):
        NameServer(NamesrvConfig(kv_config_path=path))


def test_a_port_in_use_is_named() -> None:
    async def check(server: NameServer) -> None:
        other = NameServer(NamesrvConfig(port=server.port))
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{server.port}: the port is in"):
            await other.start()
        await other.close()

    serve(check)


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
)
def test_listening_for_others_says_so(
    host: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 loopback here")

    async def run() -> None:
        server = NameServer(NamesrvConfig(host=host, port=0))
        await server.start()
        assert server.address == f"{address}:{server.port}"
        await server.close()

    with caplog.at_level(logging.WARNING, "pymq"):
        asyncio.run(run())
    assert ("can change routes" in caplog.text) is (host == "0.0.0.0")
