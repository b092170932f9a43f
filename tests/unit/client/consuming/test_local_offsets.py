"""The offset files of broadcasting consumers: RocketMQ's format, replaced as a whole."""

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pymq.client.consuming import local_offsets
from pymq.client.consuming.consumer import Consumer
from pymq.client.consuming.local_offsets import LocalOffsets, find_file
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue

ONE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 7)
#: As LocalFileOffsetStore of RocketMQ 5.3.3 writes it.
JAVA_TEXT = """{
\t"offsetTable":{{
\t\t"brokerName":"broker-a",
\t\t"queueId":0,
\t\t"topic":"T"
\t}:4,{
\t\t"brokerName":"broker-b",
\t\t"queueId":7,
\t\t"topic":"T"
\t}:9
\t}
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"


def offsets(path: Path) -> LocalOffsets:
    return LocalOffsets(lambda: path)


def backup(path: Path) -> Path:
    return path.with_name("offsets.json.bak")


def text_of(path: Path) -> str:
    return path.read_text()


def written(path: Path, text: str = JAVA_TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(path: Path) -> list[int | None]:
    async def both() -> list[int | None]:
        kept = offsets(path)
        return [await kept.read(ONE), await kept.read(OTHER)]

    return asyncio.run(both())


def test_there_is_none_yet(path: Path) -> None:
    assert read(path) == [None, None]
    assert not path.exists()


def test_what_java_wrote_is_read(path: Path) -> None:
    assert read(written(path)) == [4, 9]


def test_what_is_written_is_read_again_and_the_one_before_is_kept(path: Path) -> None:
    async def test() -> None:
        kept = offsets(path)
        await kept.of(ONE).commit(1)
        assert text_of(path) == (
            '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
        )
        assert not backup(path).exists()
        kept.of(ONE).commit_nowait(2)
        kept.of(OTHER).commit_nowait(5)
        await kept.flush()
        stamp = os.stat(path).st_mtime_ns
        await kept.flush()
        assert os.stat(path).st_mtime_ns == stamp, "nothing has changed"

    asyncio.run(test())
    assert read(path) == [2, 5]
    assert ":1}" in backup(path).read_text()
    path.unlink()
    assert read(path) == [1, None]
    assert sorted(one.name for one in path.parent.iterdir()) == ["offsets.json.bak"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"offsetTable":{"x":1}}'])
def test_a_damaged_file_is_replaced_by_the_copy_of_the_one_before(path: Path, text: str) -> None:
    written(path, text)
    written(backup(path))
    assert read(path) == [4, 9]


def test_two_damaged_files_stop_rather_than_skip(path: Path) -> None:
    written(path, "{")
    with pytest.raises(ConfigurationError, match="no local offset file can be read .*mend it"):
        read(path)
    written(backup(path), "{")
    with pytest.raises(ConfigurationError, match=r"offsets.json: .*offsets.json.bak: "):
        read(path)


def test_queues_of_other_topics_stay_in_the_file(path: Path) -> None:
    async def test() -> None:
        kept = offsets(written(path))
        assert await kept.read(ONE) == 4
        await kept.of(ONE).commit(5)

    asyncio.run(test())
    assert read(path) == [5, 9]


def test_two_who_write_one_file_are_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        kept, other = offsets(path), offsets(path)
        for number in range(3):
            await kept.of(ONE).commit(number)
            os.utime(path, ns=(number, number))  # coarse clocks would hide it
            await other.of(OTHER).commit(10 + number)
            os.utime(path, ns=(99 + number, 99 + number))

    asyncio.run(test())
    assert read(path) == [2, 12], "neither takes the other's away"
    assert caplog.text.count("give each its own Network(instance_name=...)") == 2


def test_a_file_that_cannot_be_written_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in-the-way").write_text("")
    path = tmp_path / "in-the-way" / "g" / "offsets.json"

    async def test() -> None:
        kept = offsets(path)
        kept.of(ONE).commit_nowait(1)
        await kept.flush_now_and_then()
        await kept.flush_now_and_then()
        with pytest.raises(ConfigurationError, match="give another local_offsets_dir"):
            await kept.flush()
        (tmp_path / "in-the-way").unlink()
        await kept.flush_now_and_then()

    asyncio.run(test())
    assert caplog.text.count("cannot be written") == 1
    assert read(path) == [1, None]


def test_a_flush_that_is_cancelled_leaves_its_changes_to_the_next(path: Path) -> None:
    async def test() -> None:
        kept = offsets(path)
        kept.set(ONE, 5)
        flushing = asyncio.ensure_future(kept.flush())
        await asyncio.sleep(0)  # It waits for a thread.
        flushing.cancel()
        await asyncio.wait([flushing])
        assert flushing.cancelled()
        await kept.of(ONE).commit(5)

    asyncio.run(test())
    assert read(path) == [5, None]


def test_a_flush_that_fails_at_what_others_wrote_leaves_its_changes_to_the_next(
    path: Path,
) -> None:
    async def test() -> None:
        kept = offsets(path)
        await kept.of(ONE).commit(4)
        written(path, "{")
        with pytest.raises(ConfigurationError, match="no local offset file can be read"):
            await kept.of(ONE).commit(5)
        written(path)
        await kept.of(ONE).commit(5)

    asyncio.run(test())
    assert read(path) == [5, 9]


def test_a_flush_that_is_cancelled_ends_with_its_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()
    replace = local_offsets._replace

    def slow(path: Path, text: bytes) -> tuple[int, int] | None:
        begun.set()
        assert may_go_on.wait(60)
        try:
            return replace(path, text)
        finally:
            ended.set()

    async def test() -> None:
        kept = offsets(path)
        await kept.of(ONE).commit(4)
        kept.set(ONE, 5)
        with monkeypatch.context() as patched:
            patched.setattr(local_offsets, "_replace", slow)
            flushing = asyncio.ensure_future(kept.flush())
            assert await asyncio.to_thread(begun.wait, 60)
            flushing.cancel()
            await asyncio.wait([flushing], timeout=0.05)
            is_done = flushing.done()
            may_go_on.set()
            assert not is_done, "another flush would write the same file"
            await asyncio.wait([flushing])
            assert flushing.cancelled() and await asyncio.to_thread(ended.wait, 60)
        await kept.of(ONE).commit(6)

    asyncio.run(test())
    assert read(path) == [6, None]
    assert "changed by somebody else" not in caplog.text


def test_who_is_cancelled_does_not_hear_that_the_file_could_not_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the event loop, which would log it as an error that nobody has seen."""
    begun, may_go_on = threading.Event(), threading.Event()

    def fail(path: Path, text: bytes) -> tuple[int, int] | None:
        begun.set()
        assert may_go_on.wait(60)
        raise OSError("no space left")

    async def test() -> None:
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))
        kept = offsets(path)
        kept.set(ONE, 5)
        with monkeypatch.context() as patched:
            patched.setattr(local_offsets, "_replace", fail)
            flushing = asyncio.ensure_future(kept.flush())
            assert await asyncio.to_thread(begun.wait, 60)
            flushing.cancel()
            may_go_on.set()
            await asyncio.wait([flushing])
            assert flushing.cancelled()
            del flushing
        gc.collect()
        assert not unseen
        await kept.flush()

    asyncio.run(test())
    assert read(path) == [5, None]


