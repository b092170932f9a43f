"""A name server and a broker in one, whose answers a test chooses."""

from typing import Self

from tests.cluster.scenarios import wait_until

from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.bodies import BrokerData, QueueData, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command


class FakeBroker:
    """A name server and a broker that answer sends as a test wants them to.

    ``answers`` holds, per broker name, codes for its next sends; without one it is 0. ``None``
    gives no answer; ``"close"`` closes the connection instead.
    """

    def __init__(self, *names: str, advertise: str | None = None) -> None:
        self.names = names or ("broker-a",)
        self.advertise = advertise
        self.answers: list[int | str | None] = []
        self.sent: list[Command] = []
        self.server = Server(ServerConfig(), self.on_commands, lambda connection: None)

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.close()

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        for command in commands:
            self.on_command(connection, command)

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            connection.respond(command, command.reply(0, body=self.route().encode()))
        elif command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.sent.append(command)
            answer = self.answers.pop(0) if self.answers else 0
            if answer == "close":
                connection.abort()
            elif isinstance(answer, int):
                fields = {"msgId": "ID", "queueId": command.fields["e"], "queueOffset": "0"}  # type: ignore[index]
                connection.respond(command, command.reply(answer, "as wanted", fields))
        else:
            connection.respond(command, command.reply(0, fields={}))

    async def wait_sent(self, count: int) -> None:
        """Wait until this many sends have come, answered or not."""
        await wait_until(lambda: len(self.sent) >= count, f"{count} sends")

    def route(self) -> TopicRoute:
        address = self.advertise or self.address
        return TopicRoute(
            queues=[
                QueueData(broker_name=name, read_queue_count=2, write_queue_count=2, perm=6)
                for name in self.names
            ],
            brokers=[BrokerData(broker_name=name, addresses={0: address}) for name in self.names],
        )

    def brokers_tried(self) -> list[str]:
        return [(command.fields or {})["n"] for command in self.sent]
