"""A real etcd cluster of one or more members, as child processes on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import pytest
from tests.interop.peers import free_port
from tests.interop.processes import guard

PROJECT: Final = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S: Final = 120.0
#: No power is lost here. On a shared machine an fsync takes longer than controllers wait for an
#: answer, and than etcd's members wait for their leader.
WITHOUT_FSYNC: Final = {"ETCD_UNSAFE_NO_FSYNC": "true"}


def etcd_program() -> str:
    """Return the program; skip the test if there is none, and fail it in CI."""
    unpacked = PROJECT / ".etcd" / "usr" / "bin" / "etcd"  # by build.sh
    program = shutil.which("etcd") or (str(unpacked) if unpacked.exists() else None)
    if program is None:
        reason = "no etcd: install Debian's etcd-server, or let ./build.sh test do it as root"
        if os.environ.get("CI"):
            pytest.fail(f"CI must have etcd: {reason}", pytrace=False)
        pytest.skip(reason)
    return program


class EtcdCluster:
    """Members that are started together; a context manager.

    Args:
        folder: for their data and logs.
        count: how many.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        self._program = etcd_program()
        self._folder = folder
        self._ports = [(free_port(0), free_port(0)) for _ in range(count)]
        self.urls = [f"http://127.0.0.1:{client}" for client, _ in self._ports]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count

    @property
    def store(self) -> str:
        """The value of ``--store``."""
        return "etcd:" + ",".join(self.urls)

    def __enter__(self) -> Self:
        for number in range(len(self._ports)):
            self.start(number)
        for number in range(len(self._ports)):
            self.wait_healthy(number)
        return self

    def __exit__(self, *error: object) -> None:
        for number in range(len(self._ports)):
            self.kill(number)

    def start(self, number: int) -> None:
        """Start a member, with the data that it had."""
        client, peer = self._ports[number]
        members = ",".join(
            f"m{n}=http://127.0.0.1:{port}" for n, (_, port) in enumerate(self._ports)
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"m{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    self._program,
                    f"--name=m{number}",
                    f"--data-dir={self._folder / f'm{number}'}",
                    f"--listen-client-urls=http://127.0.0.1:{client}",
                    f"--advertise-client-urls=http://127.0.0.1:{client}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-cluster={members}",
                ],
                env=os.environ | WITHOUT_FSYNC,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(process.pid)
        self._processes[number] = process

    def wait_healthy(self, number: int) -> None:
        """Wait until a member answers with a majority behind it."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.urls[number]}/health", timeout=2) as answer:
                    if b'"true"' in answer.read():
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, f"member {number} is not healthy"
            time.sleep(0.05)

    def post(self, path: str, **body: object) -> dict[str, Any]:
        """Return what the first member answers to a request of its JSON gateway."""
        request = urllib.request.Request(f"{self.urls[0]}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=READY_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def take_no_writes(self) -> None:
        """Do as if there were no room: reads go on."""
        member = self.post("maintenance/status")["header"]["member_id"]
        self.post("maintenance/alarm", action="ACTIVATE", memberID=member, alarm="NOSPACE")

    def take_writes(self) -> None:
        """End that."""
        member = self.post("maintenance/status")["header"]["member_id"]
        self.post("maintenance/alarm", action="DEACTIVATE", memberID=member, alarm="NOSPACE")

    def kill(self, number: int) -> None:
        """Kill a member (SIGKILL); its data stay."""
        process, self._processes[number] = self._processes[number], None
        if process is not None:
            process.kill()
            process.wait()
            guard.forget(process.pid)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Freeze a member (SIGSTOP), or let it go on (SIGCONT)."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(what)

    def copy_data(self, number: int, target: Path) -> None:
        """Copy what a member that does not run has."""
        assert self._processes[number] is None
        shutil.copytree(self._folder / f"m{number}", target)

    def restore_data(self, number: int, source: Path) -> None:
        """Put an old copy in the place of what a member that does not run has."""
        assert self._processes[number] is None
        shutil.rmtree(self._folder / f"m{number}")
        shutil.copytree(source, self._folder / f"m{number}")