@pytest.mark.parametrize(
    "directory", [None, "~/offsets", "~nobody-there/offsets"], ids=["default", "own", "foreign"]
)
def test_a_member_without_a_home_directory_is_told_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str | None
) -> None:
    """Not by every queue, which would then not be read."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # a user that the system does not know

    def made(**options: Any) -> Consumer:
        return Consumer("127.0.0.1:9876", "g", **options)

    with pytest.raises(ConfigurationError, match="home directory: set HOME.*local_offsets_dir"):
        made(message_model="BROADCASTING", local_offsets_dir=directory)
    made(message_model="BROADCASTING", local_offsets_dir=tmp_path)
    made()


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Which address of this machine each name server sees; those that are missing see none."""
    found: dict[str, str] = {}

    def own_addresses(peers: Iterable[str]) -> list[str]:
        return [found[peer] for peer in peers if peer in found]

    monkeypatch.setattr(local_offsets, "own_addresses", own_addresses)
    return found


def found(root: Path, client_id: str, *name_servers: str) -> str:
    """Return the directory in which a member finds its file."""
    path = find_file(root, client_id, "g", name_servers)
    assert (path.parent.name, path.name) == ("g", "offsets.json")
    return str(path.parent.parent.relative_to(root))


def kept(root: Path, client_id: str, *, age_s: int = 0, group: str = "g") -> None:
    path = written(root / client_id / group / "offsets.json")
    moment_s = time.time() - age_s
    os.utime(path, (moment_s, moment_s))


