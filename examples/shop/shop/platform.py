"""A payment platform, simulated: it takes the money and tells the shop so, as such platforms do.

It says ``paying`` and ``paid``, each several times, in any order, after any time; it repeats a
call that was not answered with 2xx until it is, and gives the money back when the shop answers
``closed``.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from shop.columns import now_ms
from shop.signature import sign

TIMEOUT_S = 3.0
PAUSE_S = 0.2
PAUSE_MAX_S = 2.0


@dataclass(slots=True)
class Platform:
    """Calls back for payments.

    Attributes:
        http: reaches the shop.
        urls: of the service *payments*, one for each instance.
        secret: shared with it.
        dice: decides how often, and when.
        delay_s: longest time between payment and a call.
        deadline_s: after which a call is given up.
        callbacks_s: how long each successful attempt took.
        refunded: payments whose money was given back.
        lost: calls that were given up, or refused, and why.
    """

    http: httpx.AsyncClient
    urls: Sequence[str]
    secret: str
    dice: random.Random
    delay_s: float = 0.3
    deadline_s: float = 120.0
    callbacks_s: list[float] = field(default_factory=list)
    refunded: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    async def pay(self, payment: dict[str, Any]) -> None:
        """Pay a payment; returns when the shop has been told, however often.

        Args:
            payment: as the shop's ``createPayment`` returned it.
        """
        statuses = ["paid"] * self.dice.randint(2, 5) + ["paying"] * self.dice.randint(0, 2)
        self.dice.shuffle(statuses)
        await asyncio.gather(
            *(self._call(payment, status, self.dice.random()) for status in statuses)
        )

    async def _call(self, payment: dict[str, Any], status: str, share: float) -> None:
        await asyncio.sleep(share * self.delay_s)
        body = callback(payment, status, self.secret)
        pause_s = PAUSE_S
        deadline = time.monotonic() + self.deadline_s
        while time.monotonic() < deadline:
            begin = time.monotonic()
            answer = await self._attempt(body)
            if answer is not None and answer.is_success:
                self.callbacks_s.append(time.monotonic() - begin)
                if answer.json()["result"] == "closed":
                    self.refunded.add(payment["payId"])
                return
            if answer is not None and answer.is_client_error:
                self.lost.append(f"{payment['payId']}: {answer.status_code} {answer.text}")
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        self.lost.append(f"{payment['payId']}: no answer for {self.deadline_s:g} s")

    async def _attempt(self, body: dict[str, Any]) -> httpx.Response | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                url = self.dice.choice(self.urls)
                return await self.http.post(f"{url}/pay/callbackPayment", json=body)
        except (httpx.TransportError, TimeoutError):
            return None


def callback(
    payment: dict[str, Any], status: str, secret: str, now: Callable[[], int] = now_ms
) -> dict[str, Any]:
    """Return the body of a call about a payment, signed."""
    signed = {
        "payId": payment["payId"],
        "orderId": payment["orderId"],
        "payAmount": payment["payAmount"],
        "status": status,
        "time": str(now()),
    }
    return {**signed, "time": int(signed["time"]), "signature": sign(signed, secret)}
