"""Random requests at the sockets of a broker and a name server; see ``fuzz_run``.

``tests/crash/test_fuzzing.py`` sends five million.
"""

import random
from pathlib import Path

from tests.cluster.fuzzed_servers import FuzzedBroker, FuzzedNameServer


def test_a_broker_answers_whatever_it_is_asked(tmp_path: Path, seed: int) -> None:
    with FuzzedBroker(tmp_path, random.Random(seed)) as broker:
        broker.fuzz(requests=30_000, torn=200)


def test_a_name_server_answers_whatever_it_is_asked(tmp_path: Path, seed: int) -> None:
    with FuzzedNameServer(tmp_path / "kv.json", random.Random(seed)) as name_server:
        name_server.fuzz(requests=30_000, torn=200)
