"""A standalone Spark cluster of the tests: a master and workers, each a process.

Its Python has Spark, pyarrow and numpy, and not pymq: that comes with ``--py-files``, as a zip of
our packages. ``spark-submit`` is the driver, in client mode, with the same Python.
"""

import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pyspark
from tests.interop.peers import free_port
from tests.interop.processes import guard

DEADLINE_S: Final = 240.0
_POLL_S: Final = 0.05
_LOG_TAIL_CHARS: Final = 6_000
_ROOT: Final = Path(__file__).resolve().parents[2]


class SparkFailed(Exception):
    """A process of the cluster did not start; the text ends with what it wrote."""


class SparkProcess:
    """One process of Spark's, the leader of a group of its own.

    Args:
        command: what is run.
        output: file that it writes to; what is there stays.
        environment: of it.
    """

    def __init__(self, command: list[str], output: Path, environment: dict[str, str]) -> None:
        with output.open("ab") as stream:
            self._start = stream.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=output.parent,
                start_new_session=True,
            )
        self._output = output
        self.pid = self._process.pid
        guard.watch(self.pid)

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what it has written."""
        with self._output.open("rb") as stream:
            stream.seek(self._start)
            return stream.read().decode(errors="replace")

    def wait_output(self, text: str) -> None:
        """Wait until it has written a text.

        Raises:
            SparkFailed: it ended, or did not write it in time.
        """
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.output():
            if self.returncode is not None or time.monotonic() > deadline:
                raise SparkFailed(f"no {text!r}:\n{self.output()[-_LOG_TAIL_CHARS:]}")
            time.sleep(_POLL_S)

    def wait_end(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its end, and return its exit code."""
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise SparkFailed(f"no end:\n{self.output()[-_LOG_TAIL_CHARS:]}") from error

    def kill(self) -> None:
        """SIGKILL to all of the group: a driver is a JVM and its Python processes."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        guard.forget(self.pid)


class StandaloneCluster:
    """A master and workers with one core each; a context manager.

    Args:
        home: an empty directory for all of it.
        worker_count: workers.
    """

    def __init__(self, home: Path, worker_count: int = 2) -> None:
        self._home = home
        self._worker_count = worker_count
        self._spark = Path(pyspark.__file__).parent
        self.python = bare_python(home / "python")
        self.package = zip_package(home / "pymq.zip")
        self._environment = os.environ | {
            "SPARK_HOME": str(self._spark),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(home / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            # An executor that is killed again and again is no reason to end the application.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }
        for name in ("PYTHONPATH", "PYMQ_TEST_SEED"):
            self._environment.pop(name, None)
        self._processes: list[SparkProcess] = []
        self._job_count = 0

    def __enter__(self) -> Self:
        port = free_port(0)
        self._url = f"spark://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--webui-port"]
        try:
            master = self._start("master", "master.Master", "--port", str(port), *place, "0")
            master.wait_output("New state: ALIVE")
            limits = ["--cores", "1", "--memory", "1g"]
            workers = [
                self._start(f"worker-{number}", "worker.Worker", *limits, *place, "0", self._url)
                for number in range(self._worker_count)
            ]
            for worker in workers:
                worker.wait_output("Successfully registered with master")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.workers = workers
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._processes):
            for pid in descendants(process.pid):  # executors lead groups of their own
                _signal(pid, signal.SIGKILL)
            process.kill()

    def _start(self, name: str, program: str, *arguments: str) -> SparkProcess:
        script = str(self._spark / "bin" / "spark-class")
        command = [script, f"org.apache.spark.deploy.{program}", *arguments]
        if name != "master":
            command[2:2] = ["--work-dir", str(self._home / name)]
        process = SparkProcess(command, self._home / f"{name}.log", self._environment)
        self._processes.append(process)
        return process

    def submit(self, script: Path, *arguments: str, **settings: str) -> SparkProcess:
        """Start a driver, which runs a script.

        Args:
            script: what it runs.
            arguments: of the script.
            settings: of Spark, ``_`` for the dots in their names.
        """
        usual = {
            "spark_ui_enabled": "false",
            "spark_driver_memory": "512m",
            "spark_executor_memory": "640m",
            "spark_sql_shuffle_partitions": "2",
            "spark_python_unix_domain_socket_enabled": "true",
            "spark_driver_host": "127.0.0.1",
            "spark_driver_bindAddress": "127.0.0.1",
        } | settings
        options = [
            part
            for name, value in usual.items()
            for part in ("--conf", f"{name.replace('_', '.')}={value}")
        ]
        self._job_count += 1
        process = SparkProcess(
            [
                str(self._spark / "bin" / "spark-submit"),
                *("--master", self._url, "--py-files", str(self.package)),
                *options,
                str(script),
                *arguments,
            ],
            self._home / f"driver-{self._job_count}.log",
            self._environment,
        )
        self._processes.append(process)
        return process

    def executors(self) -> list[int]:
        """Return the pids of the executors that run."""
        return [
            pid
            for worker in self.workers
            for pid in descendants(worker.pid)
            if b"CoarseGrainedExecutorBackend" in _command_line(pid)
        ]

    def python_workers(self) -> list[int]:
        """Return the pids of the executors' Python processes, their daemons left out."""
        return [
            pid
            for executor in self.executors()
            for daemon in _children(executor)
            for pid in _children(daemon)
        ]


def bare_python(home: Path) -> Path:
    """Make an environment with all that is installed here but pymq, and return its Python.

    The environments of ``build.sh spark-matrix`` have a Spark, and all else from another one that
    has a Spark, too: of what is in several folders, the one that is imported here counts.
    """
    venv.create(home, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    there: set[str] = set()
    for folder in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        found = {one.name: one for one in folder.iterdir() if one.suffix != ".pth"}
        names = {name: distribution(name) for name in found if "pymq" not in name}
        for name, of in names.items():
            if of not in there:
                (packages / name).symlink_to(found[name])
        there |= set(names.values())
    return home / "bin" / "python"


def distribution(name: str) -> str:
    """Return the name of an entry in ``site-packages``, without the version if it has one."""
    stem, dot, _ = name.rpartition(".dist-info")
    return stem.rpartition("-")[0] + dot if dot else name


def zip_package(path: Path) -> Path:
    """Make what ``--py-files`` takes: the packages of the wheel."""
    with zipfile.ZipFile(path, "w") as package:
        for root in (_ROOT / "broker" / "pymq", _ROOT / "connector" / "pyspark_pymq"):
            for module in root.rglob("*.py"):
                package.write(module, module.relative_to(root.parent))
    return path


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of all processes below one."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
