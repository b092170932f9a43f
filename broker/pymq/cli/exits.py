"""The exit statuses of ``pymq``, and the one of each error."""

from enum import IntEnum

from pymq.errors import (
    BrokersFailed,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    TooManyPending,
)


class Exit(IntEnum):
    """Exit status of the process."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNWRITTEN = 4
    INTERRUPTED = 130  # 128 + SIGINT, as shells count


#: For ``--help``.
EXIT_TEXTS = {
    Exit.OK: "done; a server was stopped by SIGTERM or Ctrl-C",
    Exit.REFUSED: "the name server or the broker refused, or nothing was found",
    Exit.USAGE: "wrong arguments or settings; a server could not start or stop cleanly",
    Exit.UNREACHABLE: "not reachable, or no answer in time",
    Exit.UNWRITTEN: "the output could not be written; what was to be done may be done",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}


def with_notes(error: BaseException) -> str:
    """Return an error's text with its notes: what was done before, or elsewhere."""
    return "; ".join(filter(None, [str(error), *getattr(error, "__notes__", ())]))


def forbidden(error: PermissionError) -> str:
    """Return the text for what this user may not look at."""
    return (
        f"{error.filename or error}: {error.strerror or 'not permitted'}; give this user the right "
        "to it, or choose another directory"
    )


def exit_for(error: PymqError) -> Exit:
    """Return the exit status of a client command that failed with an error."""
    if isinstance(error, BrokersFailed):
        every = {exit_for(one) for one in error.failures.values()}
        return every.pop() if len(every) == 1 else Exit.REFUSED
    if isinstance(error, ConfigurationError | LocalProtocolError):
        return Exit.USAGE
    if isinstance(error, ConnectionFailed | RequestTimeout | TooManyPending):
        return Exit.UNREACHABLE
    return Exit.REFUSED
