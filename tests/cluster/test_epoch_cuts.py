"""A broker that comes back with an end of the log that nobody else has keeps it, and follows."""

from pathlib import Path

import pytest
from tests.cluster.running import PATIENT

from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.clock import Clock
from pymq.protocol.message import Message
from pymq.protocol.record import NewRecord
from pymq.store import MessageStore, StoreConfig
from pymq.testing import Cluster

SEGMENT = 1 << 16
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


def test_what_a_broker_has_alone_is_kept_when_it_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"segment_bytes": SEGMENT}
    with (
        Cluster(tmp_path, replicas=2, replication=PATIENT, store_settings=settings) as cluster,
        BlockingClient(cluster.name_server) as client,
    ):
        cluster.wait_in_sync()
        assert client.send(Message("T", b"both")).status is SendStatus.OK
        first = cluster.master()
        cluster.stop_broker(broker_id=first)
        root = tmp_path / "broker-a" / str(first)
        store = MessageStore.open(StoreConfig(root_path=root, segment_bytes=SEGMENT), Clock())
        end = store.log_end
        alone = [NewRecord("T", 0, b"%05d" % number * 100, b"", HOST, 1) for number in range(300)]
        store.put(alone, HOST)
        size = store.log_end - end
        store.close()
        assert size > 2 * SEGMENT
        assert cluster.master() != first
        client.send(Message("T", b"later"))
        cluster.start_broker(broker_id=first)
        cluster.wait_in_sync()
        assert sorted(one.body for one in cluster.messages("T")) == [b"both", b"later"]
        (kept,) = (root / "recovered").iterdir()
        assert kept.name == f"000001-cut-at-{end:020d}" and str(kept) in caplog.text
        data = b"".join(path.read_bytes() for path in sorted(kept.iterdir()))
        assert all(b"%05d" % number * 100 in data for number in range(300))
        # It has the log of the other one from there on, and may be the master.
        cluster.stop_broker(broker_id=cluster.master())
        assert cluster.master() == first
