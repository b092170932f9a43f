"""What name servers keep of a broker whose registration ends: nothing, unless it goes on."""

import asyncio

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
