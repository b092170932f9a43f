"""Pops that wait for a disk, while their topic or their group is deleted."""

from types import SimpleNamespace
from typing import Any

import pytest

from pymq.broker.pop.popping import Popped, Popping, PopRules, Wanted
from pymq.broker.pop.progress import PopProgress
from pymq.broker.state.filter_turns import TurnBudget
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.order_info import OrderTable
from pymq.clock import Clock
from pymq.store import ReadResult, ReadStatus
from pymq.store.selection import EVERYTHING


class Store:
    """Plays a store with queues of nine messages, whose entries lie on a cold disk."""

    def __init__(self) -> None:
        self.reads = self
        self.status = ReadStatus.NO_MATCHED_MESSAGE
        self.is_cold = True

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, 9

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int:
        return 0

    def entry_prefetch(self, *_: Any) -> object | None:
        return object() if self.is_cold else None

    def begin(self, topic: str, queue_id: int, at: int, **_: Any) -> ReadResult:
        return ReadResult(self.status, 9, 0, 9)


class Topics(dict[str, Any]):
    """Plays the table of topics."""

    def find(self, topic: str) -> Any:
        return self.get(topic)


class Responses:
    def is_recent(self, place: int) -> bool:
        return True


@pytest.mark.parametrize("what", ["topic", "group"])
@pytest.mark.parametrize("committed", [None, 4])
@pytest.mark.parametrize(
    "status", [ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_OVERFLOW_BADLY]
)
def test_what_is_deleted_meanwhile_gets_no_offset(
    committed: int | None, status: ReadStatus, what: str
) -> None:
    """Neither in the queue that is waited for, nor in those that would have come after it."""
    store: Any = Store()
    store.status = status
    responses: Any = Responses()
    topics: Any = Topics(T=SimpleNamespace(read_queue_count=3))
    offsets = OffsetTable()
    progress = PopProgress(offsets)
    if committed is not None:
        for queue_id in range(3):
            offsets.commit("g", "T", queue_id, committed)
    popping = Popping(
        store,
        topics,
        progress,
        responses,
        PopRules(
            retry_percent=0,
            retry_v2=False,
            retry_v1_too=False,
            start_in_memory=True,
            bytes_max=lambda: 1 << 20,
        ),
        orders=OrderTable(Clock()),
        take_reset=lambda queue: True,
    )
    popped = Popped()
    wanted = Wanted(
        topic="T", group="g", queue_id=-1, count_max=8, init_mode=1, selection=EVERYTHING
    )
    steps = popping.pop(wanted, TurnBudget(1), popped)
    next(steps)
    if what == "topic":
        topics.clear()
        progress.forget_topic("T")
        offsets.delete_topic("T")
    else:
        progress.forget_group("g")
        offsets.delete_group("g")
    store.is_cold = False  # the others are not waited for
    assert list(steps) == []
    assert dict(offsets.queues_of("g", "T")) == {}
    assert (popped.is_unfinished, popped.taken) == (True, [])
    assert not popping._busy
