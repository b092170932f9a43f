"""``python -m shop.story``: tells the story, and ends with status 1 if the audit finds anything."""

import argparse
import asyncio
import importlib.util
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shop.settings import PAY_WAYS, from_arguments
from shop.story.processes import StoryFailed
from shop.story.tale import BROKERS, Outcome, Plan, hurried, telling

ORDERS_PER_KILL = 50
#: With ``--stay``: a visitor of the page wants time to pay.
STAY_UNPAID_S = 60.0


def percentile_ms(times_s: list[float], share: float) -> float:
    """Return the time that this share of them is not above, in milliseconds."""
    ordered = sorted(times_s)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def what_spark_lacks() -> str | None:
    """Say what is not there that the job needs."""
    if importlib.util.find_spec("pyspark") is None:
        return "there is no PySpark: pip install 'pymq-shop[spark]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        return "no Java was found: install Java 17 or 21, or set JAVA_HOME"
    return None


def lines(plan: Plan, outcome: Outcome) -> list[str]:
    """Return what is printed at the end."""
    score, platform = outcome.score, outcome.platform
    counts = ", ".join(f"{count} {name}" for name, count in sorted(score.counts.items()))
    states = ", ".join(f"{count} {name}" for name, count in outcome.report.orders.items())
    kills = ", ".join(f"{name} {count}" for name, count in sorted(outcome.kills.items())) or "none"
    rate = plan.orders / outcome.placed_s
    cpu = ", ".join(f"{name} {used:.1f}" for name, used in outcome.cpu_s.items() if used >= 0.1)
    return [
        f"seed         {plan.seed}",
        f"customers    {plan.orders} orders: {counts}",
        f"orders       {states}; settled {outcome.settled_s:.1f} s after the last customer",
        f"killed       {kills}",
        f"late         {plan.late_rate:.0%} of the answers, after the call took effect",
        f"speed        {rate:.1f} orders/s with {plan.at_once} customers at once",
        *([f"cpu          {cpu} s"] if not plan.kills else []),
        *([f"figures      {outcome.figures}"] if outcome.figures is not None else []),
        f"confirm      median {percentile_ms(score.confirms_s, 0.5):.0f} ms, "
        f"p99 {percentile_ms(score.confirms_s, 0.99):.0f} ms (first attempts)",
        f"callback     median {percentile_ms(platform.callbacks_s, 0.5):.0f} ms, "
        f"p99 {percentile_ms(platform.callbacks_s, 0.99):.0f} ms "
        f"({len(platform.callbacks_s)} calls, {len(platform.refunded)} payments refunded)",
    ]


def described(plan: Plan, outcome: Outcome) -> str:
    """Return how a story ended, down to its audit."""
    wrong = [f"WRONG        {problem}" for problem in outcome.problems]
    return "\n".join(
        [*lines(plan, outcome), *wrong, f"audit        {'FAILED' if wrong else 'green'}"]
    )


async def play(plan: Plan, folder: Path, *, stay: bool) -> Outcome:
    """Tell a story and print how it ended; with ``stay``, end only at Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    # The processes are in sessions of their own: whoever ends this one must end them as well.
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    async with telling(plan, folder) as outcome:
        print(described(plan, outcome), flush=True)
        if stay:
            is_over = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, is_over.set)
            print("everything still runs; Ctrl-C ends it", flush=True)
            await is_over.wait()
        return outcome


def parser_of_story() -> argparse.ArgumentParser:
    """Return what reads the arguments of the story's own."""
    parser = argparse.ArgumentParser(prog="python -m shop.story", description=__doc__)
    parser.add_argument("--orders", type=int, default=1_000)
    parser.add_argument(
        "--kills", type=int, help=f"processes killed (default: one for {ORDERS_PER_KILL} orders)"
    )
    parser.add_argument("--late-rate", type=float, default=0.02, help="answers lost, 0 to 1")
    parser.add_argument("--calm", action="store_true", help="no faults at all: for the speed")
    parser.add_argument(
        "--stay",
        action="store_true",
        help="keep everything running after the audit, until Ctrl-C; who does not pay within "
        f"{STAY_UNPAID_S:g} s is cancelled",
    )
    parser.add_argument("--at-once", type=int, default=50, help="customers at a time")
    parser.add_argument("--brokers", type=int, default=BROKERS, help="0: use --broker")
    parser.add_argument("--instances", type=int, default=1, help="of each service")
    parser.add_argument("--spark", action="store_true", help="keep figures, with Spark")
    parser.add_argument("--pay-by", choices=PAY_WAYS, default="outbox")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--folder", type=Path, help="keep logs and databases there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell a story, print how it ended, and return the exit status."""
    parser = parser_of_story()
    settings, given = from_arguments(parser, arguments)
    if given.spark and (missing := what_spark_lacks()) is not None:
        parser.error(f"--spark: {missing}")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = hurried(replace(settings, pay_by=given.pay_by))
    if given.stay:
        settings = replace(settings, unpaid_s=STAY_UNPAID_S)
    kills = given.orders // ORDERS_PER_KILL if given.kills is None else given.kills
    plan = Plan(
        orders=given.orders,
        kills=0 if given.calm else kills,
        late_rate=0.0 if given.calm else given.late_rate,
        seed=given.seed,
        settings=settings,
        at_once=given.at_once,
        brokers=given.brokers,
        instances=given.instances,
        on_page=lambda url: print(f"page: {url}", flush=True),
        has_figures=given.spark,
    )
    print(f"seed {plan.seed}: {plan.orders} orders, {plan.kills} kills", flush=True)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="pymq-shop-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = asyncio.run(play(plan, folder.resolve(), stay=given.stay))
    except StoryFailed as error:
        print(f"shop: {error}\nlogs and databases: {folder}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"interrupted; every process was ended. Logs and databases: {folder}")
        return 130
    if outcome.problems:
        print(f"logs and databases: {folder}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
