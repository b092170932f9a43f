"""Eight official Java producers that write the ledger: ``java/LedgerProducer.java``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.crash.kills import SenderCommand
from tests.crash.servers import REPOSITORY
from tests.interop.jars import class_path, java_executable
from tests.interop.processes import OPEN_MODULES

VERSION: Final = "5.3.3"
PROGRAM: Final = REPOSITORY / "tests/crash/java/LedgerProducer.java"
#: Long enough that a loaded machine makes no unknown outcomes of good ones.
TIMEOUT_S: Final = 20.0


def java_sender(
    home: Path,
    seed: int,
    *,
    first: int = 0,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = 0.0,
) -> SenderCommand:
    """Return the command of ``LedgerProducer.java``.

    Args:
        home: existing directory for its logs.
        first: number of the first producer.
        timeout_s: of a send.
        pause_s: after each.
    """
    (home / "logback.xml").write_text('<configuration><root level="WARN"/></configuration>')

    def command(name_server: str, topic: str, ledger: Path) -> Sequence[str]:
        return [
            str(java_executable()), "-Xms64m", "-Xmx256m", *OPEN_MODULES,
            f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home / 'logs'}",
            f"-Dlogback.configurationFile={home / 'logback.xml'}",
            "-cp", class_path(VERSION), str(PROGRAM),
            name_server, topic, str(ledger), str(seed), str(first),
            str(int(timeout_s * 1000)), str(int(pause_s * 1000)),
        ]  # fmt: skip

    return command
