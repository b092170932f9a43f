"""Calls from one service to another, over HTTP.

A call that is not answered in time may have taken effect. It is repeated until its deadline, so
every ``POST`` between services is idempotent: the order's id says that it is the same one again.
"""

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from shop.errors import Refused, Unavailable

PAUSE_S = 0.05
PAUSE_MAX_S = 1.0
CONNECTIONS_MAX = 200
#: Idle connections: httpx looks at each of them for each request. Of 400 that 50 customers had
#: left, a story's process could do little else, and calls seemed to take ten times as long.
KEPT_COUNT = 16


def open_http(connections_max: int = CONNECTIONS_MAX) -> httpx.AsyncClient:
    """Return what requests are sent with; whoever sends one limits its time."""
    limits = httpx.Limits(max_connections=connections_max, max_keepalive_connections=KEPT_COUNT)
    return httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another service.

    Attributes:
        http: shared by all peers of a process.
        name: of the service.
        urls: where it is: one for each instance, used in turn.
        timeout_s: for one attempt.
        deadline_s: for all attempts of a call.
    """

    http: httpx.AsyncClient
    name: str
    urls: Sequence[str]
    timeout_s: float
    deadline_s: float

    async def get(self, path: str) -> dict[str, Any]:
        """Ask for something. Raises what ``post`` does."""
        return await self._call("GET", path, None)

    async def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Have something done, once, however often this tries.

        Raises:
            Refused: the service has said why not.
            Unavailable: no answer until the deadline: it may or may not be done.
        """
        return await self._call("POST", path, body, headers)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.deadline_s
        pause_s = PAUSE_S
        first = random.randrange(len(self.urls))
        for attempt in itertools.count(first):
            url = self.urls[attempt % len(self.urls)] + path
            try:
                # Of its own, because httpx limits each read and write, not the whole.
                async with asyncio.timeout(self.timeout_s):
                    answer = await self.http.request(method, url, json=body, headers=headers)
            except (httpx.TransportError, TimeoutError) as error:
                failure = f"{type(error).__name__} {error}".strip()
            else:
                if answer.is_success:
                    found: dict[str, Any] = answer.json()
                    return found
                if answer.is_client_error:
                    raise refusal(answer)
                failure = f"status {answer.status_code}"
            pause = pause_s * (0.5 + random.random())
            if loop.time() + pause >= deadline:
                raise Unavailable(
                    f"{self.name}: {method} {url} failed until its deadline of "
                    f"{self.deadline_s:g} s, at last with {failure}"
                )
            await asyncio.sleep(pause)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise AssertionError("the deadline ends the loop")


def refusal(answer: httpx.Response) -> Refused:
    """Return what a service said, with its own field, found and expected."""
    try:
        first = answer.json()["errors"][0]
        return Refused(answer.status_code, first["field"], first["found"], first["expected"])
    except (ValueError, KeyError, IndexError, TypeError):
        return Refused(answer.status_code, str(answer.url), answer.text, "an answer of the shop")
