"""Actions that are timed in turns: they meet the same neighbours on a shared machine."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.machine import line

ROUNDS = 6
#: Pause before each action, in which a broker finishes what the last one has left to do.
SETTLE_S = 1.0


def to_noop(rows: Any) -> None:
    """Have Spark read all rows of a DataFrame, and do nothing with them."""
    rows.write.format("noop").mode("overwrite").save()


def turns(
    actions: Mapping[str, Callable[[], None]],
    targets: Mapping[str, float],
    *,
    rows: int,
    rounds: int = ROUNDS,
    before: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run actions in turns; print their median rates, and how each does beside the last one.

    A ratio is the median over the rounds: the actions of a round meet the same neighbours, the
    best of each need not. Every other round runs backwards: nobody is always behind the same one.

    Args:
        actions: what to time, by name; the last one is what the others are compared with.
        targets: for the ratios of the others.
        rows: that each handles.
        rounds: that count; one more warms up.
        before: what to do before each action, not timed.

    Returns:
        The names of the ratios below their targets.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for index in range(rounds + 1):
        for name, action in list(actions.items())[:: -1 if index % 2 else 1]:
            before()
            time.sleep(SETTLE_S)
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    for name, taken in seconds.items():
        line(name, rows / statistics.median(taken[1:]), "rows/s")
    *_, (peer, of_peer) = seconds.items()
    missed = []
    for name, target in targets.items():
        pairs = zip(seconds[name][1:], of_peer[1:], strict=True)
        ratios = sorted(theirs_s / ours_s for ours_s, theirs_s in pairs)
        note = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        missed += verdict(f"{name} / {peer}", statistics.median(ratios), target, note=note)
    return missed


def verdict(name: str, value: float, target: float, unit: str = "", *, note: str = "") -> list[str]:
    """Print a figure beside its target; return its name if it is below."""
    line(name, value, unit, goal=f"target {target:,.3g}", note=note)
    return [] if value >= target else [name]
