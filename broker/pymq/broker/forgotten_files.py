"""Files of a master's features that hold only while it stays one: a slave forgets them.

* ``sinks.json`` counts the entries of the log that there was. A slave's log may lose its end, and
  go on with what another master has written: what the file says would be taken for what stands
  there. The next run as a master reads everything from the journal.
* ``consumerOrderInfo.json`` says which queues are blocked by what was popped from them in order.
  Groups go on at the other master, and topics and groups are deleted there.
"""

from pathlib import Path

from pymq.store.state.sealed_file import SealedFile

#: Also for those whose files they are.
SINKS, ORDERS = "sinks.json", "consumerOrderInfo.json"


def forget_files(root: Path, unsaved: dict[str, str]) -> None:
    """Have the next run as a master know nothing from them.

    Args:
        root: directory of the store.
        unsaved: what they would say if they could have been saved; see ``StateFile``.

    Raises:
        StoreError: they may still be there.
    """
    for name in (SINKS, ORDERS):
        SealedFile(root / "config" / name).remove()
        unsaved.pop(name, None)
