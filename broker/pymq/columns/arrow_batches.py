"""Columns of messages as Arrow record batches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymq.columns.arrow_package import pa
from pymq.columns.record_rows import RecordRows
from pymq.columns.values import ColumnValues
from pymq.errors import ConfigurationError

_TIME = pa.timestamp("ms", tz="UTC")


def arrow_batch(values: ColumnValues, names: tuple[str, ...]) -> Any:  # pyarrow has no types
    """Return columns of a batch as an Arrow record batch.

    Raises:
        RemoteProtocolError: a body cannot be decompressed.
    """
    plain = values.plain if "body" in names else {}
    rows = RecordRows(values.records, values.rows, values.queue, plain)
    return pa.RecordBatch.from_arrays([_FILL[name](rows) for name in names], names=list(names))


def _number(name: str) -> Callable[[RecordRows], Any]:
    return lambda rows: pa.array(rows.field(name))


def _time(name: str) -> Callable[[RecordRows], Any]:
    return lambda rows: pa.array(rows.field(name)).cast(_TIME)


_FILL: dict[str, Callable[[RecordRows], Any]] = {
    "topic": lambda rows: rows.constant(rows.queue.topic),
    "broker_name": lambda rows: rows.constant(rows.queue.broker_name),
    "queue_id": lambda rows: pa.array(np.full(rows.count, rows.queue.queue_id, np.int32)),
    "queue_offset": _number("queue_offset"),
    "body": RecordRows.bodies,
    "tags": lambda rows: rows.one_property("TAGS"),
    "keys": lambda rows: rows.one_property("KEYS"),
    "message_id": RecordRows.message_ids,
    "born_timestamp": _time("born_timestamp"),
    "store_timestamp": _time("store_timestamp"),
    "reconsume_times": _number("reconsume_times"),
    "flag": _number("flag"),
    "sys_flag": _number("sys_flag"),
    "properties": RecordRows.property_maps,
}


def polars_frame(batch: Any) -> Any:
    """Return an Arrow record batch as a Polars DataFrame.

    Raises:
        ConfigurationError: Polars is not installed.
    """
    try:
        import polars
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return polars.from_arrow(batch)


def pandas_frame(batch: Any) -> Any:
    """Return an Arrow record batch as a pandas DataFrame.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    try:
        return batch.to_pandas()
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(
        f"such a frame needs {error.name}, which is not installed: pip install {error.name}"
    )
