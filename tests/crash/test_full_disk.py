"""A disk that is really full: a small tmpfs for the store, filled, freed, filled again."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.crash.checkers import check_history, check_index
from tests.crash.disk import log_entries, queue_entries
from tests.crash.kills import create_topic, read_all
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, make_key
from tests.crash.servers import (
    ServerFailed,
    ServerProcess,
    broker_process,
    name_server_process,
)

from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import PymqError, ServiceNotAvailable, SystemBusy
from pymq.protocol.message import Message

pytestmark = pytest.mark.crash

DISK_BYTES: Final = 4 << 20
BALLAST_BYTES: Final = 2 << 20
BODY_BYTES: Final = 1_000
TOPIC: Final = "full"
#: How soon writing must go on by itself once there is space. A second or two, but for machines that
#: stand still meanwhile.
RESUME_S: Final = 60.0
SENDS_MAX: Final = 10_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of ``DISK_BYTES``, half of it taken by a file named ``ballast``."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("no mount program: a real full disk needs a small tmpfs")
    options = f"size={DISK_BYTES},mode=700"
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a real full disk needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        (path / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


class Writer:
    """Sends numbered messages, with a pause after each, and keeps the ledger."""

    def __init__(self, producer: Producer, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self.events: list[Event] = []
        self._producer = producer
        self._number = 0

    async def send(self) -> PymqError | None:
        """Send one message; return why it was refused."""
        key = make_key(0, self._number, BODY_BYTES)
        request = str(self._number)
        self._number += 1
        self.events.append(Attempted(request, (key,)))
        try:
            result = await self._producer.send(Message(TOPIC, body_of(key)))
        except PymqError as error:
            self.events.append(Failed(request, error.outcome_known, str(error)))
            return error
        assert result.status is SendStatus.OK
        physical = int(str(result.offset_message_id)[-16:], 16)
        queue_id = result.queue.queue_id
        self.events.append(Acknowledged(request, queue_id, result.queue_offset, (physical,)))
        return None

    async def until(self, condition: Callable[[PymqError | None], bool]) -> PymqError | None:
        """Send until the outcome is as wanted; return it."""
        for _ in range(SENDS_MAX):
            error = await self.send()
            if condition(error):
                return error
            await asyncio.sleep(self._pause_s)
        raise AssertionError(f"not within {SENDS_MAX} sends")

    def acknowledged_count(self) -> int:
        return sum(isinstance(event, Acknowledged) for event in self.events)


def refused(error: PymqError | None) -> bool:
    """A machine that stood still looks like a slow disk, too, and its broker is busy then."""
    return error is not None and not isinstance(error, SystemBusy)


async def fill(writer: Writer, reason: str = "no space left on the device") -> None:
    """Send until the broker refuses, and look at how it does."""
    before = writer.acknowledged_count()
    error = await writer.until(refused)
    assert isinstance(error, ServiceNotAvailable), repr(error)
    assert reason in str(error)
    assert "free some space" in str(error)
    assert writer.acknowledged_count() > before


async def wait_resumed(writer: Writer) -> None:
    """Send until the broker takes messages again: by itself, and in time."""
    begun = time.monotonic()
    while await writer.send() is not None:
        await asyncio.sleep(0.05)
        assert time.monotonic() - begun < RESUME_S, f"still refused: {writer.events[-1]}"
    print(f"writing went on {time.monotonic() - begun:.2f} s after space came back")


async def fill_and_free(
    name_server: str, disk: Path, client: BlockingClient, reason: str, pause_s: float
) -> list[Event]:
    """Fill the disk, read while it is full, free it, write on, and fill it once more."""
    async with Producer(
        name_server, retries=0, timeout_s=30.0, compress_bytes_min=None
    ) as producer:
        writer = Writer(producer, pause_s)
        await fill(writer, reason)
        while_full = check_history(writer.events, read_all(client, TOPIC))
        assert not while_full, "\n".join(while_full)
        (disk / "ballast").unlink()
        await wait_resumed(writer)
        await fill(writer, reason)
        return writer.events


def check(disk: Path, events: list[Event], client: BlockingClient, broker: ServerProcess) -> None:
    complaints = check_history(events, read_all(client, TOPIC))
    broker.stop()
    store = disk / "store"
    complaints += check_index(queue_entries(store, TOPIC), log_entries(store, TOPIC))
    assert not complaints, "\n".join(complaints)


def run_full_disk(
    disk: Path, home: Path, reason: str, *, pause_s: float = 0.0, **properties: str | int
) -> None:
    with name_server_process(home) as name_server:
        broker = broker_process(home, name_server.address, disk / "store", **properties)
        with broker, BlockingClient(name_server.address, timeout_s=30.0) as client:
            create_topic(client, TOPIC, 2)
            events = asyncio.run(fill_and_free(name_server.address, disk, client, reason, pause_s))
            check(disk, events, client, broker)


def test_a_full_disk_refuses_and_resumes(disk: Path, tmp_path: Path, flush: str) -> None:
    run_full_disk(disk, tmp_path, "no space left on the device", flushDiskType=flush)


def test_a_disk_above_the_warning_level_refuses_and_resumes(disk: Path, tmp_path: Path) -> None:
    run_full_disk(
        disk,
        tmp_path,
        "(diskSpaceWarningLevelRatio)",
        pause_s=0.004,  # The level is looked at once a second: it must come before the end.
        diskSpaceWarningLevelRatio=70,
        diskFreeEnoughBytes=0,
        cleanFileForciblyEnable="false",
    )


def fill_up(disk: Path) -> None:
    """Take every byte that is left, by a file named ``more``."""
    with (
        (disk / "more").open("wb", buffering=0) as more,
        pytest.raises(OSError, match="No space left"),
    ):
        while True:
            more.write(bytes(4096))


def test_started_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    """After a clean stop: what it has can be read, and more is taken once there is space."""
    with name_server_process(tmp_path) as name_server:
        broker = broker_process(tmp_path, name_server.address, disk / "store")
        with broker, BlockingClient(name_server.address, timeout_s=30.0) as client:
            create_topic(client, TOPIC, 2)

            async def send(count: int) -> list[Event]:
                async with Producer(
                    name_server.address, retries=0, timeout_s=30.0, compress_bytes_min=None
                ) as producer:
                    writer = Writer(producer)
                    for _ in range(count):
                        await wait_resumed(writer)
                    return writer.events

            events = asyncio.run(send(10))
            broker.stop()
            fill_up(disk)
            broker.start()
            complaints = check_history(events, read_all(client, TOPIC))
            assert not complaints, "\n".join(complaints)
            (disk / "more").unlink()
            asyncio.run(send(1))
            broker.stop()


def test_killed_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    """It either comes back and serves what it has, or says in one line why not."""
    with name_server_process(tmp_path) as name_server:
        broker = broker_process(tmp_path, name_server.address, disk / "store")
        with broker, BlockingClient(name_server.address, timeout_s=30.0) as client:
            create_topic(client, TOPIC, 2)

            async def fill_disk() -> list[Event]:
                async with Producer(
                    name_server.address, retries=0, timeout_s=30.0, compress_bytes_min=None
                ) as producer:
                    writer = Writer(producer)
                    await fill(writer)
                    return writer.events

            events = asyncio.run(fill_disk())
            broker.kill()
            fill_up(disk)  # Not one byte is left for the recovery either.
            broker.spawn()
            try:
                broker.wait_ready()
            except ServerFailed:
                assert broker.wait_end() == 2, broker.output()
                lines = broker.output().splitlines()
                assert "no space left on the device" in lines[-1], broker.output()
                assert "Traceback" not in broker.output()
                print(f"refused to start: {lines[-1]}")
            else:
                broker.kill()
                print("started on the full disk")
            (disk / "more").unlink()
            (disk / "ballast").unlink()
            broker.start()
            check(disk, events, client, broker)
