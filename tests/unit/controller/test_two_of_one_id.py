"""Who lacks what another one with its id may have acknowledged, and what becomes of it."""

from dataclasses import replace

import pytest

from pymq.controller.elections import elect
from pymq.controller.groups import (
    GroupState,
    LastTerm,
    Member,
    Outcome,
    alter_sync_state_set,
    clean,
    register,
)
from pymq.controller.reports import LogEnd, Report
from pymq.controller.two_of_one_id import gives_way, incomplete, is_behind, with_last_term
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

OK = ResponseCode.SUCCESS
FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
NONE_LEFT = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE

LAST = {1: LastTerm(epoch=5, address="h:9")}
#: Broker 1 was the master of epoch 5 at h:9, and is at h:1 now; nobody else is in sync.
ALONE = GroupState(
    cluster="c",
    name="b",
    members={number: Member(address=f"h:{number}") for number in (1, 2, 3)},
    next_id=4,
    master_epoch=6,
    in_sync=SyncStateSet(frozenset({1}), 7),
    last_terms=LAST,
)
#: Broker 2 is the master, and broker 1 is in sync.
LED = replace(ALONE, master=2, in_sync=SyncStateSet(frozenset({1, 2}), 7), last_terms={})


def says(epoch: int | None, address: str = "", end: int = 100) -> Report:
    return Report(epoch=epoch, max_offset=end, address=address)


def master_of(outcome: Outcome) -> tuple[int, int | None]:
    assert outcome.state is not None
    return outcome.code, outcome.state.master


# ------------------------------------------------------------------------------------ elections


@pytest.mark.parametrize("asked", [None, 1])
def test_who_is_behind_is_not_elected_by_itself(asked: int | None) -> None:
    outcome = elect(ALONE, alive={1: says(4)}, asked=asked)
    assert master_of(outcome) == (NONE_LEFT if asked is None else FAILED, None)
    remark = outcome.remark or ""
    for part in ("epoch 4", "h:9", "epoch 5", "mqadmin electMaster", "pymq cluster promote b"):
        assert part in remark


def test_who_lacks_what_it_had_itself_is_not_told_to_start_another_one() -> None:
    """The store of the master was replaced by an older copy, where it is."""
    alone = replace(ALONE, last_terms={1: LastTerm(epoch=5, address="h:1")})
    remark = elect(alone, alive={1: says(4, "h:1")}).remark or ""
    assert "this broker was the master at that address with epoch 5" in remark
    assert "No other broker is known" in remark and "Start the broker that has it" not in remark
    assert "mqadmin electMaster" in remark and "pymq cluster promote b" in remark
    # One that is in sync and away may have it.
    two = replace(alone, in_sync=SyncStateSet(frozenset({1, 2}), 7))
    assert "Start the broker that has it" in (elect(two, alive={1: says(4)}).remark or "")


@pytest.mark.parametrize("epoch", [5, 6, None])
def test_who_has_the_last_epoch_or_does_not_say_is_elected(epoch: int | None) -> None:
    """A broker that has moved with its store; a successor that was not the master counts not."""
    assert master_of(elect(ALONE, alive={1: says(epoch, "h:1")})) == (OK, 1)


def test_it_can_be_designated_and_is_the_one_that_counts_from_then_on() -> None:
    outcome = elect(ALONE, alive={1: says(4)}, asked=1, is_designated=True)
    assert master_of(outcome) == (OK, 1)
    assert outcome.state and outcome.state.last_terms == {}


def test_it_can_be_elected_if_elections_may_be_unclean() -> None:
    outcome = elect(ALONE, alive={1: says(4), 2: says(3)}, unclean=True)
    assert master_of(outcome) == (OK, 1)
    assert outcome.state and outcome.state.last_terms == {}
    assert master_of(elect(ALONE, alive={1: says(4), 2: says(5)}, unclean=True)) == (OK, 2)


