"""What the page shows of the services and brokers, also while some of them do not answer."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pymq import Admin, Consumer, PymqError, ReceivedMessage
from shop.calls import Peer
from shop.errors import ShopError
from shop.orders.tables import OrderStatus, PayStatus
from shop.settings import PATIENT
from shop.topics import ORDER_TOPIC, PAY_TOPIC

GROUP = "page"
SHOWN_COUNT = 40
#: A visitor does not wait longer for one service: the page shows what it said before.
LOOK_S = 1.5
BROKERS_S = 1.0
#: Service -> the list that is shown, and ``None`` for one of which only its health is.
LISTS: Mapping[str, str | None] = {
    "goods": "/goods",
    "users": "/users",
    "orders": "/order",
    "coupons": None,
    "payments": None,
    "journal": None,
}


class Sight:
    """What the services say, or said last.

    Args:
        peers: the services, by name.
    """

    def __init__(self, peers: Mapping[str, Peer]) -> None:
        self._peers = {
            name: replace(peer, timeout_s=LOOK_S, deadline_s=LOOK_S) for name, peer in peers.items()
        }
        self._seen: dict[str, tuple[float, list[dict[str, Any]]]] = {}  # when, and what

    async def look(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """Return each list, and a sentence for each service that does not answer."""
        sentences = await asyncio.gather(*(self._ask(name, path) for name, path in LISTS.items()))
        lists = {
            name: self._seen.get(name, (0.0, []))[1] for name, path in LISTS.items() if path
        }
        return lists, [one for one in sentences if one]

    async def _ask(self, name: str, path: str | None) -> str:
        try:
            answer = await self._peers[name].get(path or "/health")
        except ShopError:
            if path is None:
                return f"The service {name} does not answer now."
            if name not in self._seen:
                return f"The service {name} does not answer yet."
            age_s = time.monotonic() - self._seen[name][0]
            return f"The service {name} does not answer now: its part is {age_s:.0f} s old."
        if path is not None:
            rows = answer[name]
            if name == "orders":
                rows = [order | _states(order) for order in rows]
            self._seen[name] = (time.monotonic(), rows)
        return ""


def _states(order: Mapping[str, Any]) -> dict[str, str]:
    status = OrderStatus(order["orderStatus"])
    is_ending = order["cancelTime"] is not None and status != OrderStatus.CANCELLED
    return {
        "status": "being cancelled" if is_ending else status.name.lower(),
        "pay": PayStatus(order["payStatus"]).name.lower(),
    }


class Watcher:
    """Keeps the newest messages of the shop, and which brokers are there.

    Args:
        broker: name servers.
    """

    def __init__(self, broker: str) -> None:
        self.messages: deque[dict[str, str]] = deque(maxlen=SHOWN_COUNT)
        self._broker = broker
        self._numbers = itertools.count()
        self._known: set[str] = set()
        self._there: set[str] | None = None  # None: no name server says

    @property
    def sentences(self) -> Sequence[str]:
        """One for each broker that is away."""
        if self._there is None:
            return ["No name server answers now." if self._known else "No name server answers yet."]
        return [
            f"The broker {name} is away now: its messages come when it is back."
            for name in sorted(self._known - self._there)
        ]

    async def run(self) -> None:
        """Keep messages until this is cancelled."""
        member = Consumer(self._broker, GROUP, network=PATIENT)
        async with member.subscribe(ORDER_TOPIC).subscribe(PAY_TOPIC):
            await member.run(self._keep)

    async def look_at_brokers(self) -> None:
        """Ask which brokers there are, until this is cancelled."""
        async with Admin(self._broker, network=PATIENT) as admin:
            while True:
                try:
                    self._there = set(await admin.brokers.masters())
                    self._known |= self._there
                except PymqError:
                    self._there = None
                await asyncio.sleep(BROKERS_S)

    async def _keep(self, message: ReceivedMessage) -> None:
        self.messages.appendleft(
            {
                "id": str(next(self._numbers)),  # one message may come twice
                "time": f"{datetime.now(UTC):%H:%M:%S}",
                "topic": message.topic,
                "tag": message.tags or "",
                "key": " ".join(message.keys),
                "body": message.body.decode("utf-8", "replace"),
            }
        )
