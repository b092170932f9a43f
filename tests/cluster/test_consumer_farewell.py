"""What a consumer leaves behind, at brokers that handle requests in many threads.

In RocketMQ a request may overtake one that the same client sent before it.
"""

import asyncio

from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until

from pymq.client.consuming.consumer import Consumer
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import Heartbeat
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command

HEARTBEAT_S = 0.3


class ThreadedBroker(FakeBroker):
    """Keeps what it is told, not always in the order in which it was told."""

    def __init__(self, *, keeps_from: int = 1) -> None:
        super().__init__()
        #: Which commit in a queue is the first one that is kept.
        self.keeps_from = keeps_from
        self.members: set[str] = set()
        self.is_slow = False
        #: Heartbeats that are heard late.
        self.late_count = 0
        self.commits: dict[tuple[str, str], list[int]] = {}
        self.pulls: list[dict[str, str]] = []

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        fields = command.fields or {}
        queue = (fields.get("topic", ""), fields.get("queueId", ""))
        if command.code == RequestCode.HEART_BEAT:
            self.late_count += self.is_slow
            asyncio.get_running_loop().call_later(
                HEARTBEAT_S * self.is_slow, self.heard, connection, command
            )
        elif command.code == RequestCode.UNREGISTER_CLIENT:
            self.members.discard(fields["clientID"])
            connection.respond(command, command.reply(0))
        elif command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            ids = ",".join(f'"{one}"' for one in sorted(self.members))
            answer = command.reply(0, body=b'{"consumerIdList":[%s]}' % ids.encode())
            connection.respond(command, answer)
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.commits.setdefault(queue, []).append(int(fields["commitOffset"]))
            connection.respond(command, command.reply(0))
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            kept = self.kept(*queue)
            none = command.reply(22, "none")
            connection.respond(
                command, none if kept is None else command.reply(0, fields={"offset": str(kept)})
            )
        elif command.code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            connection.respond(command, command.reply(0, fields={"offset": "77"}))
        elif command.code == RequestCode.PULL_MESSAGE:
            self.pulls.append(fields)  # and holds it
        else:
            super().on_command(connection, command)

    def heard(self, connection: ServerConnection, command: Command) -> None:
        self.members.add(Heartbeat.decode(command.body).client_id)
        connection.respond(command, command.reply(0))

    def kept(self, topic: str, queue_id: str) -> int | None:
        commits = self.commits.get((topic, queue_id), [])
        return commits[-1] if len(commits) >= self.keeps_from else None


def test_nobody_is_left_in_the_group_by_a_heartbeat_that_comes_late() -> None:
    async def test() -> None:
        async with ThreadedBroker() as broker:
            async with Consumer(broker.address, "g", timeout_s=30).subscribe("T") as consumer:
                await wait_until(lambda: len(broker.pulls) == 4, "it pulls")
                assert broker.members == {consumer.client_id}
                broker.is_slow = True
                consumer.subscribe("U")  # which is announced
                await wait_until(lambda: broker.late_count, "a heartbeat is under way")
            await asyncio.sleep(HEARTBEAT_S * 2)
            assert broker.members == set()

    run(test())


def test_an_offset_that_a_broker_loses_is_committed_again() -> None:
    """Of a group's first commits that come at a time, RocketMQ answers all and may keep one."""

    async def test() -> None:
        async with ThreadedBroker(keeps_from=2) as broker:
            async with Consumer(broker.address, "g", timeout_s=30).subscribe("T"):
                await wait_until(lambda: len(broker.pulls) == 4, "it pulls")
                assert all(broker.kept("T", queue) == 77 for queue in "01")
            assert all(broker.kept("T", queue) == 77 for queue in "01")

    run(test())


def test_pulls_commit_nothing() -> None:
    """One that is handled late would set back what was committed after it."""

    async def test() -> None:
        async with ThreadedBroker() as broker:
            async with Consumer(broker.address, "g", timeout_s=30).subscribe("T"):
                await wait_until(lambda: len(broker.pulls) == 4, "it pulls")
            assert not [fields for fields in broker.pulls if int(fields["sysFlag"]) & 1]

    run(test())
