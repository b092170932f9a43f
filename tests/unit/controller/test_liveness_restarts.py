"""What counts of what brokers have said."""

from pymq.controller.liveness import Liveness
from pymq.controller.reports import Report

FAR, NEAR, LATER = Report(epoch=3, max_offset=9), Report(epoch=3, max_offset=5), Report(epoch=4)


class Bed:
    """A clock, and what brokers say."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.liveness = Liveness(limit_s=2.0, unheard_s=0.0, now_s=self.now_s)

    def hear(self, report: Report, connection: object = "old", broker_id: int = 1) -> bool:
        self.now_s += 0.3
        return self.liveness.heard(
            "b", broker_id, connection=connection, silence_s=2.0, report=report, now_s=self.now_s
        )

    def report(self) -> Report:
        return self.liveness.alive("b")[1]


def test_the_furthest_report_of_a_connection_counts() -> None:
    bed = Bed()
    assert bed.hear(FAR)
    assert not bed.hear(NEAR)
    assert bed.report() == FAR
    bed.hear(LATER)
    assert bed.report() == LATER


def test_a_broker_that_was_started_again_may_have_less() -> None:
    bed = Bed()
    bed.hear(FAR)
    assert not bed.hear(NEAR, "new")
    assert bed.report() == NEAR


def test_nothing_counts_that_was_said_before_a_registration() -> None:
    bed = Bed()
    bed.hear(FAR)
    bed.hear(FAR, broker_id=2)
    bed.liveness.registered("b", 1, "h:1")
    assert bed.liveness.alive("b") == {2: FAR}
    assert bed.hear(NEAR)
    assert bed.report() == NEAR
    bed.liveness.registered("b", 7, "h:7")  # of whom nothing is known
