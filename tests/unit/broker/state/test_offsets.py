"""Where groups are: against a dict that does the same, and the text of the file."""

import json
import random

import pytest

from pymq.broker.state.offsets import VERSION_STEP, OffsetTable
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion

GROUPS, TOPICS, QUEUES = ("g", "h", 'odd "name"'), ("T", "U"), range(3)


def test_offsets_resets_and_pulls_against_a_model(seed: int) -> None:
    chance = random.Random(seed)
    table = OffsetTable()
    offsets: dict[tuple[str, str, int], int] = {}
    resets: dict[tuple[str, str, int], int] = {}
    for _ in range(2000):
        group, topic = chance.choice(GROUPS), chance.choice(TOPICS)
        queue_id, offset = chance.choice(QUEUES), chance.randrange(4)
        key = group, topic, queue_id
        match chance.randrange(8):
            case 0 | 1 | 2:
                table.commit(*key, offset)
                offsets[key] = offset
            case 3:
                table.reset(*key, offset)
                offsets[key] = resets[key] = offset
            case 4:
                assert table.has_reset(*key) is (key in resets)
                assert table.take_reset(*key) == resets.pop(key, None)
            case 5 if chance.random() < 0.2:
                table.delete_group(group)
                for model in (offsets, resets):
                    for one in [one for one in model if one[0] == group]:
                        del model[one]
            case 6 if chance.random() < 0.2:
                table.delete_queue(topic, queue_id)
                for model in (offsets, resets):
                    for one in [one for one in model if one[1:] == key[1:]]:
                        del model[one]
            case 7 if chance.random() < 0.2:
                target = chance.choice(GROUPS)
                table.clone(group, target, topic)
                if any(one[:2] == (group, topic) for one in offsets):
                    copied = {
                        (target, topic, number): offset
                        for (owner, name, number), offset in offsets.items()
                        if (owner, name) == (group, topic)
                    }
                    for one in [one for one in offsets if one[:2] == (target, topic)]:
                        del offsets[one]
                    offsets |= copied
        assert table.find(*key) == offsets.get(key)
        if chance.random() < 0.1:
            body = table.body()
            if body.version == DataVersion():
                body.version = None  # The file lacks it before it means something.
            assert table.to_text() == fastjson.dump_pretty(body.to_json())
    copy = OffsetTable()
    copy.restore(json.loads(table.to_text()))
    for key in [(g, t, q) for g in GROUPS for t in TOPICS for q in QUEUES]:
        assert copy.find(*key) == offsets.get(key)
        assert copy.take_reset(*key) == resets.get(key)


def test_a_group_without_offsets_is_not_kept() -> None:
    table = OffsetTable()
    for queue_id in range(2):
        table.reset("g", "T", queue_id, 7)
        table.note_pull("g", "T", queue_id, 7)
    table.commit("h", "T", 1, 7)
    number = table.moves.number
    table.delete_queue("T", 0)
    assert table.groups_of("T") == ["g", "h"]
    table.delete_queue("T", 1)
    assert table.groups_of("T") == []
    assert table.to_text() == OffsetTable().to_text()
    assert (table._pulled, table._resets) == ({}, {})
    assert table.changes(number).offsets == {"T@g": {}, "T@h": {}}  # slaves are told


def test_an_empty_table_is_written_as_one() -> None:
    assert OffsetTable().to_text() == '{\n\t"offsetTable":{}\n}'


def test_pulls_are_remembered_but_not_written() -> None:
    table = OffsetTable()
    assert table.pulled("g", "T", 0) is None
    table.note_pull("g", "T", 0, 7)
    assert table.pulled("g", "T", 0) == 7
    assert not table.is_changed and table.to_text() == OffsetTable().to_text()
    table.delete_topic("T")
    assert table.pulled("g", "T", 0) is None


def test_what_an_acting_slave_has_is_taken_back_unless_ours_is_newer() -> None:
    master, slave = OffsetTable(), OffsetTable()
    master.commit("g", "T", 0, 1)
    master.commit("h", "T", 0, 1)
    master.reset("h", "T", 0, 4)
    slave.take_changes(master.changes(None))
    slave.commit("g", "T", 0, 2)
    assert master.take_back(slave.body())
    assert (master.find("g", "T", 0), master.find("h", "T", 0)) == (2, 4)
    assert master.has_reset("h", "T", 0)
    for offset in range(VERSION_STEP):
        master.commit("g", "T", 0, offset)
    assert not master.take_back(slave.body())
    assert master.find("g", "T", 0) == VERSION_STEP - 1
    slave.take_changes(master.changes(None))
    slave.commit("g", "T", 0, 7)
    assert master.take_back(slave.body()) and master.find("g", "T", 0) == 7


