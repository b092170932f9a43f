"""Offsets in topics that were deleted after the file of offsets was saved."""

import json

import pytest

from pymq.broker.state.offsets import OffsetTable


class Bed:
    """A table, as it is saved and loaded, and what the store says of deleted topics."""

    def __init__(self) -> None:
        self.recorded: dict[str, int] = {}
        self.firsts: dict[tuple[str, int], int] = {}
        self.table = OffsetTable()
        self.follow()

    def follow(self) -> None:
        self.table.follow_deletions(
            lambda: self.recorded, lambda topic, queue_id: self.firsts.get((topic, queue_id), 0)
        )

    def restart(self, text: str | None = None) -> None:
        text = self.table.to_text() if text is None else text
        self.table = OffsetTable()
        self.table.restore(json.loads(text))
        self.table.is_changed = False
        self.follow()

    def left(self, topic: str) -> dict[int, int]:
        return dict(self.table.queues_of("g", topic))


def test_those_of_a_file_older_than_the_deletion_are_forgotten() -> None:
    bed = Bed()
    for topic in "T", "A":
        bed.table.commit("g", topic, 0, 5)
        bed.table.reset("g", topic, 1, 3)
    text = bed.table.to_text()
    bed.recorded["T"] = 800
    bed.restart(text)
    assert (bed.left("T"), bed.left("A")) == ({}, {0: 5, 1: 3})
    assert not bed.table.has_reset("g", "T", 1) and bed.table.has_reset("g", "A", 1)
    assert bed.table.is_changed
    bed.restart()
    assert not bed.table.is_changed


def test_those_of_the_topic_that_was_created_again_stay() -> None:
    bed = Bed()
    bed.recorded["T"] = 800
    bed.table.commit("g", "T", 0, 5)
    bed.restart()
    assert bed.left("T") == {0: 5}
    bed.recorded = {"T": 500}  # the log was cut since
    bed.restart()
    assert bed.left("T") == {0: 5}
    text = bed.table.to_text()
    bed.recorded["T"] = 900
    bed.restart(text)
    assert bed.left("T") == {}


def test_one_at_the_beginning_of_its_queue_stays() -> None:
    """A queue of which there is no record goes on where the foremost group is."""
    bed = Bed()
    bed.table.commit("g", "T", 0, 5)
    bed.table.commit("g", "T", 1, 6)
    bed.table.commit("g", "T", 2, 0)
    text = bed.table.to_text()
    bed.recorded["T"], bed.firsts["T", 0], bed.firsts["T", 1] = 800, 5, 5
    bed.restart(text)
    assert bed.left("T") == {0: 5, 2: 0}


@pytest.mark.parametrize("rest", ["", ',"deletedTopics":7'])
def test_a_file_that_does_not_tell_counts(rest: str) -> None:
    """It is RocketMQ's, or one of an earlier pymq; it is replaced soon."""
    bed = Bed()
    bed.recorded["T"] = 800
    bed.restart(f'{{"offsetTable":{{"T@g":{{"0":5}}}}{rest}}}')
    assert bed.left("T") == {0: 5} and bed.table.is_changed
    bed.restart()
    assert bed.left("T") == {0: 5} and not bed.table.is_changed


def test_light_groups_are_where_the_file_of_theirs_says() -> None:
    bed = Bed()
    bed.table.commit("%LMQ%g", "%LMQ%T", 0, 5)
    text = bed.table.to_text()
    bed.recorded["%LMQ%T"] = 800
    bed.restart(text)
    assert bed.table.find("%LMQ%g", "%LMQ%T", 0) == 5


def test_a_table_that_follows_nothing_says_nothing_of_deletions() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 5)
    assert "deletedTopics" not in table.to_text()
