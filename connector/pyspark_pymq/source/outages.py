"""Queues of a query about which their brokers give no answer: since when, and when to ask again.

Mostly a whole broker is away. But a topic that has lost its route, or a slave that lags behind,
concerns some of a broker's queues only, and the others are read on. An outage is logged once. Its
queues are asked about again now and then; a broker that is silent must not keep the others'
answers back.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pymq.errors import ConnectionFailed, PymqError, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import listed

LOG = logging.getLogger(__name__)

#: A broker that is away is asked again after ten times what the last question took, within these:
#: a silent one costs the others a tenth of the time at most.
ASK_AGAIN_MIN_S = 0.5
ASK_AGAIN_MAX_S = 30.0
#: How long such a broker's answer is waited for: at first, and then twice as long each time.
ASK_AGAIN_TIMEOUT_S = 0.5


@dataclass(slots=True)
class Outage:
    """Queues of one broker about which there is no answer. Times are monotonic.

    Attributes:
        queues: those.
        reason: why, as of the last question.
        since_s: when it was first noticed, or noticed again: see ``Outages.begin_again``.
        ask_at_s: when to ask again.
        timeout_s: how long to wait for that answer.
        is_accepted: it lasted too long, and the query continues without these queues.
        is_in_doubt: it may be another one than that of the question before.
    """

    queues: frozenset[MessageQueue]
    reason: PymqError
    since_s: float
    ask_at_s: float
    timeout_s: float
    is_accepted: bool = False
    is_in_doubt: bool = False

    def concerns(self, queue: MessageQueue) -> bool:
        """Say whether to leave out a queue of this broker for the moment."""
        is_silent = isinstance(self.reason, (ConnectionFailed, RequestTimeout))
        return is_silent or queue in self.queues


class Outages:
    """The outages of one query, one for each broker concerned.

    Args:
        request_timeout_s: the longest wait for an answer.
        cure: what to do about an outage, and what happens otherwise; for the log.
        monotonic_s: the clock.
    """

    def __init__(
        self, request_timeout_s: float, cure: str, monotonic_s: Callable[[], float]
    ) -> None:
        self._request_timeout_s = request_timeout_s
        self._cure = cure
        self._monotonic_s = monotonic_s
        self._by_broker: dict[str, Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._by_broker)

    def brokers(self) -> set[str]:
        """Return the names of the brokers concerned."""
        return set(self._by_broker)

    def without(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues that no outage concerns."""
        return [
            queue
            for queue in queues
            if queue.broker_name not in self._by_broker
            or not self._by_broker[queue.broker_name].concerns(queue)
        ]

    def due(self, queues: Collection[MessageQueue]) -> dict[str, tuple[list[MessageQueue], float]]:
        """Return what to ask again now, and how long to wait for the answer, by broker."""
        now_s = self._monotonic_s()
        return {
            name: (
                [q for q in queues if q.broker_name == name and outage.concerns(q)],
                outage.timeout_s,
            )
            for name, outage in self._by_broker.items()
            if outage.ask_at_s <= now_s
        }

    def ask_at_once(self) -> None:
        """Have all of them asked about with the next question: it serves nothing else."""
        for outage in self._by_broker.values():
            outage.ask_at_s = self._monotonic_s()

    def begin_again(self) -> None:
        """Let outages count from now on: for long nobody has asked, and they may have ended."""
        for outage in self._by_broker.values():
            if not outage.is_accepted:
                outage.since_s = outage.ask_at_s = self._monotonic_s()
                outage.is_in_doubt = True

    def in_doubt(self) -> list[str]:
        """Return the brokers that were away before nobody asked, and are now; of none given up."""
        return [
            name
            for name, outage in self._by_broker.items()
            if outage.is_in_doubt and not outage.is_accepted
        ]

    def wait_for(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether one of the queues has no answer, and is not given up."""
        found = ((self._by_broker.get(queue.broker_name), queue) for queue in queues)
        return any(
            outage is not None and not outage.is_accepted and outage.concerns(queue)
            for outage, queue in found
        )

    def ended(self, broker_name: str) -> None:
        """Record that a broker answers again."""
        LOG.info("broker %s answers again", broker_name)
        del self._by_broker[broker_name]

    def failed(
        self,
        failures: Mapping[str, PymqError],
        unanswered: Collection[MessageQueue],
        asked_s: float,
    ) -> None:
        """Record the brokers that did not answer a question, or not all of it.

        Args:
            failures: broker name -> why.
            unanswered: all queues of the query without an answer.
            asked_s: when the question began.
        """
        now_s = self._monotonic_s()
        again_s = min(max(10 * (now_s - asked_s), ASK_AGAIN_MIN_S), ASK_AGAIN_MAX_S)
        for name, reason in failures.items():
            queues = frozenset(queue for queue in unanswered if queue.broker_name == name)
            known = self._by_broker.get(name)
            if known is None or not queues <= known.queues:
                LOG.warning(
                    "broker %s gives no answer about %s, which are read as soon as it does (%s); "
                    "%s",
                    name,
                    listed(sorted(queues)),
                    reason,
                    self._cure,
                )
            if known is None:
                timeout_s = min(ASK_AGAIN_TIMEOUT_S, self._request_timeout_s)
                self._by_broker[name] = Outage(queues, reason, asked_s, now_s + again_s, timeout_s)
            else:
                known.queues, known.reason, known.ask_at_s = queues, reason, now_s + again_s
                known.timeout_s = min(2 * known.timeout_s, self._request_timeout_s)

    def longer_than(self, limit_s: float) -> list[str]:
        """Return the brokers whose outage is longer than a limit, and is not accepted."""
        before_s = self._monotonic_s() - limit_s
        return [
            name
            for name, outage in self._by_broker.items()
            if outage.since_s < before_s and not outage.is_accepted
        ]

    def accept(self, names: Iterable[str]) -> None:
        """Give up what some brokers do not answer about: the query continues without it."""
        for name in names:
            self._by_broker[name].is_accepted = True

    def told(self, names: Iterable[str] | None = None) -> str:
        """Return outages as errors and logs tell them.

        Args:
            names: of their brokers; None: all.
        """
        now_s = self._monotonic_s()
        parts = []
        for name in sorted(self._by_broker if names is None else names):
            outage = self._by_broker[name]
            parts.append(
                f"broker {name} has given no answer about {listed(sorted(outage.queues))} for "
                f"{now_s - outage.since_s:.0f} s ({outage.reason})"
            )
        return "; ".join(parts)

    def at_start(self) -> ConnectionFailed:
        """Return what to raise about outages that a new query has found."""
        return ConnectionFailed(f"{self.told()}. Start the broker, then start the query again")

    def too_long(self, names: Iterable[str]) -> ConnectionFailed:
        """Return what to raise about outages of some brokers that a query has waited for."""
        return ConnectionFailed(
            f"{self.told(names)}. Start the broker, or wait longer for it (option "
            f"retryTimeoutMs). With failOnDataLoss=false, a stream continues without what is gone "
            f"for good, be it a broker or a deleted topic"
        )
