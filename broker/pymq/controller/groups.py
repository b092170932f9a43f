"""What the controller knows of a group of brokers, and every change of it: pure values.

A group is the brokers of one name: a master and its slaves. Its state changes only through the
functions here. They look at no clock and reach for nothing: who is alive, and how far its log
goes, is passed in. What they return says what to answer, and the state to keep, whole::

    GroupState --(request, who is alive)--> Outcome(state, code, remark)

Invariants of a state, which every function keeps:

* epochs only grow; each election of a master has an epoch of its own;
* the master is a member, and in the sync state set;
* the sync state set holds members only.

Two stores with one id may exist: a copy, a restored backup, or a broker that stood still while the
one that has moved was the master. So a state has for each id the last epoch in the log of the one
that was the master (``LastTerm``). Who has that id, and not that epoch, lacks what was acknowledged
in it: it is *behind*, until a later master has put it into the sync state set. What follows from
that is in ``two_of_one_id``.

Source: RocketMQ ReplicasInfoManager, BrokerReplicaInfo, SyncStateInfo.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from pymq.controller.reports import Alive
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import FIRST_BROKER_ID, SyncStateSet
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(JsonObject):
    """One broker of a group."""

    #: ``host:port``.
    address: str
    #: With it, a broker that does not know whether it got its id may apply for it again.
    check_code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTerm(JsonObject):
    """What was last heard of a broker while it was the master."""

    #: The last one in its log, not that of the election: an elected broker may end before it has
    #: begun, and RocketMQ's begin none when nothing was written in the one before.
    epoch: int
    #: ``host:port``.
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(JsonObject):
    """A group, as it is kept in a store. Not to be modified, its map neither."""

    cluster: str
    name: str
    #: broker id -> the broker.
    members: dict[int, Member] = field(default_factory=dict)
    next_id: int = FIRST_BROKER_ID
    master: int | None = None
    #: Counts elections, also those that found nobody. 0: there never was one.
    master_epoch: int = 0
    in_sync: SyncStateSet = wire("inSync", default_factory=SyncStateSet)
    #: broker id -> when it was the master; not of those that have followed a later one since.
    last_terms: dict[int, LastTerm] = wire("lastTerms", default_factory=dict)

    def address_of(self, broker_id: int | None) -> str | None:
        """Return ``host:port`` of a member, None if there is no such."""
        member = None if broker_id is None else self.members.get(broker_id)
        return None if member is None else member.address


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a request.

    Attributes:
        state: the group from now on; None: there is none.
        code: of the answer. Some refusals change the state, too.
        remark: for the answer and for logs.
    """

    state: GroupState | None
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    @property
    def is_success(self) -> bool:
        """Was it done?"""
        return self.code == ResponseCode.SUCCESS


# --------------------------------------------------------------------------------- membership


def next_broker_id(state: GroupState | None) -> int:
    """Return the id that a new broker may apply for."""
    return FIRST_BROKER_ID if state is None else state.next_id


def apply_broker_id(
    state: GroupState | None, *, cluster: str, name: str, broker_id: int, check_code: str
) -> Outcome:
    """Give a broker the id that it applies for, unless another one has it.

    Args:
        check_code: ``host:port;timestamp``; a repeated request has the same.
    """
    if broker_id < FIRST_BROKER_ID:
        return _invalid_id(state, f"{broker_id} is no broker id, they begin at {FIRST_BROKER_ID}")
    if state is None:
        if broker_id != FIRST_BROKER_ID:
            return _invalid_id(
                state,
                f"Broker-set: {name} hasn't been registered in controller, but broker try to "
                f"apply brokerId: {broker_id}",
            )
        state = GroupState(cluster=cluster, name=name)
    elif other := _other_cluster(state, cluster):
        return other
    known = state.members.get(broker_id)
    if known is not None:
        if known.check_code == check_code:
            return Outcome(state)
        return _invalid_id(state, f"Fail to apply brokerId: {broker_id} in broker-set: {name}")
    member = Member(address=check_code.split(";")[0], check_code=check_code)
    return Outcome(
        replace(
            state,
            members={**state.members, broker_id: member},
            next_id=max(state.next_id, broker_id + 1),
        )
    )


