"""What a service does for an order, once, and undoes, once, in whatever order it is told.

The service *orders* calls ``take`` over HTTP; a message says ``undo``. Both may be repeated, both
may be late, and ``undo`` may come first: the caller gave up waiting, the order was cancelled, and
only then the call arrives. So each service keeps a row for each order:

========  =====================  ===================================================
row       ``take``               ``undo``
========  =====================  ===================================================
none      takes; row = taken     nothing to give back; row = undone, which stays
taken     was done before        gives back; row = undone
undone    refused                was done before
========  =====================  ===================================================

Two at once insert the same key, or change the same version: one of them is tried again by
``Database.transaction``, and then finds the other's row.
"""

from typing import Protocol

from sqlalchemy.orm import Session

from shop.columns import now_ms
from shop.errors import Refused

TAKEN = "taken"
UNDONE = "undone"


class Step(Protocol):
    """A row of such a table."""

    def __init__(self, **columns: object) -> None: ...


def take(session: Session, table: type[Step], order_id: str) -> bool:
    """Begin to take something for an order.

    Returns:
        Whether it is to be done now; ``False``: it was done before.

    Raises:
        Refused: the order was cancelled, so it must not be done any more.
    """
    row = session.get(table, order_id)
    if row is None:
        session.add(table(order_id=order_id, state=TAKEN, changed_ms=now_ms()))
        session.flush()  # whoever inserted it first is found out before anything is done
        return True
    if row.state == UNDONE:  # type: ignore[attr-defined]  # StepColumns
        raise Refused(409, "orderId", order_id, "an order that is not cancelled")
    return False


def undo(session: Session, table: type[Step], order_id: str) -> bool:
    """Begin to give back what was taken for an order.

    Returns:
        Whether it is to be done now; ``False``: nothing was taken, or it was given back before.
    """
    row = session.get(table, order_id, with_for_update=True)
    if row is None:
        session.add(table(order_id=order_id, state=UNDONE, changed_ms=now_ms()))
        session.flush()
        return False
    was_taken: bool = row.state == TAKEN  # type: ignore[attr-defined]  # StepColumns
    if was_taken:
        row.state = UNDONE  # type: ignore[attr-defined]
        row.changed_ms = now_ms()  # type: ignore[attr-defined]
        session.flush()
    return was_taken
