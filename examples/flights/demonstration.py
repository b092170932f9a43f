"""One run of the demo: the cluster, the flights' way through it, and the check of what came out."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import flights
import pandas as pd
from check import differences, expected_results
from processes import DemoFailed, Job, cluster
from producer import close_hours, publish
from report import Report
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from pymq import BlockingClient, blocking

QUEUES = 4  # of each topic
#: Nothing has moved for so long: something hangs. Starting Spark takes 10 s, or 60 on a bad day.
STALL_S = 180.0
POLL_S = 0.1
DIFFERENCES_SHOWN = 10


# ------------------------------------------------------------------------------ the cluster


def create_topics(name_server: str) -> tuple[str, str]:
    """Create both topics and return their names, which no earlier run has used."""
    with blocking.Admin(name_server) as admin:
        taken = set(admin.topics.names())
        names, number = (flights.TOPIC, flights.RESULT_TOPIC), 1
        while taken.intersection(names):
            number += 1
            names = (f"{flights.TOPIC}-{number}", f"{flights.RESULT_TOPIC}-{number}")
        for name in names:
            admin.topics.create(name, queue_count=QUEUES)
    return names


def count_messages(name_server: str, topic: str) -> int:
    """Return how many messages a topic holds."""
    with BlockingClient(name_server) as client:
        bounds = client.bounds(client.read_queues(topic))
    return sum(end - first for first, end in bounds.values())


# ---------------------------------------------------------------------------------- one run


@dataclass(slots=True)
class Flow:
    """The flights' way from the producer to the report, and how far they are.

    Args:
        name_server: of the cluster.
        topic, result_topic: both empty.
        folder: for checkpoint and logs.
        frame: the flights to publish.
    """

    name_server: str
    topic: str
    result_topic: str
    folder: Path
    frame: pd.DataFrame
    published: int = 0
    publish_s: float = 0.0
    last: datetime = field(init=False)  # the last flight's departure
    job: Job = field(init=False)
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self.last = self.frame["scheduled"].max().to_pydatetime()
        self.job = self.new_job("--until", (self.last + timedelta(hours=1)).isoformat())

    def new_job(self, *arguments: str, log: str = "job.log") -> Job:
        """Return a run of the job, always with the same checkpoint."""
        cluster = ["--name-server", self.name_server]
        topics = ["--topic", self.topic, "--result-topic", self.result_topic]
        checkpoint = ["--checkpoint", str(self.folder / "checkpoint")]
        return Job([*cluster, *topics, *checkpoint, *arguments], self.folder / log)

    async def run(self) -> None:
        """Publish, aggregate and consume, all at a time, until every result is here.

        Raises:
            DemoFailed, PymqError: a part of it failed; the other parts are ended.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                job = tasks.create_task(self.job.run())
                collecting = tasks.create_task(
                    self.report.collect(self.name_server, self.result_topic)
                )
                await self._publish()
                # Flights behind the marker would be late, so it waits until the job has them all.
                await self._wait(lambda: self.job.rows >= len(self.frame), "the job to read")
                await close_hours(self.name_server, self.topic, self.last)
                await self._wait(job.done, "the job to close the last hours")
                written = await asyncio.to_thread(self.count_results)
                await self._wait(lambda: len(self.report.results) >= written, "the results")
                collecting.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _publish(self) -> None:
        def sent(count: int) -> None:
            self.published += count

        started = time.perf_counter()
        await publish(self.name_server, self.topic, self.frame, sent)
        self.publish_s = time.perf_counter() - started

    async def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait as long as there is progress.

        Raises:
            DemoFailed: there was none for ``STALL_S``.
        """
        seen, moved_at_s = None, 0.0
        while not is_done():
            state = (self.job.rows, self.job.results, len(self.report.results))
            now_s = time.perf_counter()
            if state != seen:
                seen, moved_at_s = state, now_s
            elif now_s - moved_at_s > STALL_S:
                raise DemoFailed(
                    f"waiting for {what}, nothing moved for {STALL_S:g} s: {self.job.rows} flights "
                    f"read, {self.job.results} results written, {len(self.report.results)} "
                    f"received. What Spark says: {self.job.log}"
                )
            await asyncio.sleep(POLL_S / 2)

    def count_results(self) -> int:
        """Return how many messages the topic of results holds."""
        return count_messages(self.name_server, self.result_topic)


@contextlib.contextmanager
def shown(flow: Flow, hours: int, console: Console) -> Iterator[None]:
    """Show how far it is, in a block that runs the flow.

    Args:
        flow: to be run in the block, in the same event loop.
        hours: how many results there will be.
        console: where to.
    """
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=console, auto_refresh=False, expand=True) as progress:
        publishing = progress.add_task("published", total=len(flow.frame), note="")
        reading = progress.add_task("Spark", total=len(flow.frame), note="")
        receiving = progress.add_task("received", total=hours, note="")

        def draw() -> None:
            progress.update(publishing, completed=flow.published, note="flights")
            read = min(flow.job.rows, len(flow.frame))  # without the marker
            progress.update(reading, completed=read, note=flow.job.note)
            progress.update(receiving, completed=len(flow.report.results), note="results")
            progress.refresh()

        async def redraw() -> None:
            while True:
                draw()
                await asyncio.sleep(POLL_S)

        drawing = asyncio.get_running_loop().create_task(redraw())
        try:
            yield
        finally:
            drawing.cancel()
            draw()


async def demonstrate(
    name_server: str, folder: Path, frame: pd.DataFrame, console: Console
) -> None:
    """Run everything and judge it.

    Raises:
        DemoFailed: a total differs, a second run adds something, or a part failed.
        PymqError: the cluster failed.
    """
    expected = expected_results(frame)
    topics = await asyncio.to_thread(create_topics, name_server)
    console.print(f"topics [b]{topics[0]}[/] and [b]{topics[1]}[/] on {name_server}\n")
    flow = Flow(name_server, *topics, folder, frame)
    with shown(flow, len(expected), console):
        await flow.run()
    console.print("", flow.report.table(), timings(flow), sep="\n")

    found = differences(expected, flow.report.results.values())
    if found:
        some = "\n  ".join(found[:DIFFERENCES_SHOWN])
        raise DemoFailed(
            f"not what pandas finds in the same rows, {len(found)} differences:\n  {some}"
        )
    console.print(
        f"[green]✓[/] {len(expected):,} × 3 totals are what pandas finds in the same rows "
        f"({len(frame):,} flights)"
    )
    with console.status("running the job again on the same checkpoint"):
        await check_second_run(flow)
    console.print("[green]✓[/] a second run of the job on the same checkpoint added nothing")


async def check_second_run(flow: Flow) -> None:
    """Run the job again where it ended.

    Raises:
        DemoFailed: it read or wrote anything.
    """
    before = await asyncio.to_thread(flow.count_results)
    again = flow.new_job("--available-now", log="job-again.log")
    try:
        async with asyncio.timeout(STALL_S):
            await again.run()
    except TimeoutError:
        raise DemoFailed(
            f"the job's second run has not ended after {STALL_S:g} s. What Spark says: {again.log}"
        ) from None
    after = await asyncio.to_thread(flow.count_results)
    if again.rows or after != before:
        raise DemoFailed(
            f"a second run of the job on the same checkpoint read {again.rows} flights and wrote "
            f"{after - before} results, expected none of both"
        )


def timings(flow: Flow) -> Table:
    """Return how fast each part was."""
    table = Table(title="Messages a second; all ran at a time", box=box.SIMPLE)
    for name in ("", "messages", "seconds", "a second"):
        table.add_column(name, justify="right" if name else "left")
    report = flow.report
    received_s = (report.last_at_s or 0.0) - (report.first_at_s or 0.0)
    for name, count, seconds in (
        ("publish: Avro, batches", flow.published, flow.publish_s),
        ("Spark: its micro-batches", flow.job.rows, flow.job.busy_s),
        ("consume, as Spark writes", len(report.results), received_s),
    ):
        table.add_row(name, f"{count:,}", f"{seconds:.1f}", f"{count / max(seconds, 1e-3):,.0f}")
    return table


async def run(
    *, rows: int | None, name_server: str | None, store: Path | None, folder: Path, console: Console
) -> None:
    """Run the demo.

    Args:
        rows: only the first N flights; None: all.
        name_server: of a cluster; None: start one for the run.
        store: where a cluster started here keeps its messages, an absolute path; None: in
            ``folder``.
        folder: an empty one, for checkpoint and logs.
        console: where to show how it goes.

    Raises:
        DemoFailed: a total differs, a second run adds something, or a part failed.
        PymqError: the cluster failed.
    """
    with console.status("loading the flights"):
        frame = await asyncio.to_thread(flights.load, rows)
    async with contextlib.AsyncExitStack() as stack:
        if name_server is None:
            store = store or folder / "store"
            name_server = await stack.enter_async_context(cluster(store, folder / "broker.log"))
        await demonstrate(name_server, folder, frame, console)
