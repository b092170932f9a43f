"""Hostile peers at the HA port; ``tests/cluster/test_replication_hostile.py`` has fewer."""

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.hostile_slaves import Attacked, lie, send_mutated
from tests.conftest import ROUNDS_OF_A_TEST

pytestmark = pytest.mark.crash

#: For each round of the other tests: 100,000 frames in all.
MUTATED, LIES = 100, 1


@pytest.mark.parametrize("settings", [{}, {"secret": "a secret of the tests"}], ids=str)
def test_nothing_that_hostile_peers_say_confirms_a_message(
    tmp_path: Path, seed: int, crash_rounds: int, settings: dict[str, Any]
) -> None:
    if crash_rounds <= ROUNDS_OF_A_TEST:
        pytest.skip("tests/cluster/test_replication_hostile.py does this")
    dice = random.Random(seed)
    with ExitStack() as stack:
        attacked = Attacked(tmp_path, stack, handshake_ms=1_000, **settings)
        with attacked.under_attack():
            send_mutated(attacked, dice, crash_rounds * MUTATED, with_bogus=not settings)
            lie(attacked, crash_rounds * LIES)
        attacked.check_nothing_confirmed()
