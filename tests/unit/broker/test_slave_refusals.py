"""What slaves refuse: how many may wait until it is known what is committed."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.broker import slave_refusals
from pymq.broker.config import BrokerConfig
from pymq.broker.slave_refusals import with_refusals
from pymq.errors import BrokerError
from pymq.protocol.codes import LanguageCode, RequestCode, SinkRequest

WAITING_MAX = 3


class Asked:
    """Plays a slave, and clients that ask it what is committed."""

    def __init__(self) -> None:
        self.is_known = False
        slave: Any = SimpleNamespace(knows_offsets=lambda: self.is_known, is_acting=False)
        handlers: Any = dict.fromkeys((*RequestCode, *SinkRequest), lambda request: "7")
        self._query: Any = with_refusals(handlers, BrokerConfig(), slave, has_controller=False)[
            RequestCode.QUERY_CONSUMER_OFFSET
        ]

    def ask(self, language: int = LanguageCode.JAVA) -> Coroutine[Any, Any, str]:
        command = SimpleNamespace(language=language)
        return self._query(SimpleNamespace(command=command))  # type: ignore[no-any-return]

    def is_refused(self, language: int = LanguageCode.JAVA) -> bool:
        with pytest.raises(BrokerError, match="does not know what is committed"):
            self.ask(language).close()
        return True

    def ask_all(self) -> list[Coroutine[Any, Any, str]]:
        """Ask as often as may be waited, and find that nobody else may."""
        waiting = [self.ask() for _ in range(WAITING_MAX)]
        assert self.is_refused()
        return waiting


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(slave_refusals, "_KNOWN_WAITING_MAX", WAITING_MAX)
    monkeypatch.setattr(slave_refusals, "_KNOWN_PAUSE_S", 0.001)

    def run(test: Callable[[Asked], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(asyncio.wait_for(test(Asked()), 60))

    return run


def test_no_more_than_some_wait_though_they_come_in_one_turn(play: Callable[..., None]) -> None:
    async def test(asked: Asked) -> None:
        for _ in range(2):
            asked.is_known = False
            waiting = [asyncio.ensure_future(one) for one in asked.ask_all()]
            await asyncio.sleep(0.002)
            assert not any(one.done() for one in waiting)
            assert asked.is_refused()
            asked.is_known = True
            assert await asyncio.gather(*waiting) == ["7"] * WAITING_MAX

    play(test)


def test_who_was_refused_or_never_began_to_wait_keeps_nobody_from_it(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a question that is refused because too many handlers wait."""
    monkeypatch.setattr(slave_refusals, "KNOWN_WAIT_S", 0.0)

    async def test(asked: Asked) -> None:
        for _ in range(2 * WAITING_MAX):  # It asks again soon, and need not wait.
            assert asked.is_refused(LanguageCode.PYTHON)
        waiting = asked.ask_all()
        while waiting:
            waiting.pop().close()
        refused = [asyncio.ensure_future(one) for one in asked.ask_all()]
        errors = await asyncio.gather(*refused, return_exceptions=True)
        assert all(isinstance(one, BrokerError) for one in errors)
        cancelled = [asyncio.ensure_future(one) for one in asked.ask_all()]
        await asyncio.sleep(0)
        for one in cancelled:
            one.cancel()
        await asyncio.wait(cancelled)
        for answer in asked.ask_all():
            answer.close()

    play(test)