def test_another_one_in_sync_is_elected_instead() -> None:
    group = replace(ALONE, in_sync=SyncStateSet(frozenset({1, 2}), 7))
    outcome = elect(group, alive={1: says(4, end=900), 2: says(3)})
    assert master_of(outcome) == (OK, 2)
    assert outcome.state and outcome.state.last_terms == LAST


def test_whose_heartbeats_say_another_address_is_not_elected() -> None:
    assert master_of(elect(ALONE, alive={1: says(5, "h:9")})) == (NONE_LEFT, None)


def test_who_has_less_than_the_one_before_is_elected_only_if_nobody_else_is_in_sync() -> None:
    less = {1: replace(says(5), had=LogEnd(5, 110))}
    assert incomplete(ALONE, less) == {}
    others = replace(ALONE, in_sync=SyncStateSet(frozenset({1, 2}), 7), last_terms={})
    outcome = elect(others, alive=less)
    assert master_of(outcome) == (NONE_LEFT, None) and "had more" in (outcome.remark or "")
    assert master_of(elect(others, alive=less, asked=1, is_designated=True)) == (OK, 1)


def test_if_all_in_sync_have_less_the_one_that_goes_furthest_is_elected() -> None:
    """Their power was lost, and their addresses are other ones: nobody has what was not flushed."""
    group = replace(ALONE, in_sync=SyncStateSet(frozenset({1, 2}), 7), last_terms={})
    short = {
        1: replace(says(5, "h:1", 100), had=LogEnd(5, 110)),
        2: replace(says(5, "h:2", 105), had=LogEnd(5, 120)),
        3: says(5, "h:3", 900),
    }
    outcome = elect(group, alive=short)
    assert master_of(outcome) == (OK, 2)
    assert "15 bytes are missing" in (outcome.remark or "")
    # One that is away, or that was put out, may have everything; nor is one elected that is behind.
    others = {3: short[3], 1: short[1]}
    assert master_of(elect(group, alive=others)) == (NONE_LEFT, None)
    elsewhere = {**others, 2: replace(short[2], address="h:9")}
    assert master_of(elect(group, alive=elsewhere)) == (NONE_LEFT, None)
    behind = replace(group, last_terms={2: LastTerm(epoch=6, address="h:9")})
    assert master_of(elect(behind, alive=short)) == (NONE_LEFT, None)
    # And one that has everything is elected, also if another one goes further.
    whole = {**short, 1: says(5, "h:1", 100)}
    outcome = elect(group, alive=whole)
    assert master_of(outcome) == (OK, 1) and outcome.remark is None


def test_who_is_designated_outside_of_the_set_is_the_one_that_counts_as_well() -> None:
    group = replace(ALONE, in_sync=SyncStateSet(frozenset(), 7))
    outcome = elect(group, alive={1: says(4)}, asked=1, is_designated=True)
    assert master_of(outcome) == (OK, 1)
    assert outcome.state and outcome.state.last_terms == {}


# --------------------------------------------------------------------------- what is remembered


@pytest.mark.parametrize(
    ("report", "epoch"),
    [
        (says(6, "h:2"), 6),
        (says(6), 6),
        (says(4, "h:2"), 4),  # one of RocketMQ's that found nothing new in its log
        (says(7, "h:2"), None),  # the store is an old copy
        (says(0, "h:2"), None),
        (says(None, "h:2"), None),
        (says(6, "h:9"), None),  # that is not the master
    ],
)
def test_what_the_master_says_of_its_log_is_kept(report: Report, epoch: int | None) -> None:
    found = with_last_term(LED, {1: says(6), 2: report}).last_terms
    assert found == ({} if epoch is None else {2: LastTerm(epoch=epoch, address="h:2")})


def test_what_is_kept_never_becomes_less() -> None:
    group = replace(LED, last_terms={2: LastTerm(epoch=5, address="h:9")})
    assert with_last_term(group, {2: says(3, "h:2")}) is group
    for epoch in (5, 6):
        found = with_last_term(group, {2: says(epoch, "h:2")}).last_terms
        assert found == {2: LastTerm(epoch=epoch, address="h:2")}