def register(
    state: GroupState | None,
    *,
    cluster: str,
    name: str,
    broker_id: int,
    address: str,
    alive: Alive,
    may_be_alive: bool = False,
    gives_way: bool = False,
    original: str | None = None,
) -> Outcome:
    """Record at which address a broker is now, unless another broker with its id is alive.

    Args:
        may_be_alive: is it too early to say that the broker is gone which has the id?
        gives_way: does the one that is alive give way to this one? See ``two_of_one_id.gives_way``.
        original: where another broker with the id was alive while this one asked for it.

    Brokers register when they start. If the master does, it is a new process: it may have lost the
    end of its log, with its power, and what the old one asked for may still arrive. It is not the
    master any more, and of whoever is elected now, it or another one, the epoch is a new one.
    (RocketMQ's stays the master of its epoch, and may write another end of it.)

    Of two brokers with one id, RocketMQ lets the one that registered last be it. Here one that is
    behind has the id only until the other one is back. And who is at another address than before
    may be another one: it is not in sync before the master says so again, if there is a master.
    """
    if state is None:
        return _to_be_registered(
            None, f"Broker-set: {name} hasn't been registered in controller"
        )
    if other := _other_cluster(state, cluster):
        return other
    member = state.members.get(broker_id)
    if member is None:
        return _to_be_registered(
            state, f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}"
        )
    if not gives_way:
        taken = _why_taken(state, broker_id, address, alive, original, may_be_alive)
        if taken is not None:
            return _invalid_id(state, taken)
    if state.master == broker_id:
        state = without_master(state)
    if member.address != address:
        moved = replace(member, address=address)
        state = replace(state, members={**state.members, broker_id: moved})
        now = state.in_sync
        if broker_id in now.broker_ids and state.master in alive:
            others = SyncStateSet(now.broker_ids - {broker_id}, now.epoch + 1)
            state = replace(state, in_sync=others)
    return Outcome(state)


def _why_taken(
    state: GroupState, broker_id: int, address: str, alive: Alive, original: str | None, early: bool
) -> str | None:
    """Return why an id is that of a broker at another address; None: it is not."""
    known = state.address_of(broker_id)
    other_address = alive[broker_id].address if broker_id in alive else ""
    if other_address not in ("", address):
        return (
            f"brokerId {broker_id} of {state.name} is in use at {other_address}, so {address} "
            "cannot have it: two brokers have copies of one store. Delete brokerIdentity in that "
            "of the copy; if the broker has moved, wait until the old one is gone"
        )
    if original is not None:
        return (
            f"brokerId {broker_id} of {state.name} was in use at {original} while {address} asked "
            "for it, so that is a copy, which lacks what was written since: it does not get the id "
            "by itself. Delete brokerIdentity in its store, and it gets one of its own; or, if it "
            "shall take the place of the one that is gone, start it again"
        )
    if early and broker_id not in alive and known != address:
        return (
            f"brokerId {broker_id} of {state.name} is that of the broker at {known}, and this "
            "controller was just started and cannot say yet whether that is gone, so "
            f"{address} cannot have it; try again (pymqStartPatience)"
        )
    return None


def clean(
    state: GroupState | None,
    *,
    name: str,
    broker_ids: Collection[int] | None,
    even_living: bool,
    alive: Alive,
) -> Outcome:
    """Forget brokers, or the whole group.

    Args:
        broker_ids: who; None: all, and the group with its epochs.
        even_living: also if they are alive; otherwise nothing is done then.
    """
    refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if not even_living:
        if broker_ids is None and state is not None and state.master is not None:
            return Outcome(state, refused, f"Broker {name} is still alive, clean up failure")
        for broker_id in sorted(broker_ids or ()):
            if broker_id in alive:
                living = f"Broker [{name},  {broker_id}] is still alive, clean up failure"
                return Outcome(state, refused, living)
    if state is None:
        return Outcome(
            None, refused, f"Broker {name} is not existed,clean broker data failure."
        )
    left = {
        broker_id: member
        for broker_id, member in state.members.items()
        if broker_ids is not None and broker_id not in broker_ids
    }
    if not left:
        return Outcome(None)
    in_sync = state.in_sync
    if in_sync.broker_ids - left.keys():
        in_sync = SyncStateSet(in_sync.broker_ids & left.keys(), in_sync.epoch + 1)
    last_terms = {key: last for key, last in state.last_terms.items() if key in left}
    cleaned = replace(state, members=left, in_sync=in_sync, last_terms=last_terms)
    if state.master is not None and state.master not in left:
        cleaned = without_master(cleaned)
    return Outcome(cleaned)


