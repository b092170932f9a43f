"""The shop on PostgreSQL and MariaDB in containers, which die, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.database_containers import IMAGE, Contained
from tests.interop.engine import NoEngine, engine
from tests.shop.patience import patient_story
from tests.shop.servers import SERVERS, Server
from tests.shop.test_story import KILLS, LATE, QUICK

from shop.story.__main__ import lines
from shop.story.tale import Plan, tell

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

pytestmark = pytest.mark.interop

ORDERS = 80
KILL_EACH_S = 6.0


@pytest.fixture(scope="module")
def container_class() -> Iterator[type[DockerContainer]]:
    """The class, once there are an engine and an image."""
    try:
        with engine("image-databases") as environment, pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            # It reads the environment when it is imported.
            from testcontainers.core.container import DockerContainer

            yield DockerContainer
    except NoEngine as error:
        pytest.skip(f"no container can be started: {error}")


@pytest.fixture(params=SERVERS)
def server(
    request: pytest.FixtureRequest, container_class: type[DockerContainer]
) -> Iterator[Server]:
    """A server in a container of its own."""
    kind = SERVERS[request.param]
    container = container_class(IMAGE).with_exposed_ports(kind.port)
    with container.with_command(["sleep", "infinity"]) as started:
        yield kind(Contained(started, kind.port))


@pytest.mark.by_turns("server")
@pytest.mark.by_turns(of="stories of the shop", turn="databases")
def test_orders_with_kills(server: Server, tmp_path: Path, seed: int) -> None:
    """The server dies every few seconds, and processes of the shop besides."""
    settings = replace(QUICK, pay_by=random.Random(seed).choice(["outbox", "transaction"]))
    plan = Plan(
        orders=ORDERS,
        kills=int(ORDERS * KILLS),
        late_rate=LATE,
        seed=seed,
        settings=replace(settings, database=server.create()),
        at_once=20,
    )
    kills = 0

    async def main() -> None:
        nonlocal kills
        story = asyncio.create_task(tell(plan, tmp_path))
        while not (await asyncio.wait([story], timeout=KILL_EACH_S))[0] and kills < 4:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            kills += 1
        outcome = await story
        print(f"PAY_BY={settings.pay_by}, server killed {kills} times", *lines(plan, outcome))
        assert not outcome.problems, "\n".join(outcome.problems)
        # On a slow machine a third of the customers come too late to pay.
        assert outcome.report.orders["paid"] > ORDERS // 10

    with patient_story():
        asyncio.run(main())
    assert kills
