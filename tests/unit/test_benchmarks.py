"""The benchmark of the store runs: what it calls is still there."""

import pytest
from tests.bench import store


def test_the_store_s_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    for part in (store.dispatch, store.recover, store.query):
        part(0.001)
    assert "a key among 10,000" in capsys.readouterr().out
