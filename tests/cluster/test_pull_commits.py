"""A pull consumer commits offsets that are there, and no others."""

import pytest
from tests.cluster.pulling import fill
from tests.cluster.running import TIMEOUT_S, run

from pymq import CommitFailed, OffsetOutOfRange, PullConsumer
from pymq.testing.cluster import Cluster


def test_an_offset_that_is_not_there_is_not_committed(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        one, other = (await fill(name_server, topic))[:2]
        consumer = PullConsumer(name_server, "g", auto_commit=False, timeout_s=TIMEOUT_S)
        async with consumer.assign([one, other]):
            end = (await consumer.end_offsets([one]))[one]
            for queue in (one, other):
                await consumer.position(queue)
            await consumer.commit({one: 1, other: 1})
            with pytest.raises(CommitFailed, match=f"offset {end + 1}") as failed:
                await consumer.commit({one: end + 1, other: 2})
            assert isinstance(failed.value.failed[one], OffsetOutOfRange)
            assert list(failed.value.failed) == [one]
            assert failed.value.outcome_known and not failed.value.retriable  # nothing was sent
            assert await consumer.committed() == {one: 1, other: 2}
            await consumer.commit({one: end})
            assert await consumer.committed([one]) == {one: end}

    run(test())


def test_what_was_polled_is_committed_without_another_question(
    pymq_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages may be deleted meanwhile, and asking takes time."""

    async def test() -> None:
        name_server = pymq_cluster.name_server
        (one, *_) = await fill(name_server, topic)
        consumer = PullConsumer(
            name_server, "g", from_where="earliest", auto_commit=False, timeout_s=TIMEOUT_S
        )
        async with consumer.assign([one]):
            polled = await consumer.poll(2, 60)
            monkeypatch.setattr("pymq.client.operations.max_offset", None)
            await consumer.commit({one: polled[-1].queue_offset + 1})
            assert await consumer.committed() == {one: polled[-1].queue_offset + 1}

    run(test())
