"""What ``pymq store check`` says of stores after lost power: nothing is called damage in vain.

And a store that came back and was closed in order has no findings at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.crash.session import SMALL, Session
from tests.crash.test_power_loss import lose_power

from pymq.store import Files, FlushMode, StoreConfig
from pymq.store.inspection import Severity, check_store

pytestmark = pytest.mark.crash

SEEDS = 80
#: Seeds that found something: a log file whose first record was only begun, and had its time; an
#: entry of which the disk kept the first bytes; one that was half erased.
FOUND = [1731214781, 342329070, 876966174]


def findings(config: StoreConfig, *worst: Severity) -> list[str]:
    """Return what is found in a directory, if a store is there already."""
    if not config.log_paths[0].exists() and not config.queues_path.exists():
        return []
    groups = check_store(config).findings.groups()
    return [str(one) for severity, _, _, kept in groups for one in kept if severity in worst]


def test_what_a_loss_of_power_leaves_is_no_damage(
    memory_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    settings: dict[str, Any] = dict(SMALL)
    make, start = Session.__init__, Session.start

    def make_noted(session: Session, mode: FlushMode, **given: Any) -> None:
        settings.update(given)
        make(session, mode, **given)

    def start_checked(session: Session, root: Path, files: Files) -> None:
        found.extend(findings(StoreConfig(root_path=root, **settings), Severity.DAMAGE))
        start(session, root, files)

    monkeypatch.setattr(Session, "__init__", make_noted)
    monkeypatch.setattr(Session, "start", start_checked)
    for one in [*FOUND, *range(seed, seed + SEEDS)]:
        home = memory_path / "home"
        home.mkdir()
        lose_power(home, one)
        last = max(home.iterdir(), key=lambda place: int(place.name))
        config = StoreConfig(root_path=last / "store", **settings)
        found += findings(config, Severity.DAMAGE, Severity.REPAIR)
        assert not found, "\n".join([f"lose_power(home, {one})", *found])
        shutil.rmtree(home)
