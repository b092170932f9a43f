"""Up to where messages were popped, and what of that is committed."""

from tests.unit.broker.pop.test_checkpoint import checkpoint

from pymq.broker.pop.progress import PopProgress, offsets_after
from pymq.broker.state.offsets import OffsetTable

QUEUE = ("TopicA", "g", 2)


def committed(offsets: OffsetTable) -> int | None:
    return offsets.find("g", "TopicA", 2)


def test_offsets_are_committed_in_order() -> None:
    offsets = OffsetTable()
    progress = PopProgress(offsets)
    assert progress.find(QUEUE) is None
    progress.commit(QUEUE, 5)
    first, second = progress.begin(QUEUE, 5, 8), progress.begin(QUEUE, 8, 10)
    progress.skip(QUEUE, 10, 12)
    assert (progress.find(QUEUE), committed(offsets)) == (12, 5)
    progress.keep(second)
    assert committed(offsets) == 5
    progress.keep(first)
    assert (progress.find(QUEUE), committed(offsets)) == (12, 12)
    progress.skip(QUEUE, 12, 20)
    assert committed(offsets) == 20


def test_what_was_not_kept_is_popped_again() -> None:
    offsets = OffsetTable()
    progress = PopProgress(offsets)
    first, second = progress.begin(QUEUE, 0, 8), progress.begin(QUEUE, 8, 10)
    progress.undo(first)
    progress.keep(second)
    assert (progress.find(QUEUE), committed(offsets)) == (0, 0)
    other = progress.begin(QUEUE, 0, 3)
    progress.keep(second)
    progress.undo(second)
    progress.keep(other)
    assert committed(offsets) == 3


def test_checkpoints_say_how_far_a_group_had_come() -> None:
    offsets = OffsetTable()
    offsets.commit("g", "TopicA", 2, 13)
    ones = [
        checkpoint(start_offset=8, differences=(0, 1)),
        checkpoint(start_offset=13, differences=(2, 4)),
        checkpoint(start_offset=20, differences=(0,)),
        checkpoint(start_offset=0, differences=(0,), group="h"),
    ]
    found = offsets_after(offsets, enumerate(ones))
    assert found == {QUEUE: (21, 2), ("TopicA", "h", 2): (1, 3)}
