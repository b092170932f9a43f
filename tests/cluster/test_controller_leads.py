"""Controllers of one etcd that lead in turns, while two brokers have one id."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.controlled_broker import ControlledBroker
from tests.cluster.controllers import DEADLINE_S, INVALID_ID, awaited, running, wait_leads
from tests.cluster.etcd_members import EtcdCluster

from pymq.protocol.codes import ResponseCode


@awaited
async def test_the_master_stays_though_the_next_controller_has_heard_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is cut off from the first controller alone, which has given its id away."""
    monkeypatch.setattr("pymq.controller.stores.etcd_gateway.TIMEOUT_S", DEADLINE_S)
    with EtcdCluster(tmp_path) as etcd:
        settings = {"store": etcd.store, "etcd_lease_s": 30}
        async with (
            running(tmp_path, **settings) as first,
            running(tmp_path, **settings) as second,
            ControlledBroker(first.address, second.address) as cut_off,
            ControlledBroker(first.address, second.address) as moved,
        ):
            await cut_off.join()
            cut_off.begin_to_beat()
            assert (await cut_off.elect()).code == 0
            cut_off.epoch, cut_off.end = 1, 100
            cut_off.is_second_asked = True
            await cut_off.wait_beats(2)  # so the second one has heard it first
            cut_off._channels[0].close()
            moved.id, moved.epoch, moved.end = cut_off.id, 1, 100
            async with asyncio.timeout(DEADLINE_S):
                while (await moved.register()).code == INVALID_ID:
                    await asyncio.sleep(0.02)
            moved.begin_to_beat()
            await moved.wait_master(moved.id, 3)
            moved.epoch, moved.end = 3, 4_000
            moved.is_second_asked = True
            await moved.wait_beats(2)
            await first.close()
            await wait_leads(second)
            assert (await moved.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            await asyncio.sleep(0.3)  # several reviews
            found, _ = await moved.state()
            assert (found.master_address, found.master_epoch) == (moved.address, 3)
            assert (await cut_off.ask_who_is_master()).code == INVALID_ID
