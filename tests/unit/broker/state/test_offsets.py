"""Where groups are: against a dict that does the same, and the text of the file."""

import json
import random

from pymq.broker.state.offsets import OffsetTable
from pymq.protocol import fastjson

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
            assert table.to_text() == fastjson.dump_pretty(table.body().to_json())
    copy = OffsetTable()
    copy.restore(json.loads(table.to_text()))
    for key in [(g, t, q) for g in GROUPS for t in TOPICS for q in QUEUES]:
        assert copy.find(*key) == offsets.get(key)
        assert copy.take_reset(*key) == resets.get(key)


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
