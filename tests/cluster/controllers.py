"""A controller in the event loop of a test, and a group of brokers that it steers."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cluster.controlled_broker import ControlledBroker

from pymq.controller import Controller, ControllerConfig
from pymq.protocol.codes import ResponseCode

DEADLINE_S = 60.0

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
        answer = await brokers[0].alter(*(broker.id for broker in brokers))
        assert answer.code == 0, answer.remark
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()
