"""The example everybody runs first, as they run it: ``examples/flights/demo.py`` as a process."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.spark.test_session import HAS_SOCKETS

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.testing import Cluster

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "flights"
DEMO = FOLDER / "demo.py"
TIMEOUT_S = 500.0  # Spark starts twice, and the machine may be busy
STOP_S = 240.0
MARK = "PYMQ_TEST_RUN"  # a variable that all processes of a test inherit

#: The demo, but one flight is published with a delay that is a minute longer than in the data.
FALSIFIED = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import demo
import demonstration

truly_publish = demonstration.publish

async def publish(name_server, topic, frame, on_sent):
    frame = frame.copy()
    frame.loc[frame["dep_delay"].last_valid_index(), "dep_delay"] += 1
    await truly_publish(name_server, topic, frame, on_sent)

demonstration.publish = publish
sys.exit(demo.main())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment by which all processes of a test can be told, with a folder of its own."""
    return {**os.environ, MARK: str(tmp_path), "TMPDIR": str(tmp_path), "COLUMNS": "100"}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def processes_of(environment: dict[str, str]) -> list[str]:
    """Return the command lines of the processes of a test."""
    mark = f"{MARK}={environment[MARK]}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is not ours
            continue
    return [command for command in found if command]


def assert_nothing_left(environment: dict[str, str]) -> None:
    """The demo itself waits for the end of all that it started, so nobody has to wait here."""
    assert processes_of(environment) == []
    assert os.listdir(environment["TMPDIR"]) == []


@pytest.mark.spark
@pytest.mark.by_turns(of="long queries")
def test_every_total_is_right_and_a_second_run_adds_nothing(environment: dict[str, str]) -> None:
    done = run(environment, str(DEMO), "--rows", "20000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3,804 × 3 totals are what pandas finds" in done.stdout
    assert "a second run of the job on the same checkpoint added nothing" in done.stdout
    assert_nothing_left(environment)


@pytest.mark.spark
@pytest.mark.by_turns(of="long queries")
def test_a_wrong_total_is_found_on_a_cluster_that_has_been_used(
    environment: dict[str, str], cluster: Cluster, client: BlockingClient
) -> None:
    admin_of(client).topics.create("flights")
    name_server = ("--name-server", cluster.name_server)
    done = run(environment, "-c", FALSIFIED, "--rows", "5000", *name_server)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "topics flights-2 and flight-delays-2 on" in done.stdout
    assert "not what pandas finds in the same rows, 1 differences:" in done.stderr
    assert "mean_delay is" in done.stderr


def takes_signals(demo: subprocess.Popen[str]) -> bool:
    status = Path(f"/proc/{demo.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


#: The moments at which the demo is interrupted, in their order: how a test knows that it is then.
MOMENTS: dict[str, Callable[[subprocess.Popen[str], dict[str, str]], bool]] = {
    "it begins, and imports": lambda demo, _: takes_signals(demo),
    "the broker starts": lambda _, env: any("pymq.cli up" in p for p in processes_of(env)),
    "the job starts": lambda _, env: any("job.py --name" in p for p in processes_of(env)),
    "the JVM starts": lambda _, env: any("org.apache.spark" in p for p in processes_of(env)),
    # Killed, the JVM and the workers leave these behind, wherever they have put them.
    "Spark runs": lambda _, env: bool(made(env, "job-*/blockmgr-*")) and has_workers(env),
}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


def has_workers(environment: dict[str, str]) -> bool:
    """Say whether Python works for Spark; it listens at a socket in a file where Spark can."""
    if HAS_SOCKETS:
        return bool(made(environment, "job-*/.*.sock"))
    return any("pyspark.daemon" in command for command in processes_of(environment))


def made(environment: dict[str, str], pattern: str) -> list[Path]:
    """Return files in the folder of a run."""
    return list(Path(environment["TMPDIR"]).glob(f"pymq-flights-*/{pattern}"))


@pytest.mark.spark
@pytest.mark.parametrize(("moment", "number"), list(zip(MOMENTS, SIGNALS, strict=True)))
def test_an_interrupted_demo_leaves_nothing_behind(
    environment: dict[str, str], moment: str, number: signal.Signals
) -> None:
    command = [sys.executable, str(DEMO), "--rows", "1000"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not MOMENTS[moment](demo, environment):
            assert demo.poll() is None, f"over before {moment}: {demo.communicate()}"
            assert time.monotonic() < deadline_s, moment
            time.sleep(0.01)
        demo.send_signal(number)
        demo.send_signal(number)  # as impatient people do
        _, errors = demo.communicate(timeout=STOP_S)
    assert demo.returncode == 130, errors
    assert errors == "demo.py: interrupted\n"
    assert_nothing_left(environment)


def test_without_a_java_it_says_what_to_do(environment: dict[str, str], tmp_path: Path) -> None:
    environment.pop("JAVA_HOME", None)
    done = run({**environment, "PATH": str(tmp_path)}, str(DEMO))
    assert done.returncode == 2
    assert "Java 17 or 21" in done.stderr
    assert "JAVA_HOME" in done.stderr


@pytest.mark.parametrize("argument", ["0", "-1", "336777", "many"])
def test_wrong_rows_are_refused(environment: dict[str, str], argument: str) -> None:
    done = run(environment, str(DEMO), f"--rows={argument}")
    assert done.returncode == 2
    assert "--rows" in done.stderr
    assert_nothing_left(environment)


# ------------------------------------------------------------------------------- its check


@pytest.fixture(scope="module")
def totals() -> Iterator[tuple[Any, list[Any], Callable[..., list[str]]]]:
    """What pandas expects of some flights, results that say the same, and the comparison."""
    sys.path.insert(0, str(FOLDER))
    try:
        import check
        import flights
        import report
    finally:
        sys.path.remove(str(FOLDER))
    expected = check.expected_results(flights.load())
    results = [
        report.Result(
            carrier,
            hour.to_pydatetime(),
            int(row.departures),
            int(row.cancelled),
            None if row.departures == 0 else float(row.mean_delay),
        )
        for (carrier, hour), row in zip(expected.index, expected.itertuples(), strict=True)
    ]
    yield expected, results, check.differences


def test_equal_totals_do_not_differ(totals: tuple[Any, list[Any], Any]) -> None:
    expected, results, differences = totals
    assert differences(expected, results) == []
    assert any(result.mean_delay is None for result in results)


@pytest.mark.parametrize(
    ("falsify", "text"),
    [
        (lambda r: [dataclasses.replace(r, departures=r.departures + 1)], "departures is"),
        (lambda r: [dataclasses.replace(r, cancelled=r.cancelled + 1)], "cancelled is"),
        (lambda r: [dataclasses.replace(r, mean_delay=r.mean_delay + 1e-6)], "mean_delay is"),
        (lambda r: [dataclasses.replace(r, mean_delay=None)], "mean_delay is nan"),
        (lambda r: [], "missing"),
        (lambda r: [r, r], "written more than once"),
        (lambda r: [r, dataclasses.replace(r, carrier="XX")], "no such flights"),
    ],
)
def test_every_kind_of_difference_is_found(
    totals: tuple[Any, list[Any], Any], falsify: Callable[[Any], list[Any]], text: str
) -> None:
    expected, results, differences = totals
    at = next(i for i, result in enumerate(results) if result.departures)
    found = differences(expected, [*results[:at], *falsify(results[at]), *results[at + 1 :]])
    assert len(found) == 1
    assert text in found[0]


def test_no_results_at_all_are_as_many_differences(totals: tuple[Any, list[Any], Any]) -> None:
    expected, _, differences = totals
    assert len(differences(expected, [])) == len(expected)
