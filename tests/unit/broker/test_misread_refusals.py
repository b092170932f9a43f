"""Who is not told that a request is refused."""

import pytest

from pymq.broker.misread_refusals import is_misread
from pymq.protocol.codes import MQ_VERSION, LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
V4_5_1, V4_9_7, V5_0_0, V5_3_0 = 315, 407, 413, 473


@pytest.mark.parametrize(
    ("language", "version", "code", "refused", "expected"),
    [
        (LanguageCode.JAVA, V4_5_1, QUERY, ResponseCode.SYSTEM_BUSY, True),
        (LanguageCode.JAVA, V4_9_7, QUERY, ResponseCode.SERVICE_NOT_AVAILABLE, True),
        (LanguageCode.JAVA, V4_9_7, QUERY, ResponseCode.QUERY_NOT_FOUND, False),
        (LanguageCode.JAVA, V4_9_7, RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_BUSY, False),
        (LanguageCode.JAVA, V5_0_0, QUERY, ResponseCode.SYSTEM_BUSY, False),
        (LanguageCode.CPP, V5_3_0, QUERY, ResponseCode.SYSTEM_BUSY, True),
        (LanguageCode.PYTHON, MQ_VERSION, QUERY, ResponseCode.SYSTEM_BUSY, False),
        (LanguageCode.GO, V4_5_1, QUERY, ResponseCode.SYSTEM_BUSY, False),
    ],
)
def test_old_consumers_misread_that_they_cannot_be_told_what_is_committed(
    language: LanguageCode, version: int, code: int, refused: int, *, expected: bool
) -> None:
    assert is_misread(Command(code, language=language, version=version), refused) is expected
