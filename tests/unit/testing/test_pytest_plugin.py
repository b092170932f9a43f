"""The pytest plugin, in the runs of somebody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Of one run of somebody else's tests; each of those starts a cluster or two.
LIMIT_S = 500.0
#: Loaded by the plugin they would slow every run, or change it.
HEAVY = ("numpy", "pymq.testing.cluster", "pymq.broker", "pymq.client", "pymq.store")


def run_pytest(
    folder: Path, *arguments: str, expected: int = 0, **files: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest on files in an empty project, with this tree as if it was installed."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment | {"TMPDIR": str(temporary(folder))},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def temporary(folder: Path) -> Path:
    path = folder / "tmp"
    path.mkdir(exist_ok=True)
    return path


def test_a_run_that_is_not_about_pymq_loads_and_changes_nothing(tmp_path: Path) -> None:
    text = f"""
import sys
import threading

def test_nothing_is_loaded(request):
    assert [name for name in sys.modules if name in {HEAVY!r}] == []
    assert threading.active_count() == 1
    plugin = request.config.pluginmanager.get_plugin("pymq")
    assert plugin is not None
    hooks = request.config.pluginmanager.get_hookcallers(plugin)
    assert not hooks, hooks
"""
    done = run_pytest(tmp_path, "-W", "error", "-q", test_it=text)
    assert "1 passed" in done.stdout
    assert "pymq" not in done.stdout, "and it says nothing"
    assert not list(temporary(tmp_path).glob("pymq*"))
    run_pytest(tmp_path, "-p", "no:pymq", "--fixtures")


USERS = """
import os
import threading
import pytest
from pymq import BlockingClient, Message

@pytest.fixture(scope="session")
def pymq_settings():
    return {"brokers": 2}

seen = []

@pytest.mark.parametrize("number", range(3))
def test_own(pymq_cluster, number):
    assert len(pymq_cluster.broker_names) == 2
    assert pymq_cluster.topics() == []
    with BlockingClient(pymq_cluster.name_server, timeout_s=60) as client:
        client.send(Message("T", b"x"))
    assert pymq_cluster.topics() == ["T"]
    seen.append(pymq_cluster.name_server)

@pytest.mark.parametrize("number", range(3))
def test_shared(pymq_session_cluster, pymq_topic, number):
    with BlockingClient(pymq_session_cluster.name_server, timeout_s=60) as client:
        client.send(Message(pymq_topic, b"%d" % number))
    assert [one.body for one in pymq_session_cluster.messages(pymq_topic)] == [b"%d" % number]
    with open("servers.txt", "a") as file:
        file.write(f"{os.getpid()} {pymq_session_cluster.name_server}\\n")
"""


def test_clusters_for_a_test_and_for_a_session(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-q", test_it=USERS)
    assert "6 passed" in done.stdout
    assert len(set((tmp_path / "servers.txt").read_text().splitlines())) == 1
    assert not list(temporary(tmp_path).glob("*pymq*"))


def test_each_worker_of_xdist_has_its_own(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    done = run_pytest(tmp_path, "-q", "-n", "2", "--dist", "each", test_it=USERS)
    assert "12 passed" in done.stdout
    servers = set((tmp_path / "servers.txt").read_text().splitlines())
    assert len({line.split()[0] for line in servers}) == 2, servers
    assert len({line.split()[1] for line in servers}) == 2, servers
    assert not list(temporary(tmp_path).glob("*pymq*"))


FAILING = """
import threading
import pytest
from pymq import BlockingClient, Message
from pymq.testing import Cluster

@pytest.fixture
def broken(pymq_cluster):
    raise RuntimeError("in a fixture behind it")

def test_fails(pymq_cluster):
    with BlockingClient(pymq_cluster.name_server, timeout_s=60) as client:
        client.send(Message("T", b"x"))
    assert False

def test_broken(broken):
    pass

def test_a_cluster_that_cannot_start(tmp_path):
    (tmp_path / "commitlog").write_text("no directory")
    with pytest.raises(Exception, match="commitlog"):
        Cluster(tmp_path).start()

@pytest.mark.parametrize("option", ["broker", "store_settings"])
def test_wrong_settings(option):
    with pytest.raises(TypeError):
        Cluster(**{option: {"no_such_setting": 1}}).start()

def test_leaves_threads():
    assert [one.name for one in threading.enumerate() if "pymq" in one.name] == []
"""


def test_nothing_is_left_behind_by_failures(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-q", expected=1, test_it=FAILING)
    assert "1 failed, 4 passed, 1 error" in done.stdout, done.stdout
    assert not list(temporary(tmp_path).glob("*pymq*"))


def test_a_run_that_is_cut_short_leaves_nothing_either(tmp_path: Path) -> None:
    text = """
import os
import signal

def test_interrupted(pymq_cluster, pymq_session_cluster):
    os.kill(os.getpid(), signal.SIGINT)
"""
    done = run_pytest(tmp_path, "-q", expected=2, test_it=text)
    assert "KeyboardInterrupt" in done.stdout
    assert not list(temporary(tmp_path).glob("*pymq*"))
