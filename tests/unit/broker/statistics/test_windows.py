"""Windows of counters, against a model: RocketMQ's lists of samples."""

import random

from pymq.broker.statistics.windows import DAY, HOUR, MINUTE, Counters, WindowTotals


def test_a_counter_that_nobody_added_to() -> None:
    counters = Counters()
    assert counters.window("a", MINUTE) is None
    assert counters.value("a") == 0
    counters.place("a")
    assert counters.window("a", MINUTE) == WindowTotals()


def test_the_first_sample_counts_from_an_interval_before() -> None:
    counters = Counters()
    counters.add("a", 20, 4)
    counters.sample(MINUTE, 1_000_000)
    assert counters.window("a", MINUTE) == WindowTotals(20, 2.0, 5.0)
    assert counters.window("a", HOUR) == WindowTotals()
    counters.sample(MINUTE, 1_010_000)
    assert counters.window("a", MINUTE) == WindowTotals(20, 1.0, 5.0)


def test_a_window_forgets() -> None:
    counters = Counters()
    counters.add("a", 60)
    for at_s in range(0, 60, 10):
        counters.sample(MINUTE, at_s * 1000)
    assert counters.window("a", MINUTE) == WindowTotals(60, 1.0, 60.0)
    counters.add("a", 6, 0)
    counters.sample(MINUTE, 60_000)
    assert counters.window("a", MINUTE) == WindowTotals(6, 0.1, 0.0)
    assert counters.value("a") == 66


class _Model:
    """RocketMQ's own: a list of samples for each counter."""

    def __init__(self) -> None:
        self.value = self.times = 0
        self.samples: dict[tuple[int, int], list[tuple[int, int, int]]] = {
            window: [] for window in (MINUTE, HOUR, DAY)
        }

    def sample(self, window: tuple[int, int], now_ms: int) -> None:
        kept = self.samples[window]
        if not kept:
            kept.append((now_ms - window[0], 0, 0))
        kept.append((now_ms, self.value, self.times))
        if len(kept) > window[1]:
            kept.pop(0)

    def window(self, window: tuple[int, int]) -> WindowTotals:
        kept = self.samples[window]
        if not kept:
            return WindowTotals()
        (begin_ms, value, times), (end_ms, last, last_times) = kept[0], kept[-1]
        total, more = last - value, last_times - times
        per_s = total * 1000 / (end_ms - begin_ms)
        return WindowTotals(total, per_s, total / more if more else 0.0)


def test_random_counting(seed: int) -> None:
    chooser = random.Random(seed)
    counters, models = Counters(), dict[str, _Model]()
    now_ms = 0
    for _ in range(3_000):
        key = f"key {chooser.randrange(30)}"
        match chooser.randrange(8):
            case 0 | 1:
                now_ms += chooser.choice((1, 9_000, 10_000, 61_000))
                window = chooser.choice((MINUTE, HOUR, DAY))
                counters.sample(window, now_ms)
                for model in models.values():
                    model.sample(window, now_ms)
            case 2:
                gone = {key, f"key {chooser.randrange(30)}"}
                counters.remove(gone.__contains__)
                for name in gone:
                    models.pop(name, None)
            case _:
                value, times = chooser.randrange(100), chooser.randrange(3)
                counters.add(key, value, times)
                model = models.setdefault(key, _Model())
                model.value += value
                model.times += times
        for window in (MINUTE, HOUR, DAY):
            expected = models[key].window(window) if key in models else None
            assert counters.window(key, window) == expected


def test_what_is_removed_costs_the_others_nothing_until_half_of_all_are(seed: int) -> None:
    """With every sample made again, each deleted topic would keep a broker waiting for a second."""
    dice = random.Random(seed)
    counters = Counters()
    for number in range(100):
        counters.add(f"key {number}", number)
    for at_s in range(0, 70, 10):
        counters.sample(MINUTE, at_s * 1000)
    samples = [sample.values for sample in counters._samples[MINUTE]]
    gone = {f"key {number}" for number in dice.sample(range(100), 50)}
    for key in gone:
        counters.remove(key.__eq__)
        assert counters.window(key, MINUTE) is None
    assert all(
        sample.values is values
        for sample, values in zip(counters._samples[MINUTE], samples, strict=True)
    )
    counters.sample(HOUR, 70_000)
    assert counters._samples[MINUTE][0].values is samples[0]
    last = next(iter(counters.places))
    counters.remove(last.__eq__)
    counters.sample(HOUR, 80_000)
    assert len(counters._samples[MINUTE][0].values) == 49
    for number in range(100):
        key = f"key {number}"
        assert counters.value(key) == (0 if key in gone or key == last else number)


def test_what_comes_and_goes_leaves_nothing() -> None:
    counters = Counters()
    for number in range(1000):
        counters.add(f"key {number}", 1)
        counters.remove(f"key {number - 10}".__eq__)
        counters.sample(MINUTE, number * 10_000)
        assert len(counters.values) <= 22
    assert counters.window("key 995", MINUTE) == WindowTotals(1, 0.02, 1.0)
