"""The official ``DefaultMessageStore`` in a JVM, on a directory that our store wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.jvm import JavaClient
from tests.interop.processes import PeerFailed


@contextmanager
def official_store(client: JavaClient, root: Path, **settings: Any) -> Iterator[Any]:
    """Load and recover a store with the broker's own classes; 5.x only.

    Args:
        client: the JVM; its jars hold the broker, too.
        root: the store's directory; it is changed.
        settings: of ``MessageStoreConfig``, by the names of its setters without ``set``.

    Raises:
        PeerFailed: it does not load.
    """
    rocketmq = client.jvm.org.apache.rocketmq
    config = rocketmq.store.config.MessageStoreConfig()
    config.setStorePathRootDir(str(root))
    config.setStorePathCommitLog(str(root / "commitlog"))
    config.setTimerWheelEnable(False)
    for name, value in settings.items():
        getattr(config, f"set{name}")(value)
    store = rocketmq.store.DefaultMessageStore(
        config,
        rocketmq.store.stats.BrokerStatsManager("cluster", False),
        None,
        rocketmq.common.BrokerConfig(),
        client.jvm.java.util.concurrent.ConcurrentHashMap(),
    )
    if not store.load():
        raise PeerFailed(f"{root}: the official store does not load it:\n{client.output()}")
    try:
        yield store
    finally:
        store.shutdown()
