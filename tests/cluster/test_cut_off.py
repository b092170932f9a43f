"""A member that is cut off from a broker, where another one has its queues meanwhile."""

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until
from tests.cluster.test_silent_starts import SilentBroker

from pymq import Consumer, MessageQueue, PullConsumer
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command

DEADLINE_S = 60.0
#: Where it reads first, see ``SilentBroker``.
FIRST = 77
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(2)]


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


@pytest.fixture(autouse=True)
def _quick_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.consuming.consumer.COMMIT_S", 0.1)
    monkeypatch.setattr("pymq.client.pulling.pull_member.AUTO_COMMIT_S", 0.1)


def waits_for_resume(consumer: Consumer | PullConsumer) -> bool:
    held = consumer._parts.held if isinstance(consumer, Consumer) else consumer._held()
    readers = [one for one in held.readers.values() if one.queue.topic == "T"]
    return all(one.is_paused and one._is_waiting for one in readers)


@pytest.mark.parametrize("kind", [Consumer, PullConsumer])
@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("committed", [FIRST + 13, FIRST, FIRST - 7])
def test_it_goes_on_where_the_other_one_is(
    committed: int, is_paused: bool, kind: type[Consumer | PullConsumer]
) -> None:
    """A broker that has forgotten commits has a lower offset, which changes nothing."""
    goes_on = max(committed, FIRST)

    async def test() -> None:
        async with CuttingBroker() as broker:
            made = kind(broker.address, "g", timeout_s=DEADLINE_S)
            async with made.subscribe("T") as consumer:
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read")
                if is_paused:
                    consumer.pause(consumer.assignment)
                    broker.release()
                    await wait_until(lambda: waits_for_resume(consumer), "it has the answers")
                broker.cut(committed)
                if is_paused:
                    await wait_until(lambda: broker.questions == 2, "it asks")
                    assert not broker.pulls
                    consumer.resume(consumer.assignment)
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read again")
                assert broker.pulls == [goes_on] * 2
            assert set(broker.commits) <= {goes_on}

    run(test())


def cut_pull_consumer(broker: CuttingBroker) -> PullConsumer:
    """Return a consumer whose group is further than where its program sends it."""
    broker.committed = {f"T {queue.queue_id}": str(FIRST + 13) for queue in QUEUES}
    return PullConsumer(broker.address, "g", timeout_s=DEADLINE_S)


async def seek_back(broker: CuttingBroker, consumer: PullConsumer) -> None:
    await wait_until(lambda: broker.pulls == [FIRST + 13] * 2, "both queues are read")
    broker.pulls.clear()
    for queue in QUEUES:
        await consumer.seek(queue, FIRST)
    await wait_until(lambda: broker.pulls == [FIRST] * 2, "both queues are read from there on")


def test_where_the_program_has_chosen_to_be_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group may be further because it was so before; then messages would be skipped."""
    monkeypatch.setattr("pymq.client.pulling.pull_member.AUTO_COMMIT_S", 3600)

    async def test() -> None:
        async with CuttingBroker() as broker:
            async with cut_pull_consumer(broker).subscribe("T") as consumer:
                await seek_back(broker, consumer)
                broker.cut(FIRST + 13)
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read again")
                assert broker.pulls == [FIRST] * 2
            assert broker.commits == [FIRST] * 2

    run(test())


def test_where_it_was_sent_counts_no_more_when_the_group_has_been_there() -> None:
    async def test() -> None:
        async with CuttingBroker() as broker:
            async with cut_pull_consumer(broker).subscribe("T") as consumer:
                await seek_back(broker, consumer)
                await wait_until(lambda: len(broker.commits) >= 2, "that is committed")
                for _ in range(2):  # The pulls under way may be older than the commits.
                    broker.pulls.clear()
                    broker.release()
                    await wait_until(lambda: len(broker.pulls) == 2, "both queues are read on")
                broker.cut(FIRST + 20)
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read again")
                assert broker.pulls == [FIRST + 20] * 2
            assert set(broker.commits) <= {FIRST + 20}

    run(test())


def test_assigned_queues_are_nobody_elses_meanwhile() -> None:
    """They are read whoever else reads them: what that one has committed is no place to go on."""

    async def test() -> None:
        async with CuttingBroker() as broker:
            made = PullConsumer(broker.address, "g", timeout_s=DEADLINE_S)
            async with made.assign(QUEUES):
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read")
                broker.cut(FIRST + 13)
                await wait_until(lambda: len(broker.pulls) == 2, "both queues are read again")
                assert broker.pulls == [FIRST] * 2

    run(test())
