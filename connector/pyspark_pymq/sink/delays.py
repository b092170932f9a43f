"""Rows that are to be delivered later: by a delay level, or at a time.

Rows of one delay level, and rows with a time, go by themselves, for they wait in another place than
the others: exactly once in runs of their own; at least once one by one, for brokers refuse delayed
messages in batches. So delayed rows have no order among the others; those of one level and queue
keep theirs.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pymq.columns.encoding import DELAY_COLUMNS, DELAY_KIND
from pymq.errors import LocalProtocolError
from pyspark_pymq.option_positions import MILLISECONDS_MIN

#: Kinds: a level is its own one.
AT_ONCE, AT_TIME = 0, 1 << 31
_US_PER_MS = 1000


def as_ms(times: pa.Array) -> pa.Array:
    """Return times as ms since the epoch, int64; none is before the given one.

    Raises:
        LocalProtocolError: they are numbers, and one of them can only be seconds.
    """
    if not pa.types.is_timestamp(times.type):
        ms = times.cast(pa.int64())
        seconds = ms.filter(pc.and_(pc.greater(ms, 0), pc.less(ms, MILLISECONDS_MIN)))
        if len(seconds):
            raise LocalProtocolError(
                f"deliverTimestamp {seconds[0]}: that would be {seconds[0].as_py() // 86_400_000} "
                "days after 1970-01-01 if it was milliseconds, as expected: give milliseconds "
                "since 1970, or a timestamp"
            )
        return ms
    zone = times.type.tz
    us = times.cast(pa.timestamp("us", zone)).cast(pa.int64())
    values = pc.fill_null(us, 0).to_numpy(zero_copy_only=False)
    return pa.array(-(-values // _US_PER_MS), mask=us.is_null().to_numpy(zero_copy_only=False))


def add_delays(columns: dict[str, pa.Array], place: Callable[[int], str]) -> None:
    """Find out how rows are delayed: add the column of kinds, and make texts of the others.

    Args:
        columns: of some rows, those of delays as numbers. Changed.
        place: names a row, for errors.

    Raises:
        LocalProtocolError: a level is negative, or a row has a time, too.
    """
    rows = len(columns["body"])
    kinds = np.zeros(rows, np.int64)
    if "delayLevel" in columns:
        kinds = _filled(columns["delayLevel"])
        if (kinds < 0).any():
            row = int(np.flatnonzero(kinds < 0)[0])
            raise LocalProtocolError(
                f"{place(row)}: delayLevel {kinds[row]}, expected 0 or null, for no delay, or a "
                "level from 1"
            )
    if "deliverTimestamp" in columns:
        has_time = columns["deliverTimestamp"].is_valid().to_numpy(zero_copy_only=False)
        both = np.flatnonzero(has_time & (kinds > 0))
        if len(both):
            row = int(both[0])
            raise LocalProtocolError(
                f"{place(row)}: delayLevel {kinds[row]} and deliverTimestamp "
                f"{columns['deliverTimestamp'][row]} ms are both given, expected one of them; let "
                "the other be null"
            )
        kinds = np.where(has_time, AT_TIME, kinds)
    for name, is_delayed in (
        ("delayLevel", (kinds > 0) & (kinds < AT_TIME)),
        ("deliverTimestamp", kinds == AT_TIME),
    ):
        if name in columns:
            numbers = _filled(columns.pop(name))
            if is_delayed.any():
                texts = pa.array(numbers, mask=~is_delayed).cast(pa.string()).cast(pa.binary())
                columns[name] = texts
    columns[DELAY_KIND] = pa.array(kinds)


def told(columns: dict[str, pa.Array], row: int) -> str:
    """Return how a row is delayed, for errors."""
    texts = [
        f"{name} {columns[name][row].as_py().decode()}"
        for name in DELAY_COLUMNS
        if name in columns and columns[name][row].is_valid
    ]
    return " ".join(texts)


def _filled(numbers: pa.Array) -> npt.NDArray[np.int64]:
    filled: npt.NDArray[np.int64] = (
        pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return filled
