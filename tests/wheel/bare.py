"""The wheel without extras, in an environment that has nothing else but pytest.

``./build.sh package`` copies this file into an empty project and runs it there, so that the run
itself shows that pytest works beside the wheel. ``PYMQ_SOURCE`` names the tree it was made from.
"""

import importlib
import importlib.metadata
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(os.environ["PYMQ_SOURCE"])
INSTALL_BROKER = "numpy, which is not installed: pip install 'pymq-rocketmq[broker]'"
INSTALL_CLI = "typer, which is not installed: pip install 'pymq-rocketmq[cli]'"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command ``pymq``."""
    program = Path(sys.executable).with_name("pymq")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def test_nothing_else_is_installed() -> None:
    for name in ("numpy", "typer", "rich", "pyspark"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_the_wheel_requires_nothing_without_extras() -> None:
    requires = importlib.metadata.requires("pymq-rocketmq") or []
    assert [line for line in requires if "extra ==" not in line] == []


def test_the_wheel_holds_every_file_of_the_tree() -> None:
    wanted = {
        str(file.relative_to(root))
        for root in (SOURCE / "broker", SOURCE / "connector")
        for file in root.rglob("*")
        if file.suffix == ".py" or file.name == "py.typed"
    }
    files = {str(file) for file in importlib.metadata.files("pymq-rocketmq") or ()}
    assert {name for name in files if name.endswith((".py", "py.typed"))} == wanted


def test_the_client_works_without_extras() -> None:
    import pymq

    assert not Path(pymq.__file__).is_relative_to(SOURCE)
    for name in pymq.__all__:
        getattr(pymq, name)
    with pytest.raises(pymq.PymqError, match="no name server"):
        pymq.BlockingClient("127.0.0.1:1").write_queues("T")


def test_columns_name_what_to_install() -> None:
    import pymq

    with pytest.raises(pymq.ConfigurationError, match=r"pip install 'pymq-rocketmq\[columns\]'"):
        importlib.import_module("pymq.columns")


def test_spark_would_find_the_connector() -> None:
    assert "pyspark_pymq" in {module.name for module in pkgutil.iter_modules()}
    importlib.import_module("pyspark_pymq")


def test_the_helpers_for_spark_are_there() -> None:
    import pymq.spark

    file = 'v1\n{}\n{"%": {"v": 1}, "T": {"broker-a": {"0": 3}}}'
    assert pymq.spark.starting_offsets(file) == '{"T": {"broker-a": {"0": 3}}}'
    assert set(pymq.spark.__all__) <= set(dir(pymq.spark))


@pytest.mark.parametrize("fixture", ["pymq_cluster", "pymq_session_cluster"])
def test_the_fixture_names_what_is_missing(
    request: pytest.FixtureRequest, fixture: str, pymq_topic: str
) -> None:
    assert pymq_topic.startswith("test-")
    with pytest.raises(ModuleNotFoundError) as caught:
        request.getfixturevalue(fixture)
    assert str(caught.value) == f"the broker needs {INSTALL_BROKER}"


def test_the_plugin_has_loaded_nothing_by_itself() -> None:
    code = "import sys, pymq.testing.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] == "pymq"}
    assert loaded == {"pymq", "pymq.testing", "pymq.testing.pytest_plugin"}


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pymq.testing.containers", "containers"),
        ("pymq.otel", "otel"),
        ("pymq.integrations.faststream", "faststream"),
        ("pymq.integrations.kombu", "kombu"),
    ],
)
def test_what_needs_an_extra_names_it(module: str, extra: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(module)
    assert f"pip install 'pymq-rocketmq[{extra}]'" in str(caught.value)


def test_waiting_needs_no_extra() -> None:
    import pymq.testing

    assert pymq.testing.wait_until(lambda: "found") == "found"


def test_help_and_version() -> None:
    done = command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert INSTALL_CLI in done.stdout
    done = command("--version")
    assert done.stdout == f"pymq {importlib.metadata.version('pymq-rocketmq')}\n"


def test_commands_name_what_is_missing() -> None:
    done = command("topic", "list")
    assert (done.returncode, done.stderr) == (2, f"pymq: pymq topic needs {INSTALL_CLI}\n")
    for server in (("up",), ("up", "--memory"), ("broker",)):
        done = command(*server)
        assert (done.returncode, done.stderr) == (2, f"pymq: the broker needs {INSTALL_BROKER}\n")


def test_a_controller_needs_an_extra_for_etcd_alone() -> None:
    done = command("controller", "--store", "file:groups", "--print-config")
    assert done.returncode == 0 and "listenPort=9878" in done.stdout, done.stderr
    done = command("controller", "--store", "etcd:http://127.0.0.1:1")
    assert done.returncode == 2 and "pymq-rocketmq[controller]" in done.stderr


def test_a_name_server_needs_no_extra() -> None:
    done = command("namesrv", "--print-config")
    assert done.returncode == 0 and "listenPort=9876" in done.stdout, done.stderr


def test_clients_need_no_module_that_windows_lacks_and_servers_say_so() -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('fcntl', 'resource', 'termios'))); "
    clients = hidden + "import pymq, pymq.blocking as b; [getattr(pymq, n) for n in pymq.__all__]"
    clients += "; [getattr(b, n) for n in b.__all__]"
    subprocess.run([sys.executable, "-c", clients], check=True)
    server = hidden + "from pymq.cli.main import main; sys.exit(main(['namesrv']))"
    done = subprocess.run([sys.executable, "-c", server], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("pymq: the name server needs Linux or macOS")
