"""Tag codes and special properties: what our broker and the official one make of them."""

from __future__ import annotations

import base64
import random
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tests.cluster.test_preencoded_records import preencoded
from tests.interop.conftest import RealCluster
from tests.interop.jvm import JavaClient
from tests.interop.official_store import official_store

from pymq.net.blocking import BlockingChannel
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.codes import RECORD_SIZES_FIELD, SEND_RECORDS, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import decode_properties
from pymq.protocol.record import decode_record
from pymq.store.queues.consume_queue import ENTRY
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
TIMEOUT_S: Final = 60.0
QUEUE_FILE_BYTES: Final = 6_000_000
SEGMENT_BYTES: Final = 1 << 20

#: Properties texts, each a case of its own.
TEXTS: Final = [
    "",
    "TAGS\x01a\x02",
    "TAGS\x01a",
    "TAGS\x01a\x02TAGS\x01\x02",  # the second one is empty and does not count
    "TAGS\x01a\x02TAGS\x01b\x02",
    "TAGS\x01\x02",
    "TAGS",
    "TAGS\x01",
    "KEYS\x01TAGS\x02",
    "MYTAGS\x01a\x02",
    "a\x01TAGS\x01b\x02",  # a value with a mark in it
    "\x01TAGS\x01b\x02",  # no name
    "\x02\x02TAGS\x01b\x02\x02",
    "TAGS\x01b\x01c\x02",
    "DELAY\x010\x02TAGS\x01b\x02",
    "TAGS\x01标签😀\x02",
    "TAGS\x01" + "long" * 40 + "\x02",
    "KEYS\x01k\x02TAGS\x01späť",
]
#: What only a batch can hold: not UTF-8.
MALFORMED: Final = [
    b"TAGS\x01\xff\x02",
    b"TAGS\x01a\xed\xa0\x80b\x02",
    b"TAGS\x01\xed\xa0\x80\xed\xb0\x80\x02",
    b"TAGS\x01\xf0\x9f\x98",
    b"TAGS\x01\xe6\xa0\x02KEYS\x01k\x02",
    b"TAGS\x01\xc0\xaf\xe0\x80\xaf\xf5\x02",
    b"TAGS\x01\xed\xa0\x02",
]


def random_texts(rng: random.Random, count: int) -> list[str]:
    pieces = ["TAGS\x01", "TAGS", "\x01", "\x02", "a", "xyz", "é", "KEYS\x01k\x02", "\x02TAGS\x01"]
    return ["".join(rng.choices(pieces, k=rng.randrange(7))) for _ in range(count)]


class Sender:
    """Sends single requests to one broker, ours or the official one."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self._channel.close()

    def send(
        self,
        topic: str,
        body: bytes | memoryview,
        *,
        properties: str = "",
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        **more: str,
    ) -> Command:
        batch = code == RequestCode.SEND_BATCH_MESSAGE
        now = int(time.time() * 1000)
        fields = SendRequest(
            "pg", topic, "TBW102", 1, 0, sys_flag, now, 0, properties, 0, False, None, batch
        ).to_v2()
        return self._channel.request(Command(code, fields | more, body), TIMEOUT_S)


def codes_in(store: Path, topic: str, count: int) -> list[int]:
    """Return the tag codes of a queue's first entries; waits until they are there."""
    path = store / "consumequeue" / topic / "0" / f"{0:020d}"
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        if path.exists():
            entries = np.fromfile(path, ENTRY, count)
            if len(entries) == count and entries["size"].all():
                return entries["tag_code"].tolist()
        assert time.monotonic() < deadline, f"{topic}: {count} entries are not there"
        time.sleep(0.05)


def send_all(sender: Sender, name: str, texts: list[str], raw: list[bytes]) -> None:
    """Send the same properties one by one and in a batch; what is no text in a batch alone."""
    for number, text in enumerate(texts):
        result = sender.send(f"{name}-single", b"%d" % number, properties=text)
        assert result.code == ResponseCode.SUCCESS, result.remark
    result = sender.send(
        f"{name}-batch",
        encode_batch((0, b"x", text) for text in raw),
        code=RequestCode.SEND_BATCH_MESSAGE,
    )
    assert result.code == ResponseCode.SUCCESS, result.remark


