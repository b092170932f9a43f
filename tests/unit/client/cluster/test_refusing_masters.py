"""How often a master that refuses has its clients ask who is the master."""

from pymq.client.cluster.refusing_masters import LOOK_MAX_S, OVER_S, RefusingMasters

AGE_S = 30.0


def looks(masters: RefusingMasters, since_s: float, time_s: float) -> list[float]:
    """Return when it is looked, of a master that refuses fifty times a second."""
    times = (number / 50 for number in range(int(time_s * 50)))
    return [at_s for at_s in times if masters.refused("a:1", since_s + at_s)]


def test_at_first_it_is_looked_often_and_later_now_and_then() -> None:
    found = looks(RefusingMasters(AGE_S), 1000.0, 3600.0)
    assert found[0] == 0.0
    assert 4 <= sum(at_s < 1.0 for at_s in found) <= 6
    gaps = [after - before for before, after in zip(found, found[1:], strict=False)]
    assert min(gaps) > 0.19
    assert LOOK_MAX_S <= max(gaps) < LOOK_MAX_S + 0.1 < AGE_S / 5, "however long it has refused"
    assert len(found) < 3600.0 / LOOK_MAX_S + 40
    # Whatever a change takes, it is seen when hardly more time has passed.
    assert all(gap <= max(0.22, 0.25 * at_s + 0.02) for at_s, gap in zip(found, gaps, strict=False))


def test_it_is_not_looked_more_rarely_than_routes_are_read_in_any_case() -> None:
    gaps = looks(RefusingMasters(1.0), 0.0, 600.0)
    assert 590 < len(gaps) < 620
    assert len(looks(RefusingMasters(0.0), 0.0, 10.0)) <= 50, "nor too often"


def test_masters_are_looked_for_one_by_one() -> None:
    masters = RefusingMasters(AGE_S)
    assert masters.refused("a:1", 0.0) and masters.refused("b:1", 0.1)
    assert not masters.refused("a:1", 0.1)


def test_what_is_over_begins_anew() -> None:
    masters = RefusingMasters(AGE_S)
    looks(masters, 0.0, 100.0)
    assert len(looks(masters, 100.0, 1.0)) <= 1
    masters.changed()
    assert len(looks(masters, 101.0, 1.0)) >= 4
    looks(masters, 102.0, 100.0)
    assert len(looks(masters, 202.0 + OVER_S, 1.0)) >= 4
