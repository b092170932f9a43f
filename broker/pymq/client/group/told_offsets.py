"""Offsets that are committed only when the program says so."""

from pymq.client.group.broker_offsets import BrokerOffsets


class ToldOffsets(BrokerOffsets):
    """A group's offset in one queue; readers find it, and commit nothing of themselves.

    ``PullReader.commit_offset`` is what the program has called.
    """

    def commit_nowait(self, offset: int) -> bool:
        """Nobody said so."""
        return False

    async def commit(self, offset: int) -> None:
        """Nobody said so."""
