"""Brokers that have queues of a query and do not answer: since when, and when to ask them again.

An outage is logged once. Its broker is asked again now and then; one that is silent must not
keep the others' answers back.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pymq.errors import ConnectionFailed, PymqError
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
    """A broker that gives no answer about its queues. Times are monotonic.

    Attributes:
        since_s: when it was first noticed.
        reason: why there is no answer, as of the last question.
        ask_at_s: when to ask it again.
        timeout_s: how long to wait for that answer.
        is_accepted: it lasted too long, and the query continues without the broker.
    """

    since_s: float
    reason: PymqError
    ask_at_s: float
    timeout_s: float
    is_accepted: bool = False


class Outages:
    """The outages of one query's brokers.

    Args:
        request_timeout_s: the longest wait for an answer.
        monotonic_s: the clock.
    """

    def __init__(self, request_timeout_s: float, monotonic_s: Callable[[], float]) -> None:
        self._request_timeout_s = request_timeout_s
        self._monotonic_s = monotonic_s
        self._by_broker: dict[str, Outage] = {}

    def __contains__(self, broker_name: object) -> bool:
        return broker_name in self._by_broker

    def __bool__(self) -> bool:
        return bool(self._by_broker)

    def due(self) -> dict[str, float]:
        """Return the brokers to ask again now, and how long to wait for each one's answer."""
        now_s = self._monotonic_s()
        return {
            name: outage.timeout_s
            for name, outage in self._by_broker.items()
            if outage.ask_at_s <= now_s
        }

    def wait_for(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether one of the queues is on a broker that is away and not given up."""
        names = {name for name, outage in self._by_broker.items() if not outage.is_accepted}
        return any(queue.broker_name in names for queue in queues)

    def ended(self, broker_name: str) -> None:
        """Record that a broker answers again."""
        LOG.info("broker %s is back", broker_name)
        del self._by_broker[broker_name]

    def failed(
        self, failures: Mapping[str, PymqError], queues: Iterable[MessageQueue], asked_s: float
    ) -> None:
        """Record the brokers that did not answer a question.

        Args:
            failures: broker name -> why.
            queues: all that were asked about.
            asked_s: when the question began.
        """
        now_s = self._monotonic_s()
        again_s = min(max(10 * (now_s - asked_s), ASK_AGAIN_MIN_S), ASK_AGAIN_MAX_S)
        for name, reason in failures.items():
            known = self._by_broker.get(name)
            if known is not None:
                known.reason, known.ask_at_s = reason, now_s + again_s
                known.timeout_s = min(2 * known.timeout_s, self._request_timeout_s)
                continue
            timeout_s = min(ASK_AGAIN_TIMEOUT_S, self._request_timeout_s)
            self._by_broker[name] = Outage(now_s, reason, now_s + again_s, timeout_s)
            LOG.warning(
                "broker %s is away, and with it %s, which are read when it is back: %s",
                name,
                listed([queue for queue in queues if queue.broker_name == name]),
                reason,
            )

    def longer_than(self, limit_s: float) -> list[str]:
        """Return the brokers that have been away for longer than a limit, and are not given up."""
        before_s = self._monotonic_s() - limit_s
        return [
            name
            for name, outage in self._by_broker.items()
            if outage.since_s < before_s and not outage.is_accepted
        ]

    def accept(self, names: Iterable[str]) -> None:
        """Give up brokers: the query continues without them."""
        for name in names:
            self._by_broker[name].is_accepted = True

    def error(
        self, queues: Iterable[MessageQueue], names: Iterable[str] | None = None
    ) -> ConnectionFailed:
        """Return what to raise or log about brokers that are away.

        Args:
            queues: of the query.
            names: of the brokers; None: all that are away.
        """
        now_s = self._monotonic_s()
        parts = []
        for name in sorted(self._by_broker if names is None else names):
            outage = self._by_broker[name]
            missing = sorted(queue for queue in queues if queue.broker_name == name)
            parts.append(
                f"broker {name} has been away for {now_s - outage.since_s:.0f} s, and with it "
                f"{listed(missing)} ({outage.reason})"
            )
        return ConnectionFailed(
            f"{'; '.join(parts)}. Start it, or wait longer for it (option retryTimeoutMs). With "
            f"failOnDataLoss=false, a stream continues without a broker that is gone for good"
        )
