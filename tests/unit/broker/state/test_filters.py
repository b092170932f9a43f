"""The filters of groups: which one counts, when it is forgotten, what the file says."""

import json
import logging
from dataclasses import replace

import pytest
from tests.unit.store.stores import HOST, FakeClock, record

from pymq.broker.config import BrokerConfig
from pymq.broker.state.filters import FilterTable
from pymq.errors import PymqError
from pymq.filter.bloom import BloomFilter
from pymq.protocol import fastjson
from pymq.protocol.bodies import Subscription
from pymq.protocol.message import encode_properties
from pymq.protocol.record import encode_record, topic_field

DAY_MS = 86_400_000


def table(clock: FakeClock, **settings: int) -> FilterTable:
    return FilterTable(BrokerConfig(**settings), clock)


def sql(expression: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> Subscription:
    return Subscription(topic=topic, expression=expression, expression_type=kind, version=version)


def expression(filters: FilterTable, group: str = "g", topic: str = "T") -> str | None:
    found = filters.find(topic, group)
    return None if found is None else found.entry.expression


def test_a_filter_is_compiled_and_found_by_topic_and_group() -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql("a > 5"), Subscription.of_tags("U", "*", 1)])
    filters.subscribe("h", [sql("a > 50")])
    found = filters.find("T", "g")
    assert found is not None and found.version == 1 and not found.is_dead
    assert found.matches([encode_properties({"a": "6"})]) == [True]
    assert found.matches([b""]) == [False]
    assert found.bit_maps.positions == BloomFilter().positions("g#T")
    assert filters.find("U", "g") is None and filters.find("T", "i") is None


def test_the_newest_version_counts() -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a > 5", 5)])
    born_ms = clock.now_ms
    clock.now_ms += 10
    for older in (4, 5):
        filters.subscribe("g", [sql("a > 6", older)])
        assert expression(filters) == "a > 5"
    filters.subscribe("g", [sql("a > 5", 6)])
    found = filters.find("T", "g")
    assert found is not None and (found.version, found.entry.born_ms) == (6, born_ms)
    filters.subscribe("g", [sql("a > 7", 7)])
    found = filters.find("T", "g")
    assert found is not None and (found.version, found.entry.born_ms) == (7, clock.now_ms)
    assert found.matches([encode_properties({"a": "8"})]) == [True]


def test_an_expression_that_does_not_compile_removes_the_older_one_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql("a > 5", 1)])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            filters.subscribe("g", [sql("a >", 2)])
        filters.subscribe("g", [sql("a > 5", 2, topic="U", kind="XPATH")])
    assert filters.find("T", "g") is None and filters.find("U", "g") is None
    first, second = caplog.messages
    assert "group g" in first and "topic T" in first and "at the end of the expression" in first
    assert "XPATH" in second
    filters.subscribe("g", [sql("a > 5", 3)])
    assert expression(filters) == "a > 5"


def test_messages_that_cannot_be_compared_are_spoken_of_once_for_each_subscription(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql("a > 5", 1)])
    with caplog.at_level(logging.WARNING):
        for version in (1, 2):  # the same subscription again says nothing new
            filters.subscribe("g", [sql("a > 5", version)])
            found = filters.find("T", "g")
            assert found is not None
            assert found.matches([encode_properties({"a": "5"})]) == [False]
            for text in ("5.5", "apples"):
                assert found.matches([encode_properties({"a": text})]) == [False]
        assert len(caplog.messages) == 1
        filters.subscribe("g", [sql("a > 6", 3)])
        found = filters.find("T", "g")
        assert found is not None
        assert found.matches([encode_properties({"a": "pears"})]) == [False]
    first, second = caplog.messages
    assert "group g" in first and "topic T" in first and "'a > 5'" in first and "'5.5'" in first
    assert "pears" in second


def test_groups_leave_and_come_back() -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a > 5", 3), sql("a > 6", 3, topic="U")])
    clock.now_ms += 10
    filters.unsubscribe("g")
    filters.unsubscribe("unknown")
    found = filters.find("T", "g")
    assert found is not None and found.is_dead and found.entry.dead_ms == clock.now_ms
    filters.subscribe("g", [sql("a > 5", 2)])
    assert not found.is_dead and found.version == 2
    filters.subscribe("g", [sql("a > 5", 3)])
    assert not found.is_dead
    other = filters.find("U", "g")
    assert other is not None and other.is_dead, "the topic was given up"
    filters.subscribe("g", [sql("a > 5", 3), sql("a > 6", 4, topic="U")])
    assert not other.is_dead


def test_a_group_that_comes_back_with_another_filter_and_a_clock_behind_gets_it() -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql("a < 5", 1_000)])
    filters.unsubscribe("g")
    filters.subscribe("g", [sql("a >= 5", 1)])
    found = filters.find("T", "g")
    assert found is not None and not found.is_dead
    assert (found.entry.expression, found.version) == ("a >= 5", 1)


def test_an_older_filter_of_a_group_that_is_there_is_ignored_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql("a < 5", 1_000)])
    for _ in range(2):
        filters.subscribe("g", [sql("a < 5", 999)])  # the same says nothing
        assert not caplog.messages
    for other in ("a >= 5", "a > 4", "a >= 5"):
        filters.subscribe("g", [sql(other, 1)])
    assert expression(filters) == "a < 5"
    (warning,) = caplog.messages
    assert "group g" in warning and "'a >= 5'" in warning and "999 ms newer" in warning
    filters.subscribe("g", [sql("a > 4", 2_000)])
    filters.subscribe("g", [sql("a >= 5", 1)])
    assert len(caplog.messages) == 2


