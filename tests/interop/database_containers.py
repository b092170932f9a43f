"""Database servers of the shop's tests in containers, by testcontainers."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.shop.hosts import NOBODY, newest

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

#: Made by ``./build.sh image-databases``.
IMAGE = "pymq-databases"


class Contained:
    """A host (``tests/shop/hosts.py``) that is a container, whose server others may kill.

    Args:
        container: of ``IMAGE``, started, with ``listen_port`` exposed; its own process waits for
            ever.
        listen_port: where the server listens.
    """

    folder = "/server"
    listen = "0.0.0.0"

    def __init__(self, container: DockerContainer, listen_port: int) -> None:
        self._container = container.get_wrapped_container()
        self._stop = container.stop
        self.listen_port = listen_port
        self.port = int(container.get_exposed_port(listen_port))
        self._run_as("root", "install", "-d", "-o", NOBODY, self.folder)

    def _run_as(self, user: str, *command: str) -> tuple[int, str]:
        code, output = self._container.exec_run(list(command), user=user, workdir="/")
        return code, output.decode("utf-8", "replace")

    def find(self, pattern: str) -> str | None:
        code, output = self._run_as(NOBODY, "sh", "-c", f"ls -d {pattern}")
        return newest(output.split()) if code == 0 else None

    def write(self, name: str, text: str) -> None:
        data = text.encode()
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as file:
            file.addfile(member, io.BytesIO(data))
        assert self._container.put_archive(self.folder, archive.getvalue())

    def run(self, *command: str) -> None:
        code, output = self._run_as(NOBODY, *command)
        assert code == 0, (command, output)

    def start(self, command: Sequence[str]) -> None:
        line = f"echo $$ > pid; exec {shlex.join(command)} >> log 2>&1"
        self._container.exec_run(["sh", "-c", line], user=NOBODY, workdir=self.folder, detach=True)

    def is_running(self) -> bool:
        line = f"test -e {self.folder}/pid && kill -0 $(cat {self.folder}/pid)"
        return self._run_as(NOBODY, "sh", "-c", line)[0] == 0

    def log(self) -> str:
        return self._run_as(NOBODY, "cat", f"{self.folder}/log")[1]

    def cpu_s(self) -> float:
        usage = self._container.stats(stream=False)["cpu_stats"]["cpu_usage"]
        return float(usage["total_usage"]) / 1e9

    def kill(self) -> None:
        self._run_as(NOBODY, "sh", "-c", "kill -KILL -1")  # all of the account but itself

    def close(self, signal_number: int) -> None:
        del signal_number  # nothing of a container is left behind
        self._stop()
