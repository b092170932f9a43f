"""An installation without extras: what works, and what names the packages that it lacks.

``./build.sh package`` looks at the wheel in an environment of its own; here a package is hidden.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymq import extras

TIMEOUT_S = 180.0
BROKER_LINE = "numpy, which is not installed: pip install 'pymq-rocketmq[broker]'"
CLI_LINE = "typer, which is not installed: pip install 'pymq-rocketmq[cli]'"


def python(*arguments: str, hide: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with a package hidden."""
    code = (
        f"import runpy, sys; sys.modules[{hide!r}] = None; sys.argv[:] = {list(arguments)!r}; "
        f"runpy.run_module({arguments[0]!r}, run_name='__main__', alter_sys=True)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A project of somebody else, with tests that have nothing to do with us."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_theirs.py").write_text("def test_theirs():\n    pass\n")
    return tmp_path


def test_foreign_tests_run_without_numpy(foreign: Path) -> None:
    done = python("pytest", "-q", hide="numpy", folder=foreign)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_imports_next_to_nothing(foreign: Path) -> None:
    """pytest loads it in every run of everybody who has pymq installed."""
    (foreign / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    open('loaded', 'w').write('\\n'.join(sorted(sys.modules)))\n"
    )

    def loaded(*arguments: str) -> set[str]:
        done = python("pytest", "-q", *arguments, hide="nothing", folder=foreign)
        assert done.returncode == 0, done.stdout + done.stderr
        return set((foreign / "loaded").read_text().split("\n"))

    ours = {"pymq", "pymq.testing", "pymq.testing.pytest_plugin"}
    assert loaded() - loaded("-p", "no:pymq") == ours


def test_the_fixture_names_what_is_missing(foreign: Path) -> None:
    (foreign / "test_theirs.py").write_text("def test_theirs(pymq_cluster):\n    pass\n")
    done = python("pytest", "-q", hide="numpy", folder=foreign)
    assert done.returncode == 1 and f"ExtraMissing: the broker needs {BROKER_LINE}" in done.stdout


def test_the_embedded_cluster_names_what_is_missing(foreign: Path) -> None:
    (foreign / "theirs.py").write_text("import pymq.testing\npymq.testing.Cluster()\n")
    done = python("theirs", hide="numpy", folder=foreign)
    last = done.stderr.rstrip().split("\n")[-1]
    assert last == f"pymq.extras.ExtraMissing: the broker needs {BROKER_LINE}"


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_server_names_what_is_missing(foreign: Path, command: str) -> None:
    done = python("pymq.cli", command, hide="numpy", folder=foreign)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pymq: the broker needs {BROKER_LINE}\n"


def test_a_command_for_stores_names_what_is_missing(foreign: Path) -> None:
    done = python("pymq.cli", "store", "check", ".", hide="numpy", folder=foreign)
    assert (done.returncode, done.stderr) == (2, f"pymq: pymq store needs {BROKER_LINE}\n")


def test_a_name_server_lacks_nothing(foreign: Path) -> None:
    done = python("pymq.cli", "namesrv", "--print-config", hide="numpy", folder=foreign)
    assert done.returncode == 0 and "listenPort=9876" in done.stdout, done.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_help_and_version_without_the_command_line(foreign: Path, package: str) -> None:
    done = python("pymq.cli", "--help", hide=package, folder=foreign)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run a name server and a broker in one process" in done.stdout
    done = python("pymq.cli", "--version", hide=package, folder=foreign)
    assert (done.returncode, done.stdout[:5]) == (0, "pymq ")


def test_help_and_commands_name_what_is_missing(foreign: Path) -> None:
    assert CLI_LINE in python("pymq.cli", "--help", hide="typer", folder=foreign).stdout
    done = python("pymq.cli", "topic", "list", hide="typer", folder=foreign)
    assert (done.returncode, done.stderr) == (2, f"pymq: pymq topic needs {CLI_LINE}\n")


def test_a_package_that_no_extra_brings_is_named_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'x'", name="x")
    assert extras.named(error, by="the broker") is error