def test_a_costly_filter_is_not_evaluated_where_messages_are_stored() -> None:
    filters = table(FakeClock())
    filters.subscribe("g", [sql(" OR ".join(f"'{number}' = a" for number in range(100)))])
    assert filters.weight_of("g") > 100 and filters.weight_of("h") == 1
    found = filters.find("T", "g")
    assert found is not None
    bits = filters.bit_map("T", stored(a="x"))
    assert bits is not None and found.bit_maps.may_match(bits)


def test_the_filters_of_groups_that_do_not_come_back_are_forgotten() -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a > 5")])
    filters.subscribe("h", [sql("a > 6")])
    filters.unsubscribe("g")
    clock.now_ms += DAY_MS - 1
    assert filters.expire() == 0
    clock.now_ms += 1
    filters.is_changed = False
    assert filters.expire() == 1 and filters.is_changed
    assert expression(filters, "g") is None and expression(filters, "h") == "a > 6"
    filters.unsubscribe("g")


def test_the_file_is_rocketmqs_and_survives_a_restart() -> None:
    clock = FakeClock(1_700_000_000_000)
    filters = table(clock)
    filters.subscribe("CG", [sql("a > 5", 77, topic="TopicTest")])
    text = filters.to_text()
    assert json.loads(text) == {
        "filterDataByTopic": {
            "TopicTest": {
                "groupFilterData": {
                    "CG": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [109, 15, 3]},
                        "bornTime": 1_700_000_000_000,
                        "clientVersion": 77,
                        "consumerGroup": "CG",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 5",
                        "expressionType": "SQL92",
                        "topic": "TopicTest",
                    }
                },
                "topic": "TopicTest",
            }
        }
    }
    clock.now_ms += 100_000
    restarted = table(clock)
    restarted.restore(fastjson.parse(text))
    found = restarted.find("TopicTest", "CG")
    assert found is not None and found.is_dead and found.entry.dead_ms == clock.now_ms - 30_000
    assert found.matches([encode_properties({"a": "6"})]) == [True]
    restarted.subscribe("CG", [sql("a > 5", 77, topic="TopicTest")])
    assert not found.is_dead
    assert json.loads(restarted.to_text()) == json.loads(text)


def test_half_a_surrogate_pair_in_an_expression_spoils_no_file() -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a = '\ud800'")])
    filters.subscribe("h", [sql("a > 5")])
    again = table(clock)
    again.restore(fastjson.parse(filters.to_text().encode()))
    assert expression(again) == "a = '\ud800'" and expression(again, "h") == "a > 5"


def test_a_file_of_other_bit_maps_is_left_alone_and_a_bad_entry_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a > 5")])
    filters.subscribe("h", [sql("a > 6")])
    parsed = fastjson.parse(filters.to_text())
    assert isinstance(parsed, dict)
    other = table(clock, bloom_name_count=64)
    other.restore(parsed)
    assert other.find("T", "g") is None and "bit maps" in caplog.text
    parsed["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] = "a >"
    again = table(clock)
    again.restore(parsed)
    assert again.find("T", "g") is None and again.find("T", "h") is not None
    assert "group g" in caplog.text
    table(clock).restore({})
    with pytest.raises(PymqError):
        table(clock).restore({"filterDataByTopic": {"T": {"groupFilterData": {"g": 5}}}})


def stored(**properties: str) -> memoryview:
    new = replace(record(b"body"), properties=encode_properties(properties))
    parts = encode_record(
        new,
        topic_field(new.topic.encode()),
        size=91 + len(new.topic) + 4 + len(new.properties),
        queue_offset=0,
        physical_offset=0,
        store_timestamp=0,
        store_host=HOST,
    )
    return memoryview(b"".join(parts))


def test_bit_maps_say_which_filters_a_message_passes() -> None:
    filters = table(FakeClock())
    assert filters.bit_map("T", stored(a="6")) is None
    filters.subscribe("g", [sql("a > 5")])
    filters.subscribe("h", [sql("a > 50")])
    filters.unsubscribe("h")  # those who are away may come back
    bloom = BloomFilter()
    g, h = bloom.positions("g#T"), bloom.positions("h#T")
    assert filters.bit_map("T", stored(a="1")) == bytes(14)
    assert filters.bit_map("T", stored(a="6")) == bloom.bit_map([g])
    assert filters.bit_map("T", stored(a="60")) == bloom.bit_map([g, h])
    assert filters.bit_map("U", stored(a="60")) is None
    assert filters.bit_map("T", stored(a="60")[:-1]) is None


def test_a_new_filter_counts_for_messages_that_come_after_the_visible_ones() -> None:
    clock = FakeClock(1000)
    filters = table(clock)
    filters.latest_ms = lambda: 5000  # the clock was set back
    filters.subscribe("g", [sql("a > 5")])
    found = filters.find("T", "g")
    assert found is not None and found.entry.born_ms == found.bit_maps.since_ms == 5000


def test_a_change_of_roles_does_not_count_a_filter_in_use_as_dead() -> None:
    """The table outlives the run, and the next one reads the file into it."""
    clock = FakeClock()
    filters = table(clock)
    filters.subscribe("g", [sql("a > 1")])
    filters.restore(json.loads(filters.to_text()))
    clock.now_ms += 10 * DAY_MS
    filters.expire()
    found = filters.find("T", "g")
    assert found is not None and not found.is_dead
