"""Who may not join a sync state set before it says itself that it has everything."""

from dataclasses import dataclass, field

from pymq.controller.groups import GroupState, Member, alter_sync_state_set
from pymq.controller.liveness import Liveness
from pymq.controller.new_holders import GROUP_COUNT_MAX, NewHolders
from pymq.controller.reports import Report
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

GROUP = GroupState(
    cluster="c",
    name="b",
    members={number: Member(address=f"h:{number}") for number in (1, 2)},
    next_id=3,
    master=1,
    master_epoch=5,
    in_sync=SyncStateSet(frozenset({1}), 7),
)


@dataclass
class Bed:
    """Broker 1 is the master; another one than before is broker 2."""

    now_s: float = 100.0
    liveness: Liveness = field(init=False)
    new_holders: NewHolders = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness(limit_s=2.0, unheard_s=0.0, now_s=self.now_s)
        self.new_holders = NewHolders(self.liveness)

    def says(self, broker_id: int, end: int) -> None:
        self.now_s += 0.1
        self.liveness.heard(
            "b",
            broker_id,
            connection=broker_id,
            silence_s=10.0,
            report=Report(epoch=5, max_offset=end, address=f"h:{broker_id}"),
            now_s=self.now_s,
        )

    def comes(self, address: str = "h:2") -> None:
        self.now_s += 0.1
        self.new_holders.came("b", 2, address, self.now_s)


def test_it_has_to_have_what_the_master_had_after_it_came() -> None:
    bed = Bed()
    bed.says(1, 100)
    assert bed.new_holders.unconfirmed(GROUP) == set()
    bed.comes()
    assert bed.new_holders.unconfirmed(GROUP) == {2}
    bed.says(2, 100)
    assert bed.new_holders.unconfirmed(GROUP) == {2}  # the master may have had more
    bed.says(1, 200)
    assert bed.new_holders.unconfirmed(GROUP) == {2}
    bed.says(1, 300)
    bed.says(2, 200)
    assert bed.new_holders.unconfirmed(GROUP) == set()
    bed.new_holders.joined("b", {2})
    assert bed.new_holders._groups == {}


def test_what_a_former_master_had_does_not_count() -> None:
    """Its last messages were not acknowledged, perhaps, and are cut off."""
    bed = Bed()
    bed.comes()
    bed.says(1, 300)
    bed.says(2, 200)
    assert bed.new_holders.unconfirmed(GROUP) == {2}
    later = GroupState.from_json(GROUP.to_json() | {"masterEpoch": 6})
    bed.liveness.connection_ended(1)
    assert bed.new_holders.unconfirmed(later) == {2}
    bed.says(1, 200)
    assert bed.new_holders.unconfirmed(later) == set()


def test_another_one_that_came_since_is_the_one() -> None:
    bed = Bed()
    bed.comes("h:7")
    assert bed.new_holders.unconfirmed(GROUP) == set()  # it is not there any more


def test_it_is_refused_until_then() -> None:
    wanted = SyncStateSet(frozenset({1, 2}), 7)
    outcome = alter_sync_state_set(
        GROUP,
        master=1,
        master_epoch=5,
        wanted=wanted,
        alive={1: Report(), 2: Report()},
        unconfirmed={2},
    )
    assert outcome.code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    assert outcome.state == GROUP and "h:2" in (outcome.remark or "")


def test_there_are_not_too_many() -> None:
    bed = Bed()
    for number in range(2 * GROUP_COUNT_MAX):
        bed.new_holders.came(f"b{number}", 1, "h:1", 100.0)
    assert len(bed.new_holders._groups) <= GROUP_COUNT_MAX
