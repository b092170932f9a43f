"""Many consumers that are connected and idle: heartbeats, and one held pull each.

Run as a process of its own, beside whoever measures::

    python -m tests.bench.crowd BROKER COUNT GROUP_SIZE

It prints a line when all of them are there, reads a line, has half of them vanish at once, and
prints how many notices of changed groups the others got; it ends with its input.
"""

import asyncio
import resource
import sys

from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, Heartbeat, Subscription
from pymq.protocol.codes import PullFlag, RequestCode
from pymq.protocol.command import Command

TOPIC = "idle"
HEARTBEAT_S = 30.0
PULL_S = 15.0
#: Requests in flight while the clients come.
COMING = 200
TIMEOUT_S = 60.0


class Client:
    """One consumer of a group of its own, or of one that it shares."""

    def __init__(self, number: int, group: str) -> None:
        self.notice_count = 0
        self._group = group
        data = ConsumerData(group=group, subscriptions=[Subscription.of_tags(TOPIC, "*", 1)])
        heartbeat = Heartbeat(client_id=f"10.0.0.1@{number}", consumers=[data])
        self._heartbeat = heartbeat.encode()
        self._channel: AsyncChannel | None = None

    async def come(self, broker: str) -> None:
        self._channel = await AsyncChannel.connect(broker, TIMEOUT_S, on_request=self._on_request)
        await self._ask(RequestCode.HEART_BEAT, {}, self._heartbeat)

    def _on_request(self, channel: AsyncChannel, command: Command) -> None:
        self.notice_count += command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    async def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        assert self._channel is not None
        return await self._channel.request(Command(code, fields, body), TIMEOUT_S)

    async def live(self, wait_s: float) -> None:
        """Send heartbeats; the first after ``wait_s``, so that not all come at once."""
        await asyncio.sleep(wait_s)
        while True:
            await self._ask(RequestCode.HEART_BEAT, {}, self._heartbeat)
            await asyncio.sleep(HEARTBEAT_S)

    async def pull(self, wait_s: float) -> None:
        """Hold a pull at the end of a queue, again and again."""
        await asyncio.sleep(wait_s)
        fields = {
            "consumerGroup": self._group,
            "topic": TOPIC,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": str(int(PullFlag.SUSPEND)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(PULL_S * 1000)),
            "subVersion": "0",
        }
        while True:
            await self._ask(RequestCode.PULL_MESSAGE, fields)

    def vanish(self) -> None:
        assert self._channel is not None
        self._channel.abort()


async def main(broker: str, count: int, group_size: int) -> None:
    clients = [Client(number, f"group-{number // group_size}") for number in range(count)]
    room = asyncio.Semaphore(COMING)

    async def come(client: Client) -> None:
        async with room:
            await client.come(broker)

    await asyncio.gather(*map(come, clients))
    tasks: list[asyncio.Task[None]] = []
    for number, client in enumerate(clients):
        share = number / count
        tasks.append(asyncio.ensure_future(client.live(share * HEARTBEAT_S)))
        tasks.append(asyncio.ensure_future(client.pull(share * PULL_S)))
    await asyncio.sleep(PULL_S)
    print("there", flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    staying = clients[1::2]
    before = sum(client.notice_count for client in staying)
    for client in clients[::2]:
        client.vanish()
    told = 0
    while True:  # until it is quiet
        await asyncio.sleep(1)
        now = sum(client.notice_count for client in staying) - before
        if now == told:
            break
        told = now
    print(told, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
