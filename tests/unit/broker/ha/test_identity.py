"""The files that say who a broker is in its group."""

from pathlib import Path

import pytest

from pymq.broker.ha.identity import NAME, TEMPORARY_NAME, Identity, IdentityFiles
from pymq.errors import ConfigurationError, CorruptRecord, StoreMismatch

OURS = Identity("c", "b", 2)
APPLIED = Identity("c", "b", 3, "127.0.0.1:10911;1700000000000")


def files(root: Path) -> IdentityFiles:
    return IdentityFiles(root / "store", cluster="c", name="b")


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert files(tmp_path).load() is None


def test_the_files_are_those_of_rocketmq(tmp_path: Path) -> None:
    files(tmp_path).save(APPLIED)
    temporary = tmp_path / "store" / TEMPORARY_NAME
    assert temporary.read_bytes() == b"c#b#3#127.0.0.1:10911;1700000000000"
    assert files(tmp_path).load() == APPLIED
    files(tmp_path).save(OURS)
    assert (tmp_path / "store" / NAME).read_bytes() == b"c#b#2"
    assert not temporary.exists()
    assert files(tmp_path).load() == OURS


def test_an_identity_counts_more_than_an_application(tmp_path: Path) -> None:
    files(tmp_path).save(OURS)
    files(tmp_path).save(APPLIED)
    assert files(tmp_path).load() == OURS
    files(tmp_path).forget_application()
    files(tmp_path).forget_application()
    assert not (tmp_path / "store" / TEMPORARY_NAME).exists()


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    files(tmp_path).save(APPLIED)
    (tmp_path / "store" / NAME).write_bytes(b"")
    assert files(tmp_path).load() == APPLIED


@pytest.mark.parametrize("data", [b"c#b", b"c#b#x", b"c#b#2#more", b"c#b#-1", b"\xff\xfe"])
def test_what_cannot_be_read_is_not_guessed(tmp_path: Path, data: bytes) -> None:
    files(tmp_path).save(OURS)
    (tmp_path / "store" / NAME).write_bytes(data)
    with pytest.raises(CorruptRecord, match="expected cluster#name#id"):
        files(tmp_path).load()


@pytest.mark.parametrize("other", [("x", "b"), ("c", "x")])
def test_the_store_of_another_broker_is_refused(tmp_path: Path, other: tuple[str, str]) -> None:
    files(tmp_path).save(OURS)
    cluster, name = other
    with pytest.raises(StoreMismatch, match="is that of broker b of cluster c"):
        IdentityFiles(tmp_path / "store", cluster=cluster, name=name).load()


@pytest.mark.parametrize(
    ("cluster", "name", "key"),
    [
        ("c#1", "b", "brokerClusterName='c#1'"),
        ("c", "b#1", "brokerName='b#1'"),
        (" c", "b", "brokerClusterName=' c'"),
        ("c", "b\n", "brokerName="),
    ],
)
def test_names_that_could_not_be_read_back_are_refused(
    tmp_path: Path, cluster: str, name: str, key: str
) -> None:
    """RocketMQ's file has no way to write them."""
    with pytest.raises(ConfigurationError, match=key):
        IdentityFiles(tmp_path / "store", cluster=cluster, name=name)