def test_the_version_is_kept_and_told() -> None:
    table = OffsetTable()
    assert table.body().version == DataVersion()
    for offset in range(VERSION_STEP):
        table.commit("g", "T", 0, offset)
    assert table.body().version == table.version and table.version.counter == 1
    copy = OffsetTable()
    copy.restore(json.loads(table.to_text()))
    assert copy.version == table.version
    other = OffsetTable()
    other.take_over(table.body())
    assert other.version == table.version


def test_what_a_master_has_deleted_meanwhile_is_gone_when_it_tells_all() -> None:
    """Else a group would begin in a topic of that name where it had left the one before."""
    master, slave = OffsetTable(), OffsetTable()
    for group in ("g", "h"):
        master.commit(group, "T", 0, 1000)
    slave.take_changes(master.changes(None))
    master.delete_group("g")
    slave.take_changes(master.changes(master.moves.number))
    assert slave.find("g", "T", 0) == 1000  # nobody has told
    slave.is_changed = False
    slave.take_changes(master.changes(None))
    assert (slave.find("g", "T", 0), slave.find("h", "T", 0)) == (None, 1000)
    assert slave.is_changed
    slave.take_changes(OffsetTable().changes(None))  # its file may be lost
    assert slave.find("h", "T", 0) == 1000


def test_a_master_that_lost_its_file_is_known_by_its_version() -> None:
    """Its consumers commit there again before a slave asks: not everything is lost for that."""
    master, slave = OffsetTable(), OffsetTable()
    for offset in range(VERSION_STEP):
        master.commit("g", "T", 0, offset)
    slave.take_changes(master.changes(None))
    version = slave.version
    for _ in range(2):  # and perhaps it starts once more
        emptied = OffsetTable()
        emptied.commit("h", "T", 0, 7)
        slave.take_changes(emptied.changes(None))
        slave.take_changes(emptied.changes(emptied.moves.number))
        slave.take_changes(emptied.changes(None))
        assert (slave.find("g", "T", 0), slave.find("h", "T", 0)) == (VERSION_STEP - 1, 7)
    assert slave.version == version
    assert emptied.take_back(slave.body())
    assert emptied.find("g", "T", 0) == VERSION_STEP - 1
    emptied.delete_group("g")
    slave.take_changes(emptied.changes(None))
    assert slave.find("g", "T", 0) is None  # now it knows


def test_a_slave_of_such_a_master_believes_it_after_as_many_changes() -> None:
    """What the slave takes over counts as changes there, too: they do not keep it ahead."""
    master, slave, emptied = OffsetTable(), OffsetTable(), OffsetTable()
    for offset in range(VERSION_STEP):
        master.commit("g", "T", 0, offset)
    slave.take_changes(master.changes(None))
    for offset in range(2 * VERSION_STEP):
        emptied.commit("h", "T", 0, offset)
        slave.take_changes(emptied.changes(offset))
    assert slave.find("g", "T", 0) is not None
    assert slave.version == emptied.version
    slave.take_changes(emptied.changes(None))
    assert slave.find("g", "T", 0) is None


@pytest.mark.parametrize("is_older", [False, True])
def test_nor_are_the_resets_lost_that_were_acknowledged(is_older: bool) -> None:
    """What such a master does not know of stays; what it has told of goes when it is over."""
    master, slave, emptied = OffsetTable(), OffsetTable(), OffsetTable()
    for offset in range(VERSION_STEP if is_older else 1):
        master.commit("g", "T", 0, offset)
    for queue_id in range(3):
        master.reset("g", "T", queue_id, 5)
    slave.take_changes(master.changes(None))
    slave.take_changes(emptied.changes(None))
    emptied.reset("g", "T", 0, 6)
    emptied.reset("h", "T", 0, 6)
    slave.take_changes(emptied.changes(0))
    assert slave.has_reset("h", "T", 0)
    assert emptied.take_reset("g", "T", 0) == emptied.take_reset("h", "T", 0) == 6
    slave.take_changes(emptied.changes(2))
    assert not slave.has_reset("h", "T", 0)
    slave.delete_queue("T", 2)
    slave.take_changes(emptied.changes(2))
    assert [slave.has_reset("g", "T", queue_id) for queue_id in range(3)] == [False, True, False]
    assert slave.take_reset("g", "T", 1) == 5
    slave.take_changes(emptied.changes(2))
    assert not slave.has_reset("g", "T", 1)


def test_a_last_copy_is_not_kept_of_what_is_deleted() -> None:
    master, slave, emptied = OffsetTable(), OffsetTable(), OffsetTable()
    master.reset("g", "T", 0, 5)
    slave.take_changes(master.changes(None))
    slave.take_changes(emptied.changes(None))
    emptied.commit("g", "T", 1, 7)
    slave.take_changes(emptied.changes(0))
    assert slave.has_reset("g", "T", 0)
    number = emptied.moves.number
    emptied.delete_group("g")
    slave.take_changes(emptied.changes(number))
    assert not slave.has_reset("g", "T", 0)
