"""Official stores of kinds that are refused, as official brokers really write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer, free_port
from tests.unit.store.stores import FakeClock, bodies

from pymq import Message
from pymq.client.threaded.producer import Producer
from pymq.errors import StoreMismatch
from pymq.store import MessageStore, StoreConfig

pytestmark = pytest.mark.interop

TOPIC = "T"
COUNT = 5


def write_store(root: Path, version: str, **properties: str | int | bool) -> None:
    """Let an official broker write some messages."""
    require_peers(version)
    with (
        RealNameServer(version) as name_server,
        RealBroker(version, [name_server.address], store_dir=root, **properties) as broker,
        Producer(name_server.address) as producer,
    ):
        for number in range(COUNT):
            producer.send(Message(TOPIC, b"%d" % number))
        broker.kill()  # A clean stop takes 17 s.


def refusal(root: Path) -> str:
    before = sorted(root.rglob("*"))
    with pytest.raises(StoreMismatch) as caught:
        MessageStore.open(StoreConfig(root_path=root), FakeClock())
    assert sorted(root.rglob("*")) == before
    return str(caught.value)


def test_rocksdb(tmp_path: Path) -> None:
    """What the messages propose brings the queues back."""
    root = tmp_path / "store"
    write_store(root, "5.3.3", storeType="defaultRocksDB")
    assert f"{root}/consumequeue/CURRENT: " in refusal(root)
    (root / "consumequeue").rename(tmp_path / "queues")
    for name in ("consumerOffsets", "subscriptionGroups", "topics"):
        assert f"{root}/config/{name}/CURRENT: " in refusal(root)
        (root / "config" / name).rename(tmp_path / name)
    store = MessageStore.open(StoreConfig(root_path=root), FakeClock())
    queues = [queue_id for topic, queue_id in store.queues() if topic == TOPIC]
    found = [body for queue_id in queues for body in bodies(store, TOPIC, queue_id)]
    assert sorted(found) == [b"%d" % number for number in range(COUNT)]
    store.close()


def test_dledger(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_store(
        root,
        "4.9.7",
        enableDLegerCommitLog=True,
        dLegerGroup="broker-a",
        dLegerPeers=f"n0-127.0.0.1:{free_port(0)}",
        dLegerSelfId="n0",
    )
    assert f"{root}/dledger-n0/data/" in refusal(root)
