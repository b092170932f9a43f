"""Which failed sends are tried again, after which pause, and what the last error tells."""

import pytest

from pymq.client.sending.send_history import SendHistory
from pymq.client.sending.send_retry import PAUSE_FIRST_S, PAUSE_MAX_S, may_try_again, pause_s
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)


def refused(code: int) -> BrokerError:
    return BrokerError.of(code, "as wanted", peer="h:1", request="a message")


def certain() -> RouteNotFound:
    error = RouteNotFound("nobody knows it")
    error.is_certain = True
    return error


@pytest.mark.parametrize(
    ("error", "often", "bound"),
    [
        (ConnectionFailed("closed"), True, True),
        (ConnectionFailed("lost", sent=True), True, False),
        (RequestTimeout("silent"), True, False),
        (refused(2), True, True),
        (refused(14), True, True),
        (RouteNotFound("no master"), True, True),
        (refused(1), False, False),
        (refused(16), False, False),
        (refused(17), False, False),
        (refused(13), None, False),
        (certain(), None, False),
        (LocalProtocolError("too large"), None, False),
    ],
    ids=str,
)
def test_which_failures_are_tried_again(error: PymqError, often: bool | None, bound: bool) -> None:
    """``often`` None: never; False: as long as RocketMQ would; ``bound``: also in one queue."""

    def again(failures: int, *, retries: int | None = None, is_bound: bool = False) -> bool:
        return may_try_again(error, failures=failures, retries=retries, is_bound=is_bound)

    assert again(1) == (often is not None)
    assert again(2) == (often is not None)
    assert again(3) == again(100) == bool(often)
    assert not again(1, retries=0)
    assert not again(3, retries=2)
    assert again(1, is_bound=True) == (bound or (error.retriable and isinstance(error, BrokerError)
                                                 and error.outcome_known))  # fmt: skip


def test_time_heals_what_name_servers_refuse() -> None:
    assert may_try_again(refused(1), failures=9, retries=None, is_bound=False, is_placed=False)
    assert not may_try_again(refused(1), failures=9, retries=8, is_bound=False, is_placed=False)
    for final in (refused(13), certain()):
        assert not may_try_again(final, failures=9, retries=None, is_bound=False, is_placed=False)


def test_pauses_grow_up_to_a_limit() -> None:
    assert pause_s(1, has_other=True) == 0.0
    for failures in range(1, 200):
        longest = min(PAUSE_FIRST_S * 2 ** (failures - 1), PAUSE_MAX_S)
        assert longest / 2 <= pause_s(failures, has_other=failures == 2) <= longest


def test_the_error_of_one_attempt_stays_as_it_is() -> None:
    history, error = SendHistory(), ConnectionFailed("closed")
    history.add(error, "a queue 0", 0.0)
    assert history.final(error, 30.0) is error


def test_the_last_error_tells_what_became_of_all_attempts() -> None:
    history = SendHistory()
    lost = ConnectionFailed("lost", sent=True)
    history.add(lost, "a queue 0", 0.1)
    closed = ConnectionFailed("closed")
    for number in range(10):
        history.add(closed, "b queue 1", 1.0 + number)
    final = history.final(closed, 30.0)
    assert isinstance(final, ConnectionFailed) and not final.outcome_known
    assert str(final) == (
        "closed; an earlier attempt may have stored it (lost); tried 11 times in 10.0 s of 30 s "
        "(deadline_s): at 0.1 s a queue 0: lost; 10 from 1.0 to 10.0 s b queue 1: closed"
    )
    assert closed.outcome_known and str(closed) == "closed"
    assert final.__cause__ is lost


def test_a_long_history_is_cut_in_the_middle() -> None:
    history = SendHistory()
    for number in range(20):
        history.add(refused(2), f"queue {number}", float(number))
    text = str(history.final(refused(2), 30.0))
    assert text.count("queue ") == 5 and "15 others" in text and "queue 19" in text
