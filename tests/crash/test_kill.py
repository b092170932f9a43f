"""SIGKILL of the broker's process at random moments, under eight producers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.kills import python_sender, run_kills

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_is_lost(
    tmp_path: Path, seed: int, crash_rounds: int, flush: str
) -> None:
    report = run_kills(tmp_path, python_sender(seed), flush=flush, rounds=crash_rounds, seed=seed)
    print(f"{flush}, PYMQ_TEST_SEED={seed}: {report}")
    assert not report.complaints, "\n".join([str(report), *report.complaints])
    assert report.acknowledged_count > 0
    assert report.found_count >= report.acknowledged_count
