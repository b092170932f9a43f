"""SIGKILL of our broker under eight producers of the official Java client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.crash.kills import SenderCommand, run_kills
from tests.crash.servers import REPOSITORY
from tests.interop.conftest import require_peers
from tests.interop.jars import class_path, java_executable
from tests.interop.processes import OPEN_MODULES

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
KILLS: Final = 5
PROGRAM: Final = REPOSITORY / "tests/crash/java/LedgerProducer.java"


def java_sender(home: Path, seed: int) -> SenderCommand:
    """Return the command of ``LedgerProducer.java``."""
    (home / "logback.xml").write_text('<configuration><root level="WARN"/></configuration>')

    def command(name_server: str, topic: str, ledger: Path) -> Sequence[str]:
        return [
            str(java_executable()), "-Xms64m", "-Xmx256m", *OPEN_MODULES,
            f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home / 'logs'}",
            f"-Dlogback.configurationFile={home / 'logback.xml'}",
            "-cp", class_path(VERSION), str(PROGRAM),
            name_server, topic, str(ledger), str(seed),
        ]  # fmt: skip

    return command


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_eight_java_producers_and_five_kills(tmp_path: Path, seed: int, flush: str) -> None:
    require_peers(VERSION)
    report = run_kills(tmp_path, java_sender(tmp_path, seed), flush=flush, rounds=KILLS, seed=seed)
    print(f"{flush}, PYMQ_TEST_SEED={seed}: {report}")
    assert not report.complaints, "\n".join([str(report), *report.complaints])
    assert report.acknowledged_count > 0
    assert report.found_count >= report.acknowledged_count
