"""Processes that are started, killed, and started again."""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

READY_S = 60.0
POLL_S = 0.05
STOP_S = 15.0
LOG_LINES = 25
#: Below those of outgoing connections, of which one could take a port before its member listens.
#: Four apart: a broker takes those two below and one above its own, too. The one that is left says
#: that the others are taken.
PORTS = range(10_002, 15_000, 4)
PORT_TRIES = 200


class StoryFailed(Exception):
    """The story cannot go on."""


@dataclass(slots=True)
class Member:
    """One process of the town.

    Attributes:
        name: of it, and of its log.
        command: what is run.
        environment: of it.
        log: gets its output; what is there stays.
        port: accepts connections when it is ready; ``None``: it is ready at once.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    port: int | None = None
    _process: asyncio.subprocess.Process | None = None
    _output: IO[bytes] | None = field(default=None, repr=False)

    async def start(self) -> None:
        """Start it; ``wait_ready`` waits until it can be used."""
        self._output = self.log.open("ab")
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=dict(self.environment),
            start_new_session=True,  # Ctrl-C is for us, and we end the others
        )

    async def wait_ready(self) -> None:
        """Wait until it accepts connections.

        Raises:
            StoryFailed: it has ended, or takes too long.
        """
        try:
            async with asyncio.timeout(READY_S):
                while not await self._answers() and self.is_running:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StoryFailed(
                f"{self.name} is not ready after {READY_S:g} s:\n{self._last_words()}"
            ) from None
        if not self.is_running:  # also when somebody else has its port, and answers
            raise StoryFailed(f"{self.name} has ended:\n{self._last_words()}")

    @property
    def is_running(self) -> bool:
        """Was it started, and has not ended?"""
        return self._process is not None and self._process.returncode is None

    @property
    def cpu_s(self) -> float:
        """Processor time that it has taken since its last start; 0 where nobody can tell."""
        if self._process is None:
            return 0.0
        try:
            # pid (name) state ...; a name may contain anything
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def kill(self) -> None:
        """End it with SIGKILL, at once."""
        await self._end(signal.SIGKILL, STOP_S)

    async def stop(self) -> None:
        """End it with SIGTERM; with SIGKILL if that takes too long."""
        try:
            await self._end(signal.SIGTERM, STOP_S)
        except TimeoutError:
            await self.kill()

    async def _end(self, number: int, timeout_s: float) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, number)
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        if self._output is not None:
            self._output.close()

    async def _answers(self) -> bool:
        if self.port is None:
            return True
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([*lines, f"(the whole log: {self.log})"])


def take_ports(count: int, held: contextlib.ExitStack) -> list[int]:
    """Return free ports, with those that a broker takes beside it.

    Args:
        count: how many.
        held: until it is closed, no other story on this machine gets them, also not while their
            members are away.

    Raises:
        StoryFailed: there are not as many.
    """
    found: list[int] = []
    for port in random.sample(PORTS, PORT_TRIES):
        if len(found) == count:
            return found
        if (claim := _bound(port - 1)) is None:  # nobody listens there: see ``PORTS``
            continue
        if all(_is_free(port + distance) for distance in (-2, 0, 1)):
            held.enter_context(claim)
            found.append(port)
        else:
            claim.close()
    raise StoryFailed(f"no {count} free ports after {PORT_TRIES} tries")


def _bound(port: int) -> socket.socket | None:
    found = socket.socket()
    try:
        found.bind(("127.0.0.1", port))
    except OSError:
        found.close()
        return None
    return found


def _is_free(port: int) -> bool:
    probe = _bound(port)
    if probe is None:
        return False
    probe.close()
    return True
