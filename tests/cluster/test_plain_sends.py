"""Runs of plain sends against the same sends one by one: same answers, same records."""

import asyncio
import random
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.unit.protocol.test_plain_sends import frame

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.plain_sends import PlainSendStore
from pymq.net.dispatcher import RequestRun
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder
from pymq.protocol.names import revive_topic
from pymq.protocol.plain_sends import PlainSends
from pymq.protocol.record import decode_records
from pymq.protocol.unique_keys import UniqueKeys
from pymq.store import FlushMode, StoreConfig
from pymq.store.inspection import check_store

DEADLINE_S = 120.0
PROPERTIES = (
    "", "a\x01b", "a\x01b\x02", "KEYS\x01k\x02UNIQ_KEY\x01X\x02WAIT\x01true\x02",
    "TAGS\x01t\x02WAIT\x01true", "TAGS\x01\u4e2d\u6587\x02", "TAGS\x01a\x02TAGS\x01b\x02",
    "WAIT\x01TRUE\x02", "WAIT\x01false\x02", "WAIT\x01", 'quoted\x01"\x02', "back\x01\\\x02",
    "CLUSTER\x01other\x02", "MSG_REGION\x01x\x02",
    "TRACE_ON\x01false\x02a\x01b", "POP_CK\x01c\x02x\x01y", "DELAY\x0118\x02", "DELAY\x010\x02",
    "empty\x01\x02x\x01y\x02", "__CRC32#\x01abc\x02",
    "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02",
)  # fmt: skip
#: What all messages of a run may have, or nearly all.
DELAYS = ("",) * 12 + (
    "DELAY\x0117\x02", "DELAY\x0118\x02", "DELAY\x0119\x02", "DELAY\x0100018\x02",
    "DELAY\x01\x02", "DELAY\x01-1\x02", "DELAY\x0116\x02DELAY\x0118\x02",
    "DELAY\x0118\x02REAL_TOPIC\x01x\x02", "DELAY\x0118\x02TIMER_DELAY_SEC\x011\x02",
)  # fmt: skip


def sends(rng: random.Random) -> list[bytes]:
    """Return mostly plain sends, with whatever else a client might say in between."""
    frames = []
    opaque = 0
    while len(frames) < 2500:
        common: dict[str, Any] = {
            "b": rng.choice(("T", "T", "T", "U", "no/topic", "%RETRY%g", "Narrow", "Closed")),
            "l": rng.choice((None, None, "16")),
            "n": rng.choice((None, "broker-a")),
            "f": rng.choice(("0", "0", "0", "1", "769", "2", "4", "16", "128")),
        }
        is_plain = rng.random() < 0.6
        if is_plain:
            common.update(b=rng.choice("TTU"), f=rng.choice(("0", "0", "1")))
        delays = rng.choice(([rng.choice(DELAYS)], ["DELAY\x0117\x02", "DELAY\x0118\x02"]))
        for _ in range(rng.randrange(1, 150 if is_plain else 20)):
            changes = dict(common, e=str(rng.randrange(4)), h=str(rng.randrange(2)))
            changes["g"] = str(1700000000000 + opaque)
            changes["i"] = f"UNIQ_KEY\x01{opaque}\x02{rng.choice(delays)}WAIT\x01true\x02"
            size = rng.randrange(200)
            if not is_plain or rng.random() < 0.02:
                changes["i"] = rng.choice(PROPERTIES)
                changes["e"] = rng.choice(("0", "1", "3", "-1", "4", "99"))
                size = rng.choice((0, 1, 200, 5000))
            body = rng.randbytes(size)
            frames.append(frame(opaque, body, **changes))
            opaque += 1
    return frames


