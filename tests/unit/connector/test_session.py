"""Settings of a session, and explicit registration."""

from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pymq.spark import register, tune
from pyspark_pymq import DefaultSource
from pyspark_pymq.session import SETTINGS


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


class Refused(AnalysisException):
    """What Spark says to a registration."""

    def __init__(self, condition: str | None) -> None:
        super().__init__("[DATA_SOURCE_ALREADY_EXISTS] is in the text, whatever it is")
        self.condition = condition

    def getCondition(self) -> str | None:
        return self.condition


@pytest.mark.parametrize("condition", ["DATA_SOURCE_ALREADY_EXISTS", "DATA_SOURCE_NOT_FOUND", None])
def test_what_spark_has_found_by_itself_is_registered(condition: str | None) -> None:
    """Spark 4.0 refuses to do so again; every other refusal is one."""

    def refuse(_: object) -> None:
        raise Refused(condition)

    session: Any = SimpleNamespace(dataSource=SimpleNamespace(register=refuse))
    if condition == "DATA_SOURCE_ALREADY_EXISTS":
        register(session)
        return
    with pytest.raises(Refused):
        register(session)
