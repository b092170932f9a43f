"""The standard streams of the process: missing ones, letters they cannot have, full disks."""

import codecs
import json
import os
import sys

#: The name under which ``_escaped`` is known to streams.
_ERRORS = "pymq.escaped"


class OutputFailed(Exception):
    """Standard output cannot be written. Not a PymqError: nothing is wrong with the cluster."""


def prepare() -> None:
    """Make all standard streams usable.

    One that was closed reads or writes nothing. What the encoding of standard output lacks is
    written as JSON escapes it, so that JSON stays JSON.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    codecs.register_error(_ERRORS, _escaped)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):  # tests have other streams there
        reconfigure(errors=_ERRORS)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def write(data: str | bytes) -> None:
    """Write to standard output now, so that a reader at the other end of a pipe need not wait.

    Raises:
        BrokenPipeError: that reader has gone.
        OutputFailed: it cannot be written for another reason.
    """
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        elif data:  # a full disk does not even take nothing
            sys.stdout.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"the output cannot be written: {error.strerror or error}") from error


def silence() -> None:
    """Let Python write what is left, as it does at its end, into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
