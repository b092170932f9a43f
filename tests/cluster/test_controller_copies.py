"""A broker of a group whose id another one has by now: a store was copied, or the broker moved."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.broker_peer import copy_running
from tests.cluster.controlled_broker import CLUSTER, NAME, ControlledBroker
from tests.cluster.controllers import (
    DEADLINE_S,
    INVALID_ID,
    awaited,
    running,
    wait_last_epoch,
)
from tests.cluster.running import PATIENT

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.ha.membership import Membership
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.controller import claims
from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.store import StoreConfig


def broker_on(
    root: Path, controller: str, name_server: str, *, silence_ms: int = 300
) -> Broker:
    """Return a broker that is taken for dead when it is silent for that long."""
    settings = {
        **PATIENT,
        "term_interval_ms": 50,
        "controller_heartbeat_ms": 100,
        "controller_timeout_ms": silence_ms,
    }
    return Broker(
        BrokerConfig(
            name=NAME,
            cluster=CLUSTER,
            listen_port=0,
            vip_port=False,
            name_servers=(name_server,),
        ),
        StoreConfig(root_path=root, segment_bytes=4 << 20, disk_free_enough_bytes=1 << 20),
        replication=ReplicationConfig(
            role=Role.ASYNC_MASTER,
            listen_port=0,
            controller_mode=True,
            controllers=(controller,),
            **settings,
        ),
    )


async def answers(broker: Broker) -> bool:
    channel = await AsyncChannel.connect(broker.address, DEADLINE_S)
    try:
        await channel.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO), 0.3)
    except (ConnectionFailed, RequestTimeout):
        return False
    finally:
        channel.close()
    return True


async def is_turned_away(broker: Broker) -> bool:
    """Is a connection to it ended at once, so that its client asks another broker?"""
    channel = await AsyncChannel.connect(broker.address, DEADLINE_S)
    try:
        await channel.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO), DEADLINE_S)
    except ConnectionFailed:
        return True
    finally:
        channel.close()
    return False


async def wait_answers(broker: Broker, *, wanted: bool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await answers(broker) is not wanted:
            await asyncio.sleep(0.02)


@awaited
async def test_a_master_whose_id_another_one_has_answers_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "OVERLAP_S", 0.1)
    name_server = NameServer(NamesrvConfig(host="127.0.0.1", port=0))
    await name_server.start()
    async with (
        running(tmp_path / "controller", heartbeat_timeout_ms=300) as controller,
        ControlledBroker(controller.address) as other,
    ):
        broker = broker_on(tmp_path / "store", controller.address, name_server.address)
        await broker.start()
        client = await AsyncChannel.connect(broker.address, DEADLINE_S)
        try:
            assert await answers(broker)
            assert name_server.is_registered(broker.address)
            assert broker._roles is not None
            membership = broker._roles._membership
            other.id = membership._id
            here = broker._roles.position()  # of the same store
            other.epoch, other.end = here.epoch, here.end
            assert (await other.register()).code == INVALID_ID
            # As if it stood still: it says nothing, and asks nothing.
            monkeypatch.setattr(membership, "_is_unwilling", True)
            async with asyncio.timeout(DEADLINE_S):
                while (await other.register()).code == INVALID_ID:
                    await asyncio.sleep(0.05)
            other.begin_to_beat()
            await other.wait_master(other.id, 3)
            await wait_answers(broker, wanted=False)
            assert membership.term is None
            assert [one for one in caplog.messages if other.address in one and "stop" in one]
            # Nobody is sent to it, and nobody waits for it.
            async with asyncio.timeout(DEADLINE_S):
                while name_server.is_registered(broker.address) or client.is_open:
                    await asyncio.sleep(0.02)
            assert await is_turned_away(broker)
            # It is back when the other one is gone, however long that was there, and though the
            # controller knows nothing of it any more.
            monkeypatch.setattr(membership, "_is_unwilling", False)
            for channel in membership._controllers._channels.values():
                channel.close()
            await asyncio.sleep(5 * claims.OVERLAP_S)
            await other.close()
            await wait_answers(broker, wanted=True)
            assert name_server.is_registered(broker.address)
            assert membership.term is not None and membership.term.number > 3
        finally:
            client.close()
            await broker.close()
            await name_server.close()


def membership_of(broker: Broker) -> Membership:
    assert broker._roles is not None
    return broker._roles._membership


async def wait_master(broker: Broker, *, wanted: bool) -> int:
    """Wait until a broker is the master of some epoch, or has no role; return the epoch."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            term = membership_of(broker).term
            if (term is not None and term.is_master) if wanted else term is None:
                return 0 if term is None else term.number
            await asyncio.sleep(0.02)


@awaited
async def test_a_broker_that_stood_still_does_not_take_over_from_the_one_that_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is merely restarted: neither is the other one the master, nor is that one shut out."""
    monkeypatch.setattr(claims, "OVERLAP_S", 0.1)
    name_server = NameServer(NamesrvConfig(host="127.0.0.1", port=0))
    await name_server.start()
    folder = tmp_path / "controller"
    async with running(folder, heartbeat_timeout_ms=300) as controller:

        def one_on(name: str) -> Broker:
            return broker_on(tmp_path / name, controller.address, name_server.address)

        stale, whole = one_on("stale"), one_on("whole")
        try:
            await stale.start()
            await wait_last_epoch(folder, 1, 1)
            copy_running(tmp_path / "stale", tmp_path / "whole")
            monkeypatch.setattr(membership_of(stale), "_is_unwilling", True)
            await whole.start()
            assert await wait_master(whole, wanted=True) == 3
            await wait_last_epoch(folder, 1, 3)
            await wait_master(stale, wanted=False)
            monkeypatch.setattr(membership_of(stale), "_is_unwilling", False)
            await whole.close()
            async with asyncio.timeout(DEADLINE_S):
                while not [one for one in caplog.messages if "epoch 3 in its log" in one]:
                    await asyncio.sleep(0.02)
            whole = one_on("whole")
            await whole.start()
            assert await wait_master(whole, wanted=True) == 5
            await wait_master(stale, wanted=False)
            await wait_answers(whole, wanted=True)
        finally:
            await whole.close()
            await stale.close()
            await name_server.close()
