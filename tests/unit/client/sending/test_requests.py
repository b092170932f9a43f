"""Who asks is known to the brokers over which a reply may come."""

import asyncio
from types import SimpleNamespace
from typing import Any

from pymq.client.sending.requests import Requests


def test_another_master_is_told_who_asks_before_the_next_request() -> None:
    """The one before may have the connection, and the replies go to the new one."""

    async def test() -> None:
        at, told = {"a": "a:1"}, list[str]()

        async def send(address: str) -> bool:
            told.append(address)
            return True

        async def wait_queues(topic: str, until_s: float) -> None:
            pass

        loop = asyncio.get_running_loop()
        pool: Any = SimpleNamespace(
            loop=loop,
            routes=SimpleNamespace(find=lambda topic: SimpleNamespace(masters=lambda: at)),
            heartbeats=SimpleNamespace(send=send),
        )
        sender: Any = SimpleNamespace(wait_queues=wait_queues)
        maker: Any = None
        requests = Requests(pool, sender, maker)
        for _ in range(2):
            assert await requests._announce("T", loop.time() + 60) is None
        assert told == ["a:1"]
        at["a"] = "a:2"
        requests.route_changed("other")
        await requests._announce("T", loop.time() + 60)
        assert told == ["a:1"]
        requests.route_changed("T")
        await requests._announce("T", loop.time() + 60)
        assert told == ["a:1", "a:2"]

    asyncio.run(test())
