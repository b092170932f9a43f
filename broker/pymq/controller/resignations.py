"""A broker was elected, and never began its epoch: another one becomes master instead of it.

It is alone in sync, as every new master is, although it has acknowledged nothing. Those who were in
sync before its election still have everything that was acknowledged. So the group keeps that set,
and once the elected one says that it never began, and never will, everything is as if it had died
before it was elected.

Only its own word counts, and it has to be sure of that: that it is silent, or gone, may as well
follow what it has acknowledged alone. And nothing is undone unless another one can be elected at
once: until then it may still begin, when it can write again.

It says so with a sync state set of nobody, in the name of its epoch. Masters of RocketMQ never ask
for that, and RocketMQ's controllers refuse it.
"""

from dataclasses import replace

from pymq.controller.elections import elect
from pymq.controller.groups import GroupState, Outcome
from pymq.controller.reports import Alive
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet


def resign(
    state: GroupState | None, *, master: int, master_epoch: int, set_epoch: int, alive: Alive
) -> Outcome:
    """Elect another master than the one that never began its epoch.

    Args:
        master: who was elected, and resigns.
        master_epoch: its epoch, in which nothing was written.
        set_epoch: that of the sync state set, as it was told then.

    Returns:
        SUCCESS: another one is master. Otherwise nothing has changed.
    """
    if state is None:
        return _refused(state, "the group is not known")
    why = _why_not(state, master, master_epoch, set_epoch, alive)
    before = state.in_sync_before
    if why is not None or before is None or before.epoch + 1 != set_epoch:
        return _refused(state, why or "nobody else was in sync before its election")
    members = before.broker_ids & state.members.keys()
    outcome = elect(
        replace(state, in_sync=SyncStateSet(members, state.in_sync.epoch)),
        alive={key: report for key, report in alive.items() if key != master},
    )
    if outcome.is_success:
        return outcome
    return _refused(state, f"nobody else can be elected: {outcome.remark}")


def _why_not(
    state: GroupState, master: int, master_epoch: int, set_epoch: int, alive: Alive
) -> str | None:
    """Return why a broker is not the one that was elected last, or did begin; None: it is it."""
    # When it was found gone since, with nobody to follow it, the epoch has grown by one.
    expected = (master, master_epoch) if state.master is not None else (None, master_epoch + 1)
    if (state.master, state.master_epoch) != expected:
        return f"master is {state.master}, of epoch {state.master_epoch}"
    if state.in_sync != SyncStateSet(frozenset({master}), set_epoch):
        return (
            f"in sync are {sorted(state.in_sync.broker_ids)}, by set {state.in_sync.epoch}, not "
            f"only the one that was elected, by set {set_epoch}"
        )
    last, report = state.last_terms.get(master), alive.get(master)
    in_log = max((report and report.epoch) or 0, 0 if last is None else last.epoch)
    return f"epoch {in_log} is in its log" if in_log >= master_epoch else None


def _refused(state: GroupState | None, why: str) -> Outcome:
    return Outcome(
        state,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        f"The master that never began its epoch cannot be replaced: {why}",
    )