def test_the_file_is_found_whichever_name_server_answers(
    tmp_path: Path, routes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each sees another address of this machine, and the id has that of the one that answered."""
    routes |= {"near:9876": "127.0.0.1", "far:9876": "10.0.0.1"}
    both = ("near:9876", "far:9876")
    assert found(tmp_path, "127.0.0.1@one", *both) == "127.0.0.1@one"
    kept(tmp_path, "127.0.0.1@one", age_s=60)
    assert found(tmp_path, "10.0.0.1@one", *both) == "127.0.0.1@one"
    kept(tmp_path, "10.0.0.1@one")  # the later one, from before both were looked for
    for client_id in ("127.0.0.1@one", "10.0.0.1@one"):
        assert found(tmp_path, client_id, *both) == "10.0.0.1@one"
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_the_copy_of_the_one_before_counts_as_the_file(
    tmp_path: Path, routes: dict[str, str]
) -> None:
    routes["far:9876"] = "10.0.0.1"
    kept(tmp_path, "10.0.0.1@one")
    path = tmp_path / "10.0.0.1@one" / "g" / "offsets.json"
    path.rename(backup(path))
    assert found(tmp_path, "127.0.0.1@one", "far:9876") == "10.0.0.1@one"


def test_a_file_that_others_may_have_written_is_named_and_left_alone(
    tmp_path: Path, routes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of another machine, or of this one's member of another cluster: nobody can tell."""
    routes["near:9876"] = "127.0.0.1"
    kept(tmp_path, "10.0.0.1@one")
    kept(tmp_path, "10.0.0.2@two")
    kept(tmp_path, "10.0.0.3@one", group="other")
    assert found(tmp_path, "127.0.0.1@one", "near:9876") == "127.0.0.1@one"
    (said,) = caplog.messages
    assert "127.0.0.1@one" in said and "10.0.0.1@one" in said and "from_where" in said
    assert "10.0.0.2" not in said and "10.0.0.3" not in said
    kept(tmp_path, "127.0.0.1@one")
    assert found(tmp_path, "127.0.0.1@one", "near:9876") == "127.0.0.1@one"
    assert len(caplog.messages) == 1


def test_an_id_is_taken_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Names are no patterns, and a unit is a part of the name."""
    assert found(tmp_path, "127.0.0.1@[one]@unit", "127.0.0.1:9") == "127.0.0.1@[one]@unit"
    kept(tmp_path, "10.0.0.1@o@unit")
    assert found(tmp_path, "127.0.0.1@[one]@unit") == "127.0.0.1@[one]@unit"
    assert not caplog.messages
    kept(tmp_path, "10.0.0.1@[one]@unit")
    assert found(tmp_path, "127.0.0.1@[one]@unit") == "127.0.0.1@[one]@unit"
    assert "10.0.0.1@[one]@unit" in caplog.text


def test_the_time_of_a_file_may_be_any(tmp_path: Path, routes: dict[str, str]) -> None:
    """What comes out of an image or an archive may have none that is true."""
    routes["far:9876"] = "10.0.0.1"
    kept(tmp_path, "10.0.0.1@one")
    os.utime(tmp_path / "10.0.0.1@one" / "g" / "offsets.json", ns=(0, 0))
    assert found(tmp_path, "127.0.0.1@one", "far:9876") == "10.0.0.1@one"


@pytest.mark.parametrize("name", ["file/in-the-way", "long" * 100])
def test_a_directory_that_cannot_be_looked_into_is_named(
    tmp_path: Path, routes: dict[str, str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """As that of a home directory which belongs to another user."""
    (tmp_path / "file").write_text("")

    async def test() -> None:
        kept = LocalOffsets(lambda: find_file(tmp_path / name, "127.0.0.1@one", "g", ()))
        with pytest.raises(ConfigurationError, match=f"{name}.*give another local_offsets_dir"):
            await kept.read(ONE)
        kept.set(ONE, 5)
        await kept.flush_now_and_then()

    asyncio.run(test())
    assert "give another local_offsets_dir" in caplog.text
