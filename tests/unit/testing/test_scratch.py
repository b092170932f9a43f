"""Temporary directories: removed by whoever made them, else by the next one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pymq.testing import scratch
from pymq.testing.scratch import Scratch

#: Makes a directory, says where, and waits to be killed.
MAKE_AND_WAIT = """
import sys
from pathlib import Path
from pymq.testing.scratch import Scratch
made = Scratch(Path(sys.argv[1]))
(made.path / "file").write_text("x")
print(made.path, flush=True)
sys.stdin.read()
"""


def test_a_directory_is_made_and_removed(tmp_path: Path) -> None:
    made = Scratch(tmp_path)
    (made.path / "deep").mkdir()
    (made.path / "deep" / "file").write_text("x")
    assert [made.path] == list(tmp_path.iterdir())
    for _ in range(2):
        made.remove()
        assert not list(tmp_path.iterdir())


def test_the_next_one_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    mine = Scratch(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert scratch.sweep(tmp_path) == 0, "both processes live"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert left.exists()
        other = Scratch(tmp_path)
        assert set(tmp_path.iterdir()) == {mine.path, other.path}
        for one in (mine, other):
            one.remove()
    finally:
        process.kill()
        process.communicate()


def test_nothing_else_is_ever_removed(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in ("pymq-notes", "pymq-scratch", ".new-pymq-scratch-1")]
    for path in kept:
        path.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "pymq-scratch-link").symlink_to(target)
    (tmp_path / "pymq-scratch-file").write_text("x")
    assert scratch.sweep(tmp_path) == 0
    assert all(path.exists() for path in (*kept, target, tmp_path / "pymq-scratch-file"))


def test_a_parent_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Scratch(tmp_path / "none")


def test_a_child_made_by_fork_holds_it_too(tmp_path: Path) -> None:
    made = Scratch(tmp_path)
    path, (reading, writing) = made.path, os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent closes its end
        os._exit(0)
    os.close(reading)
    assert made._fd is not None
    os.close(made._fd)  # as if the parent had been killed
    assert scratch.sweep(tmp_path) == 0
    os.close(writing)
    os.waitpid(child, 0)
    assert scratch.sweep(tmp_path) == 1 and not path.exists()