def test_every_way_into_a_queue_gives_the_code_that_the_official_broker_gives(
    tmp_path: Path,
    real_cluster: Callable[[str], RealCluster],
    java_client: Callable[[str], JavaClient],
    seed: int,
) -> None:
    """Live, in a batch, as pre-encoded records, rebuilt by either store, live on 5.3.3."""
    texts = TEXTS + random_texts(random.Random(seed), 150)
    raw = [text.encode() for text in texts] + MALFORMED
    name = f"tags-{uuid.uuid4().hex[:8]}"
    real = real_cluster(VERSION).broker
    sender = Sender(real.address)
    try:
        send_all(sender, name, texts, raw)
    finally:
        sender.close()
    expected = codes_in(real.store_dir, f"{name}-batch", len(raw))
    assert codes_in(real.store_dir, f"{name}-single", len(texts)) == expected[: len(texts)]

    store = tmp_path / "store"
    small = {"segment_bytes": SEGMENT_BYTES, "queue_file_bytes": QUEUE_FILE_BYTES}
    with Cluster(store, store_settings=small) as cluster:
        sender = Sender(cluster.broker_address)
        try:
            send_all(sender, name, texts, raw)
            # The sender lays whole records out; their checks read the same texts once more.
            records = preencoded(f"{name}-records", [(b"x", text) for text in raw])
            result = sender.send(
                f"{name}-records",
                records.body,
                code=SEND_RECORDS,
                **{RECORD_SIZES_FIELD: base64.b64encode(records.sizes).decode()},
            )
            assert result.code == ResponseCode.SUCCESS, result.remark
        finally:
            sender.close()
    counts = {"single": len(texts), "batch": len(raw), "records": len(raw)}

    def check(root: Path, who: str) -> None:
        for kind, count in counts.items():
            found = codes_in(root, f"{name}-{kind}", count)
            wrong = [
                (raw[row], found[row], expected[row])
                for row in range(count)
                if found[row] != expected[row]
            ]
            assert not wrong, f"{kind}, {who}"

    check(store, "live")
    official = tmp_path / "official"
    shutil.copytree(store, official)
    for root in (store, official):
        shutil.rmtree(root / "consumequeue")
    with Cluster(store, store_settings=small):
        check(store, "rebuilt")
    with official_store(
        java_client(VERSION),
        official,
        MappedFileSizeCommitLog=SEGMENT_BYTES,
        MappedFileSizeConsumeQueue=QUEUE_FILE_BYTES,
    ):
        check(official, "rebuilt by the official store")


