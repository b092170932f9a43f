"""A real cluster: a master and two workers whose Python has no pymq but through ``--py-files``."""

import os
import signal
import subprocess
from pathlib import Path

import pyspark
import pytest
from tests.spark.standalone import StandaloneCluster
from tests.spark.two_brokers import TwoBrokers, numbers, wait_until

pytestmark = pytest.mark.spark
#: Until a driver and its executors run, on a machine that has other things to do.
START_S = 240.0
WHAT_IS_THERE = """
import pyspark, pyarrow, numpy
print(pyspark.__version__, flush=True)
import pymq
"""
COPY = Path(__file__).parent / "jobs" / "copy_topic.py"


def kill_one(pids: list[int]) -> bool:
    """Kill the last of some processes, which may all be new, or have just ended."""
    for pid in reversed(pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return True
    return False


@pytest.mark.by_turns(of="long queries")
def test_a_copy_while_workers_and_brokers_go(two_brokers: TwoBrokers, tmp_path: Path) -> None:
    """Executors, their Python, brokers and the driver: each row is there once."""
    bed = two_brokers
    for topic in ("from", "to"):
        bed.create_topic(topic)
    bed.send("from", numbers(2_000))
    home = tmp_path / "cluster"
    home.mkdir()
    with StandaloneCluster(home) as cluster:
        found = subprocess.run(
            [cluster.python, "-c", WHAT_IS_THERE],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert found.stdout.strip() == pyspark.__version__
        assert "No module named 'pymq'" in found.stderr
        arguments = [bed.name_server, "from", "to", str(tmp_path / "checkpoint")]
        job = cluster.submit(COPY, *arguments, "maxOffsetsPerTrigger=500")

        def wait_copied(count: int, after: str) -> None:
            def holds() -> bool:
                assert job.returncode is None, job.output()[-3000:]
                return len(bed.stored("to")) >= count

            wait_until(holds, f"{count} rows after {after}", START_S)

        sent = 2_000
        wait_copied(sent, "the start")
        for pids in (cluster.executors, cluster.python_workers):
            wait_until(lambda find=pids: kill_one(find()), f"one of {pids.__name__}", START_S)
            bed.send("from", numbers(sent, sent + 500))
            sent += 500
            wait_copied(sent, f"one of {pids.__name__} was killed")
        for name in ("broker-a", "broker-b"):
            bed.kill(name)
            bed.start(name)
            bed.send("from", numbers(sent, sent + 500))
            sent += 500
        wait_copied(sent, "brokers were killed")
        job.kill()
        bed.send("from", numbers(sent, sent + 500))
        again = cluster.submit(COPY, *arguments, "once=true")
        assert again.wait_end(START_S) == 0, again.output()[-3000:]
    assert sorted(int(one.body) for one in bed.stored("to")) == list(range(sent + 500))
