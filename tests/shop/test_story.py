"""Orders in real processes that are killed at random, on one database in each run, and the audit.

``PYMQ_SHOP_ORDERS`` says how many; ``./build.sh crash`` has 10,000 of them from 50 users at once.
"""

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.shop.patience import START_S, patient_story
from tests.shop.servers import Server

from shop.settings import Settings
from shop.story.__main__ import lines
from shop.story.processes import Member, StoryFailed
from shop.story.tale import Plan, tell

QUICK = replace(
    Settings(),
    unpaid_s=7.0,
    stale_s=9.0,
    lease_s=4.0,
    call_deadline_s=8.0,
    sqlite_sync="normal",
)
#: For each order; every call may be late that takes effect.
KILLS = 1 / 50
LATE = 0.01
AT_ONCE = {True: 50, False: 20}
ORDERS = {"sqlite": 200, "postgresql": 120, "mariadb": 120}
PROJECT = Path(__file__).parents[2]
#: ``python -m shop.story``, with time to start.
PATIENT = """
import sys
from tests.shop.patience import patient_story
from shop.story.__main__ import main

with patient_story():
    sys.exit(main())
"""
GIVEN = int(os.environ.get("PYMQ_SHOP_ORDERS", "0"))


@pytest.mark.crash
@pytest.mark.by_turns("kind")
def test_orders_with_kills(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    settings = replace(QUICK, pay_by=random.Random(seed).choice(["outbox", "transaction"]))
    if kind != "sqlite":
        server: Server = request.getfixturevalue(kind)
        settings = replace(settings, database=server.create())
    orders = GIVEN or ORDERS[kind]
    plan = Plan(
        orders=orders,
        kills=int(orders * KILLS),
        late_rate=LATE,
        seed=seed,
        settings=settings,
        at_once=AT_ONCE[bool(GIVEN)],
    )
    with patient_story():
        outcome = asyncio.run(tell(plan, tmp_path))
    print(kind, f"PAY_BY={settings.pay_by}", *lines(plan, outcome), sep="\n")
    assert not outcome.problems, "\n".join(outcome.problems)
    # Some of all happened. On a slow machine many come too late to pay, and who was killed needs
    # long to start again.
    found = outcome.report.orders
    assert found["paid"] > orders * 0.2 and found["cancelled"] > orders * 0.1
    assert sum(outcome.kills.values()) >= 1


def test_a_story_that_stays_ends_everything_when_told(tmp_path: Path, seed: int) -> None:
    """The page is there after the audit; afterwards no process is left, and the status is 0."""
    number = random.Random(seed).choice([signal.SIGINT, signal.SIGTERM])
    command = [sys.executable, "-c", PATIENT, "--orders", "6", "--calm", "--stay"]
    with subprocess.Popen(
        # Who runs tests in the background ignores SIGINT, and so would the story.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        args=[*command, "--brokers", "2", "--folder", str(tmp_path)], cwd=PROJECT,
        stdout=subprocess.PIPE, text=True, env=os.environ | {"SHOP_SQLITE_SYNC": "normal"},
    ) as story:  # fmt: skip
        assert story.stdout is not None
        try:
            said = ""
            for line in story.stdout:
                said += line
                if "everything still runs" in line:
                    break
            assert "audit        green" in said, said
            (url,) = re.findall(r"page: (\S+)", said)
            page = httpx.get(url, trust_env=False, timeout=START_S)
            assert "<h1>pymq shop" in page.text
        finally:
            story.send_signal(number)
        assert story.wait(START_S) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False, timeout=START_S)


def test_a_member_whose_port_is_somebody_else_s_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        command = [sys.executable, "-c", "raise SystemExit('the port is taken')"]
        member = Member("goods", command, os.environ, tmp_path / "log", port)

        async def main() -> None:
            await member.start()
            async with asyncio.timeout(START_S):
                while member.is_running:
                    await asyncio.sleep(0.01)
            with pytest.raises(StoryFailed, match=r"goods has ended:\nthe port is taken"):
                await member.wait_ready()
            await member.stop()

        asyncio.run(main())
