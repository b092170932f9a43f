"""Calls between services: repeated at the next instance until their deadline, unless refused."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from shop.calls import Peer
from shop.errors import Refused, Unavailable

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


def peer(answer: Answer, deadline_s: float = 1.0) -> Peer:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Peer(http, "goods", ["http://a", "http://b"], 0.1, deadline_s)


def test_the_next_instance_is_asked() -> None:
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        match len(asked):
            case 1:
                raise httpx.ConnectError("down")
            case 2:
                await asyncio.sleep(60)  # takes effect, and the answer is lost
            case 3:
                return httpx.Response(503)
        return httpx.Response(200, json={"n": len(asked)})

    assert asyncio.run(peer(answer, 60.0).post("/x", {})) == {"n": 4}
    assert asked in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


def test_a_refusal_is_passed_on_and_not_repeated() -> None:
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        told = {"field": "goodsNumber", "found": "3", "expected": "at most the stock, 1"}
        return httpx.Response(409, json={"errors": [told]})

    with pytest.raises(Refused) as caught:
        asyncio.run(peer(answer).post("/goods/tea/take", {}))
    assert (caught.value.status, caught.value.field) == (409, "goodsNumber")
    assert str(caught.value) == "goodsNumber: found 3, expected at most the stock, 1"
    assert asked == ["/goods/tea/take"]


def test_the_deadline_names_what_failed_last() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody is there")

    with pytest.raises(Unavailable, match=r"goods: GET http://[ab]/x .* 0\.3 s.*nobody is there"):
        asyncio.run(peer(answer, 0.3).get("/x"))
