"""Settings of a session, explicit registration, and the warning of slow tasks."""

import sys
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from pymq.spark import register, tune
from pyspark_pymq import DefaultSource
from pyspark_pymq.session import SETTINGS
from pyspark_pymq.transport import warn_of_tcp


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)


def builder(**chosen: str) -> SparkSession.Builder:
    made = SparkSession.Builder()
    made._options = {}  # shared by all builders otherwise
    for name, value in chosen.items():
        made.config(name.replace("_", "."), value)
    return made


def test_tune_sets_what_nobody_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builder()
    assert tune(made) is made
    assert made._options == SETTINGS
    assert tune(builder(spark_speculation="true"))._options == {
        **SETTINGS,
        "spark.speculation": "true",
    }
    submitted = "--master local[2] --conf spark.buffer.size=65536 --conf=spark.speculation=true x"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submitted)
    assert tune(builder())._options.keys() == SETTINGS.keys() - {
        "spark.buffer.size",
        "spark.speculation",
    }


def test_tune_too_late(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", object())
    tune(builder())
    assert "tune comes too late" in caplog.text


def test_tune_with_connect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = builder(spark_remote="sc://localhost")
    assert tune(made)._options == {"spark.remote": "sc://localhost"}
    assert "--conf spark.python.unix.domain.socket.enabled=true" in caplog.text
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    assert tune(builder())._options == {}


def test_register() -> None:
    found: list[Any] = []
    session: Any = SimpleNamespace(dataSource=SimpleNamespace(register=found.append))
    register(session)
    assert found == [DefaultSource]


@pytest.mark.parametrize(
    ("process", "version", "path", "is_warned"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", "4.3.0", None, True),
        ("pyspark.sql.streaming.python_streaming_source_runner", "4.1.4", None, True),
        ("pyspark.sql.streaming.python_streaming_source_runner", "4.3.0", "/tmp/x.sock", False),
        ("pyspark.sql.streaming.python_streaming_source_runner", "4.0.5", None, False),
        ("pyspark.sql.worker.plan_data_source_read", "4.3.0", None, False),
    ],
)
def test_a_warning_of_tcp(
    process: str,
    version: str,
    path: str | None,
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=process))
    monkeypatch.setattr(pyspark, "__version__", version)
    if path is not None:
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_PATH", path)
    warn_of_tcp()
    assert ("pymq.spark.tune" in caplog.text) is is_warned
