"""Which of two brokers that have one id counts, and which of them has what was acknowledged.

How they come to have it is told in ``groups``. The one that was put out may be back first, while
the one that was the master is only restarted. It has the id then, but is not elected by itself, and
has to give way to the one that has everything.

A broker lacks something if it is behind (``is_behind``), or if its log ends before that of the one
which beat before it with its id, at another address. The latter need not be another store: a broker
whose address changes with each start, and that has lost its power, lacks what was not flushed. If
so do all that are in sync, and they are all there, nobody has it: where the flush is asynchronous
it is lost, as if the addresses were the old ones, and the one is elected that goes furthest. While
one of them is away, or has everything, that one may have it, and those that have less are not.
"""

from dataclasses import replace

from pymq.controller.groups import GroupState, LastTerm
from pymq.controller.reports import Alive, Report


def present(state: GroupState, alive: Alive) -> dict[int, Report]:
    """Return the members that are alive: who beats from elsewhere is not the member."""
    return {
        broker_id: alive[broker_id]
        for broker_id, member in state.members.items()
        if broker_id in alive and alive[broker_id].address in ("", member.address)
    }


def with_last_term(state: GroupState, alive: Alive) -> GroupState:
    """Return a group with what its master has in its log, as it says.

    That never becomes less: a master that says less than was known of its id lacks what was
    acknowledged, unless an election has given that up, which forgets it.
    """
    master = state.master
    report = None if master is None else present(state, alive).get(master)
    address = state.address_of(master)
    if master is None or report is None or address is None or report.epoch is None:
        return state
    if not 0 < report.epoch <= state.master_epoch:  # or the store is an old copy
        return state
    last = LastTerm(epoch=report.epoch, address=address)
    known = state.last_terms.get(master)
    if known is not None and (known == last or known.epoch > last.epoch):
        return state
    return replace(state, last_terms={**state.last_terms, master: last})


def is_behind(state: GroupState, broker_id: int, epoch: int | None) -> bool:
    """Does a log lack what the last master with its id may have acknowledged?

    Args:
        epoch: the last one in the log; None: the broker does not say, and is believed to have it.
    """
    last = state.last_terms.get(broker_id)
    return last is not None and epoch is not None and epoch < last.epoch


def gives_way(
    state: GroupState, broker_id: int, *, epoch: int | None, address: str, alive: Alive
) -> bool:
    """Is another broker alive with an id, and does it give way to the one at an address?

    Args:
        epoch: the last one in the log of the one at the address; None: it does not say.
    """
    holder = alive.get(broker_id)
    if holder is None or holder.address in ("", address):
        return False
    last = state.last_terms.get(broker_id)
    if last is None or not is_behind(state, broker_id, holder.epoch):
        return False
    return address == last.address if epoch is None else epoch >= last.epoch


def incomplete(state: GroupState, alive: Alive) -> dict[int, str]:
    """Return the members in sync that are alive, and lack what others acknowledged, with why."""
    behind, shorter = {}, {}
    living = {
        broker_id: report
        for broker_id, report in present(state, alive).items()
        if broker_id in state.in_sync.broker_ids
    }
    for broker_id, report in living.items():
        if broker_id == state.master:
            continue
        last = state.last_terms.get(broker_id)
        if last is not None and is_behind(state, broker_id, report.epoch):
            who = f"a broker with that id was the master, at {last.address},"
            if state.address_of(broker_id) == last.address:
                who = "this broker was the master at that address"
            behind[broker_id] = (
                f"the log of broker {broker_id} at {state.address_of(broker_id)} ends with epoch "
                f"{report.epoch}, and {who} with epoch {last.epoch} in its log"
            )
        elif report.had is not None:
            shorter[broker_id] = (
                f"the log of broker {broker_id} at {report.address} ends with epoch "
                f"{report.epoch} at {report.max_offset}, and a broker with that id at another "
                f"address had more, up to epoch {report.had.epoch} at {report.had.offset}"
            )
    if shorter.keys() == state.in_sync.broker_ids:
        return {}  # nobody is left who could have it
    return behind | shorter


def what_to_do(state: GroupState, alive: Alive) -> str:
    """Return what an administrator can do about those that ``incomplete`` returns."""
    give_up = (
        "if that is gone for good, give up what is lacking with mqadmin electMaster -a CONTROLLER "
        f"-bn {state.name} -c {state.cluster} -b ID, or pymq cluster promote {state.name} --to ID "
        "--controller CONTROLLER"
    )
    if all(_lacks_its_own(state, one, alive) for one in state.in_sync.broker_ids):
        who = "this one" if len(state.in_sync.broker_ids) == 1 else "one of these"
        return (
            f"No other broker is known that could have it: start {who} with the store that it "
            f"had; {give_up}"
        )
    return f"Start the broker that has it; {give_up}"


def _lacks_its_own(state: GroupState, broker_id: int, alive: Alive) -> bool:
    """Is a broker alive, and behind what it had where it is, and not what another one had?"""
    last, report = state.last_terms.get(broker_id), alive.get(broker_id)
    if last is None or report is None or not is_behind(state, broker_id, report.epoch):
        return False
    return last.address == state.address_of(broker_id)


def what_is_given_up(state: GroupState, new: int, alive: Alive) -> str | None:
    """Return what a new master is known to lack of what others with its id had; None: nothing.

    Args:
        state: the group before the election.
    """
    report = alive.get(new)
    if report is None or report.had is None:
        return None
    in_sync = (alive[one] for one in state.in_sync.broker_ids | {new} if one in alive)
    had = max(one.had for one in in_sync if one.had is not None)
    missing = had.offset - report.max_offset
    how_much = f"{missing} bytes are missing" if missing > 0 else "what followed is missing"
    return (
        f"broker {new} at {report.address} is elected although its log ends with epoch "
        f"{report.epoch} at {report.max_offset}, and those in sync had it up to epoch {had.epoch} "
        f"at {had.offset} before their addresses changed: {how_much}. After a loss of power with "
        "flushDiskType=ASYNC_FLUSH that is what was not flushed; if another copy of the store is "
        "somewhere, keep it"
    )
