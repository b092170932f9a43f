"""Failover of our brokers under eight producers of the official client and eight of ours.

``tests/crash/test_failover_kill.py`` does more of this, with controllers of ours unless it runs for
long.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.failover_events import EVENTS, events_of
from tests.crash.failover_run import Setup, run_failover
from tests.crash.java_sender import VERSION
from tests.interop.conftest import require_peers

pytestmark = pytest.mark.interop

EVENT_COUNT = 7


@pytest.mark.by_turns(of="kills beside Java", turn="failover")
@pytest.mark.by_turns("part", "flush", "steering")
@pytest.mark.parametrize(
    ("part", "flush", "steering"), [(0, "ASYNC_FLUSH", "java"), (1, "SYNC_FLUSH", "file")]
)
def test_failover_under_java_producers(
    tmp_path: Path, seed: int, part: int, flush: str, steering: str
) -> None:
    require_peers(VERSION)
    setup = Setup(flush=flush, steering=steering, has_java=True, has_commits=True)
    run_failover(tmp_path, seed, setup, events_of(EVENTS, seed, part, EVENT_COUNT, None))
