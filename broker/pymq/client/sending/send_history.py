"""What became of the attempts of one send, for the error that ends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pymq.errors import PymqError

#: Longer reasons are cut: the last one is given in full anyway.
_REASON_CHARACTERS = 160
#: More different attempts than this are not listed.
_LISTED_MAX = 6


@contextmanager
def before_sending() -> Iterator[None]:
    """Ask in this block what must be known before a message is sent.

    Raises:
        PymqError: the question failed; of the message, the outcome is known: it was not sent.
    """
    try:
        yield
    except PymqError as error:
        if error.outcome_known:
            raise
        # A copy, because everybody who waits for a route gets the same error object.
        copy = error.retold(f"{error}; that was a question, no message was sent with it")
        copy.outcome_known = True
        raise copy from error


@dataclass(slots=True)
class _Run:
    """Attempts that failed in the same way, one after the other; seconds since the send began."""

    where: str
    reason: str
    first_s: float
    last_s: float
    count: int = 1

    def __str__(self) -> str:
        when = f"at {self.first_s:.1f} s"
        if self.count > 1:
            when = f"{self.count} from {self.first_s:.1f} to {self.last_s:.1f} s"
        return f"{when} {self.where}: {self.reason}"


class SendHistory:
    """Failed attempts of one send; alike ones in a row are one line.

    Attributes:
        count: failed attempts.
        unknown: why one of them may have stored the message; ``None``: surely none has.
    """

    __slots__ = ("_runs", "count", "unknown")

    def __init__(self) -> None:
        self.count = 0
        self.unknown: PymqError | None = None
        self._runs: list[_Run] = []

    def add(self, error: PymqError, where: str, at_s: float) -> None:
        """Record the end of an attempt.

        Args:
            error: how it ended.
            where: which queue it went to.
            at_s: seconds since the send began.
        """
        self.count += 1
        if not error.outcome_known:
            self.unknown = error
        reason = str(error)
        if len(reason) > _REASON_CHARACTERS:
            reason = f"{reason[:_REASON_CHARACTERS]}..."
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.where, last.reason) == (where, reason):
            last.count += 1
            last.last_s = at_s
        else:
            self._runs.append(_Run(where, reason, at_s, at_s))

    def final(self, error: PymqError, deadline_s: float) -> PymqError:
        """Return the error that ends the send: a copy, because others may get the same object.

        Args:
            error: of the last attempt.
            deadline_s: seconds that the whole send had.
        """
        error = error.after_unknown(self.unknown)
        if self.count <= 1:
            return error
        runs = self._runs
        lines = [str(run) for run in runs]
        if len(lines) > _LISTED_MAX:
            left_out = sum(run.count for run in runs[3:-2])
            lines[3:-2] = [f"{left_out} others"]
        taken_s = runs[-1].last_s
        return error.retold(
            f"{error}; tried {self.count} times in {taken_s:.1f} s of {deadline_s:g} s "
            f"(deadline_s): {'; '.join(lines)}"
        )
