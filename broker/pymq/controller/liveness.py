"""Which brokers are alive: those whose heartbeats come, over a connection that stands.

A broker is gone when its connection ends, and when it is silent for too long. How long that is,
it says itself (10 s for RocketMQ's brokers, which beat every second); of one that beats at least
four times as often as the controller's limit, the limit counts. A host that froze does not end its
connections, and only this finds it out.

Of several brokers with one id, the one counts that is at the address on record: the leader says
which that is with each group that it reads (``follow``). Where that is not known, as with a
controller that only follows, the first one counts that is heard. The others, the *rivals*, are
known as well: one of them may be the one on record when this controller begins to lead.

Nothing here is kept anywhere. A controller that was just started has heard of nobody; for a while
it does not know whether a broker is gone or was not heard yet.

Source: RocketMQ DefaultBrokerHeartbeatManager.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median

from pymq.controller.groups import GroupState
from pymq.controller.reports import Report
from pymq.net.standstill import STALLED_S, Standstill

#: A broker that does not say it is gone after this (RocketMQ: 100 s of its channels).
SILENCE_S = 10.0
#: Most brokers that are looked after; the heartbeats of others are not counted.
BROKER_COUNT_MAX = 10_000
#: Heartbeats whose distance is looked at.
BEAT_COUNT = 8
#: Heartbeats go back this often to a connection over which some came before, and are those of
#: several brokers then. Those of one go back as well, after it has renewed its connection: some
#: that it has sent over the old one come late.
TURN_COUNT = 6
#: Connections of a broker that are known, besides the one over which it was heard last.
EARLIER_COUNT = 8
#: Ids of which it is known how far those went that had them before, and ids whose address on record
#: is known.
ID_COUNT_MAX = 10_000
#: Most rivals that are known.
RIVAL_COUNT_MAX = 1_000
#: Heartbeats that fit into the limit of a broker that beats fast.
BEATS_PER_LIMIT = 4


@dataclass(slots=True, kw_only=True)
class _Broker:
    connection: Hashable
    #: When it was heard last; a standstill of ours is added, as if it had been heard then.
    heard_s: float
    #: When it was heard last, as it was.
    beat_s: float
    silence_s: float
    report: Report
    #: Over which it was heard before, if they have not ended; and how often it went back to one.
    earlier: deque[Hashable] = field(default_factory=lambda: deque(maxlen=EARLIER_COUNT))
    turn_count: int = 0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=BEAT_COUNT))

    def heard(
        self, *, connection: Hashable, silence_s: float | None, report: Report, now_s: float
    ) -> None:
        """Record a heartbeat that is not the first one."""
        self.gaps_s.append(now_s - self.heard_s)
        self.heard_s = self.beat_s = now_s
        self.silence_s = silence_s or SILENCE_S
        is_same = self.connection is connection
        if not is_same:
            is_back = connection in self.earlier
            if is_back:
                self.earlier.remove(connection)
            self.turn_count = self.turn_count + 1 if is_back else 0
            self.earlier.append(self.connection)
            self.connection = connection
        # On another connection it may be another process, whose log may have lost its end.
        if is_same and report.end < self.report.end:
            report = replace(self.report, priority=report.priority, address=report.address)
        self.report = replace(report, had=self.report.had)

    def ended(self, connection: Hashable) -> bool:
        """A connection has ended; return whether this broker is gone with it."""
        if connection in self.earlier:
            self.earlier.remove(connection)
            self.turn_count = 0
        return self.connection is connection


class Liveness:
    """Who is alive. Times are seconds of a monotonic clock, passed in.

    Args:
        limit_s: silence after which a broker that beats fast is gone.
        unheard_s: for this long after ``now_s``, a broker of which nothing was heard may be alive.
        now_s: the time.
    """

    def __init__(self, *, limit_s: float, unheard_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._unheard_until_s = now_s + unheard_s
        self._standstill = Standstill(now_s)
        self._looked_s = self._awake_s = now_s
        #: Name of a group -> id -> broker.
        self._groups: dict[str, dict[int, _Broker]] = {}
        self._count = 0
        #: Those that were heard of once, while that matters.
        self._known: set[tuple[str, int]] = set()
        #: What those said last that are gone, or have lost their id.
        self._gone: dict[tuple[str, int], Report] = {}
        #: The addresses on record, when they were read last.
        self._owners: dict[tuple[str, int], str] = {}
        #: Id -> address -> a broker that beats with it and does not count.
        self._rivals: dict[tuple[str, int], dict[str, _Broker]] = {}
        self._rival_count = 0

    @property
    def is_full(self) -> bool:
        """Are heartbeats of further brokers not counted?"""
        return self._count >= BROKER_COUNT_MAX

    def heard(
        self,
        name: str,
        broker_id: int,
        *,
        connection: Hashable,
        silence_s: float | None,
        report: Report,
        now_s: float,
    ) -> bool:
        """Record a heartbeat; return whether the broker was not alive before.

        That of a rival does not count.

        Args:
            connection: on which it came.
            silence_s: after how much silence the broker is gone, in its own opinion.
        """
        key = name, broker_id
        broker = self._groups.get(name, {}).get(broker_id)
        is_rival = self._is_rival(key, broker, report.address, connection)
        known = self._rivals.get(key, {}).get(report.address) if is_rival else broker
        if known is not None:
            known.heard(connection=connection, silence_s=silence_s, report=report, now_s=now_s)
            if not is_rival:
                known.report = self._compared(key, known.report, is_known=True)
            return False
        new = _Broker(
            connection=connection,
            heard_s=now_s,
            beat_s=now_s,
            silence_s=silence_s or SILENCE_S,
            report=report,
        )
        if is_rival:
            if self._rival_count < RIVAL_COUNT_MAX:
                self._rival_count += 1
                self._rivals.setdefault(key, {})[report.address] = new
            return False
        if self.is_full:
            return False
        if now_s < self._unheard_until_s:
            self._known.add(key)
        self._forget_rival(key, report.address)
        self._add(key, new)
        return True

    def _is_rival(
        self, key: tuple[str, int], broker: _Broker | None, address: str, connection: Hashable
    ) -> bool:
        """Is it another broker that beats than the one that has an id?

        Args:
            broker: the one that counts; None: the one that has the id is not alive.
        """
        if broker is None:
            return address not in ("", self._owners.get(key, address))
        return address != broker.report.address and broker.connection is not connection

    def _compared(self, key: tuple[str, int], report: Report, *, is_known: bool) -> Report:
        """Return a report that says whether the one before at another address had more.

        Args:
            is_known: was the broker heard before? Then it has not less if it once had not.
        """
        gone = self._gone.get(key)
        has_less = (
            gone is not None
            and (report.has_less or not is_known)
            and report.max_offset >= 0  # or it does not say
            and "" != gone.address != report.address != ""
            and report.end < gone.end
        )
        return replace(report, had=gone.end if gone is not None and has_less else None)

    def registered(self, name: str, broker_id: int, address: str) -> None:
        """Forget what a broker said that was just started: its log may have lost its end.

        But not what another broker with its id said, which is at another address.
        """
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is not None and broker.report.address in ("", address):
            self._remove([(name, broker_id)])
        self._forget_rival((name, broker_id), address)

    def follow(self, state: GroupState) -> None:
        """Go by the addresses on record of a group, as it was just read from the store.

        Whoever led meanwhile may have given an id to another broker.
        """
        for broker_id, member in state.members.items():
            self.admitted(state.name, broker_id, member.address)

    def is_at_odds(self, state: GroupState) -> bool:
        """Does another broker count than the one on record, or that one not although it beats?"""
        for broker_id, member in state.members.items():
            holder = self.holder(state.name, broker_id)
            if holder is not None and holder[0] not in ("", member.address):
                return True
            if member.address in self._rivals.get((state.name, broker_id), {}):
                return True
        return False

    def admitted(self, name: str, broker_id: int, address: str) -> None:
        """An id is that of the broker at an address, and of nobody else from now on."""
        key = name, broker_id
        if len(self._owners) >= ID_COUNT_MAX and key not in self._owners:
            self._owners.clear()
        self._owners[key] = address
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is not None and broker.report.address not in ("", address):
            self._remove([key])
            self._known.discard(key)  # this one was not heard yet
            broker = None
        rival = self._forget_rival(key, address)
        if broker is None and rival is not None and not self.is_full:
            self._known.add(key)
            self._add(key, rival)

    def _add(self, key: tuple[str, int], broker: _Broker) -> None:
        name, broker_id = key
        broker.report = self._compared(key, broker.report, is_known=False)
        self._groups.setdefault(name, {})[broker_id] = broker
        self._count += 1

    def _forget_rival(self, key: tuple[str, int], address: str) -> _Broker | None:
        rivals = self._rivals.get(key)
        rival = None if rivals is None else rivals.pop(address, None)
        if rival is not None:
            self._rival_count -= 1
        if rivals is not None and not rivals:
            del self._rivals[key]
        return rival

    def caught_up(self, name: str, broker_id: int) -> None:
        """The master says that a broker has everything: forget what another one had."""
        self._gone.pop((name, broker_id), None)
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is not None:
            broker.report = replace(broker.report, had=None)

    def connection_ended(self, connection: Hashable) -> list[tuple[str, int]]:
        """Remove the brokers of a connection; return their group's names and ids."""
        for key, rival in list(self._all_rivals()):
            if rival.ended(connection):
                self._forget_rival(key, rival.report.address)
        return self._remove([key for key, broker in self._all() if broker.ended(connection)])

    def expire(self, now_s: float, interval_s: float) -> list[tuple[str, int]]:
        """Remove the brokers that were silent for too long; return their group's names and ids.

        After a standstill of this process, which is no silence of others, everybody is granted the
        time that it took.

        Args:
            interval_s: how often this is called.
        """
        if now_s >= self._unheard_until_s:
            self._known.clear()  # not asked for any more
        stall_s = self._standstill.look(now_s, interval_s)
        self._looked_s = now_s
        if stall_s:
            self._awake_s = now_s
            for _, broker in chain(self._all(), self._all_rivals()):
                broker.heard_s = min(broker.heard_s + stall_s, now_s)
            self._unheard_until_s += stall_s
        for key, rival in list(self._all_rivals()):
            if self._is_late(rival, now_s - rival.heard_s):
                self._forget_rival(key, rival.report.address)
        return self._remove(
            [key for key, broker in self._all() if self._is_late(broker, now_s - broker.heard_s)]
        )

    def _all(self) -> Iterator[tuple[tuple[str, int], _Broker]]:
        for name, brokers in self._groups.items():
            for broker_id, broker in brokers.items():
                yield (name, broker_id), broker

    def _all_rivals(self) -> Iterator[tuple[tuple[str, int], _Broker]]:
        for key, rivals in self._rivals.items():
            for rival in rivals.values():
                yield key, rival

    def _remove(self, keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for name, broker_id in keys:
            brokers = self._groups[name]
            report = brokers.pop(broker_id).report
            if not report.has_less:
                if len(self._gone) >= ID_COUNT_MAX:
                    self._gone.clear()
                self._gone[name, broker_id] = report
            if not brokers:
                del self._groups[name]
        self._count -= len(keys)
        return keys

    def _is_late(self, broker: _Broker, silent_s: float) -> bool:
        if silent_s <= self._limit_s and silent_s <= broker.silence_s:
            return False  # most are not; the rest is looked at closely
        return silent_s > self._silence_of(broker)

    def _silence_of(self, broker: _Broker) -> float:
        gaps = broker.gaps_s
        if len(gaps) == BEAT_COUNT and median(gaps) * BEATS_PER_LIMIT <= self._limit_s:
            return min(broker.silence_s, self._limit_s)
        return broker.silence_s

    def alive(self, name: str) -> dict[int, Report]:
        """Return the brokers of a group that are alive, with what they said."""
        brokers = self._groups.get(name, {})
        return {broker_id: broker.report for broker_id, broker in brokers.items()}

    def epoch_of(self, name: str, broker_id: int) -> int | None:
        """Return the last epoch in the log of a broker; None: it is not alive, or does not say."""
        broker = self._groups.get(name, {}).get(broker_id)
        return None if broker is None else broker.report.epoch

    def holder(self, name: str, broker_id: int) -> tuple[str, float] | None:
        """Return the address of a broker that is alive, and when it was heard last."""
        broker = self._groups.get(name, {}).get(broker_id)
        return None if broker is None else (broker.report.address, broker.beat_s)

    def are_two(self, name: str, broker_id: int) -> bool:
        """Do several brokers beat with one id and one address, each over its connection?"""
        broker = self._groups.get(name, {}).get(broker_id)
        return broker is not None and broker.turn_count >= TURN_COUNT

    def awake_s(self, now_s: float) -> float:
        """Return since when this process did not stand still.

        After a standstill, what has arrived meanwhile may be read before ``expire`` looks.
        """
        return now_s if now_s - self._looked_s > STALLED_S else self._awake_s

    def may_be_alive(self, name: str, broker_id: int, now_s: float) -> bool:
        """Was a broker not heard of, in a time too short to say that it is gone?"""
        return now_s < self._unheard_until_s and (name, broker_id) not in self._known