async def outcome(root: Path, data: bytes, cuts: list[int], count: int) -> tuple[Any, Any]:
    """Send it all; return the answers by opaque number, and the records by topic and queue."""
    config = BrokerConfig(
        name="broker-a",
        listen_port=0,
        vip_port=False,
        # A disk or a machine that is busy must not matter.
        fast_failure=False,
        page_cache_busy_ms=60_000,
        sync_flush_timeout_ms=60_000,
    )
    store = StoreConfig(root_path=root, flush_mode=FlushMode.SYNC, message_bytes_max=4096)
    broker = Broker(config, store)
    await broker.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        for topic, queues, perm in (("T", 4, 6), ("U", 4, 6), ("Narrow", 2, 6), ("Closed", 4, 4)):
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
                "writeQueueNums": str(queues), "perm": str(perm),
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            await ask(reader, writer, Command(17, fields, opaque=1 << 30))
        decoder, answers = FrameDecoder(), dict[int, Command]()

        async def read() -> None:
            while len(answers) < count:
                for answer in decoder.feed(await reader.read(1 << 16)):
                    assert isinstance(answer, Command)
                    assert answer.opaque not in answers
                    answers[answer.opaque] = answer

        reading = asyncio.ensure_future(read())
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            writer.write(data[start:end])
            await asyncio.sleep(0)
        await asyncio.wait_for(reading, DEADLINE_S)
        writer.close()
        prefix = broker.address
    finally:
        await broker.close()
    assert prefix
    report = check_store(store)
    assert report.is_whole, list(report.findings.groups())
    return readable(answers), records(root)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: Command) -> None:
    from pymq.protocol.framing import encode_frame

    writer.write(encode_frame(command))
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    await reader.readexactly(length)


def readable(answers: dict[int, Command]) -> dict[int, Any]:
    """Return what answers say, without the broker's port in message ids."""
    found = {}
    for opaque, answer in answers.items():
        fields = dict(answer.fields or {})
        fields["msgId"] = fields.get("msgId", "")[16:]
        remark = answer.remark and answer.remark[:60]
        found[opaque] = (answer.code, remark, fields if answer.code in (0, 10) else None)
    return found


def records(root: Path) -> dict[tuple[str, int], list[Any]]:
    queues: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        for one in decode_records(data[: data.find(b"\x00" * 200)]):
            queues[one.topic, one.queue_id].append(
                (
                    one.queue_offset, one.physical_offset, one.body, one.properties, one.flag,
                    one.sys_flag, one.born_timestamp, one.reconsume_times, one.body_crc, one.size,
                )
            )  # fmt: skip
    return queues


@pytest.mark.parametrize("salt", range(2))
def test_runs_of_sends_and_single_sends_have_the_same_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salt: int
) -> None:
    seed = 20261122 + salt
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames = sends(rng)
    data = b"".join(frames)
    cuts = sorted(rng.sample(range(1, len(data)), 60))
    taken, delayed = [], 0
    real = PlainSendStore.take

    def counting(self: PlainSendStore, run: RequestRun[PlainSends]) -> bool:
        nonlocal delayed
        is_taken = real(self, run)
        delayed += is_taken and b"DELAY" in (run.plain.properties or b"")
        taken.append(len(run.plain) if is_taken else 0)
        return is_taken

    monkeypatch.setattr(PlainSendStore, "take", counting)
    # A disk that hangs for a moment would make the broker look at each send by itself.
    for limit in ("SLOW_S", "SLOW_FLUSH_S"):
        monkeypatch.setattr(f"pymq.broker.pressure.disk_pressure.{limit}", 60.0)
    monkeypatch.setattr("random.Random.randrange", lambda self, *limits: 0)
    monkeypatch.setattr(UniqueKeys, "next", lambda self, now_ms: "given")
    together = asyncio.run(outcome(tmp_path / "runs", data, cuts, len(frames)))
    assert sum(taken) > len(frames) / 20 and taken.count(0) > 10 and delayed > 5
    monkeypatch.setattr(PlainSendStore, "take", lambda self, run: False)
    one_by_one = asyncio.run(outcome(tmp_path / "single", data, cuts, len(frames)))
    assert together[0] == one_by_one[0]
    assert together[1].keys() == one_by_one[1].keys()
    for queue, stored in one_by_one[1].items():
        assert together[1][queue] == stored, queue


def test_a_run_of_sends_to_a_topic_of_the_broker_is_refused(tmp_path: Path) -> None:
    topic = revive_topic("DefaultCluster")
    properties = "UNIQ_KEY\x01a\x02WAIT\x01true\x02"
    data = b"".join(frame(n, b"x", b=topic, e="0", i=properties) for n in range(100))
    data += frame(100, b"x", b="T", e="0", i=properties)
    answers, stored = asyncio.run(outcome(tmp_path, data, [], 101))
    assert answers.pop(100)[0] == ResponseCode.SUCCESS
    assert {code for code, _, _ in answers.values()} == {ResponseCode.NO_PERMISSION}
    assert [*stored] == [("T", 0)]
