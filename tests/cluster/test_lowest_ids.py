"""A name server tells the brokers of a group when the lowest id among them changes."""

import asyncio
from contextlib import ExitStack

import pytest
from tests.cluster.played import Played, closed_address
from tests.cluster.test_namesrv import DEADLINE_S, Peer, serve

from pymq.namesrv import NameServer
from pymq.protocol.codes import RequestCode

CHANGE = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE


class Brokers:
    """The members of a group, by id: what listens at their addresses hears the notices."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self._heard = [Played(lambda command: None).start() for _ in range(count)]
        for one in self._heard:
            stack.callback(one.stop)

    def address(self, broker_id: int) -> str:
        return self._heard[broker_id].address

    async def register(self, peer: Peer, broker_id: int, *, acting: bool = True) -> None:
        await peer.register(
            port=int(self.address(broker_id).rpartition(":")[2]),
            brokerId=broker_id,
            enableActingMaster=str(acting).lower(),
        )

    def notices(self, broker_id: int) -> list[dict[str, str]]:
        return [dict(one.fields or {}) for one in self._heard[broker_id].requests]

    async def wait_told(self, broker_id: int, lowest: int, *, times: int = 0) -> None:
        """Wait until the last that a member has heard is that this id is the lowest.

        Args:
            times: how many notices that takes; 0: any number.
        """
        deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            heard = self._heard[broker_id].requests
            assert all(one.code == CHANGE and one.is_one_way for one in heard)
            found = [one["minBrokerId"] for one in self.notices(broker_id)]
            if found[-1:] == [str(lowest)] and times in (0, len(found)):
                return
            assert asyncio.get_running_loop().time() < deadline_s, f"{broker_id}: {found}"
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("acting", [True, False])
def test_members_are_told(acting: bool) -> None:
    async def check(server: NameServer) -> None:
        with ExitStack() as stack:
            brokers = Brokers(stack, 3)
            async with (
                await Peer.connect(server) as zero,
                await Peer.connect(server) as one,
                await Peer.connect(server) as two,
            ):
                await brokers.register(two, 2, acting=acting)
                await brokers.register(one, 1, acting=acting)
                await brokers.wait_told(2, 1, times=1)
                await brokers.register(zero, 0, acting=acting)
                await brokers.wait_told(1, 0, times=1)
                await brokers.wait_told(2, 0, times=2)
                await brokers.register(zero, 0, acting=acting)  # as every 30 s
                await zero.close()
                if acting:
                    for broker_id in (1, 2):
                        await brokers.wait_told(broker_id, 1, times=1 + broker_id)
                        assert brokers.notices(broker_id)[-1] == {
                            "minBrokerId": "1",
                            "brokerName": "broker-a",
                            "minBrokerAddr": brokers.address(1),
                            "offlineBrokerAddr": brokers.address(0),
                        }
                await two.close()  # It was not the lowest.
                await one.wait_for_addresses("TBW102", {brokers.address(1)})
                await brokers.register(zero_again := await Peer.connect(server), 0, acting=acting)
                await brokers.wait_told(1, 0, times=3 if acting else 1)
                await zero_again.close()
                assert brokers.notices(0) == []

    serve(check, notify_lowest_id=True)


def test_nobody_is_told_without_the_setting() -> None:
    async def check(server: NameServer) -> None:
        with ExitStack() as stack:
            brokers = Brokers(stack, 2)
            async with await Peer.connect(server) as zero, await Peer.connect(server) as one:
                await brokers.register(one, 1)
                await brokers.register(zero, 0)
                await zero.close()
                await one.wait_for_addresses("TBW102", {brokers.address(1)})
                assert brokers.notices(0) == brokers.notices(1) == []

    serve(check)


def test_an_unregistered_broker_is_gone_and_one_that_cannot_be_reached_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(server: NameServer) -> None:
        with ExitStack() as stack:
            brokers = Brokers(stack, 2)
            async with await Peer.connect(server) as first, await Peer.connect(server) as second:
                port = int(closed_address().rpartition(":")[2])
                await second.register(port=port, brokerId=2, enableActingMaster="true")
                for broker_id in (1, 0):
                    await brokers.register(first, broker_id)
                await brokers.wait_told(1, 0)
                assert brokers.notices(1)[0]["haBrokerAddr"]
                fields = {"brokerName": "broker-a", "clusterName": "C", "brokerId": 0}
                for address in ("127.0.0.1:1", brokers.address(0)):
                    answer = await first.ask(
                        RequestCode.UNREGISTER_BROKER, brokerAddr=address, **fields
                    )
                    assert answer.code == 0, answer.remark
                await brokers.wait_told(1, 1, times=2)

    serve(check, notify_lowest_id=True)
    assert "was not told of its group's lowest id: cannot connect to 127.0.0.1" in caplog.text
