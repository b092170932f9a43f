"""Every rule about ids, registration, the sync state set and cleaning, one case each."""

from dataclasses import replace

import pytest

from pymq.controller.groups import (
    GroupState,
    Member,
    Outcome,
    alter_sync_state_set,
    apply_broker_id,
    clean,
    next_broker_id,
    register,
)
from pymq.controller.reports import Report
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

OK = ResponseCode.SUCCESS
ALIVE = {1: Report(), 2: Report(), 3: Report()}


def member(number: int) -> Member:
    return Member(address=f"h:{number}", check_code=f"h:{number};1")


GROUP = GroupState(
    cluster="c",
    name="b",
    members={1: member(1), 2: member(2), 3: member(3)},
    next_id=4,
    master=1,
    master_epoch=5,
    in_sync=SyncStateSet(frozenset({1, 2}), 7),
)


def refused(outcome: Outcome, code: ResponseCode, state: GroupState | None) -> None:
    assert (outcome.code, outcome.state) == (code, state)
    assert outcome.remark


# --------------------------------------------------------------------------------------- ids


def apply(state: GroupState | None, broker_id: int, code: str = "h:9;1", **changes: str) -> Outcome:
    given = {"cluster": "c", "name": "b", **changes}
    return apply_broker_id(state, broker_id=broker_id, check_code=code, **given)


def test_a_group_begins_with_its_first_broker() -> None:
    assert next_broker_id(None) == 1
    first = Member(address="h:9", check_code="h:9;1")
    expected = GroupState(cluster="c", name="b", members={1: first}, next_id=2)
    assert apply(None, 1) == Outcome(expected)
    refused(apply(None, 2), ResponseCode.CONTROLLER_BROKER_ID_INVALID, None)


def test_an_id_is_given_once() -> None:
    assert next_broker_id(GROUP) == 4
    outcome = apply(GROUP, 4)
    assert outcome.is_success and outcome.state
    assert outcome.state.members[4].address == "h:9"
    assert next_broker_id(outcome.state) == 5
    assert apply(outcome.state, 4) == Outcome(outcome.state)  # the same broker, once more
    refused(
        apply(outcome.state, 4, "h:9;2"), ResponseCode.CONTROLLER_BROKER_ID_INVALID, outcome.state
    )
    refused(apply(GROUP, 0), ResponseCode.CONTROLLER_BROKER_ID_INVALID, GROUP)


def test_the_next_id_is_always_free() -> None:
    """Also after an id that was applied for out of turn: RocketMQ would offer one that is taken."""
    outcome = apply(GROUP, 9)
    assert next_broker_id(outcome.state) == 10


def test_a_name_belongs_to_one_cluster() -> None:
    wrong = ResponseCode.CONTROLLER_INVALID_REQUEST
    refused(apply(GROUP, 4, cluster="other"), wrong, GROUP)
    outcome = register(GROUP, cluster="o", name="b", broker_id=1, address="h:1", alive={})
    refused(outcome, wrong, GROUP)


def test_registration() -> None:
    def at(broker_id: int, address: str, state: GroupState | None = GROUP) -> Outcome:
        return register(
            state, cluster="c", name="b", broker_id=broker_id, address=address, alive=alive
        )

    alive: dict[int, Report] = {}

    assert at(2, "h:2") == Outcome(GROUP)
    moved = at(2, "h:99")
    assert moved.is_success and moved.state
    assert moved.state.members[2] == Member(address="h:99", check_code="h:2;1")
    assert replace(moved.state, members=GROUP.members) == GROUP
    unknown = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    refused(at(1, "h:1", None), unknown, None)
    refused(at(8, "h:1"), unknown, GROUP)
    for own in (1, 2):
        alive = {own: Report(address=f"h:{own}")}
        refused(at(own, "h:99"), ResponseCode.CONTROLLER_BROKER_ID_INVALID, GROUP)
    assert at(2, "h:2") == Outcome(GROUP)
    alive = {2: Report(address="h:99")}
    assert at(2, "h:99") == moved


def test_who_has_an_id_while_it_is_unknown_whether_its_broker_lives() -> None:
    """A controller that was just started has heard of nobody, and copies ask all the time."""

    def at(address: str, may_be_alive: bool = True, original: str | None = None) -> Outcome:
        return register(
            GROUP,
            cluster="c",
            name="b",
            broker_id=2,
            address=address,
            alive={},
            may_be_alive=may_be_alive,
            original=original,
        )

    invalid = ResponseCode.CONTROLLER_BROKER_ID_INVALID
    refused(at("h:99"), invalid, GROUP)
    assert "pymqStartPatience" in (at("h:99").remark or "")
    assert at("h:2") == Outcome(GROUP)
    assert at("h:99", may_be_alive=False).is_success
    # A copy does not take the place of its original.
    refused(at("h:99", may_be_alive=False, original="h:2"), invalid, GROUP)


