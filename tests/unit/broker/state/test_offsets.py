"""Where groups are: against a dict that does the same, and the text of the file."""

import json
import random

import pytest

from pymq.broker.state.offsets import VERSION_STEP, OffsetTable
from pymq.protocol import fastjson
from pymq.protocol.bodies import ConsumerOffsetTable, DataVersion

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
                    for one in copied:
                        resets.pop(one, None)
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


def pair() -> tuple[OffsetTable, OffsetTable]:
    """Return the tables of a master whose slaves may act for it, and of a slave."""
    master, slave = OffsetTable(), OffsetTable()
    master.names_position, slave.moved = True, set()
    return master, slave


def follow(slave: OffsetTable, master: OffsetTable) -> None:
    slave.take_changes(master.changes(None), master.moves.position)


def restarted(table: OffsetTable, text: str | None = None) -> OffsetTable:
    """Return a table that is read from what another one has written, then or now."""
    copy = OffsetTable()
    copy.names_position = table.names_position
    copy.moved = None if table.moved is None else set()
    copy.restore(json.loads(text or table.to_text()))
    return copy


def take_back(master: OffsetTable, slave: OffsetTable) -> bool:
    return master.take_back(ConsumerOffsetTable.decode(slave.body().encode()))


def test_of_a_slave_that_was_away_counts_what_has_moved_there() -> None:
    master, slave = pair()
    for queue_id in range(3):
        master.commit("g", "T", queue_id, 10)
        master.reset("h", "T", queue_id, 3)
    follow(slave, master)
    for queue_id in range(2):
        master.commit("g", "T", queue_id, 300)
    master.reset("i", "T", 0, 5)
    slave.commit("g", "T", 1, 20)
    slave.commit("g", "T", 2, 10)  # it has moved nothing
    assert slave.take_reset("h", "T", 0) == 3
    slave = restarted(slave)
    slave.commit("h", "T", 0, 7)
    master = restarted(master)
    assert take_back(master, slave)
    assert master.queues_of("g", "T") == {0: 300, 1: 20, 2: 10}
    assert master.queues_of("h", "T") == {0: 7, 1: 3, 2: 3}
    assert [master.has_reset("h", "T", queue_id) for queue_id in range(3)] == [False, True, True]
    assert master.has_reset("i", "T", 0)
    follow(slave, master)
    master.commit("g", "T", 1, 400)
    master = restarted(master)
    assert take_back(master, slave)  # nothing has moved there since
    assert master.queues_of("g", "T") == {0: 300, 1: 400, 2: 10}


def test_a_slave_knows_better_than_a_file_that_was_not_saved() -> None:
    master, slave = pair()
    master.commit("g", "T", 0, 10)
    master.reset("h", "T", 0, 3)
    master.reset("i", "T", 0, 3)
    text = master.to_text()
    master.commit("g", "T", 0, 12)
    assert master.take_reset("h", "T", 0) == 3
    follow(slave, master)
    other = restarted(slave)
    follow(other, master)
    slave.commit("g", "T", 0, 15)
    assert slave.take_reset("i", "T", 0) == 3
    master.commit("g", "T", 1, 1)
    follow(other, master)  # the last change has reached this slave alone, and it did not act
    master = restarted(master, text)
    assert take_back(master, slave)
    assert master.find("g", "T", 0) == 15
    assert not master.has_reset("h", "T", 0) and not master.has_reset("i", "T", 0)
    assert take_back(master, other)
    assert master.queues_of("g", "T") == {0: 15, 1: 1}
    assert not master.has_reset("i", "T", 0)


def test_what_moved_at_a_slave_in_another_run_is_old_news(caplog: pytest.LogCaptureFixture) -> None:
    """Its machine went down while it acted, and the master went on alone for days."""
    master, slave = pair()
    master.commit("g", "T", 0, 100)
    follow(slave, master)
    slave.commit("g", "T", 0, 150)
    master = restarted(master)
    master.commit("g", "T", 0, 200)
    once_more = restarted(master)
    assert take_back(once_more, restarted(slave))  # by the versions nobody knows
    assert once_more.find("g", "T", 0) == 150 and "1 consumer groups are set back" in caplog.text
    for offset in range(200, 200 + VERSION_STEP):
        master.commit("g", "T", 0, offset)
    master = restarted(master)
    assert not take_back(master, restarted(slave))
    assert master.find("g", "T", 0) == 199 + VERSION_STEP


def test_a_slave_that_has_acted_and_is_the_master_now_keeps_what_moved_there() -> None:
    master, slave = pair()
    master.commit("g", "T", 0, 100)
    follow(slave, master)
    other = restarted(slave)
    follow(other, master)
    master.commit("h", "T", 0, 5)
    follow(other, master)  # the last change has reached this slave alone
    slave.commit("g", "T", 0, 200)
    new = OffsetTable()
    new.names_position = True
    new.restore(json.loads(slave.to_text()))
    assert take_back(new, other)
    assert (new.find("g", "T", 0), new.find("h", "T", 0)) == (200, 5)


