"""One request of a blocking client, without a socket."""

import signal
from collections.abc import Iterator

import pytest

from pymq.client import operations
from pymq.client.blocking_pool import BlockingPool
from pymq.client.config import ClientConfig
from pymq.errors import ConfigurationError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.command import Command

CONFIG = ClientConfig(name_servers=("127.0.0.1:1",))


class Answering(BlockingChannel):
    """Answers everything at once."""

    def __init__(self) -> None:
        """No connection is needed."""

    def request(self, request: Command, timeout_s: float) -> Command:
        return request.reply(0)


class AnsweringPool(BlockingPool):
    """A pool whose peers answer everything at once."""

    def channel(self, address: str, hint: str) -> BlockingChannel:
        return Answering()


class Interrupted(Exception):
    """What the signal handler raises."""


@pytest.fixture
def alarms() -> Iterator[None]:
    """SIGALRM raises ``Interrupted`` as long as the test runs."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarms")
def test_a_client_can_be_used_after_a_request_that_was_interrupted_anywhere() -> None:
    pool = AnsweringPool(CONFIG)
    operation = operations.delete_expired_log()
    for number in range(2000):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + number % 20 * 1e-6)
            while True:
                pool.ask("127.0.0.1:2", operation)
        except Interrupted:
            pass


def test_an_address_that_is_none_is_refused_by_name() -> None:
    pool = BlockingPool(CONFIG)
    with pytest.raises(ConfigurationError, match="'nonsense', expected host:port") as caught:
        pool.ask("nonsense", operations.delete_expired_log())
    assert caught.value.__cause__ is None  # it was its own, which is a cycle
