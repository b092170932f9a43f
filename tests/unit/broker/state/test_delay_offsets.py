"""The table of what has been delivered, and its file."""

from tests.unit.store.stores import FakeClock

from pymq.broker.state.delay_offsets import VERSION_STEP, DelayOffsets
from pymq.protocol import fastjson

#: As RocketMQ 5.3.3 writes it, apart from the quotes around numbers used as keys.
TEXT = """{
	"dataVersion":{
		"counter":1,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"offsetTable":{
		"1":200,
		"3":7
	}
}"""


def test_the_file_is_written_as_rocketmq_writes_it() -> None:
    offsets = DelayOffsets(FakeClock())
    assert offsets.record({3: 7, 1: VERSION_STEP}, {})
    assert offsets.to_text() == TEXT
    assert not offsets.record({3: 7}, {})
    again = DelayOffsets(FakeClock())
    again.restore(fastjson.parse(TEXT))
    assert again.to_text() == TEXT
    assert (again.find(1), again.find(2), again.levels()) == (200, None, [1, 3])


def test_the_version_changes_once_in_many_deliveries() -> None:
    offsets = DelayOffsets(FakeClock())
    for done in range(1, 2 * VERSION_STEP + 1):
        offsets.record({1: done}, {})
        version = fastjson.parse(offsets.to_text())["dataVersion"]  # type: ignore[index]
        assert version["counter"] == done // VERSION_STEP


def test_the_file_of_a_version_without_versions() -> None:
    offsets = DelayOffsets(FakeClock())
    offsets.restore(fastjson.parse('{"offsetTable":{2:5}}'))
    assert offsets.find(2) == 5
    assert '"counter":0' in offsets.to_text()


def test_a_master_takes_back_whatever_is_further() -> None:
    """Versions say little: they change once in many deliveries."""
    master, slave = DelayOffsets(FakeClock()), DelayOffsets(FakeClock())
    master.record({1: 500, 2: 3, 3: 4}, {3: [6]})
    slave.record({1: 20, 2: 5, 3: 4}, {3: [5, 8]})
    assert master.take_back(slave.table())
    assert [master.find(level) for level in (1, 2, 3)] == [500, 5, 4]
    assert master.ahead == {3: [5, 6, 8]}
    assert not master.take_back(slave.table())
    assert not master.take_back(DelayOffsets(FakeClock()).table())
