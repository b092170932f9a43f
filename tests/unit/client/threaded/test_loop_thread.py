"""The end of a process closes the clients that nobody closed."""

import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 300.0

PROGRAM = """
import multiprocessing
import sys

from pymq.client.threaded.loop_thread import Threaded


class Client(Threaded):
    def __init__(self):
        super().__init__(lambda: None)

    def start(self):
        self._start(self.work, "client")

    def close(self):
        self._stop(self.closed)

    async def work(self):
        pass

    async def closed(self, _):
        sys.stdout.write("closed")


def leave_open():
    closed, left = Client(), Client()
    closed.start()
    left.start()
    closed.close()
    sys.stdout.write(" ")


if __name__ == "__main__":
    if sys.argv[1] == "main":
        leave_open()
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=leave_open)
        child.start()
        child.join()
"""


@pytest.mark.parametrize("method", ["main", "fork", "spawn", "forkserver"])
def test_what_is_left_open_is_closed_when_its_process_ends(tmp_path: Path, method: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, path, method], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.stdout, done.stderr) == ("closed closed", "")
