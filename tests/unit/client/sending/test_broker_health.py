"""Which brokers are avoided, and for how long."""

import asyncio

import pytest

from pymq.client.sending.broker_health import AVOID_BROKER_S, BrokerHealth, avoid_s
from pymq.clock import Clock


class ManualClock(Clock):
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("took_s", "expected"),
    [(0.0, 0), (0.549, 0), (0.55, 2), (1.8, 5), (2.9, 5), (3, 6), (5, 10), (14, 10), (15, 30)],
)
def test_the_longer_it_took_the_longer_it_is_avoided(took_s: float, expected: float) -> None:
    assert avoid_s(took_s) == expected


def test_a_broker_is_forgiven_when_its_time_is_over() -> None:
    async def test() -> None:
        clock = ManualClock()
        health = BrokerHealth(clock, lambda: True)
        health.failed("a")
        health.answered("b", 0.6)
        health.answered("c", 0.1)
        assert health.names == {"a", "b"}
        clock.now_s = 2.5
        health._forgive()
        assert health.names == {"a"}
        clock.now_s = AVOID_BROKER_S
        health._forgive()
        assert not health.names

    asyncio.run(test())
