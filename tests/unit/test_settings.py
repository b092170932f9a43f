"""Properties text and configuration classes.

The expected values of ``TEXTS`` are what ``java.util.Properties.load`` (OpenJDK 17) makes of them.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import ConfigurationError
from pymq.known_keys import ROCKETMQ_KEYS
from pymq.settings import (
    format_properties,
    from_properties,
    keys_of,
    live_keys,
    parse_properties,
    review_keys,
    setting,
    take_over,
    to_properties,
    with_changes,
)

TEXTS = [
    ("", {}),
    ("a=1\nb=2", {"a": "1", "b": "2"}),
    ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
    ("  a \t=\f 1 ", {"a": "1 "}),
    ("a:1\nb 2\nc", {"a": "1", "b": "2", "c": ""}),
    ("a = = 1", {"a": "= 1"}),
    ("# a=1\n  ! b=2\nc=#3", {"c": "#3"}),
    ("# not continued \\\na=1", {"a": "1"}),
    ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
    ("a=1\\\n# part of it", {"a": "1# part of it"}),
    ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    ("a=1\\\n\\\n\\\\\\\n\\\\\nb=2", {"a": "1\\\\", "b": "2"}),
    ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    ("\\\n# a comment\na=1", {"a": "1"}),
    ("a=1\\", {"a": "1"}),
    ("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}),
    ("a=\\t\\n\\r\\f\\q\\u00e9\\\\", {"a": "\t\n\r\fq\u00e9\\"}),
    ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
    ("dir=C:\\store", {"dir": "C:store"}),
    ("a=1\na=2", {"a": "2"}),
    ("=1", {"": "1"}),
    ("a=x\x85y\u2028z\x0b", {"a": "x\x85y\u2028z\x0b"}),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_text_reads_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["b=1\na=\\u12", "b=1\na=\\u12g4", "b=1\na=\\ud83d", "b=1\n\\u"])
def test_a_bad_escape_names_source_and_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match="broker.conf, line 2: "):
        parse_properties(text, source="broker.conf")


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5))
def test_what_is_written_reads_back(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert text.isascii()
    assert parse_properties(text) == properties
    assert len(text.splitlines()) == len(properties)


@given(st.text(alphabet="ab=: \t\\\n\r#!u0041é", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_properties(text)
    except ConfigurationError:
        assert "\\u" in text


# ------------------------------------------------------------------------------- dataclasses


class Flush(Enum):
    SYNC_FLUSH = 1
    ASYNC_FLUSH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    segment_bytes: int = setting("mappedFileSizeCommitLog", "mapedFileSizeCommitLog", default=1024)
    flush: Flush = setting("flushDiskType", default=Flush.SYNC_FLUSH)
    root: Path | None = setting("storePathRootDir", default=None)
    log: Path = setting("storePathCommitLog", default=Path("log"))
    ratio: float = setting("diskRatio", default=0.5)
    hours: int = setting(
        "deleteWhen", parse=lambda text: int(text, 10), format=lambda n: f"{n:02}", default=4
    )
    by_code_only: int = 7

    def __post_init__(self) -> None:
        if self.segment_bytes < 16:
            raise ConfigurationError(f"mappedFileSizeCommitLog={self.segment_bytes}: too small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    name: str = field(metadata={"key": "brokerName"})
    auto_create: bool = setting("autoCreateTopicEnable", default=True)
    name_servers: tuple[str, ...] = setting("namesrvAddr", default=())
    limit: int | None = setting("limit", default=None)


def test_several_classes_take_their_keys_from_one_file() -> None:
    properties = parse_properties(
        "brokerName = broker-a \nnamesrvAddr=h1:1; h2:2,h3:3;\nautoCreateTopicEnable=FALSE\n"
        "mapedFileSizeCommitLog=4096\nflushDiskType=async_flush\nstorePathRootDir=/data\n"
        "diskRatio=.75\ndeleteWhen=08\nlimit=\n"
    )
    assert from_properties(Broker, properties, source="f") == Broker(
        name="broker-a", auto_create=False, name_servers=("h1:1", "h2:2", "h3:3")
    )
    assert from_properties(Store, properties, source="f") == Store(
        segment_bytes=4096, flush=Flush.ASYNC_FLUSH, root=Path("/data"), ratio=0.75, hours=8
    )


def test_the_key_wins_over_its_alias() -> None:
    properties = {"mapedFileSizeCommitLog": "64", "mappedFileSizeCommitLog": "128"}
    assert from_properties(Store, properties, source="f").segment_bytes == 128


WRONG = [
    ("mappedFileSizeCommitLog", "1g", "expected a whole number"),
    ("mappedFileSizeCommitLog", "1_000", "expected a whole number"),
    ("mapedFileSizeCommitLog", "", "expected a whole number"),
    ("flushDiskType", "FAST", "expected one of SYNC_FLUSH, ASYNC_FLUSH"),
    ("diskRatio", "much", "expected a number"),
    ("storePathCommitLog", " ", "expected a path"),
    ("deleteWhen", "four", "invalid literal"),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_a_wrong_value_is_named_with_its_file_and_key(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_properties(Store, {key: value}, source="/etc/broker.conf")
    assert str(caught.value).startswith(f"/etc/broker.conf: {key}={value!r}: {expected}")


def test_a_wrong_boolean_is_not_taken_as_false() -> None:
    with pytest.raises(ConfigurationError, match="autoCreateTopicEnable='yes': expected true or"):
        from_properties(Broker, {"brokerName": "b", "autoCreateTopicEnable": "yes"}, source="f")


def test_what_the_class_refuses_names_the_file() -> None:
    with pytest.raises(ConfigurationError, match="^f: mappedFileSizeCommitLog=8: too small"):
        from_properties(Store, {"mappedFileSizeCommitLog": "8"}, source="f")


def test_an_instance_describes_itself() -> None:
    store = Store(segment_bytes=99, flush=Flush.ASYNC_FLUSH, root=Path("/d"), hours=3)
    properties = to_properties(store)
    assert properties == {
        "mappedFileSizeCommitLog": "99",
        "flushDiskType": "ASYNC_FLUSH",
        "storePathRootDir": "/d",
        "storePathCommitLog": "log",
        "diskRatio": "0.5",
        "deleteWhen": "03",
    }
    assert from_properties(Store, properties, source="f") == store
    broker = Broker(name="b", auto_create=False, name_servers=("h:1", "h:2"))
    assert to_properties(broker)["namesrvAddr"] == "h:1;h:2"
    assert from_properties(Broker, to_properties(broker), source="f") == broker


# --------------------------------------------------------------------------------- live settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    rate: int = setting("rate", default=1, live=True)
    name: str = setting("name", default="a")
    unnamed: int = 5

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate={self.rate}: below 0")


def test_live_settings_of_a_configuration_in_use_change() -> None:
    config = Living(unnamed=7)
    changed = with_changes(config, {"rate": "3", "name": "b", "other": "x"}, source="f")
    assert changed == Living(rate=3, name="b", unnamed=7)
    take_over(config, changed)
    assert config == Living(rate=3, name="a", unnamed=7)
    assert live_keys(Living) == {"rate"}


@pytest.mark.parametrize("value", ["x", "-1"])
def test_a_change_that_is_refused_changes_nothing(value: str) -> None:
    config = Living()
    with pytest.raises(ConfigurationError, match="f: "):
        with_changes(config, {"rate": value}, source="f")
    assert config == Living()


# -------------------------------------------------------------------------------- left-over keys


def test_keys_that_nobody_takes() -> None:
    properties = {
        "brokerName": "b",
        "mapedFileSizeCommitLog": "1",
        "transientStorePoolEnable": "true",
        "haSendHeartbeatInterval": "5",
        "brokerNmae": "b",
        "FlushDiskType": "x",
        "completely different": "1",
    }
    ignored, unknown = review_keys(properties, keys_of(Store, Broker))
    assert ignored == ["haSendHeartbeatInterval", "transientStorePoolEnable"]
    assert unknown == [
        ("FlushDiskType", "flushDiskType"),
        ("brokerNmae", "brokerName"),
        ("completely different", None),
    ]


def test_our_own_keys_are_suggested_too() -> None:
    assert review_keys(["pymqLimitt"], {"pymqLimit"}) == ([], [("pymqLimitt", "pymqLimit")])


def test_the_known_keys_cover_old_and_new_releases() -> None:
    assert {
        "mapedFileSizeConsumeQueue",  # 4.5.1
        "mappedFileSizeConsumeQueue",
        "haSlaveFallbehindMax",  # 4.x
        "haMaxGapNotInSync",  # 5.x
        *("brokerIP1", "brokerIP2", "brokerId", "brokerClusterName", "bindAddress", "listenPort"),
        *("kvConfigPath", "scanNotActiveBrokerInterval", "dLegerSelfId", "authenticationEnabled"),
        "enableAcceleratedRecovery",  # 5.4.0
    } <= ROCKETMQ_KEYS
    assert all(key.isalnum() for key in ROCKETMQ_KEYS)
