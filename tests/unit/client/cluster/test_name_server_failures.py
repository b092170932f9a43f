"""Several name servers, of which none gives an answer."""

import itertools

import pytest

from pymq.client.cluster.name_server_failures import NameServerFailures
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, SystemBusy, TopicNotExist

ADDRESSES = ("10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876")


def the_error(*failures: PymqError) -> PymqError:
    gathered = NameServerFailures(ADDRESSES)
    for failure in failures:
        gathered.add(failure)
    return gathered.error()


def unknown() -> TopicNotExist:
    return TopicNotExist("10.0.0.2:9876 refused it: no route", code=17)


def busy() -> SystemBusy:
    return SystemBusy("10.0.0.1:9876 refused it: busy", code=2)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_one_that_does_not_know_the_topic_counts_most(order: tuple[int, ...]) -> None:
    failures = [busy(), unknown(), ConnectionFailed("cannot connect to 10.0.0.3:9876")]
    error = the_error(*(failures[at] for at in order))
    assert error is failures[1]
    assert sorted(error.__notes__) == sorted(str(failures[at]) for at in (0, 2))
    assert isinstance(error, TopicNotExist) and not error.is_certain


def test_that_others_do_not_know_it_either_is_no_failure() -> None:
    error = the_error(unknown(), unknown())
    assert isinstance(error, TopicNotExist) and error.is_certain
    assert not hasattr(error, "__notes__")


def test_a_refusal_counts_more_than_silence() -> None:
    refusal = busy()
    assert the_error(RequestTimeout("no answer from 10.0.0.2:9876"), refusal) is refusal
    assert refusal.__notes__ == ["no answer from 10.0.0.2:9876"]


def test_if_none_answers_all_are_named() -> None:
    error = the_error(ConnectionFailed("cannot connect"), RequestTimeout("no answer"))
    assert isinstance(error, ConnectionFailed) and error.outcome_known
    for text in (*ADDRESSES, "cannot connect", "no answer", "Is it running"):
        assert text in str(error)
