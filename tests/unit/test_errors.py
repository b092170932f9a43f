"""What all errors have in common."""

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest

from pymq import errors
from pymq.errors import CommitFailed, ConfigurationError, ConnectionFailed, RequestTimeout


def classes(above: type[errors.PymqError]) -> Iterator[type[errors.PymqError]]:
    for found in above.__subclasses__():
        yield found
        yield from classes(found)


def made(kind: type[errors.PymqError]) -> errors.PymqError:
    """Return an error of a class, all its arguments given."""
    values = {"code": 17, "remark": "no such topic", "sent": True}
    names = inspect.signature(kind.__init__).parameters
    return kind("what happened", **{name: values[name] for name in names if name in values})


@pytest.mark.parametrize(
    "kind", [found for found in classes(errors.PymqError) if found.__module__ == errors.__name__]
)
def test_errors_travel_between_processes(kind: type[errors.PymqError]) -> None:
    """Those of a process pool, or of a function that Spark runs, are pickled."""
    error = made(kind)
    error.outcome_known = False
    error.add_note("and where")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("failed", "retriable", "outcome_known"),
    [
        ([ConfigurationError("not ours")], False, True),  # nothing was sent
        ([ConfigurationError("not ours"), ConnectionFailed("away")], True, True),
        ([ConfigurationError("not ours"), RequestTimeout("late")], True, False),
        ([], True, False),  # the broker keeps another offset
    ],
)
def test_a_commit_that_failed_is_as_its_failures_are(
    failed: list[errors.PymqError], retriable: bool, outcome_known: bool
) -> None:
    error = CommitFailed("not committed", dict(enumerate(failed)))
    assert (error.retriable, error.outcome_known) == (retriable, outcome_known)
