"""Faults on purpose, at points with names: how the tests prove that every step may fail.

A service says where it is: ``faults.point("confirm.stored.before_commit")`` inside a transaction,
``await faults.reach("confirm.stored")`` elsewhere. Without a plan both return at once.

====================  ==============================================================================
action                what happens at the point, once
====================  ==============================================================================
``kill``              nothing behind it ever happens, as after ``kill -9``
``error``             an exception that nobody expects
``late``              the step goes on after ``late_s``, longer than its caller waits
====================  ==============================================================================
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ACTIONS = ("kill", "error", "late")


class Killed(BaseException):
    """The process would be dead by now: no handler of exceptions may run."""


class InjectedError(Exception):
    """What no code is prepared for."""


class Faults:
    """What is to go wrong, and where.

    Args:
        plan: point to action, or ``point=action`` pairs separated by commas.
        process: whether ``kill`` ends this process; otherwise what reaches the point waits for
            ever, which looks the same from the outside, for tests with all services in one process.
        late_s: how late is late.
        late_rate: share of answers to ``POST`` requests that are that late, 0 to 1.
        seed: of the choice which.
    """

    def __init__(
        self,
        plan: MutableMapping[str, str] | str = "",
        *,
        process: bool = True,
        late_s: float = 3.0,
        late_rate: float = 0.0,
        seed: int | None = None,
    ) -> None:
        if isinstance(plan, str):
            plan = dict(pair.strip().split("=", 1) for pair in plan.split(",") if pair.strip())
        for name, action in plan.items():
            if action not in ACTIONS:
                raise ValueError(f"fault {name}={action}: expected one of {', '.join(ACTIONS)}")
        self.plan = plan
        self.met: list[str] = []  # points that have had their fault
        self._process = process
        self._late_s = late_s
        self._late_rate = late_rate
        self._random = random.Random(seed)

    def point(self, name: str) -> None:
        """Have the fault of this point happen, in a thread of the database."""
        action = self._take(name)
        if action == "late":
            time.sleep(self._late_s)
        elif action is not None:
            self._raise(name, action)

    async def reach(self, name: str) -> None:
        """Have the fault of this point happen, in the event loop."""
        action = self._take(name)
        if action == "late":
            await asyncio.sleep(self._late_s)
        elif action is not None:
            try:
                self._raise(name, action)
            except Killed:
                await for_ever()

    def _take(self, name: str) -> str | None:
        if not self.plan:
            return None
        action = self.plan.pop(name, None)
        if action is not None:
            self.met.append(name)
        return action

    def _raise(self, name: str, action: str) -> None:
        if action == "error":
            raise InjectedError(name)
        if self._process:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed(name)

    def answer_late(self, method: str) -> float:
        """How long an answer is to be held back, in seconds; the request has taken effect."""
        is_late = method == "POST" and self._random.random() < self._late_rate
        return self._late_s if is_late else 0.0


async def for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LateAnswers:
    """ASGI middleware that holds some answers back."""

    def __init__(self, app: Callable[..., Awaitable[None]], faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        late_s = self._faults.answer_late(scope.get("method", ""))
        if not late_s:
            await self._app(scope, receive, send)
            return

        async def send_late(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                await asyncio.sleep(late_s)
            await send(message)

        await self._app(scope, receive, send_late)
