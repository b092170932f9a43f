"""Publishes the flights, in the order of their schedule, as fast as the broker takes them.

Run by itself it publishes to any cluster::

    python examples/flights/producer.py --name-server 127.0.0.1:9876
    python examples/flights/producer.py --name-server 127.0.0.1:9876 --close
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from datetime import datetime

import flights
import pandas as pd

from pymq import Producer, PymqError

#: Messages of one SEND_BATCH request; about 35 kB.
BATCH_COUNT = 256
#: After a timeout the producer sends again, and the batch may be there twice: the totals would
#: show it. So this is more patient than the 3 s of an application that can bear that.
TIMEOUT_S = 30.0


async def publish(
    name_server: str, topic: str, frame: pd.DataFrame, on_sent: Callable[[int], None]
) -> None:
    """Publish flights; all are acknowledged when this returns.

    They go out in rounds of one batch for each queue. So the queues are equally long, and what
    is read from them at any time is out of order by two rounds at most: by two days or so of a
    year that passes in seconds. The lateness that the job allows covers that.

    Args:
        name_server: ``host:port``, one or more.
        topic: must exist.
        frame: from ``flights.load``.
        on_sent: told how many more are acknowledged.

    Raises:
        PymqError: the brokers could not take them.
    """
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        queues = await producer.queues(topic)
        messages = flights.messages(frame, topic)
        while several := list(itertools.islice(messages, BATCH_COUNT * len(queues))):
            await asyncio.gather(
                *(
                    producer.send_batch(several[first : first + BATCH_COUNT], queue=queue)
                    for queue, first in zip(
                        queues, range(0, len(several), BATCH_COUNT), strict=False
                    )
                )
            )
            on_sent(len(several))


async def close_hours(name_server: str, topic: str, last: datetime) -> None:
    """Publish the marker that closes the hours up to ``last``; see ``flights.closing_marker``.

    It must not overtake flights: what the job reads after it is too late. So publish it when
    the job has read them all.
    """
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        await producer.send(flights.closing_marker(last, topic))


def main() -> int:
    """Publish all flights, or the closing marker."""
    parser = argparse.ArgumentParser(description="Publishes the flights of New York in 2013.")
    parser.add_argument("--name-server", default="127.0.0.1:9876", metavar="HOST:PORT[;...]")
    parser.add_argument("--topic", default=flights.TOPIC, help="default: %(default)s")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N flights")
    parser.add_argument(
        "--close", action="store_true", help="publish the closing marker instead of the flights"
    )
    options = parser.parse_args()
    frame = flights.load(options.rows)
    started = time.perf_counter()
    try:
        if options.close:
            last = frame["scheduled"].max().to_pydatetime()
            asyncio.run(close_hours(options.name_server, options.topic, last))
            print(f"closing marker published to {options.topic}")
            return 0
        asyncio.run(publish(options.name_server, options.topic, frame, lambda count: None))
    except PymqError as error:
        print(f"producer.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    took_s = time.perf_counter() - started
    print(f"{len(frame):,} flights to {options.topic}, {len(frame) / took_s:,.0f} a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
