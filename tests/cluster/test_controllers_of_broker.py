"""A broker's connections to controllers when the network between them is cut, and mended."""

import asyncio

import pytest
from tests.cluster.running import run

from pymq.broker.ha import controllers
from pymq.broker.ha.controllers import Controllers
from pymq.errors import PymqError, RequestTimeout
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.controller import ControllerMetadataResponse, ReplicaInfoRequest

ASKED = ReplicaInfoRequest(broker_name="b")
#: For what is answered.
LONG_S = 60.0


class PlayedController:
    """Leads; what comes over connections that are cut it does not hear."""

    def __init__(self) -> None:
        self.server = Server(ServerConfig(), self._on_commands, self._on_ended)
        self.connections: list[ServerConnection] = []
        self.ended: list[ServerConnection] = []
        self.cut: set[ServerConnection] = set()
        self.is_frozen = False
        self.told_over: list[ServerConnection] = []

    def _on_ended(self, connection: ServerConnection) -> None:
        self.ended.append(connection)

    def _on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        for command in commands:
            if connection in self.cut or self.is_frozen:
                continue
            if command.code == RequestCode.BROKER_HEARTBEAT:
                self.told_over.append(connection)
                continue
            leads = ControllerMetadataResponse(leader_address=self.address, is_leader=True)
            connection.respond(command, command.reply(0, fields=leads.to_fields()))

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.server.port}"


def test_a_connection_that_was_cut_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP would send again what was lost long after; a new connection stands at once."""
    monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(controllers, "RETRY_S", 0.05)
    monkeypatch.setattr(controllers, "RETIRE_S", 0.2)

    async def test() -> None:
        played = PlayedController()
        await played.server.start()
        ours = Controllers([played.address])
        ours.start()
        assert (await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)).code == 0
        (first,) = played.connections
        played.cut.add(first)
        monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", 0.2)
        async with asyncio.timeout(60):
            with pytest.raises(RequestTimeout):
                await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)
            while first not in played.ended:
                ours.tell(RequestCode.BROKER_HEARTBEAT, ASKED)
                await asyncio.sleep(0.02)
        assert played.told_over[-1] is not first  # before the end of the old one
        monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", LONG_S)
        assert (await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)).code == 0
        await ours.close()
        await played.server.close()

    run(test())


def test_a_frozen_controller_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would take the broker for gone as soon as it is back."""
    monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(controllers, "RETRY_S", 0.05)
    monkeypatch.setattr(controllers, "RETIRE_S", 0.1)

    async def test() -> None:
        played = PlayedController()
        await played.server.start()
        ours = Controllers([played.address])
        ours.start()
        await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)
        (first,) = played.connections
        played.is_frozen = True
        monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", 0.1)
        for _ in range(3):
            with pytest.raises(PymqError):
                await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)
        assert first not in played.ended
        await ours.close()
        await played.server.close()

    run(test())


def test_a_controller_hears_first_who_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "REQUEST_TIMEOUT_S", LONG_S)

    async def test() -> None:
        played = PlayedController()
        await played.server.start()
        ours = Controllers(
            [played.address], lambda: controllers.one_way(RequestCode.BROKER_HEARTBEAT, ASKED)
        )
        assert (await ours.request(RequestCode.CONTROLLER_GET_REPLICA_INFO, ASKED)).code == 0
        assert played.told_over == played.connections
        await ours.close()
        await played.server.close()

    run(test())