def test_a_master_whose_file_is_lost_has_all_of_a_slave() -> None:
    master, slave = pair()
    master.commit("g", "T", 0, 10)
    follow(slave, master)
    master, _ = pair()
    assert take_back(master, slave) and master.find("g", "T", 0) == 10


def test_where_it_is_not_known_what_has_moved_groups_that_are_set_back_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slave of RocketMQ's."""
    master, _ = pair()
    master.commit("g", "T", 0, 10)
    master.commit("h", "T", 0, 10)
    body = ConsumerOffsetTable.decode(master.body().encode())
    body.position = None
    master.commit("g", "T", 0, 20)
    assert master.take_back(body) and master.find("g", "T", 0) == 10
    assert "1 consumer groups are set back" in caplog.text and caplog.text.endswith(": g\n")


def test_a_file_names_no_change_that_nobody_keeps_up_to_date() -> None:
    master, slave = pair()
    master.commit("g", "T", 0, 10)
    follow(slave, master)
    slave.commit("g", "T", 0, 11)
    for table in (master, slave):
        alone = OffsetTable()
        alone.restore(json.loads(table.to_text()))
        assert "pymq" in table.to_text() and "pymq" not in alone.to_text()


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


@pytest.mark.parametrize("is_older", [False, True])
def test_such_a_master_takes_no_offset_of_a_queue_that_it_does_not_know(is_older: bool) -> None:
    """A member commits in one queue first; those of others may have stopped."""
    master, slave, emptied = OffsetTable(), OffsetTable(), OffsetTable()
    for offset in range(VERSION_STEP if is_older else 1):
        master.commit("g", "T", 0, offset)
    master.commit("g", "T", 1, 5)
    slave.take_changes(master.changes(None))
    if not is_older:  # then that no group has an offset there says it
        slave.take_changes(emptied.changes(None))
    emptied.commit("g", "T", 0, 700)
    slave.take_changes(emptied.changes(0 if not is_older else None))
    emptied.commit("g", "T", 2, 3)
    slave.take_changes(emptied.changes(1))
    assert slave.queues_of("g", "T") == {0: 700, 1: 5, 2: 3}
    assert slave.is_changed and json.loads(slave.to_text())["offsetTable"]["T@g"]["1"] == 5
    number = emptied.moves.number
    emptied.delete_group("g")
    slave.take_changes(emptied.changes(number))
    assert slave.queues_of("g", "T") == {}
    for table in (master, emptied):
        for offset in range(VERSION_STEP):
            table.commit("h", "T", 0, offset)
    slave.take_changes(master.changes(None))
    slave.take_changes(OffsetTable().changes(None))
    for offset in range(3 * VERSION_STEP):
        emptied.commit("g", "T", 0, offset)
    slave.take_changes(emptied.changes(None))
    assert slave.queues_of("g", "T") == {0: 3 * VERSION_STEP - 1}, "now it has had as many changes"


def test_what_such_a_master_knows_it_ends_itself() -> None:
    slave, emptied = OffsetTable(), OffsetTable()
    slave.commit("g", "T", 0, 5)
    slave.take_changes(emptied.changes(None))
    for queue_id in range(1, 3):
        emptied.commit("g", "T", queue_id, 7)
    slave.take_changes(emptied.changes(0))
    number = emptied.moves.number
    emptied.delete_queue("T", 1)
    slave.take_changes(emptied.changes(number))
    assert slave.queues_of("g", "T") == {0: 5, 2: 7}


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


def test_a_reset_that_the_next_master_has_ended_is_over_when_that_is_ahead() -> None:
    """The one before had a data version more than the next one had heard of when it took over."""
    before, after = OffsetTable(), OffsetTable()
    before.reset("g", "T", 0, 3)
    after.take_changes(before.changes(None))
    for offset in range(VERSION_STEP):
        before.commit("h", "T", 0, offset)
    assert after.take_reset("g", "T", 0) == 3
    after.commit("g", "T", 0, 10)
    before.take_changes(after.changes(None))
    for offset in range(2 * VERSION_STEP):
        number = after.moves.number
        after.commit("h", "T", 0, offset)
        before.take_changes(after.changes(number))
    assert before.version == after.version
    assert not before.has_reset("g", "T", 0) and before.find("g", "T", 0) == 10


def test_what_is_committed_is_known_from_a_file_or_a_master() -> None:
    """Even if that is nothing."""
    new, saved, told, copied = (OffsetTable() for _ in range(4))
    saved.restore(json.loads(new.to_text()))
    told.take_changes(new.changes(None), "a.0")
    copied.take_over(new.body())
    assert [one.is_known for one in (new, saved, told, copied)] == [False, True, True, True]


def test_a_clone_ends_what_its_target_was_told_of_a_reset_and_is_known_to_have_moved() -> None:
    table = OffsetTable()
    table.moved = set()
    table.commit("g", "T", 0, 8)
    table.reset("h", "T", 0, 1)
    assert table.take_reset("h", "T", 0) == 1
    assert table.is_overtaken("h", "T", 0, 5)
    table.moved.clear()
    table.clone("g", "h", "T")
    assert table.moved == {(("T", "h"), 0)}
    assert not table.is_overtaken("h", "T", 0, 5)
