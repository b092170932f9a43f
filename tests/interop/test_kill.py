"""SIGKILL of our broker under eight producers of the official Java client."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.crash.java_sender import VERSION, java_sender
from tests.crash.kills import run_kills
from tests.interop.conftest import require_peers

pytestmark = pytest.mark.interop

KILLS: Final = 5


@pytest.mark.by_turns(of="kills beside Java", turn="a broker")
@pytest.mark.by_turns("flush")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_eight_java_producers_and_five_kills(tmp_path: Path, seed: int, flush: str) -> None:
    require_peers(VERSION)
    report = run_kills(tmp_path, java_sender(tmp_path, seed), flush=flush, rounds=KILLS, seed=seed)
    print(f"{flush}, PYMQ_TEST_SEED={seed}: {report}")
    assert not report.complaints, "\n".join([str(report), *report.complaints])
    assert report.acknowledged_count > 0
    assert report.found_count >= report.acknowledged_count
