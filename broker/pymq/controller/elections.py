"""Who becomes master of a group: pure functions; see ``groups``.

1. A group that never had a master takes the first broker that asks.
2. Only members of the sync state set that are alive can be elected: nobody else surely has all
   that is acknowledged. With unclean elections, other members that are alive, if there is none.
3. An old master that is alive stays, unless another one is designated.
4. Of several, the one whose log goes furthest: by epoch, by offset, then by priority. Who tells no
   offset, as learners do, is the last one (in RocketMQ only of those with the same epoch).
5. A new master is alone in the sync state set, at first, and has a new epoch.
6. Who lacks what another one with its id may have acknowledged (``two_of_one_id``) is not elected,
   unless it is designated, or elections may be unclean.

Two cases more than in RocketMQ, where an administrator has to designate the master:

* a broker has a higher epoch in its log than the group ever had: the store is an old copy, and so
  is its sync state set. (RocketMQ would elect, with an epoch that the brokers refuse.)
* no member is left in the sync state set, because the others were cleaned.

The designated broker must be the one whose log goes furthest, of all that are alive; its epoch is
above all of theirs.

Source: RocketMQ ReplicasInfoManager.electMaster, DefaultElectPolicy.
"""

from collections.abc import Collection
from dataclasses import replace

from pymq.controller.groups import GroupState, Outcome, without_master
from pymq.controller.reports import Alive, Report
from pymq.controller.two_of_one_id import (
    incomplete,
    is_behind,
    present,
    what_is_given_up,
    what_to_do,
)
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet


def elect(
    state: GroupState | None,
    *,
    alive: Alive,
    asked: int | None = None,
    is_designated: bool = False,
    unclean: bool = False,
) -> Outcome:
    """Elect a master.

    Args:
        asked: the broker that asks; None: the controller itself does.
        is_designated: must it be the one that is ``asked``, and nobody else?
        unclean: may others than members of the sync state set be elected if there is none alive?
            What they lack is lost.

    Returns:
        SUCCESS: there is a new master, with a new epoch; a remark says what it is known to lack.
        CONTROLLER_MASTER_STILL_EXIST: the old
        one stays. Otherwise there is none; if the controller asked, the old one is not any more,
        either.
    """
    if state is None:
        return Outcome(
            None,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            "Broker hasn't been registered",
        )
    if asked is not None and not is_designated and asked not in state.members:
        return Outcome(
            state,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {asked} hasn't been registered in broker-set: {state.name}",
        )
    living = present(state, alive)
    without = incomplete(state, living)
    needs_designation = why_designation(state, alive)
    if needs_designation is not None:
        if not is_designated:
            return _nobody(state, asked, needs_designation)
        assert asked is not None
        if not _is_furthest(asked, living):
            return _nobody(
                state,
                asked,
                f"{needs_designation}; broker {asked} is not alive, or not the one whose log goes "
                f"furthest: {_standings(living)}",
            )
        return _elected(state, asked, living)
    if state.master_epoch == 0 and asked is not None and (asked in living or not is_designated):
        return _elected(state, asked, living)
    designated = asked if is_designated else None
    whole = {key: report for key, report in living.items() if key not in without}
    able = living if is_designated else whole
    new = _choose(able, state.in_sync.broker_ids, state.master, designated)
    if new is None and unclean and whole.keys().isdisjoint(state.in_sync.broker_ids):
        new = _choose(living, living.keys(), state.master, designated)
    if new is None:
        return _nobody(state, asked, _why_nobody(state, living, designated, without))
    if new == state.master:
        return Outcome(
            state,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {new} is still alive, not need to elect new master for broker "
            f"{state.name}",
        )
    return _elected(state, new, living)


def why_designation(state: GroupState, alive: Alive) -> str | None:
    """Return why only an administrator can say who is master; None: no need."""
    ahead = {
        broker_id: report.epoch
        for broker_id, report in alive.items()
        if broker_id in state.members
        and report.epoch is not None
        and report.epoch > state.master_epoch
    }
    how = f"; designate it with mqadmin electMaster -bn {state.name} -c {state.cluster} -b ID"
    if ahead:
        return (
            f"group {state.name} had master epoch {state.master_epoch} at most, but broker "
            f"{min(ahead)} has epoch {ahead[min(ahead)]} in its log: this controller's store was "
            f"restored from an old copy, or is new; no master is elected{how}"
        )
    if state.master_epoch and not state.in_sync.broker_ids:
        return f"no member of group {state.name} surely has all that was acknowledged{how}"
    return None


def _choose(
    living: Alive, candidates: Collection[int], old: int | None, designated: int | None
) -> int | None:
    able = {broker_id: living[broker_id] for broker_id in candidates if broker_id in living}
    if old in able and designated in (None, old):
        return old
    if designated is not None:
        return designated if designated in able else None
    return min(able, key=lambda broker_id: _rank(broker_id, able[broker_id]), default=None)


def _rank(broker_id: int, report: Report) -> tuple[bool, int, int, int, int]:
    """Return what sorts the best candidate first."""
    is_silent = report.max_offset < 0
    return is_silent, -(report.epoch or 0), -report.max_offset, report.priority, broker_id


def _is_furthest(broker_id: int, living: Alive) -> bool:
    if broker_id not in living:
        return False
    furthest = max((report.epoch or 0, report.max_offset) for report in living.values())
    report = living[broker_id]
    return (report.epoch or 0, report.max_offset) == furthest


def _standings(living: Alive) -> str:
    return ", ".join(
        f"broker {broker_id}: epoch {report.epoch}, offset {report.max_offset}"
        for broker_id, report in sorted(living.items())
    )


def _why_nobody(
    state: GroupState, living: Alive, designated: int | None, without: dict[int, str]
) -> str:
    if state.master_epoch == 0:
        return "nobody of the group has asked yet to be its first master"
    in_sync = sorted(state.in_sync.broker_ids)
    if designated is None and without:
        return (
            f"{'; '.join(without[one] for one in sorted(without))}: that may have been "
            f"acknowledged. In sync are {in_sync}, alive {sorted(living)}. "
            f"{what_to_do(state, living)}"
        )
    if designated is None:
        return f"in sync are {in_sync}, alive {sorted(living)}"
    return f"{designated} is designated, in sync are {in_sync}, alive {sorted(living)}"


def _elected(state: GroupState, new: int, living: Alive) -> Outcome:
    epochs = [report.epoch or 0 for report in living.values()]
    last_terms = dict(state.last_terms)
    if is_behind(state, new, living[new].epoch if new in living else None):
        del last_terms[new]  # what it lacks of that has been given up
    return Outcome(
        replace(
            state,
            master=new,
            master_epoch=max(state.master_epoch, *epochs, 0) + 1,
            in_sync=SyncStateSet(frozenset({new}), state.in_sync.epoch + 1),
            last_terms=last_terms,
        ),
        remark=what_is_given_up(state, new, living),
    )


def _nobody(state: GroupState, asked: int | None, remark: str) -> Outcome:
    if asked is not None or state.master_epoch == 0:
        failed = f"Failed to elect a new master: {remark}"
        return Outcome(state, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, failed)
    if state.master is not None:
        state = without_master(state)
    return Outcome(
        state,
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        f"Old master has down and failed to elect a new broker master: {remark}",
    )
