"""What name servers keep of a broker whose registration ends: nothing, unless it goes on."""

import asyncio
import json
import logging

import pytest
from tests.cluster.played import Played

from pymq.broker.config import BrokerConfig
from pymq.broker.registration import Registration
from pymq.protocol.bodies import TopicTable
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command


@pytest.mark.parametrize("unregisters", [True, False])
def test_a_broker_that_only_changes_its_role_stays_registered(unregisters: bool) -> None:
    async def run(address: str) -> None:
        registration = Registration(
            BrokerConfig(name="b", name_servers=(address,)),
            address="127.0.0.1:10911",
            ha_address=None,
            topics=TopicTable,
            on_order_topics=lambda names: None,
        )
        await registration.start(60.0)
        if unregisters:
            await registration.close()
            await registration.close()
            return
        (channel,) = await registration.release()
        assert channel.is_open
        assert await registration.release() == []
        channel.close()

    def answer(request: Command) -> Command:
        return request.reply(0)

    with Played(answer) as name_server:
        asyncio.run(run(name_server.address))
        assert name_server.count(RequestCode.REGISTER_BROKER) == 1
        assert name_server.count(RequestCode.UNREGISTER_BROKER) == unregisters


def test_a_name_server_over_a_dead_connection_is_reached_over_another_one() -> None:
    """A firewall that forgot a connection says nothing, and TCP tries for a quarter of an hour."""

    async def run(address: str) -> None:
        registration = Registration(
            BrokerConfig(name="b", name_servers=(address,), register_timeout_ms=200),
            address="127.0.0.1:10911",
            ha_address=None,
            topics=TopicTable,
            on_order_topics=lambda names: None,
        )
        await registration.start(60.0)
        try:
            async with asyncio.timeout(60.0):
                while not await registration.wait_announced(60.0):
                    pass
        finally:
            await registration.close()

    def answer(request: Command) -> Command | None:
        return None if name_server.accepted == 1 else request.reply(0)

    with Played(answer) as name_server:
        asyncio.run(run(name_server.address))
    assert name_server.accepted > 1


def test_a_slave_whose_master_is_not_registered_yet_asks_again_soon(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were started at once, or the slave while its master was restarted."""
    monkeypatch.setattr("pymq.broker.registration.RETRY_S", 0.05)
    found: list[tuple[str | None, str]] = []

    async def run(address: str) -> None:
        registration = Registration(
            BrokerConfig(
                name="b", broker_id=1, name_servers=(address,), register_interval_ms=600_000
            ),
            address="127.0.0.1:10911",
            ha_address=None,
            topics=TopicTable,
            on_order_topics=lambda names: None,
        )
        registration.on_master = lambda *addresses: found.append(addresses)
        await registration.start(60.0)
        try:
            async with asyncio.timeout(60.0):
                while not found:
                    await asyncio.sleep(0.01)
        finally:
            await registration.close()

    def answer(request: Command) -> Command:
        if name_server.count(RequestCode.REGISTER_BROKER) < 4:
            return request.reply(0)
        fields = {"masterAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2"}
        return request.reply(0, None, fields)

    with Played(answer) as name_server:
        asyncio.run(run(name_server.address))
    assert found == [("127.0.0.1:1", "127.0.0.1:2")]
    assert caplog.text.count("knows no master of group b yet") == 1


def test_another_broker_in_our_place_is_said_each_time_it_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pymq.broker.registration")
    monkeypatch.setattr("pymq.broker.registration.OTHER_GONE_S", 0.0)
    own, other = "127.0.0.1:10911", "127.0.0.1:20911"
    found = [own, other, other, own, own, other]

    async def run(address: str) -> None:
        registration = Registration(
            BrokerConfig(name="b", name_servers=(address,), register_interval_ms=10),
            address=own,
            ha_address=None,
            topics=TopicTable,
            on_order_topics=lambda names: None,
        )
        await registration.start(60.0)
        async with asyncio.timeout(60.0):
            while len(said()) < 3:
                await asyncio.sleep(0.01)
        await registration.close()

    def said() -> list[str]:
        return [one.levelname for one in caplog.records if other in one.getMessage()]

    def answer(request: Command) -> Command:
        if request.code != RequestCode.GET_BROKER_MEMBER_GROUP:
            return request.reply(0)
        at = found.pop(0) if len(found) > 1 else found[0]
        group = {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": at}}
        return request.reply(0, body=json.dumps({"brokerMemberGroup": group}).encode())

    with Played(answer) as name_server:
        asyncio.run(run(name_server.address))
    assert said() == ["WARNING", "INFO", "WARNING"]
    assert f"{other} is not registered as this broker any more" in caplog.text
