"""A query of a real Spark cluster copies a topic, while anything may be killed at any time.

Driver, executors, their Python processes and both brokers are killed, brokers also frozen. A driver
that has ended is started again, as an operator or a resource manager does. In the end each row that
was acknowledged is in the second topic, exactly once.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.conftest import ROUNDS_OF_A_TEST
from tests.spark.standalone import SparkProcess, StandaloneCluster
from tests.spark.test_standalone import COPY, START_S
from tests.spark.two_brokers import NAMES, TwoBrokers, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.spark]

#: Victims, and how often each is chosen: a driver takes longest to come back.
VICTIMS = {"python worker": 4, "executor": 2, "broker": 4, "frozen broker": 2, "driver": 1}
KILLS = 200
#: A driver that ends this often in a row without a fault copies nothing more.
ENDS_MAX = 5


class Soak:
    """The query, and what kills parts of it.

    Args:
        bed: the brokers.
        cluster: Spark.
        checkpoint: of the query.
        dice: of everything.
    """

    def __init__(
        self, bed: TwoBrokers, cluster: StandaloneCluster, checkpoint: Path, dice: random.Random
    ) -> None:
        self.bed, self.cluster, self.dice = bed, cluster, dice
        self.kills: Counter[str] = Counter()
        #: How often the query ended by itself, and what it said.
        self.ends: list[str] = []
        self._checkpoint = checkpoint
        self._job = self._submit()

    def _submit(self, *more: str) -> SparkProcess:
        return self.cluster.submit(
            COPY,
            *(self.bed.name_server, "from", "to", str(self._checkpoint)),
            f"maxOffsetsPerTrigger={self.dice.choice((200, 1_000, 5_000))}",
            f"minPartitions={self.dice.choice((1, 2, 3, 5))}",
            *more,
        )

    def _copied(self) -> int:
        return len(self.bed.stored("to"))

    def go_on(self) -> None:
        """See to it that the query runs, and wait until it has copied something more."""
        before, ends = self._copied(), 0

        def holds() -> bool:
            nonlocal ends
            if self._job.returncode is not None:
                ends += 1
                self.ends.append(self._job.output()[-2_000:])
                assert ends <= ENDS_MAX, self.ends[-1]
                self._job = self._submit()
            return self._copied() > before

        wait_until(holds, f"rows after {sum(self.kills.values())} kills: {self.kills}", START_S)

    def kill(self) -> None:
        """Kill something, and start again what does not start by itself."""
        victim = self.dice.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        self.kills[victim] += 1
        time.sleep(self.dice.random() * 2)  # wherever in a micro-batch that is
        match victim:
            case "driver":
                self._job.kill()
                self._job = self._submit()
            case "executor" | "python worker":
                pids = (
                    self.cluster.executors()
                    if victim == "executor"
                    else self.cluster.python_workers()
                )
                if pids:
                    _kill(self.dice.choice(pids))
            case "broker":
                name = self.dice.choice(NAMES)
                self.bed.broker(name).kill()
                time.sleep(self.dice.random())
                self.bed.start(name)
            case "frozen broker":
                name = self.dice.choice(NAMES)
                self.bed.freeze(name)
                time.sleep(1 + 3 * self.dice.random())
                self.bed.thaw(name)

    def finish(self) -> None:
        """Copy what is left, with a driver of its own."""
        self._job.kill()
        for _ in range(ENDS_MAX):
            last = self._submit("once=true")
            if last.wait_end(START_S) == 0:
                return
            self.ends.append(last.output()[-2_000:])
        raise AssertionError(self.ends[-1])


def test_each_row_is_copied_once(tmp_path: Path, seed: int, crash_rounds: int) -> None:
    if crash_rounds <= ROUNDS_OF_A_TEST:
        pytest.skip("for ./build.sh crash; tests/spark/test_standalone.py is the short form")
    home = tmp_path / "cluster"
    home.mkdir()
    dice = random.Random(seed)
    with TwoBrokers(tmp_path / "bed", expiry_s=20) as bed, StandaloneCluster(home) as cluster:
        for topic in ("from", "to"):
            bed.create_topic(topic)
        with bed.load("from") as load:
            soak = Soak(bed, cluster, tmp_path / "checkpoint", dice)
            for _ in range(KILLS):
                load.wait_acknowledged(50)
                soak.go_on()
                soak.kill()
            soak.go_on()
        soak.finish()
        source = Counter(one.body for one in bed.stored("from"))
        found = Counter(one.body for one in bed.stored("to"))
    print(f"{dict(soak.kills)}, {len(soak.ends)} ends of the query, {len(source)} rows")
    for end in soak.ends:
        print(end)
    assert set(source) >= {one.body for one in bed.acknowledged("from")}
    assert found == source


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