@pytest.mark.parametrize(
    ("outer", "sys_flag", "inner", "real_code"),
    [
        ("DELAY\x013", 0, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("", 0x4, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("", 0x8, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("", 0xC, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("DELAY\x010", 0, b"", ResponseCode.SUCCESS),
        # Inside of a batch nobody looks in RocketMQ: messages that were to come later come now.
        ("", 0, b"DELAY\x013\x02", ResponseCode.SUCCESS),
        ("", 0, b"TRAN_MSG\x01true\x02", ResponseCode.SUCCESS),
        ("", 0, b"TIMER_DELAY_SEC\x0110\x02", ResponseCode.SUCCESS),
    ],
)
def test_what_a_batch_may_not_ask_for(
    tmp_path: Path,
    real_cluster: Callable[[str], RealCluster],
    outer: str,
    sys_flag: int,
    inner: bytes,
    real_code: int,
) -> None:
    """Both refuse what is said of a batch; ours also what is said in it."""
    body = encode_batch([(0, b"plain", b"a\x01b\x02"), (0, b"special", inner)])
    topic = f"batch-{uuid.uuid4().hex[:8]}"
    answers = []
    with Cluster(tmp_path) as cluster:
        for address in (real_cluster(VERSION).broker.address, cluster.broker_address):
            sender = Sender(address)
            try:
                answers.append(
                    sender.send(
                        topic,
                        body,
                        properties=outer,
                        sys_flag=sys_flag,
                        code=RequestCode.SEND_BATCH_MESSAGE,
                    )
                )
            finally:
                sender.close()
        if answers[1].code != ResponseCode.SUCCESS:
            assert not list((tmp_path / "consumequeue").glob(f"{topic}/*/*"))
    real, ours = answers
    assert real.code == real_code, real.remark
    assert ours.code == (ResponseCode.MESSAGE_ILLEGAL if inner else real_code), ours.remark


#: Properties that say what only a broker may say, or nothing at all.
SAID: Final = [
    *("", "a\x01b", "UNIQ_KEY\x01K\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b"),
    *(
        "MSG_REGION\x01mine\x02TRACE_ON\x01false\x02",
        "CLUSTER\x01other\x02a\x01b",
        "POP_CK\x01x\x02",
    ),
    *("WAIT\x01false\x02junk", "a\x01b\x02a\x01c\x02", "TAGS\x01t\x02KEYS\x01k l\x02DELAY\x010"),
]
SAID_OF_BATCHES: Final = [
    *("", "UNIQ_KEY\x01B\x02WAIT\x01true\x02", "MSG_REGION\x01mine\x02TRACE_ON\x01false"),
    *("TAGS\x01outer\x02INSTANCE_ID\x01i", "CLUSTER\x01other\x02KEYS\x01outer"),
]
INNER: Final = [
    b"UNIQ_KEY\x01I0\x02TAGS\x01inner",
    b"",
    b"MSG_REGION\x01x\x02WAIT\x01false\x02",
    b"CLUSTER\x01x",
]


def stored_properties(store: Path, topic: str, count: int) -> list[dict[str, str]]:
    """Return the properties in a log, by the record's body; waits until they are there."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found: dict[bytes, dict[str, str]] = {}
        for path in sorted((store / "commitlog").iterdir()):
            data, at = path.read_bytes(), 0
            while data[at + 4 : at + 7] == b"\xda\xa3\x20":
                record = decode_record(data, at, verify=True)
                at += record.size
                if record.topic == topic:
                    found[bytes(record.body)] = decode_properties(record.properties)
        if len(found) == count:
            return [found[b"%d" % number] for number in range(count)]
        assert time.monotonic() < deadline, f"{topic}: {len(found)} of {count} records"
        time.sleep(0.05)


def test_what_a_broker_adds_to_properties(
    tmp_path: Path, real_cluster: Callable[[str], RealCluster]
) -> None:
    """Alone, and in batches; but for the id of a batch, which hides those of its messages there."""
    topic = f"added-{uuid.uuid4().hex[:8]}"
    count = len(SAID_OF_BATCHES) * len(INNER)
    real = real_cluster(VERSION).broker
    shown, codes = [], []
    small = {"segment_bytes": SEGMENT_BYTES, "queue_file_bytes": QUEUE_FILE_BYTES}
    with Cluster(tmp_path, store_settings=small) as cluster:
        sites = ((real.address, real.store_dir), (cluster.broker_address, tmp_path))
        for address, store in sites:
            sender = Sender(address)
            try:
                for number, text in enumerate(SAID):
                    assert sender.send(topic, b"%d" % number, properties=text).code == 0
                for number, text in enumerate(SAID_OF_BATCHES):
                    first = number * len(INNER)
                    body = encode_batch(
                        (0, b"%d" % at, inner) for at, inner in enumerate(INNER, first)
                    )
                    code = RequestCode.SEND_BATCH_MESSAGE
                    answer = sender.send(f"{topic}-batch", body, properties=text, code=code)
                    assert answer.code == 0, answer.remark
            finally:
                sender.close()
            singles = stored_properties(store, topic, len(SAID))
            given = [one["UNIQ_KEY"] for one in singles if len(one["UNIQ_KEY"]) > 1]
            assert len(set(given)) == len(given) == len(SAID) - 2
            for one in singles:
                if len(one["UNIQ_KEY"]) > 1:
                    one["UNIQ_KEY"] = "given by the broker"
            batches = stored_properties(store, f"{topic}-batch", count)
            shown.append((singles, batches))
            codes.append(codes_in(store, f"{topic}-batch", count))
    (singles, batches), (our_singles, our_batches) = shown
    assert our_singles == singles
    for number, (one, mine) in enumerate(zip(batches, our_batches, strict=True)):
        assert mine.pop("UNIQ_KEY", None) == (None if number % len(INNER) else "I0")
        one.pop("UNIQ_KEY", None)
        assert mine == one, SAID_OF_BATCHES[number // len(INNER)]
    assert codes[0] == codes[1]
