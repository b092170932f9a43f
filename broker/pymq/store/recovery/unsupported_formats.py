"""Stores in formats that cannot be read here: recognized by names, before any change.

==========================  =================================================================
file or directory           what it is
==========================  =================================================================
consumequeue/CURRENT        consume queues kept in RocksDB (storeType=defaultRocksDB, 5.x)
config/<table>/CURRENT      topics, groups and offsets kept in RocksDB, likewise
dledger-<id>/data/...       a commit log replicated by DLedger (enableDLegerCommitLog)
batchconsumequeue/t/0/...   queues of batches (topics with queue.type=BatchCQ, 5.x)
==========================  =================================================================

If such a store was opened, it would look empty, or assign offsets a second time.
"""

from collections.abc import Iterator
from pathlib import Path

from pymq.errors import StoreMismatch
from pymq.store.config import StoreConfig
from pymq.store.files import Files

#: RocksDB has a file of this name in each of its directories.
_ROCKSDB_MARK = "CURRENT"


def check_kind(files: Files, config: StoreConfig) -> None:
    """Check that a store directory is in a format that can be opened; nothing is changed.

    Raises:
        StoreMismatch: it is not.
    """
    _check_queues(files, config.queues_path)
    _check_tables(files, config.root_path / "config")
    for entry in files.list_directory(config.root_path):
        if not entry.is_directory:
            continue
        path = config.root_path / entry.name
        if entry.name.startswith("dledger-"):
            _check_dledger(files, path)
        elif entry.name == "batchconsumequeue":
            _check_batches(files, path)


def _check_queues(files: Files, path: Path) -> None:
    if _is_rocksdb(files, path):
        raise StoreMismatch(
            f"{path / _ROCKSDB_MARK}: the consume queues of this store are kept in RocksDB "
            "(storeType=defaultRocksDB), expected directories of topics. Stop its broker cleanly "
            f"and move {path} away: the queues are then rebuilt from {path.parent / 'commitlog'}"
        )


def _check_tables(files: Files, path: Path) -> None:
    for entry in files.list_directory(path):
        table = path / entry.name
        if entry.is_directory and _is_rocksdb(files, table):
            raise StoreMismatch(
                f"{table / _ROCKSDB_MARK}: {entry.name} of this store are kept in RocksDB, "
                "expected JSON files. Write them as JSON with RocketMQ's tool (mqadmin "
                f"rocksDBConfigToJson) to {path}, then move {table} away; without that, topics, "
                "groups and consumer offsets start from scratch"
            )


def _is_rocksdb(files: Files, path: Path) -> bool:
    return any(
        entry.name == _ROCKSDB_MARK and not entry.is_directory
        for entry in files.list_directory(path)
    )


def _check_dledger(files: Files, path: Path) -> None:
    data = next(_files_below(files, path / "data"), None)
    if data is not None:
        raise StoreMismatch(
            f"{data}: this store is a member of a DLedger group (enableDLegerCommitLog), expected "
            "a commit log without its headers. Consume it from its group, or use another "
            "store directory (storePathRootDir)"
        )


def _check_batches(files: Files, path: Path) -> None:
    for topic in files.list_directory(path):
        for data in _files_below(files, path / topic.name):
            raise StoreMismatch(
                f"{data}: topic {topic.name} has queues of batches (queue.type=BatchCQ), expected "
                "none: their messages cannot be read here. Delete the topic with RocketMQ's "
                "tools, or use another store directory (storePathRootDir)"
            )


def _files_below(files: Files, path: Path) -> Iterator[Path]:
    for entry in files.list_directory(path):
        if entry.is_directory:
            yield from _files_below(files, path / entry.name)
        else:
            yield path / entry.name
