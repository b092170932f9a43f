"""Groups that pop and are set to other offsets by an administrator.

Source: RocketMQ PopMessageProcessor.resetPopOffset.
"""

from collections.abc import Callable

from pymq.broker.pop.checkpoint import GroupQueue
from pymq.broker.pop.progress import PopProgress
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.order_info import OrderTable


class PopResets:
    """Sets groups to other offsets when they pop next.

    What is in flight stays in flight: it comes back to the group if nobody acknowledges it.

    Args:
        has_counted: whether the journal has counted all checkpoints of a group's queue: a start
            would take one that it has not counted for a later pop, and undo the reset.
    """

    def __init__(
        self,
        offsets: OffsetTable,
        progress: PopProgress,
        orders: OrderTable,
        has_counted: Callable[[GroupQueue], bool],
    ) -> None:
        self._offsets = offsets
        self._progress = progress
        self._orders = orders
        self._has_counted = has_counted

    def take(self, queue: GroupQueue) -> bool:
        """Set a group to another offset in a queue, if it is to be; False: that has to wait."""
        topic, group, queue_id = queue
        if not self._offsets.has_reset(group, topic, queue_id):
            return True
        if self._progress.is_taking(queue) or not self._has_counted(queue):
            return False
        offset = self._offsets.take_reset(group, topic, queue_id)
        if offset is not None:
            self._progress.commit(queue, offset)
            self._orders.clear(queue)
        return True
