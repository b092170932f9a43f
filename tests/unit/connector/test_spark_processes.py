"""Which of Spark's processes this is, what appears of the log there, and the warning of TCP."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pyspark
import pytest

from pyspark_pymq.spark_processes import process_name, show_log, takes_filters, warn_of_tcp

STREAM = "pyspark.sql.streaming.python_streaming_source_runner"
BATCH = "pyspark.sql.worker.plan_data_source_read"
FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"
Become = Callable[..., None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Makes this process look like one of Spark's."""

    def become(name: str | None, *arguments: str) -> None:
        spec = None if name is None else SimpleNamespace(name=name)
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
        monkeypatch.setattr(sys, "argv", ["program", *arguments])

    return become


@contextmanager
def nothing_configured() -> Iterator[logging.Logger]:
    """The logger of the package, without the handlers that pytest adds when a test begins."""
    root, log = logging.getLogger(), logging.getLogger("pyspark_pymq")
    kept = root.handlers, root.level, log.handlers, log.level
    root.handlers, log.handlers = [], []
    root.setLevel(logging.WARNING)
    log.setLevel(logging.NOTSET)
    try:
        yield log
    finally:
        root.handlers, log.handlers = kept[0], kept[2]
        root.setLevel(kept[1])
        log.setLevel(kept[3])


def test_names(become: Become) -> None:
    for process, expected in (
        ((STREAM,), STREAM),
        (("pyspark.daemon", FILTERS), FILTERS),
        (("pyspark.daemon", "pyspark.worker"), "pyspark.worker"),
        (("pytest.__main__", FILTERS), None),
        ((None, FILTERS), None),
    ):
        become(*process)
        assert process_name() == expected
        assert takes_filters() is (expected == FILTERS)


@pytest.mark.parametrize(
    "process", [(STREAM,), (BATCH,), ("pyspark.daemon", BATCH), ("pyspark.daemon", FILTERS)]
)
def test_the_log_of_a_source_appears(
    process: tuple[str, ...], become: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    become(*process)
    with nothing_configured():
        show_log()
        show_log()
        logging.getLogger("pyspark_pymq.source.reader").info("from %d on", 7)
        logging.getLogger("pyspark_pymq.source.reader").debug("details")
        logging.getLogger("others").info("nothing of ours")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO pyspark_pymq.source.reader: from 7 on") and line[:2] == "20"


@pytest.mark.parametrize(
    "process",
    [
        (None,),
        ("__main__",),
        ("pyspark.daemon", "pyspark.worker"),
        ("pyspark.daemon", "pyspark.sql.worker.create_data_source"),
    ],
)
def test_the_log_of_other_processes_is_left_alone(
    process: tuple[str | None, ...], become: Become
) -> None:
    become(*process)
    with nothing_configured() as log:
        show_log()
        assert not log.hasHandlers() and log.level == logging.NOTSET


def test_a_log_that_somebody_configured_is_left_alone(
    become: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    become(STREAM)
    with nothing_configured():
        logging.basicConfig(level=logging.WARNING, format="mine %(message)s")
        show_log()
        logging.getLogger("pyspark_pymq.source.reader").info("told")
        logging.getLogger("pyspark_pymq.source.reader").warning("warned")
    assert capsys.readouterr().err == "mine warned\n"


@pytest.mark.parametrize(
    ("process", "version", "path", "is_warned"),
    [
        (STREAM, "4.3.0", None, True),
        (STREAM, "4.1.4", None, True),
        (STREAM, "4.3.0", "/tmp/x.sock", False),
        (STREAM, "4.0.5", None, False),
        (BATCH, "4.3.0", None, False),
    ],
)
def test_a_warning_of_tcp(
    process: str,
    version: str,
    path: str | None,
    is_warned: bool,
    become: Become,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    become(process)
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SOCK_PATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_PATH", path)
    warn_of_tcp()
    assert ("pymq.spark.tune" in caplog.text) is is_warned
