"""The response code and the remark of each outcome of a put."""

import pytest

from pymq.broker.log_writer import Outcome
from pymq.broker.put_answer import is_in_log, is_kept, send_answer
from pymq.protocol.codes import ResponseCode
from pymq.store import PutResult, PutStatus

ANSWERS = [
    (PutStatus.OK, Outcome.STORED, ResponseCode.SUCCESS),
    (PutStatus.OK, Outcome.DISK_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT),
    (PutStatus.OK, Outcome.SLAVE_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    (PutStatus.OK, Outcome.NO_SLAVE, ResponseCode.SLAVE_NOT_AVAILABLE),
    (PutStatus.MESSAGE_ILLEGAL, Outcome.REFUSED, ResponseCode.MESSAGE_ILLEGAL),
    (PutStatus.PROPERTIES_SIZE_EXCEEDED, Outcome.REFUSED, ResponseCode.MESSAGE_ILLEGAL),
    (PutStatus.BUSY, Outcome.REFUSED, ResponseCode.SYSTEM_BUSY),
    (PutStatus.NOT_REPLICATED, Outcome.REFUSED, ResponseCode.SYSTEM_ERROR),
    (PutStatus.NOT_WRITABLE, Outcome.REFUSED, ResponseCode.SERVICE_NOT_AVAILABLE),
    (PutStatus.NOT_WRITABLE, Outcome.FAILED, ResponseCode.SYSTEM_ERROR),
]


@pytest.mark.parametrize(("status", "outcome", "code"), ANSWERS)
def test_every_outcome_has_its_code(
    status: PutStatus, outcome: Outcome, code: ResponseCode
) -> None:
    remark = None if outcome is Outcome.STORED else "why"
    assert send_answer(PutResult(status, remark=remark), outcome) == (code, remark)
    assert is_in_log(outcome) == (status is PutStatus.OK)


def test_what_may_be_lost_with_this_broker_is_not_kept() -> None:
    kept = {outcome for outcome in Outcome if is_kept(outcome)}
    assert kept == {Outcome.STORED, Outcome.NO_SLAVE}


@pytest.mark.parametrize(("status", "outcome", "code"), ANSWERS)
def test_what_is_sent_to_be_handled_again_is_kept_or_an_error(
    status: PutStatus, outcome: Outcome, code: ResponseCode
) -> None:
    if outcome in (Outcome.DISK_TIMEOUT, Outcome.SLAVE_TIMEOUT):
        code = ResponseCode.SYSTEM_ERROR
    for topic in ("%RETRY%g", "%DLQ%g"):
        assert send_answer(PutResult(status, remark="why"), outcome, topic)[0] is code


def test_no_outcome_is_forgotten() -> None:
    assert {outcome for _, outcome, _ in ANSWERS} == set(Outcome)
    assert {status for status, _, _ in ANSWERS} == set(PutStatus)
