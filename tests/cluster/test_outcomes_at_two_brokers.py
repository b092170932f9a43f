"""What becomes of messages while one of two brokers is killed and comes back."""

from pathlib import Path

from tests.cluster.outcome_scenarios import nothing_is_lost_while_a_broker_restarts
from tests.spark.two_brokers import TwoBrokers


def test_nothing_is_lost_while_a_broker_restarts(tmp_path: Path) -> None:
    delays = " ".join(["1s"] * 18)
    with TwoBrokers(tmp_path, messageDelayLevel=delays, flushDiskType="SYNC_FLUSH") as bed:

        def restart() -> None:
            bed.broker("broker-b").kill()
            bed.start("broker-b")

        nothing_is_lost_while_a_broker_restarts(bed.name_server, "T", restart)
