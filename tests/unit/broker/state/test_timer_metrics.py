"""How many timer messages wait for each topic, also when topics are deleted and made again."""

import json

from tests.unit.store.stores import FakeClock

from pymq.broker.state.timer_metrics import TimerMetrics


def counts(metrics: TimerMetrics) -> dict[str, int]:
    return {topic: one.count for topic, one in metrics.body().counts.items()}


def test_a_deleted_topic_leaves_nothing() -> None:
    """Also when its messages, which still wait, are due."""
    metrics = TimerMetrics(FakeClock())
    metrics.add("T", 3)
    metrics.add("U", 1)
    metrics.add("T", -1)
    metrics.is_changed = False
    version = metrics.body().version
    metrics.forget("T")
    assert metrics.is_changed and metrics.body().version != version
    assert counts(metrics) == {"U": 1}
    metrics.is_changed = False
    metrics.add("T", -2)
    metrics.forget("unknown")
    assert counts(metrics) == {"U": 1} and not metrics.is_changed


def test_what_waits_of_a_deleted_topic_does_not_count_for_another_of_its_name() -> None:
    metrics = TimerMetrics(FakeClock())
    metrics.add("T", 3)
    metrics.forget("T")
    metrics.add("T", 2)
    metrics.forget("T")
    metrics.add("T", 4)
    for count in (-2, -3, -1):
        metrics.add("T", count)
    assert counts(metrics) == {"T": 3}
    metrics.add("T", -3)
    assert counts(metrics) == {"T": 0}
    metrics.add("T", -1)  # one that cancels another is counted so until both are due
    metrics.add("T", 1)
    assert counts(metrics) == {"T": 0}


def test_after_a_restart_what_waits_of_a_deleted_topic_counts_for_nothing() -> None:
    before = TimerMetrics(FakeClock())
    before.add("T", 3)
    before.add("U", 1)
    before.forget("T")
    metrics = TimerMetrics(FakeClock())
    metrics.restore(json.loads(before.to_text()))
    metrics.add("T", -3)
    assert counts(metrics) == {"U": 1}
