"""A store driven by random operations against a list, with closes, crashes and reopens."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    FakeClock,
    batch,
    bodies,
    crashed_copy,
    open_store,
    record,
    seeded,
)

from pymq.store import FlushMode, MessageStore, PutStatus

TOPICS = ("A", "B", "%RETRY%group")
TAG = "yy"
Key = tuple[str, int]


class Model:
    """What was stored per queue, and up to where it is visible."""

    def __init__(self) -> None:
        self.stored: dict[Key, list[bytes]] = {}
        self.visible: dict[Key, int] = {}

    def add(self, key: Key, texts: list[bytes]) -> None:
        self.stored.setdefault(key, []).extend(texts)

    def show(self) -> None:
        self.visible = {key: len(texts) for key, texts in self.stored.items()}

    def check(self, store: MessageStore, dice: random.Random) -> None:
        for key, texts in self.stored.items():
            count = self.visible.get(key, 0)
            assert store.queue_bounds(*key) == (0, count), key
            assert bodies(store, *key) == texts[:count], key
        if self.stored:
            key = dice.choice(list(self.stored))
            texts = self.stored[key][: self.visible.get(key, 0)]
            tagged = [text for text in texts if text.endswith(TAG.encode())]
            assert bodies(store, *key, tags=[TAG]) == tagged, key


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("round_", range(12))
def test_random_operations(tmp_path: Path, seed: int, mode: FlushMode, round_: int) -> None:
    dice = seeded(seed + round_)
    settings: dict[str, Any] = {
        "segment_bytes": dice.choice([1024, 2000, 4096, 1 << 16]),
        "queue_file_bytes": dice.choice([20, 100, 200, 6000]),
        "queue_files_open_max": dice.choice([3, 100]),
        "queue_extension": dice.random() < 0.5,
        "queue_extension_file_bytes": dice.choice([24, 50, 130, 6000]),
        "flush_mode": mode,
    }
    print(settings)
    root = tmp_path / "0"
    clock = FakeClock()
    store = open_store(root, clock, **settings)
    model = Model()
    number = 0

    def make(key: Key) -> tuple[Any, list[bytes]]:
        nonlocal number
        kind = dice.random()
        texts = []
        for _ in range(1 if kind < 0.7 else dice.randint(2, 5)):
            number += 1
            texts.append(b"%d:" % number + bytes(dice.randint(0, 80)))
        topic, queue_id = key
        if kind >= 0.7:
            return batch(texts, topic=topic, queue_id=queue_id), texts
        tag = dice.choice([None, "x", TAG])
        texts = [texts[0] + (tag or "").encode()]
        return record(texts[0], topic=topic, queue_id=queue_id, tag=tag), texts

    for step in range(120):
        clock.now_ms += dice.randint(-5, 2000)
        action = dice.random()
        if action < 0.55:
            keys = [(dice.choice(TOPICS), dice.randrange(3)) for _ in range(dice.randint(1, 8))]
            made = [make(key) for key in keys]
            made.insert(dice.randint(0, len(made)), (record(b"", topic="no/such"), []))
            made.append((record(b"half", topic="A", sys_flag=0x4), []))
            results = store.put([entry for entry, _ in made], HOST)
            expected = iter(keys)
            for (entry, texts), result in zip(made, results, strict=True):
                if not texts:
                    assert result.status is not PutStatus.OK or entry.sys_flag == 0x4
                    continue
                key = next(expected)
                assert result.status is PutStatus.OK, result
                assert result.queue_offset == len(model.stored.get(key, []))
                model.add(key, texts)
            if mode is FlushMode.ASYNC:
                model.show()
        elif action < 0.7:
            store.durability.flush()
            model.show()
        elif action < 0.75:
            store.durability.flush_queues()
        elif action < 0.8:
            store.ahead.prepare_segment()
        elif action < 0.85:
            topic = dice.choice(TOPICS)
            store.retention.delete_queues(topic)
            for key in [key for key in model.stored if key[0] == topic]:
                del model.stored[key]
                model.visible.pop(key, None)
        elif action < 0.95:
            store.close()
            if dice.random() < 0.3:
                settings["queue_extension"] ^= True
            store = open_store(root, clock, **settings)
            model.show()
        else:
            root = crashed_copy(root, tmp_path / f"{step + 1}")
            store.close()
            store = open_store(root, clock, **settings)
            model.show()
        model.check(store, dice)
    store.close()