def without_master(state: GroupState) -> GroupState:
    """Return a group whose master is gone with nobody to follow it.

    The sync state set stays: whoever of it comes back may be elected. The epoch grows, so that
    brokers see the change.
    """
    return replace(state, master=None, master_epoch=state.master_epoch + 1)


# ------------------------------------------------------------------------- the sync state set


def alter_sync_state_set(
    state: GroupState | None,
    *,
    master: int,
    master_epoch: int,
    wanted: SyncStateSet,
    alive: Alive,
    unconfirmed: Collection[int] = (),
) -> Outcome:
    """Take over the sync state set that the master wants.

    Args:
        master: who asks.
        master_epoch: since when it believes to be it.
        wanted: the set, with the epoch of the one that it shall replace.
        unconfirmed: who may not join yet, whatever the master believes; see ``NewHolders``.

    Whoever joins has to be alive. Members that merely stay have not (in RocketMQ they have): one
    that is cut off from this controller alone would keep dead ones in the set, and with them the
    master from acknowledging anything.
    """
    if state is None:
        return _not_altered(None, "Broker metadata is not existed")
    now = state.in_sync
    if wanted.broker_ids == now.broker_ids:
        asked_for = master, master_epoch, wanted.epoch + 1
        if asked_for == (state.master, state.master_epoch, now.epoch):
            return Outcome(state)  # done before, by a store whose answer was lost
        return _not_altered(
            state,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    rejecting = "Rejecting alter syncStateSet request because the"
    if state.master != master:
        return Outcome(
            state,
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{rejecting} current leader is:{{{state.master}}}, not {{{master}}}",
        )
    if master_epoch != state.master_epoch:
        return Outcome(
            state,
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{rejecting} current master epoch is:{{{state.master_epoch}}}, not {{{master_epoch}}}",
        )
    if wanted.epoch != now.epoch:
        return Outcome(
            state,
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{rejecting} current syncStateSet epoch is:{{{now.epoch}}}, not {{{wanted.epoch}}}",
        )
    for replica in sorted(wanted.broker_ids):
        code, why = _why_not_in_sync(state, replica, alive, unconfirmed)
        if why:
            return Outcome(state, code, f"{rejecting} replicas {{{replica}}} {why}")
    if master not in wanted.broker_ids:
        return _not_altered(
            state, f"{rejecting} newSyncStateSet don't contains origin leader {{{master}}}"
        )
    # Who joins has everything of this master's log: what it had of its own term is in there.
    joined = wanted.broker_ids - now.broker_ids
    last_terms = {key: last for key, last in state.last_terms.items() if key not in joined}
    changed = SyncStateSet(wanted.broker_ids, now.epoch + 1)
    return Outcome(replace(state, in_sync=changed, last_terms=last_terms))


def _why_not_in_sync(
    state: GroupState, replica: int, alive: Alive, unconfirmed: Collection[int]
) -> tuple[int, str]:
    """Return why a broker cannot be in the sync state set; an empty text: it can."""
    if replica not in state.members:
        return ResponseCode.CONTROLLER_INVALID_REPLICAS, "don't exist"
    why = ""
    if replica not in state.in_sync.broker_ids and replica not in alive:
        why = "don't alive"
    elif replica not in state.in_sync.broker_ids and replica in unconfirmed:
        why = f"are new at {state.address_of(replica)}, and did not say that they have everything"
    return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, why


# -------------------------------------------------------------------------------------- parts


def _invalid_id(state: GroupState | None, remark: str) -> Outcome:
    return Outcome(state, ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)


def _to_be_registered(state: GroupState | None, remark: str) -> Outcome:
    return Outcome(state, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)


def _not_altered(state: GroupState | None, remark: str) -> Outcome:
    return Outcome(state, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, remark)


def _other_cluster(state: GroupState, cluster: str) -> Outcome | None:
    """Refuse a broker of another cluster: RocketMQ mixes up groups of one name."""
    if cluster == state.cluster:
        return None
    return Outcome(
        state,
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"broker name {state.name} belongs to cluster {state.cluster}, not {cluster}: give one of "
        "the two groups another brokerName",
    )
