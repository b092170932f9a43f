"""Writes what was stored in a topic between two times to a Parquet file, and sends it again.

::

    python archive.py save 127.0.0.1:9876 orders orders.parquet --hours 24
    python archive.py send 127.0.0.1:9876 orders-copy orders.parquet

Needs ``pip install 'pymq-rocketmq[columns]'``.
"""

import argparse
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from pymq import blocking

COLUMNS = ("body", "tags", "keys", "flag", "broker_name", "queue_id", "queue_offset")
SENT = ("body", "tags", "keys", "flag")


def save(name_server: str, topic: str, path: str, hours: float) -> int:
    """Write a topic's messages of the last hours to a file; return how many there are."""
    count = 0
    writer: pq.ParquetWriter | None = None
    with blocking.Reader(name_server) as reader:
        start = datetime.now() - timedelta(hours=hours)
        for batch in reader.read(topic, start=start, end="last"):
            table = pa.Table.from_batches([batch.to_arrow(*COLUMNS)])
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
            count += len(batch)
    if writer is not None:
        writer.close()
    return count


def send(name_server: str, topic: str, path: str) -> int:
    """Send the messages in a file to a topic; return how many were stored."""
    with blocking.Producer(name_server) as producer, pq.ParquetFile(path) as file:
        return sum(
            int(producer.send_columns(batch, topic=topic).is_stored.sum())
            for batch in file.iter_batches(columns=list(SENT))
        )


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("save", "send"))
    parser.add_argument("name_server")
    parser.add_argument("topic")
    parser.add_argument("path")
    parser.add_argument("--hours", type=float, default=24.0)
    given = parser.parse_args()
    if given.verb == "save":
        count = save(given.name_server, given.topic, given.path, given.hours)
    else:
        count = send(given.name_server, given.topic, given.path)
    print(f"{count} messages")


if __name__ == "__main__":
    main()
