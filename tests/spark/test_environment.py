"""Spark in environments that are not as they should be; each in a process and a JVM of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark
DEADLINE_S = 540.0  # several sessions, on a machine that has other things to do

#: A data source of somebody else's.
OTHER = '''
from pyspark.sql.datasource import DataSource, DataSourceReader

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"
    def schema(self):
        return "number int"
    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def read(self, partition):
        yield (17,)
'''
SESSION = """
import sys
from pyspark.sql import SparkSession

name_server, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.local.dir", folder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
options = {"nameServer": name_server, "subscribe": "E"}
"""


def run_spark(script: str, cluster: Cluster, folder: Path, **environment: str) -> str:
    """Run a program in this interpreter, with nothing set that would tell Spark of it."""
    left_out = {name for name in os.environ if name.startswith("PYSPARK_")}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", script, cluster.name_server, str(folder)],
        env=kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
        cwd=folder,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.by_turns(of="sessions of their own", turn="environment")
def test_an_environment_that_is_not_activated(
    cluster: Cluster, client: BlockingClient, tmp_path: Path
) -> None:
    """The first python3 on the path is another one, as in a notebook or under cron."""
    client.send(Message("E", b"x"))
    programs = tmp_path / "bin"
    programs.mkdir()
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (programs / "python3").symlink_to(base)
    found = subprocess.run(
        [programs / "python3", "-c", "import pyspark_pymq"], cwd=tmp_path, capture_output=True
    )
    assert found.returncode != 0, "the other Python has pymq, too"
    java = f"{os.environ['JAVA_HOME']}/bin:" if "JAVA_HOME" in os.environ else ""
    path = f"{programs}:{java}/usr/bin:/bin"
    read = 'print("rows:", spark.read.format("pymq").options(**options).load().count())'
    script = f"import pyspark_pymq\n{SESSION}\n{read}"
    assert "rows: 1\n" in run_spark(script, cluster, tmp_path, PATH=path)


@pytest.mark.by_turns(of="sessions of their own", turn="environment")
def test_a_package_that_cannot_be_imported(cluster: Cluster, tmp_path: Path) -> None:
    """Ours says what to do; data sources of others are not concerned."""
    packages = tmp_path / "packages"
    for name, text in (("numpy", 'raise ImportError("built for another")'), ("pyspark_x", OTHER)):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text(text)
    # Spark's driver needs numpy itself; its other processes do not.
    script = f"""
import sys
sys.path.remove({str(packages)!r})
import pyspark_pymq
{SESSION}
print("rows:", spark.read.format("other").load().collect())
try:
    spark.read.format("pymq").options(**options).load()
except Exception as error:
    print("error:", error)
"""
    text = run_spark(script, cluster, tmp_path, PYTHONPATH=str(packages))
    assert "rows: [Row(number=17)]" in text
    _, _, error = text.partition("error: ")
    assert 'format("pymq") needs numpy' in error and "built for another" in error
    assert f"{sys.executable} -m pip install 'pymq-rocketmq[spark]'" in error
