"""Consumes the job's results and shows them as a table.

Run by itself it shows what any cluster's topic has, and ends when nothing comes any more::

    python examples/flights/report.py --name-server 127.0.0.1:9876
"""

import argparse
import asyncio
import json
import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime

import flights
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from pymq import Consumer, PymqError, ReceivedMessage


@dataclass(frozen=True, slots=True)
class Result:
    """One carrier's flights of one hour."""

    carrier: str
    hour: datetime
    departures: int
    cancelled: int
    mean_delay: float | None  # minutes; None: nothing departed

    @classmethod
    def of_message(cls, message: ReceivedMessage) -> "Result":
        """Return what the job wrote."""
        values = json.loads(message.body)
        return cls(**{**values, "hour": datetime.fromisoformat(values["hour"])})


@dataclass(slots=True)
class Report:
    """The results received so far.

    A consumer gets a message at least once; results are kept by where their message stands, so
    that one delivered twice counts once.
    """

    results: dict[tuple[str, int, int], Result] = field(default_factory=dict)
    first_at_s: float | None = None
    last_at_s: float | None = None

    async def collect(self, name_server: str, topic: str) -> None:
        """Consume a topic from its beginning, until cancelled."""
        group = f"flight-report-{secrets.token_hex(4)}"  # one of its own gets every message
        async with Consumer(name_server, group, from_where="earliest").subscribe(topic) as consumer:
            async for message in consumer:
                self.add(message)

    def add(self, message: ReceivedMessage) -> None:
        """Take a message."""
        now_s = time.perf_counter()
        self.first_at_s = self.first_at_s or now_s
        self.last_at_s = now_s
        place = (message.broker_name, message.queue_id, message.queue_offset)
        self.results[place] = Result.of_message(message)

    def table(self) -> Table:
        """Return one row for each carrier, the busiest first, and one for all."""
        by_carrier: dict[str, list[Result]] = {}
        for result in self.results.values():
            by_carrier.setdefault(result.carrier, []).append(result)
        names = flights.airlines()
        table = Table(title="Departures from New York", box=box.SIMPLE, show_footer=True)
        table.pad_edge = False
        table.add_column("carrier", footer="all", no_wrap=True)
        everything = _cells(list(self.results.values()))
        for name, footer in zip(_COLUMNS, everything, strict=True):
            table.add_column(name, footer=footer, justify="right", no_wrap=True)
        busiest = sorted(by_carrier.items(), key=lambda item: -_departures(item[1]))
        for carrier, results in busiest:
            table.add_row(short_name(names.get(carrier, carrier)), *_cells(results))
        return table


_COLUMNS = ("departed", "mean\ndelay (min)", "cancelled", "worst hour\n(min, UTC)")


def short_name(airline: str) -> str:
    """Return an airline's name without what kind of company it is."""
    return re.sub(r" (Inc\.|Co\.|Corporation)$", "", airline)


def _departures(results: list[Result]) -> int:
    return sum(result.departures for result in results)


def _cells(results: list[Result]) -> list[str]:
    """Return what stands in a row under ``_COLUMNS``."""
    departures = _departures(results)
    cancelled = sum(result.cancelled for result in results)
    flown = [(result.mean_delay, result) for result in results if result.mean_delay is not None]
    minutes = sum(delay * result.departures for delay, result in flown)
    worst = max(((delay, f"{r.hour:%d %b %Hh}") for delay, r in flown), default=None)
    return [
        f"{departures:,}",
        f"{minutes / departures:.1f}" if departures else "",
        f"{cancelled:,}" + (f" {cancelled / (departures + cancelled):5.1%}" if results else ""),
        f"{worst[0]:,.0f} {worst[1]}" if worst else "",
    ]


async def _show(options: argparse.Namespace, console: Console) -> Report:
    """Collect until nothing has come for a while, with a count that moves meanwhile."""
    report = Report()
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} results"))
    collecting = asyncio.create_task(report.collect(options.name_server, options.topic))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("")
        idle_since_s = time.perf_counter()
        while time.perf_counter() - idle_since_s < options.idle and not collecting.done():
            await asyncio.wait([collecting], timeout=0.1)
            idle_since_s = max(idle_since_s, report.last_at_s or 0)
            progress.update(task, completed=len(report.results))
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    if not collecting.cancelled():
        collecting.result()
    return report


def main() -> int:
    """Show the results there are."""
    parser = argparse.ArgumentParser(description="Shows the results of the flights' job.")
    parser.add_argument("--name-server", default="127.0.0.1:9876", metavar="HOST:PORT[;...]")
    parser.add_argument("--topic", default=flights.RESULT_TOPIC, help="default: %(default)s")
    parser.add_argument(
        "--idle",
        type=float,
        default=10.0,
        metavar="S",
        help="end when no result has come for this many seconds (default: %(default)s)",
    )
    options = parser.parse_args()
    console = Console()
    try:
        report = asyncio.run(_show(options, console))
    except PymqError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(report.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
