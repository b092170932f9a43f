"""Revival of a message that is being acknowledged."""

import asyncio
from typing import Any

from tests.unit.broker.pop.test_checkpoint import checkpoint
from tests.unit.store.stores import FakeClock

from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.revival import Revival


def test_an_acknowledgement_that_comes_while_it_is_read_may_still_fail() -> None:
    """Else nobody would look at the message again, until a restart."""

    async def test() -> None:
        clock = FakeClock()
        table = CheckpointTable(8)
        one = checkpoint(pop_time=clock.wall_ms() - 60000, differences=(0,))
        table.add(one)

        class Reading:
            async def read(self, topic: str, queue_id: int, at: int, count: int) -> Any:
                one.acknowledging = one.all_bits  # the record of the acknowledgement is written

                class Read:
                    records: list[Any] = []
                    next_queue_offset = at

                return Read()

        reading: Any = Reading()
        journal: Any = None  # nothing is written: that would be a second delivery
        known: Any = {"TopicA", "g"}
        retry: Any = {"%RETRY%g_TopicA", "TopicA", "g"}
        offsets: Any = None
        revival = Revival(
            reading, journal, table, retry, known, offsets, clock,
            retry_v2=False, creates_topics=False, host=b"",
        )  # fmt: skip
        assert await revival.step() == 1
        one.acknowledging = 0  # it could not be written
        assert table.take_due(clock.wall_ms(), 10) == []
        assert table.take_due(clock.wall_ms() + 1000, 10) == [one]

    asyncio.run(test())
