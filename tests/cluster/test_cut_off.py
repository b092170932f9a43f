"""A member that is cut off from a broker, where another one has its queues meanwhile."""

import asyncio

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until
from tests.cluster.test_silent_starts import SilentBroker

from pymq import Consumer
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command

DEADLINE_S = 60.0
#: Where it reads first, see ``SilentBroker``.
FIRST = 77


class CuttingBroker(SilentBroker):
    """Holds pulls until it cuts the connections; notes them, and what is committed."""

    def __init__(self) -> None:
        super().__init__(None)
        self.pulls: list[int] = []
        self.commits: list[int] = []
        self.questions = 0
        self.held: list[tuple[ServerConnection, Command]] = []
        self.connections: set[ServerConnection] = set()

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        fields = command.fields or {}
        if not fields.get("topic", "").startswith("%RETRY%"):
            self.connections.add(connection)
            if command.code == RequestCode.PULL_MESSAGE:
                self.pulls.append(int(fields["queueOffset"]))
                self.held.append((connection, command))
            elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                self.commits.append(int(fields["commitOffset"]))
            elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
                self.questions += 1
        super().on_command(connection, command)

    def release(self) -> None:
        """Answer the pulls that are held: there is nothing new."""
        fields = {"nextBeginOffset": str(FIRST), "suggestWhichBrokerId": "0"}
        fields |= {"minOffset": "0", "maxOffset": str(FIRST)}
        for connection, command in self.held:
            code = ResponseCode.PULL_NOT_FOUND
            connection.respond(command, command.reply(code, "nothing new", fields))
        self.held.clear()

    def cut(self, committed: int) -> None:
        """Cut all connections; somebody else commits while nobody is there."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()
        self.pulls.clear()
        self.commits.clear()
        self.questions = 0
        self.committed = dict.fromkeys(self.committed, str(committed))


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("committed", [FIRST + 13, FIRST, FIRST - 7])
def test_it_goes_on_where_the_other_one_is(
    committed: int, is_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has forgotten commits has a lower offset, which changes nothing."""
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 0.1)
    goes_on = max(committed, FIRST)

    async def test() -> None:
        async with CuttingBroker() as broker:
            made = Consumer(broker.address, "g", timeout_s=DEADLINE_S)
            async with made.subscribe("T") as consumer:
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read")
                if is_paused:
                    consumer.pause()
                    broker.release()
                    await asyncio.sleep(0.2)  # now it waits for ``resume``
                broker.cut(committed)
                if is_paused:
                    await wait_until(lambda: broker.questions == 2, "it asks")
                    assert not broker.pulls
                    consumer.resume()
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read again")
                assert broker.pulls == [goes_on] * 2
            assert set(broker.commits) <= {goes_on}

    run(test())
