"""A broker whose disk, clients or consumers do not follow: it stays itself, and says so."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, records, serve
from tests.cluster.fuzz_run import resident_bytes

from pymq.broker.pressure import disk_pressure, write_watch
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.store import Files, FlushMode
from pymq.store.disk_jobs import PrefetchJob

SUSPENDED = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
OK, BUSY = ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY


class FrozenDisk:
    """Makes flushes, and later writes, wait until the test lets go; the loop's own writes fail.

    Nothing is really flushed: how slow this machine's disk is must not matter.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_go = threading.Event()
        self._may_go.set()
        self._loop_thread = threading.get_ident()
        self._writes_wait = False
        self.blocked_loop = 0
        monkeypatch.setattr(Files, "fsync", self._waiting(lambda files, fd: None, lambda: True))
        monkeypatch.setattr(Files, "fsync_directory", lambda files, path: None)
        monkeypatch.setattr(Files, "pwrite", self._waiting(Files.pwrite, lambda: self._writes_wait))

    def _waiting(self, real: Callable[..., Any], waits: Callable[[], bool]) -> Callable[..., Any]:
        def call(files: Files, *arguments: Any) -> Any:
            if waits() and not self._may_go.is_set():
                if threading.get_ident() == self._loop_thread:
                    self.blocked_loop += 1  # for as long as the disk is frozen, without this test
                else:
                    self._may_go.wait(DEADLINE_S)
            return real(files, *arguments)

        return call

    @contextmanager
    def frozen(self) -> Iterator["FrozenDisk"]:
        """Flushes wait; so do writes after ``freeze_writes``."""
        self._may_go.clear()
        try:
            yield self
        finally:
            self._may_go.set()
            self._writes_wait = False

    def freeze_writes(self) -> None:
        self._writes_wait = True


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_frozen_disk_stops_producers_and_nobody_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    flush: FlushMode,
) -> None:
    async def check(peer: Peer) -> None:
        disk = FrozenDisk(monkeypatch)
        assert peer.broker._run is not None
        parts = peer.broker._run._parts
        assert parts is not None
        admission: Any = parts.dispatcher._admission
        assert (await peer.send("T", b"before")).code == OK
        stored, refused = {b"before"}, set()
        # If that was slow, as on a busy machine, the next write would be tried first.
        await wait_until(lambda: not (admission.is_strained or admission._disk.is_suspect))
        with disk.frozen():
            early = asyncio.ensure_future(peer.send("T", b"early"))
            await wait_until(lambda: admission.is_strained)  # a flush has taken long
            disk.freeze_writes()
            first = asyncio.ensure_future(peer.send("T", b"first"))
            await wait_until(lambda: admission._disk.is_busy)
            answer = await first
            assert answer.code == BUSY and "broker busy, start flow control" in str(answer.remark)
            refused.add(b"first")
            for number in range(200):
                body = b"%d" % number + bytes(50_000)
                answer = await peer.send("T", body)
                assert answer.code == BUSY
                assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
                refused.add(body)
            assert (await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).code == OK
            await peer.heartbeat("still here")
            answer = await peer.pull("T", 0)
            assert answer.code == OK and records(answer)[0].body == b"before"
        await early
        assert early.result().code in (OK, ResponseCode.FLUSH_DISK_TIMEOUT)
        stored.add(b"early")
        await wait_until(lambda: not admission._disk.is_busy)
        while (await peer.send("T", b"after")).code != OK:
            await asyncio.sleep(0.05)
        stored.add(b"after")
        end = int(
            fields(await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0))["offset"]
        )
        found = {r.body for r in records(await peer.pull("T", 0, maxMsgNums=end))}
        assert found == stored and not found & refused
        assert disk.blocked_loop == 0

    for name in ("SLOW_S", "SLOW_FLUSH_S"):
        monkeypatch.setattr(disk_pressure, name, 0.1)
    serve(tmp_path, check, flush=flush, page_cache_busy_ms=300)
    assert caplog.text.count("osPageCacheBusyTimeOutMills=300") == 1
    assert caplog.text.count("the disk takes writes again") == 1


@pytest.mark.parametrize("is_long", [False, True])
def test_a_write_that_blocked_everybody_is_said_and_the_next_ones_are_tried_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_long: bool,
) -> None:
    if not is_long:  # whatever else keeps this process waiting meanwhile
        monkeypatch.setattr(write_watch, "LONG_S", DEADLINE_S)

    def hang() -> None:
        time.sleep(0.3)
        until_s = time.monotonic() + DEADLINE_S
        while is_long and "has not returned" not in caplog.text and time.monotonic() < until_s:
            time.sleep(0.05)

    async def check(peer: Peer) -> None:
        real, slow, loop_thread = Files.pwrite, [True], threading.get_ident()

        def pwrite(files: Files, *arguments: Any) -> None:
            if slow and threading.get_ident() == loop_thread:
                slow.clear()
                hang()
            real(files, *arguments)

        monkeypatch.setattr(Files, "pwrite", pwrite)
        for body in (b"slow", b"tried"):
            assert (await peer.send("T", body)).code == OK
        assert [record.body for record in records(await peer.pull("T", 0))] == [b"slow", b"tried"]

    serve(tmp_path, check)
    assert caplog.text.count("and all clients waited for it") == 1
    # Said while it hung: the other line follows when it is over.
    assert caplog.text.partition("and all clients")[0].count("has not returned") == is_long


