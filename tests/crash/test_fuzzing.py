"""Millions of random requests at the sockets; ``tests/cluster/test_fuzzing.py`` sends a few."""

import random
from pathlib import Path

import pytest
from tests.cluster.fuzzed_servers import FuzzedBroker, FuzzedNameServer
from tests.conftest import ROUNDS_OF_A_TEST

pytestmark = pytest.mark.crash

#: For each round of the other tests: five million in all.
BROKER_REQUESTS, NAME_SERVER_REQUESTS = 4_000, 1_000


def test_a_broker_answers_whatever_it_is_asked(
    memory_path: Path, seed: int, crash_rounds: int
) -> None:
    if crash_rounds <= ROUNDS_OF_A_TEST:
        pytest.skip("tests/cluster/test_fuzzing.py does this")
    with FuzzedBroker(memory_path, random.Random(seed)) as broker:
        broker.fuzz(requests=crash_rounds * BROKER_REQUESTS, torn=crash_rounds * 50)


def test_a_name_server_answers_whatever_it_is_asked(
    memory_path: Path, seed: int, crash_rounds: int
) -> None:
    if crash_rounds <= ROUNDS_OF_A_TEST:
        pytest.skip("tests/cluster/test_fuzzing.py does this")
    with FuzzedNameServer(memory_path / "kv.json", random.Random(seed)) as name_server:
        name_server.fuzz(requests=crash_rounds * NAME_SERVER_REQUESTS, torn=crash_rounds * 50)