def test_a_master_that_registers_is_a_new_process_and_needs_a_new_epoch() -> None:
    without = replace(GROUP, master=None, master_epoch=6)
    again = register(GROUP, cluster="c", name="b", broker_id=1, address="h:1", alive={})
    assert again == Outcome(without)
    # What the old process has asked for is not done any more.
    wanted = SyncStateSet(frozenset({1, 2, 3}), 7)
    late = alter_sync_state_set(without, master=1, master_epoch=5, wanted=wanted, alive=ALIVE)
    assert late.code == ResponseCode.CONTROLLER_INVALID_MASTER


# ------------------------------------------------------------------------- the sync state set


def alter(
    *broker_ids: int,
    epoch: int = 7,
    master: int = 1,
    master_epoch: int = 5,
    state: GroupState | None = GROUP,
    alive: dict[int, Report] | None = None,
) -> Outcome:
    return alter_sync_state_set(
        state,
        master=master,
        master_epoch=master_epoch,
        wanted=SyncStateSet(frozenset(broker_ids), epoch),
        alive=ALIVE if alive is None else alive,
    )


def test_the_set_is_altered() -> None:
    for wanted in ((1,), (1, 3), (1, 2, 3)):
        outcome = alter(*wanted)
        expected = replace(GROUP, in_sync=SyncStateSet(frozenset(wanted), 8))
        assert outcome == Outcome(expected)


def test_a_set_that_was_altered_without_an_answer_is_altered() -> None:
    """Otherwise its master would believe that the set is surely the old one."""
    assert alter(1, 2, epoch=6) == Outcome(GROUP)
    unsure = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    refused(alter(1, 2, epoch=6, master_epoch=4), unsure, GROUP)
    refused(alter(1, 2, epoch=6, master=2), unsure, GROUP)
    refused(alter(1, 2, epoch=5), unsure, GROUP)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (alter(1, 2), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (alter(2, 3), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (alter(1, 3, master=2), ResponseCode.CONTROLLER_INVALID_MASTER),
        (alter(1, 3, master_epoch=4), ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        (alter(1, 3, master_epoch=6), ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        (alter(1, 3, epoch=6), ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (alter(1, 3, epoch=8), ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (alter(1, 4), ResponseCode.CONTROLLER_INVALID_REPLICAS),
        (alter(1, 3, alive={1: Report()}), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
    ],
)
def test_the_set_is_not_altered(outcome: Outcome, code: ResponseCode) -> None:
    refused(outcome, code, GROUP)


def test_members_that_the_controller_does_not_see_may_stay() -> None:
    """Otherwise one that is cut off from the controller alone would keep a dead one in the set."""
    everybody = replace(GROUP, in_sync=SyncStateSet(frozenset({1, 2, 3}), 7))
    outcome = alter(1, 2, state=everybody, alive={1: Report()})
    assert outcome == Outcome(replace(GROUP, in_sync=SyncStateSet(frozenset({1, 2}), 8)))
    joined = alter(1, 2, 3, alive={1: Report(), 3: Report()})
    assert joined == Outcome(replace(everybody, in_sync=SyncStateSet(frozenset({1, 2, 3}), 8)))


def test_nobody_alters_without_a_master_or_a_group() -> None:
    orphan = replace(GROUP, master=None)
    refused(alter(1, 3, state=orphan), ResponseCode.CONTROLLER_INVALID_MASTER, orphan)
    refused(alter(1, state=None), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, None)


# ---------------------------------------------------------------------------------- cleaning


def cleaned(
    *broker_ids: int,
    living: bool = False,
    state: GroupState | None = GROUP,
    alive: tuple[int, ...] = (),
) -> Outcome:
    return clean(
        state,
        name="b",
        broker_ids=frozenset(broker_ids) if broker_ids else None,
        even_living=living,
        alive={one: Report() for one in alive},
    )


def test_brokers_are_cleaned() -> None:
    slave = cleaned(3).state
    assert slave == replace(GROUP, members={1: member(1), 2: member(2)})
    in_sync = cleaned(2).state
    assert in_sync and in_sync.in_sync == SyncStateSet(frozenset({1}), 8)
    master = cleaned(1).state
    assert master == replace(
        GROUP,
        members={2: member(2), 3: member(3)},
        master=None,
        master_epoch=6,
        in_sync=SyncStateSet(frozenset({2}), 8),
    )
    assert cleaned(1, 2, 3) == Outcome(None)
    assert cleaned(state=replace(GROUP, master=None)) == Outcome(None)
    assert cleaned(living=True, alive=(1, 2)) == Outcome(None)


def test_the_living_are_not_cleaned() -> None:
    code = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    refused(cleaned(), code, GROUP)
    refused(cleaned(2, 3, alive=(2,)), code, GROUP)
    refused(cleaned(state=None, living=True), code, None)
    outcome = cleaned(3, alive=(3,), living=True)
    assert outcome.state and set(outcome.state.members) == {1, 2}  # and nobody else


def test_a_group_reads_back() -> None:
    assert GroupState.decode(GROUP.encode()) == GROUP
    assert GroupState.decode(b'{"cluster":"c","name":"b"}') == GroupState(cluster="c", name="b")
