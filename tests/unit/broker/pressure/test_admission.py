"""Which requests are refused while the broker is busy, in RocketMQ's words, and said once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.store.stores import FakeClock, open_store

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter
from pymq.broker.pressure.admission import Admission
from pymq.broker.pressure.disk_pressure import LOOKS_LEAST, DiskPressure
from pymq.broker.pressure.request_classes import ADMIN, CLASSES, SEND, class_of
from pymq.errors import SystemBusy
from pymq.protocol.codes import RequestCode
from pymq.settings import from_properties

SEND_CODE, PULL_CODE = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


class Bed:
    """An admission, a disk that the test makes slow, and a clock to set."""

    def __init__(self, root: Path, **settings: int) -> None:
        self.clock = FakeClock()
        self.config = BrokerConfig(**settings)  # type: ignore[arg-type]
        self.flush_begun_s: float | None = None
        self.executor = ThreadPoolExecutor(1)
        self.disk = DiskPressure(
            self.config,
            self.clock,
            open_store(root, self.clock),
            self.executor,
            flush_begun_s=lambda: self.flush_begun_s,
        )
        self.writer = LogWriter(lambda puts: [], None, self.disk)
        self.admission = Admission(self.config, self.clock, self.disk, self.writer)

    def step(self, after_s: float = 0.0) -> None:
        self.clock.now_ms += int(after_s * 1000)
        self.admission.step()


def test_a_long_flush_makes_the_disk_suspect_for_a_while(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.flush_begun_s = bed.clock.monotonic_s()
    bed.step(0.5)
    assert not bed.admission.is_strained
    bed.step(1.0)
    assert bed.admission.is_strained and bed.disk.is_suspect
    bed.admission.check(SEND_CODE, 0.0, 0)  # it may still take writes
    bed.flush_begun_s = None
    bed.step(10)
    assert not bed.admission.is_strained


def test_a_disk_that_takes_nothing_refuses_sends_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path)
    went_on: list[bool] = []

    async def check() -> None:
        bed.disk.wrote(0.3)
        assert bed.disk.is_suspect
        bed.disk.try_write(lambda: went_on.append(True))
        bed.step(5.0)  # the process itself may have been stopped
        assert not bed.disk.is_busy
        for _ in range(LOOKS_LEAST):
            bed.step(0.05)
        assert bed.disk.is_busy
        with pytest.raises(SystemBusy, match=r"^\[REJECTREQUEST\]system busy, start flow control"):
            bed.admission.check(SEND_CODE, 0.0, 0)
        bed.admission.check(PULL_CODE, 0.0, 0)
        while not went_on:
            await asyncio.sleep(0.001)

    with bed.executor:
        asyncio.run(check())
    assert not bed.disk.is_busy
    assert caplog.text.count("osPageCacheBusyTimeOutMills=1000") == 1
    assert "takes writes again" in caplog.text and "a write to the log took 0.3 s" in caplog.text


@pytest.mark.parametrize(
    ("code", "waited_s", "is_refused"),
    [
        (SEND_CODE, 0.199, False),
        (SEND_CODE, 0.2, True),
        (PULL_CODE, 4.9, False),
        (PULL_CODE, 5.0, True),
        (RequestCode.LITE_PULL_MESSAGE, 5.0, True),
        (RequestCode.HEART_BEAT, 30.0, False),
        (RequestCode.HEART_BEAT, 31.0, True),
        (RequestCode.END_TRANSACTION, 3.0, True),
        (RequestCode.ACK_MESSAGE, 3.0, True),
        (RequestCode.GET_BROKER_RUNTIME_INFO, 5.0, True),
        (RequestCode.QUERY_MESSAGE, 100.0, False),
        (RequestCode.UPDATE_CONSUMER_OFFSET, 100.0, False),
    ],
)
def test_requests_that_waited_too_long(
    tmp_path: Path, code: int, waited_s: float, is_refused: bool
) -> None:
    bed = Bed(tmp_path)
    for _ in range(10):  # once is no reason
        bed.admission.check(code, waited_s, 3)
        bed.step(0.2)
    if not is_refused:
        bed.admission.check(code, waited_s, 3)
        return
    with pytest.raises(SystemBusy) as caught:
        bed.admission.check(code, waited_s, 3)
    assert caught.value.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        f"{waited_s * 1000:.0f}ms, size of queue: 3"
    )


def test_late_requests_are_handled_if_that_is_wanted(tmp_path: Path) -> None:
    config = from_properties(BrokerConfig, {"brokerFastFailureEnable": "false"}, source="test")
    bed = Bed(tmp_path)
    bed.admission._config = config
    for _ in range(20):
        bed.step(0.2)
        bed.admission.check(SEND_CODE, 10.0, 0)


def test_requests_that_are_late_now_and_then_are_handled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path)
    for _ in range(20):
        bed.step(0.6)
        bed.admission.check(SEND_CODE, 10.0, 0)
    for _ in range(20):
        bed.step(0.2)
        try:
            bed.admission.check(SEND_CODE, 10.0, 0)
        except SystemBusy:
            continue
    assert caplog.text.count("waited 10000 ms for its turn") == 1


def test_each_class_has_its_limit_of_waiting_handlers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path, waiting_query_count_max=2)
    query = RequestCode.QUERY_MESSAGE
    for _ in range(2):
        bed.admission.begin_wait(query)
    for _ in range(5):
        with pytest.raises(SystemBusy, match=r"^\[OVERLOAD\]system busy, start flow control"):
            bed.admission.begin_wait(query)
    bed.admission.begin_wait(PULL_CODE)
    assert caplog.text.count("waiting_query_count_max") == 1
    bed.admission.end_wait(query)
    bed.admission.begin_wait(query)
    assert bed.admission.waiting_count(CLASSES[query]) == 2


def test_sends_that_wait_for_a_flush_have_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path, in_flight_bytes_max=1000)
    bed.writer.waiting_bytes = 1001
    for _ in range(3):
        bed.step()
        with pytest.raises(SystemBusy, match="REJECTREQUEST"):
            bed.admission.check(SEND_CODE, 0.0, 0)
    bed.writer.waiting_bytes = 900
    bed.step()
    assert bed.admission.is_strained
    bed.writer.waiting_bytes = 100
    bed.step()
    assert not bed.admission.is_strained
    assert caplog.text.count("pymqInFlightBytesMax") == 1


def test_what_is_not_listed_is_administration() -> None:
    assert class_of(RequestCode.GET_BROKER_CONFIG) is ADMIN
    assert class_of(RequestCode.CONSUMER_SEND_MSG_BACK) is SEND
