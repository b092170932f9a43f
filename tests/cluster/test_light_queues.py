"""Light queues (LMQ) over a real socket: sends, pulls, offsets, administration, restarts."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.test_delayed_messages import Later
from tests.cluster.transactional import COMMIT, end, half_properties, prepare

from pymq.protocol.batch_body import encode_batch
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.message import decode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS
from pymq.store import StoreConfig
from pymq.store.inspection import check_store

ON: dict[str, Any] = {"light_queues": True, "multi_dispatch": True}
A, B = "%LMQ%a", "%LMQ%b"
GROUP = "%LMQ%g"


def naming(*names: str, more: str = "") -> str:
    return f"{DISPATCH}\x01{','.join(names)}\x02{more}"


async def bodies(peer: Peer, topic: str, **changes: Any) -> list[bytes]:
    answer = await peer.pull(topic, 0, **changes)
    return [one.body for one in records(answer)] if answer.code == ResponseCode.SUCCESS else []


async def offset(peer: Peer, code: int, **more: Any) -> str | None:
    answer = await peer.ask(code, queueId=more.pop("queueId", 0), **more)
    return (answer.fields or {}).get("offset")


def test_messages_are_pulled_from_light_queues(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for number, names in enumerate(([A, B], [A], [B], [])):
            properties = naming(*names) if names else "k\x01v"
            answer = await peer.send("Par", b"%d" % number, properties=properties)
            assert (answer.code, fields(answer)["queueOffset"]) == (0, str(number))
        assert await bodies(peer, A) == await bodies(peer, A, consumerGroup=GROUP) == [b"0", b"1"]
        assert await bodies(peer, B, consumerGroup=GROUP) == [b"0", b"2"]
        one = records(await peer.pull(B, 1))[0]
        assert (one.topic, one.queue_id, one.queue_offset) == ("Par", 0, 2)
        assert decode_properties(one.properties)[OFFSETS] == "1"
        assert await offset(peer, RequestCode.GET_MAX_OFFSET, topic=A) == "2"
        assert await offset(peer, RequestCode.GET_MIN_OFFSET, topic=A) == "0"
        for queue, at, code in (
            (0, 2, ResponseCode.PULL_NOT_FOUND),
            (0, 9, ResponseCode.PULL_OFFSET_MOVED),
            (1, 0, ResponseCode.INVALID_PARAMETER),
        ):
            assert (await peer.pull(A, at, queueId=queue)).code == code
        assert (await peer.pull("%LMQ%none", 0)).code == ResponseCode.PULL_NOT_FOUND

    serve(tmp_path, check, store=ON)
    report = check_store(StoreConfig(root_path=tmp_path))
    assert report.is_whole and not list(report.findings.groups())
    assert "%LMQ%" not in (tmp_path / "config" / "topics.json").read_text()
    assert "%LMQ%" not in (tmp_path / "config" / "subscriptionGroup.json").read_text()


def test_a_held_pull_of_a_light_queue_is_woken(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        wait = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        held = peer.pull_later(A, 0, sysFlag=wait, suspendTimeoutMillis=20_000)
        await peer.send("Par", b"other", properties=naming(B))
        await peer.send("Par", b"wanted", properties=naming(A))
        assert [one.body for one in records(await held)] == [b"wanted"]

    serve(tmp_path, check, store=ON)


@pytest.mark.parametrize(
    "names", [["other"], [A, "other"], ["", A], ["%LMQ%x/y"], ["%LMQ%" + "l" * 251], [","]]
)
def test_names_that_cannot_be_listed_are_refused(tmp_path: Path, names: list[str]) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("Par", b"m", properties=naming(*names))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert DISPATCH in (answer.remark or "")
        assert (await peer.send("Par", b"m", properties=f"{DISPATCH}\x01 \x02")).code == 0
        assert (await peer.send(A, b"m", properties=naming(B))).code == 13
        assert await bodies(peer, A) == []

    serve(tmp_path, check, store=ON)


def test_batches_cannot_be_listed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        code = RequestCode.SEND_BATCH_MESSAGE
        mark = naming(A).encode()
        inner = encode_batch([(0, b"1", b"k\x01v\x02"), (0, b"2", b"k\x01v\x02" + mark)])
        assert (await peer.send("Par", inner, code=code)).code == ResponseCode.MESSAGE_ILLEGAL
        outer = encode_batch([(0, mark, b"k\x01v\x02")])
        answer = await peer.send("Par", outer, code=code, properties=naming(A))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send("Par", outer, code=code)).code == 0  # it is in the body

    serve(tmp_path, check, store=ON)


def test_there_are_no_more_light_queues_than_allowed(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("Par", b"1", properties=naming(A, B))).code == 0
        answer = await peer.send("Par", b"2", properties=naming(A, "%LMQ%c"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "maxLmqConsumeQueueNum" in (answer.remark or "")
        assert (await peer.send("Par", b"3", properties=naming(B))).code == 0
        assert await bodies(peer, B) == [b"1", b"3"]

    serve(tmp_path, check, store=ON | {"light_queue_count_max": 2})


def test_delayed_and_transactional_messages_are_listed_when_they_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_ms, later = 600_000, Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await create_topic(peer, "Par", queues=1)
        wait = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        await peer.send("Par", b"delayed", properties=naming(A, more="DELAY\x011\x02"))
        properties = half_properties(1, naming(A))
        half = await prepare(peer, "Par", b"half", 1, properties=properties)
        assert await bodies(peer, A) == []
        assert (await end(peer, half, COMMIT)).code == 0
        assert await bodies(peer, A) == [b"half"]
        await later.advance(peer, delay_ms)
        held = await peer.pull(A, 1, sysFlag=wait, suspendTimeoutMillis=20_000)
        assert [one.body for one in records(held)] == [b"delayed"]
        assert decode_properties(records(held)[0].properties)[OFFSETS] == "1"

    store = ON | {"delay_levels_ms": (delay_ms,)}
    serve(tmp_path, check, store=store, transaction_timeout_ms=60_000)


def test_offsets_are_kept_in_two_files(tmp_path: Path) -> None:
    places = [(GROUP, A, "2"), ("g", A, "1"), (GROUP, "Par", "4"), ("g", "Par", "3")]

    async def commit_all(peer: Peer) -> None:
        await peer.send("Par", b"1", properties=naming(A))
        await peer.pull("Par", 0)  # makes the group
        for group, topic, at in places:
            answer = await peer.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group, topic=topic, queueId=0, commitOffset=at,
            )  # fmt: skip
            assert answer.code == 0, answer.remark

    def check_of(expected: dict[str, str | None]) -> Any:
        async def check(peer: Peer) -> None:
            for group, topic, at in places:
                found = await offset(
                    peer,
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    consumerGroup=group,
                    topic=topic,
                    setZeroIfNotFound=False,
                )
                assert found == expected.get(at, at), (group, topic)

        return check

    serve(tmp_path, commit_all, store=ON)
    light = json.loads((tmp_path / "config" / "lmqConsumerOffset.json").read_text())
    plain = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert light["lmqOffsetTable"] == {f"{A}@{GROUP}": 2}
    others = {f"{A}@g": {"0": 1}, f"Par@{GROUP}": {"0": 4}, "Par@g": {"0": 3}}
    assert light["offsetTable"] == plain["offsetTable"]
    assert others.items() <= plain["offsetTable"].items()
    serve(tmp_path, check_of({}), store=ON)
    serve(tmp_path, check_of({}), store={})
    serve(tmp_path, check_of({}), store=ON)
    # Light queues are switched on where RocketMQ had others before.
    (tmp_path / "config" / "lmqConsumerOffset.json").unlink()
    (tmp_path / "config" / "lmqConsumerOffset.json.bak").unlink(missing_ok=True)
    serve(tmp_path, check_of({"2": None}), store=ON)


def test_light_queues_are_deleted_and_cleaned(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for number in range(3):
            await peer.send("Par", b"%d" % number, properties=naming(A, B))
        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert len(await bodies(peer, A)) == len(await bodies(peer, B)) == 3
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=A)).code == 0
        assert await bodies(peer, A) == []
        await peer.send("Par", b"again", properties=naming(A, B))
        assert await bodies(peer, A) == [b"again"] and len(await bodies(peer, B)) == 4
        assert (await create_topic(peer, A)).code == 0  # and nothing comes of it
        assert (await peer.pull(A, 0, queueId=1)).code == ResponseCode.INVALID_PARAMETER

    async def check_again(peer: Peer) -> None:
        assert await bodies(peer, A) == [b"again"] and len(await bodies(peer, B)) == 4

    serve(tmp_path, check, store=ON)
    serve(tmp_path, check_again, store=ON)


def test_nothing_is_different_unless_it_is_enabled(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("Par", b"m", properties=naming(A, "other"))).code == 0
        assert (await peer.pull(A, 0)).code == ResponseCode.TOPIC_NOT_EXIST
        assert not (tmp_path / "config" / "lmqConsumerOffset.json").exists()

    serve(tmp_path, check)