def test_nothing_is_kept_of_a_group_without_a_master() -> None:
    assert with_last_term(ALONE, {1: says(6), 2: says(6)}) is ALONE
    assert with_last_term(LED, {}) is LED
    kept = with_last_term(LED, {2: says(6)})
    assert with_last_term(kept, {2: says(6)}) is kept


def test_who_joins_the_set_of_a_later_master_is_not_behind_any_more() -> None:
    """It has that one's log, which may have no byte of the epoch that it was the master of."""
    group = replace(LED, in_sync=SyncStateSet(frozenset({2}), 7), last_terms=LAST)
    assert is_behind(group, 1, 4)
    outcome = alter_sync_state_set(
        group,
        master=2,
        master_epoch=6,
        wanted=SyncStateSet(frozenset({1, 2}), 7),
        alive={1: says(4), 2: says(6)},
    )
    assert outcome.state and not is_behind(outcome.state, 1, 4)


def test_who_is_cleaned_is_forgotten() -> None:
    left = clean(ALONE, name="b", broker_ids={1}, even_living=True, alive={}).state
    assert left and left.last_terms == {}


def test_states_are_read_with_and_without_it() -> None:
    assert GroupState.decode(ALONE.encode()) == ALONE
    assert GroupState.from_json(ALONE.to_json()) == ALONE
    old = ALONE.to_json()
    del old["lastTerms"]
    assert GroupState.from_json(old) == replace(ALONE, last_terms={})


# -------------------------------------------------------------------------------- registrations


@pytest.mark.parametrize(
    ("holder", "epoch", "address", "expected"),
    [
        (says(4, "h:1"), 5, "h:7", True),  # it moved again
        (says(4, "h:1"), 6, "h:7", True),
        (says(4, "h:1"), 4, "h:7", False),
        (says(4, "h:1"), 4, "h:9", False),  # an old backup, where the master was
        (says(4, "h:1"), None, "h:9", True),  # RocketMQ's do not say
        (says(4, "h:1"), None, "h:7", False),
        (says(5, "h:1"), 5, "h:9", False),
        (says(None, "h:1"), 5, "h:9", False),
        (says(5, "h:1"), 5, "h:1", False),
        (says(4), 5, "h:7", False),
    ],
)
def test_who_is_behind_gives_way(
    holder: Report, epoch: int | None, address: str, expected: bool
) -> None:
    alive = {1: holder}
    found = gives_way(ALONE, 1, epoch=epoch, address=address, alive=alive)
    assert found is expected
    outcome = register(
        ALONE,
        cluster="c",
        name="b",
        broker_id=1,
        address=address,
        alive=alive,
        gives_way=found,
        original="h:1" if expected else None,
    )
    is_free = expected or holder.address in ("", address)
    assert outcome.is_success is is_free


def test_nobody_gives_way_who_is_not_there() -> None:
    assert not gives_way(ALONE, 1, epoch=5, address="h:9", alive={})
    assert not gives_way(ALONE, 7, epoch=5, address="h:9", alive={})


def test_who_is_new_at_its_address_leaves_the_set_of_a_living_master() -> None:
    def at(address: str, state: GroupState, *alive: int) -> GroupState | None:
        return register(
            state,
            cluster="c",
            name="b",
            broker_id=1,
            address=address,
            alive={one: says(6) for one in alive},
        ).state

    left = at("h:7", LED, 2)
    assert left and left.in_sync == SyncStateSet(frozenset({2}), 8)
    assert left.address_of(1) == "h:7" and left.master == 2
    # Not if it is where it was, or if nobody could put it there again, or would be left.
    assert at("h:1", LED, 2) == LED
    for found in (at("h:7", LED), at("h:7", replace(LED, master=None), 2), at("h:7", ALONE, 2)):
        assert found and 1 in found.in_sync.broker_ids
