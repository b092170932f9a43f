"""Which brokers are alive: those whose heartbeats come, over a connection that stands.

A broker is gone when its connection ends, and when it is silent for too long. How long that is,
it says itself (10 s for RocketMQ's brokers, which beat every second); of one that beats at least
four times as often as the controller's limit, the limit counts. A host that froze does not end its
connections, and only this finds it out.

Nothing here is kept anywhere. A controller that was just started has heard of nobody; for a while
it does not know whether a broker is gone or was not heard yet.

Source: RocketMQ DefaultBrokerHeartbeatManager.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from pymq.controller.groups import Report
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
#: Ids of which it is known how far those went that had them before.
LAST_COUNT_MAX = 10_000
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
        #: What those said last that are gone.
        self._last: dict[tuple[str, int], Report] = {}
        #: The addresses of those that have lost their id, and may not know that yet.
        self._put_out: dict[tuple[str, int], str] = {}

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

        That of another broker with the same id does not count, as long as the first is alive.

        Args:
            connection: on which it came.
            silence_s: after how much silence the broker is gone, in its own opinion.
        """
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is None:
            key = name, broker_id
            if self.is_full or (report.address and report.address == self._put_out.get(key)):
                return False
            if now_s < self._unheard_until_s:
                self._known.add(key)
            self._count += 1
            self._groups.setdefault(name, {})[broker_id] = _Broker(
                connection=connection,
                heard_s=now_s,
                beat_s=now_s,
                silence_s=silence_s or SILENCE_S,
                report=replace(report, has_less=self._has_less(key, report)),
            )
            return True
        if report.address != broker.report.address and broker.connection is not connection:
            return False  # another broker that claims to be this one: see groups.register
        broker.gaps_s.append(now_s - broker.heard_s)
        broker.heard_s = broker.beat_s = now_s
        broker.silence_s = silence_s or SILENCE_S
        is_same = broker.connection is connection
        if not is_same:
            is_back = connection in broker.earlier
            if is_back:
                broker.earlier.remove(connection)
            broker.turn_count = broker.turn_count + 1 if is_back else 0
            broker.earlier.append(broker.connection)
            broker.connection = connection
        # On another connection it may be another process, whose log may have lost its end.
        if is_same and _progress(report) < _progress(broker.report):
            report = replace(broker.report, priority=report.priority, address=report.address)
        has_less = broker.report.has_less and self._has_less((name, broker_id), report)
        broker.report = replace(report, has_less=has_less)
        return False

    def _has_less(self, key: tuple[str, int], report: Report) -> bool:
        """Does a broker have less than the one that had its id at another address?"""
        last = self._last.get(key)
        return (
            last is not None
            and report.max_offset >= 0  # or it does not say
            and "" != last.address != report.address != ""
            and _progress(report) < _progress(last)
        )

    def registered(self, name: str, broker_id: int, address: str) -> None:
        """Forget what a broker said that was just started: its log may have lost its end.

        But not what another broker with its id said, which is at another address.
        """
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is not None and broker.report.address in ("", address):
            self._remove([(name, broker_id)])

    def admitted(self, name: str, broker_id: int, address: str) -> None:
        """Take an id from whoever has it at another address than the one on record now."""
        key = name, broker_id
        if self._put_out.get(key) == address:
            del self._put_out[key]
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is None or broker.report.address in ("", address):
            return
        if len(self._put_out) >= LAST_COUNT_MAX:
            self._put_out.clear()
        self._put_out[key] = broker.report.address
        self._remove([key])

    def caught_up(self, name: str, broker_id: int) -> None:
        """The master says that a broker has everything: forget what another one had."""
        self._last.pop((name, broker_id), None)
        broker = self._groups.get(name, {}).get(broker_id)
        if broker is not None:
            broker.report = replace(broker.report, has_less=False)

    def connection_ended(self, connection: Hashable) -> list[tuple[str, int]]:
        """Remove the brokers of a connection; return their group's names and ids."""
        for _, broker in self._all():
            if connection in broker.earlier:
                broker.earlier.remove(connection)
                broker.turn_count = 0
        return self._remove(
            [key for key, broker in self._all() if broker.connection is connection]
        )

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
            for _, broker in self._all():
                broker.heard_s = min(broker.heard_s + stall_s, now_s)
            self._unheard_until_s += stall_s
        return self._remove(
            [key for key, broker in self._all() if self._is_late(broker, now_s - broker.heard_s)]
        )

    def _all(self) -> Iterator[tuple[tuple[str, int], _Broker]]:
        for name, brokers in self._groups.items():
            for broker_id, broker in brokers.items():
                yield (name, broker_id), broker

    def _remove(self, keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for name, broker_id in keys:
            brokers = self._groups[name]
            report = brokers.pop(broker_id).report
            if not report.has_less:
                if len(self._last) >= LAST_COUNT_MAX:
                    self._last.clear()
                self._last[name, broker_id] = report
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


def _progress(report: Report) -> tuple[int, int]:
    return report.epoch if report.epoch is not None else -1, report.max_offset
