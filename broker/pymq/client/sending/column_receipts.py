"""What became of the rows of a table that was sent: columns, one row for each."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Of rows that no broker has acknowledged: surely not stored, and perhaps stored.
FAILED, UNKNOWN = "FAILED", "UNKNOWN"


class ColumnReceipts:
    """What became of each row: numpy arrays of shape (n,), in the order of the table.

    Attributes:
        message_id: bytes (``S``): the producer's ids, which consumers see as well.
        status: strings: ``SEND_OK`` and the other statuses of ``SendStatus``; ``FAILED`` for rows
            that are surely not stored, ``UNKNOWN`` for those that may be.
        broker_name: strings; empty where it is not stored.
        queue_id: int32; -1 where it is not stored.
        queue_offset: int64, its place in the queue; -1 where it is not stored.
    """

    def __init__(
        self,
        message_id: "npt.NDArray[np.bytes_]",
        status: "npt.NDArray[np.str_]",
        broker_name: "npt.NDArray[np.str_]",
        queue_id: "npt.NDArray[np.int32]",
        queue_offset: "npt.NDArray[np.int64]",
    ) -> None:
        self.message_id = message_id
        self.status = status
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset

    def __len__(self) -> int:
        return len(self.message_id)

    def __repr__(self) -> str:
        return f"<ColumnReceipts of {len(self)} rows, {int(self.is_stored.sum())} stored>"

    @property
    def is_stored(self) -> "npt.NDArray[np.bool_]":
        """Has a broker said that it stored the row?"""
        stored: npt.NDArray[np.bool_] = self.queue_offset >= 0
        return stored

    def to_arrow(self) -> Any:  # pyarrow has no types
        """Return the columns as an Arrow table.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        from pymq.columns.arrow_package import pa

        return pa.table(
            {
                "message_id": pa.array(self.message_id.astype("U")),
                "status": pa.array(self.status),
                "broker_name": pa.array(self.broker_name),
                "queue_id": pa.array(self.queue_id),
                "queue_offset": pa.array(self.queue_offset),
            }
        )
