"""A controller in the event loop of a test, and a group of brokers that it steers."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cluster.controlled_broker import CLUSTER, NAME, ControlledBroker

from pymq.controller import Controller, ControllerConfig
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import RegisterReplicaRequest

DEADLINE_S = 60.0
#: So that a machine that is busy for a moment makes nobody silent.
SILENCE_MS = 2_000

FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
INVALID_ID = ResponseCode.CONTROLLER_BROKER_ID_INVALID


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Controller]:
    config = {"store": f"file:{folder}", "listen_port": 0, "scan_interval_ms": 50, **settings}
    controller = Controller(ControllerConfig(**config))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.close()


@asynccontextmanager
async def group_of(
    controller: Controller, *settings: dict[str, Any]
) -> AsyncIterator[list[ControlledBroker]]:
    """A group whose brokers are in sync; the first one is master of epoch 1."""
    brokers = [ControlledBroker(controller.address, **one) for one in settings or ({}, {})]
    try:
        for broker in brokers:
            await broker.__aenter__()
            await broker.join()
            broker.begin_to_beat()
        assert (await brokers[0].elect()).code == 0
        if len(brokers) > 1:
            answer = await brokers[0].alter(*(broker.id for broker in brokers))
            assert answer.code == 0, answer.remark
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()


async def register_as(
    broker: ControlledBroker, *, log_epoch: int | None = None, has_had_id: bool | None = None
) -> Command:
    """Register as brokers of ours do: RocketMQ's do not say these two."""
    header = RegisterReplicaRequest(
        cluster_name=CLUSTER,
        broker_name=NAME,
        broker_id=broker.id,
        broker_address=broker.address,
        log_epoch=log_epoch,
        has_had_id=has_had_id,
    )
    return await broker.ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)


async def wait_last_epoch(folder: Path, broker_id: int, epoch: int) -> None:
    """Wait until a store has what a broker had in its log when it was the master."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            text = (folder / "groups.json").read_text()
            last = json.loads(text)[NAME]["lastTerms"].get(str(broker_id))
            if last is not None and last["epoch"] == epoch:
                return
            await asyncio.sleep(0.01)


async def wait_leads(controller: Controller) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not controller.store.is_leader:
        assert asyncio.get_running_loop().time() < deadline, "it leads"
        await asyncio.sleep(0.01)
