"""Brokers of a group with a controller are killed, frozen, wiped and cut off, under load.

The ledger says what was acknowledged. In the end every message of it is at the master, where it was
acknowledged to be, and the logs of all brokers are the same; each epoch had one writer, and no
offset that was committed ran backwards. What can happen: ``failover_events``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import ROUNDS_OF_A_TEST
from tests.crash.failover_events import CUTS, EVENTS, events_of
from tests.crash.failover_run import Setup, run_failover
from tests.crash.java_sender import VERSION
from tests.crash.networks import require_networks
from tests.interop.jars import are_cached

pytestmark = pytest.mark.crash

#: Events of each test while few are asked for: 20 in all. Otherwise one for so many rounds.
KILLS_OF_A_TEST, CUTS_OF_A_TEST, LONG_SHARE = 7, 6, 10
#: Of one group, which is then replaced by another one: logs grow.
EVENTS_OF_A_GROUP: Final = 25
HAS_COMMITS: Final = True


def run_all(home: Path, seed: int, setup: Setup, events: Sequence[str]) -> None:
    """Have events happen to one group after the other, each with a seed of its own."""
    for number, first in enumerate(range(0, len(events), EVENTS_OF_A_GROUP)):
        folder = home / f"group-{number}"
        folder.mkdir()
        run_failover(folder, seed + number, setup, events[first : first + EVENTS_OF_A_GROUP])
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("part", "flush", "steering"),
    [(0, "ASYNC_FLUSH", "file"), (1, "SYNC_FLUSH", "etcd"), (2, "SYNC_FLUSH", "java")],
)
def test_what_was_acknowledged_survives_every_failover(
    tmp_path: Path, seed: int, crash_rounds: int, part: int, flush: str, steering: str
) -> None:
    is_long = crash_rounds > ROUNDS_OF_A_TEST
    has_peers = are_cached(VERSION)
    if steering == "java" and not (is_long and has_peers):
        pytest.skip("tests/interop/test_failover_kill.py does this")
    if not (is_long and has_peers):
        print("no producers of RocketMQ's client: tests/interop/test_failover_kill.py has them")
    setup = Setup(
        flush=flush,
        steering=steering,
        has_java=has_peers and is_long,
        has_commits=HAS_COMMITS,
        is_long=is_long,
    )
    count = crash_rounds // LONG_SHARE if is_long else None
    run_all(tmp_path, seed, setup, events_of(EVENTS, seed, part, KILLS_OF_A_TEST, count))


def test_what_was_acknowledged_survives_cuts_of_the_network(
    tmp_path: Path, seed: int, crash_rounds: int
) -> None:
    require_networks()
    is_long = crash_rounds > ROUNDS_OF_A_TEST
    setup = Setup(
        flush="ASYNC_FLUSH",
        steering="file",
        has_java=is_long and are_cached(VERSION),
        is_cut=True,
        has_commits=HAS_COMMITS,
        is_long=is_long,
    )
    count = crash_rounds // LONG_SHARE if is_long else None
    run_all(tmp_path, seed, setup, events_of(CUTS, seed, 0, CUTS_OF_A_TEST, count))