def test_pulls_beyond_the_limit_are_told_to_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"old")
        held = [
            peer.pull_later("T", 1, sysFlag=SUSPENDED, suspendTimeoutMillis=60_000)
            for _ in range(50)
        ]
        for _ in range(20):
            answer = await peer.pull("T", 1, sysFlag=SUSPENDED, suspendTimeoutMillis=60_000)
            assert answer.code == BUSY and str(answer.remark).startswith("[OVERLOAD]")
        assert (await peer.pull("T", 0)).code == OK  # there is something to answer with
        await peer.send("T", b"new")
        for answer in await asyncio.gather(*held):
            assert answer.code == OK
        again = peer.pull_later("T", 2, sysFlag=SUSPENDED, suspendTimeoutMillis=10)
        assert (await again).code == ResponseCode.PULL_NOT_FOUND

    serve(tmp_path, check, held_pull_count_max=50)
    assert caplog.text.count("pymqHeldPullCountMax") == 1


def test_connections_beyond_the_limit_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        others = [await connect(peer.broker) for _ in range(199)]
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", peer.broker.port)
            reader, writer = await asyncio.open_connection("127.0.0.1", peer.broker.port)
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
            writer.close()
        assert (await others[-1].send("T", b"x")).code == OK
        for other in others:
            other.channel.close()
        await wait_until(lambda: len(peer.broker._ports._servers[0]._connections) == 1)
        assert (await (await connect(peer.broker)).send("T", b"y")).code == OK

    serve(tmp_path, check, connection_count_max=200)
    assert caplog.text.count("as many as may (connection_count_max") == 1


def test_a_client_that_never_reads_is_not_read_either(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for _ in range(40):
            await peer.send("T", bytes(100_000))
        _, writer = await asyncio.open_connection("127.0.0.1", peer.broker.port)
        request = Command(
            RequestCode.PULL_MESSAGE, {k: str(v) for k, v in peer.pull_fields("T", 0).items()}
        )
        frames = encode_frame(request) * 2000
        before = resident_bytes()
        writer.write(frames)
        for _ in range(50):
            assert (await peer.send("T", b"x")).code == OK
        await asyncio.sleep(0.1)
        assert resident_bytes() - before < 64 << 20
        writer.transport.abort()

    serve(tmp_path, check)


def test_reads_that_wait_too_long_for_a_disk_are_given_up_while_sends_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_end, threads = threading.Event(), set[int]()

    def run(job: PrefetchJob) -> None:
        threads.add(threading.get_ident())
        may_end.wait(DEADLINE_S)

    monkeypatch.setattr(PrefetchJob, "run", run)

    async def check(peer: Peer) -> None:
        async def limit(wait_ms: int) -> None:
            text = b"waitTimeMillsInPullQueue=%d" % wait_ms
            assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, text)).code == OK

        try:
            await peer.send("T", b"old")
            reads = [peer.pull_later("T", 0) for _ in range(2)]
            await wait_until(lambda: len(threads) == 2)  # both have begun
            reads += [peer.pull_later("T", 0) for _ in range(6)]
            await limit(100)
            late, pending = await asyncio.wait(reads[2:], timeout=DEADLINE_S)
            assert not pending and not any(read.done() for read in reads[:2])
            for read in late:
                answer = read.result()
                assert answer.code == BUSY
                assert str(answer.remark).startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow")
            assert (await peer.send("T", b"new")).code == OK
            await limit(60_000)
        finally:
            may_end.set()
        for read in reads[:2]:
            assert (await read).code == OK
        assert (await peer.pull("T", 0)).code == OK
        assert threading.get_ident() not in threads

    serve(tmp_path, check, memory_bytes=0, pull_wait_ms=60_000, allow_config_update=True)
    assert caplog.text.count("for a read from the disk to begin") == 1


def test_an_idle_broker_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        held = peer.pull_later("T", 1, sysFlag=SUSPENDED, suspendTimeoutMillis=60_000)
        loop, count = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
            nonlocal count
            count += 1
            return call_at(*arguments, **options)

        monkeypatch.setattr(loop, "call_at", counted)
        rates: list[float] = []
        while not rates or rates[-1] >= 27:  # timers each second
            await asyncio.sleep(0.5)  # first what has begun ends, such as a flush
            begun_s, count = time.monotonic(), 0
            await asyncio.sleep(2)
            rates.append(count / (time.monotonic() - begun_s))
            assert len(rates) < 10, rates
        held.cancel()

    serve(tmp_path, check)
