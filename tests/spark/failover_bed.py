"""Two groups of two brokers each, whose masters a controller elects: ``TwoBrokers``, twice.

``kill`` is that of a group's master; the other broker takes over before it returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tests.crash.servers import ServerProcess, broker_process, controller_process
from tests.spark.two_brokers import ANSWER_S, NAMES, PATIENT, TwoBrokers, wait_until

from pymq.client.sockets.blocking_client import BlockingClient


class FailoverBed(TwoBrokers):
    """A context manager.

    Args:
        home: an empty directory for all of it.
    """

    def __init__(self, home: Path) -> None:
        (home / "controller").mkdir(parents=True)
        self.controller = controller_process(home / "controller")
        settings: dict[str, str | int] = {
            "brokerRole": "SYNC_MASTER",
            "enableControllerMode": "true",
            "controllerAddr": self.controller.address,
            "pymqHaMetadataInterval": 300,
            "mappedFileSizeCommitLog": 16 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            **PATIENT,
        }
        super().__init__(home, **settings)
        self._members: dict[str, list[ServerProcess]] = {}
        for name in NAMES:
            folder = home / f"{name}-2"
            folder.mkdir()
            other = broker_process(
                folder, self.name_server, folder / "store", brokerName=name, **settings
            )
            self._members[name] = [self._brokers[name], other]

    def __enter__(self) -> Self:
        self.controller.start()
        super().__enter__()
        for name in NAMES:
            self._members[name][1].start()
        for name in NAMES:
            self.wait_in_sync(name)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for process in (*(two[1] for two in self._members.values()), self.controller):
            if process.is_running:
                process.kill()

    def master(self, name: str) -> ServerProcess | None:
        """Return the process that the name server has for the master of a group."""
        with BlockingClient(self.name_server, timeout_s=ANSWER_S) as client:
            known = client.cluster_info().brokers.get(name)
        address = None if known is None else known.addresses.get(0)
        return next((one for one in self._members[name] if one.address == address), None)

    def wait_in_sync(self, name: str) -> None:
        """Wait until both brokers of a group have everything."""
        wanted = f"group {name}: in sync are [1, 2]"

        def holds() -> bool:
            lines = [x for x in self.controller.output().splitlines() if f"{name}: in sync" in x]
            return bool(lines) and lines[-1].endswith(wanted)

        wait_until(holds, wanted)

    def kill(self, name: str) -> None:
        """SIGKILL the master of a group; returns when the other broker is the master."""
        before = self.master(name)
        assert before is not None
        before.kill()
        wait_until(
            lambda: (now := self.master(name)) is not None and now is not before,
            f"{name} has another master",
        )

    def start(self, name: str) -> None:
        """Start what was killed; returns when it has everything."""
        for process in self._members[name]:
            if not process.is_running:
                process.start()
        self.wait_in_sync(name)
