"""Name server, brokers, services and relay, each a process of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from pymq import Admin
from shop import migrate
from shop.definitions import DEFINITIONS
from shop.settings import Settings, to_environment
from shop.story.processes import READY_S, Member, take_ports
from shop.topics import FIGURES_TOPIC, ORDER_TOPIC, PAY_TOPIC

QUEUE_COUNT = 4
#: A broker asks soon what became of a transaction, because the story does not take long.
BROKER_LINES = "transactionTimeOut=2000\ntransactionCheckInterval=3000\n"


class Town:
    """All processes of a story.

    Args:
        folder: of logs, databases and stores; absolute.
        settings: of the services; where they and the broker are is filled in, and the database
            unless it is given.
        brokers: how many to start; 0: ``settings.broker`` is a cluster that is there.
        page: whether the page runs, too.
        figures: whether Spark keeps figures.
        instances: of each service.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        brokers: int,
        *,
        page: bool = False,
        figures: bool = False,
        instances: int = 1,
    ) -> None:
        self._folder = folder
        self._brokers = brokers
        self._held = ExitStack()
        ports = take_ports(2 + brokers + instances * len(DEFINITIONS), self._held)
        name_server = f"127.0.0.1:{ports[0]}"
        own_ports = iter(ports[2 + brokers :])
        service_ports = {name: [next(own_ports) for _ in range(instances)] for name in DEFINITIONS}
        if settings.database == Settings().database:
            settings = replace(settings, database=f"sqlite:///{folder}/{{service}}.db")
        self.settings = replace(
            settings,
            broker=name_server if brokers else settings.broker,
            urls={
                name: ",".join(f"http://127.0.0.1:{port}" for port in several)
                for name, several in service_ports.items()
            },
        )
        self.members: dict[str, Member] = {}
        if brokers:
            self._add_cluster(ports[0], ports[2 : 2 + brokers])
        for service, several in service_ports.items():
            for number, port in enumerate(several):
                name = service if number == 0 else f"{service}-{number + 1}"
                self._add(name, ["-m", f"shop.{service}", "--port", str(port)], port)
        self._add("relay", ["-m", "shop.relay"], None)
        self.page_url = f"http://127.0.0.1:{ports[1]}"
        if page:
            self._add("page", ["-m", "shop.page", "--port", str(ports[1])], ports[1])
        self._topics = [ORDER_TOPIC, PAY_TOPIC]
        if figures:
            self._topics.append(FIGURES_TOPIC)
            checkpoint = str(folder / "figures")
            self._add("figures", ["-m", "shop.figures", "--checkpoint", checkpoint], None)

    def _add_cluster(self, name_server_port: int, ports: list[int]) -> None:
        lines = f"listenPort={name_server_port}\nbindAddress=127.0.0.1\n"
        lines += f"kvConfigPath={self._folder}/namesrv.json\n"
        self._add("namesrv", self._server("namesrv", lines), name_server_port)
        for number, port in enumerate(ports):
            name = f"broker-{chr(ord('a') + number)}"
            store = self._folder / name
            lines = f"brokerName={name}\nlistenPort={port}\nbindAddress=127.0.0.1\n"
            lines += f"brokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:{name_server_port}\n"
            lines += f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
            lines += f"mappedFileSizeCommitLog={64 << 20}\n{BROKER_LINES}"
            self._add(name, self._server("broker", lines, name), port)

    def _server(self, verb: str, lines: str, name: str | None = None) -> list[str]:
        file = self._folder / f"{name or verb}.conf"
        file.write_text(lines, encoding="utf-8")
        return ["-m", "pymq.cli", verb, "-c", str(file)]

    def _add(self, name: str, command: list[str], port: int | None) -> None:
        clean = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        environment = clean | to_environment(self.settings)
        log = self._folder / f"{name}.log"
        self.members[name] = Member(name, [sys.executable, *command], environment, log, port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have all processes run, ready, with tables and topics; end them afterwards."""
        with self._held:
            async with self._running():
                yield

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            cluster = [one for one in self.members.values() if self._is_of_cluster(one)]
            await asyncio.gather(*(one.start() for one in cluster))
            for definition in DEFINITIONS.values():
                await asyncio.to_thread(
                    migrate.upgrade, definition, self.settings, patience_s=READY_S
                )
            await asyncio.gather(*(one.wait_ready() for one in cluster))
            await self._create_topics()
            others = [one for one in self.members.values() if one not in cluster]
            await asyncio.gather(*(one.start() for one in others))
            await asyncio.gather(*(one.wait_ready() for one in others))
            yield
        finally:
            services = [one for one in self.members.values() if not self._is_of_cluster(one)]
            await asyncio.gather(*(one.stop() for one in services))
            await asyncio.gather(*(one.stop() for one in self.members.values()))

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time that each process has taken so far, in seconds."""
        return {name: member.cpu_s for name, member in self.members.items()}

    @staticmethod
    def _is_of_cluster(member: Member) -> bool:
        return member.name.startswith(("namesrv", "broker-"))

    async def _create_topics(self) -> None:
        async with Admin(self.settings.broker) as admin:
            await admin.brokers.wait_registered(max(self._brokers, 1), deadline_s=READY_S)
            for topic in self._topics:
                await admin.topics.create(topic, queue_count=QUEUE_COUNT)
