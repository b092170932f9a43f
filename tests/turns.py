"""Tests that run by turns, because all of them would take too long: each run has some, by its seed.

``@pytest.mark.by_turns("version")``
    A test runs with one of the values of a parameter, or of several together. All tests of a module
    have the same, so that one peer is started for them.
``@pytest.mark.by_turns(of="pairs")``
    One of the tests that are marked so runs; ``turn="old"``: those with the same turn run together.

With ``PYMQ_TURNS=all``, or ``PYMQ_GOLDEN=all``, everything runs; a test that is asked for alone
always does.
"""

import os
import random
from collections.abc import Hashable, Iterator

import pytest


def leave_those_whose_turn_it_is(
    config: pytest.Config, items: list[pytest.Item], seed: int
) -> None:
    """Deselect the others.

    Args:
        config: of the run.
        items: what was collected; changed.
        seed: of the run.
    """
    if "all" in (os.environ.get("PYMQ_TURNS"), os.environ.get("PYMQ_GOLDEN")):
        return
    found = [dict(_turns(item)) for item in items]
    every: dict[Hashable, set[str]] = {}
    for turns in found:
        for key, turn in turns.items():
            every.setdefault(key, set()).add(turn)
    chosen = {
        key: random.Random(f"{seed} {key}").choice(sorted(turns)) for key, turns in every.items()
    }
    kept, others = [], []
    for item, turns in zip(items, found, strict=True):
        is_kept = all(chosen[key] == turn for key, turn in turns.items())
        (kept if is_kept else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _turns(item: pytest.Item) -> Iterator[tuple[Hashable, str]]:
    """Yield what a test takes turns in, and which turn is its own."""
    for marker in item.iter_markers("by_turns"):
        if "of" in marker.kwargs:
            yield marker.kwargs["of"], marker.kwargs.get("turn", item.nodeid)
            continue
        parameters = getattr(item, "callspec", None)
        if parameters is not None and {*marker.args} <= parameters.params.keys():
            values = [parameters.params[name] for name in marker.args]
            # As the test is called wherever its tree stands: a seed has the same turns there.
            yield (item.nodeid.partition("::")[0], *marker.args), str(values)
