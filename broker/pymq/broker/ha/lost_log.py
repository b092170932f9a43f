"""What to do with a broker of a group whose log has lost what was safe on its disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymq.broker.ha.identity import NAME
from pymq.errors import CorruptRecord
from pymq.store.recovery.end_check import LogEndMissing


@contextmanager
def advising(*, group: str, root: Path) -> Iterator[None]:
    """Say what to do if the log of a broker, of which others may have it, has lost its end.

    What the store advises for a broker alone, to give up what is missing, would make all of them
    lose it: this one could be elected.

    Args:
        group: name of the brokers.
        root: of the store.

    Raises:
        CorruptRecord: it has.
    """
    try:
        yield
    except LogEndMissing as error:
        raise _advised(error, group=group, root=root) from error


def _advised(error: LogEndMissing, *, group: str, root: Path) -> CorruptRecord:
    return CorruptRecord(
        f"{error.found}. First of all, give this broker the disk or the files of its log back. If "
        f"they are gone for good, start the other brokers of group {group} first; when one of them "
        f"is the master, start this one with an empty store, without {root / NAME}: it gets "
        "another id, and the log from the master. Do not make it start with what is left: if it is "
        "elected, the others lose the rest as well"
    )
