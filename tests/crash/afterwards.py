"""Commands that run when a test is over, whatever ends it: a process of their own sees to it.

It holds the other end of a pipe, and runs what it was told when the pipe closes, as the guard of
``tests.interop.processes`` ends processes.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final, Self

_TIMEOUT_S: Final = 240.0
# What a process still uses that is about to end is tried again.
_PROGRAM: Final = """
import subprocess, sys, time
left = [line.split("\\t") for line in sys.stdin.read().split("\\n") if line][::-1]
for _ in range(300):
    left = [one for one in left if subprocess.run(one, capture_output=True).returncode]
    if not left:
        break
    time.sleep(0.1)
"""


class Afterwards:
    """Keeps commands for later, and runs them in the opposite order; a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_TIMEOUT_S)

    def do(self, *command: str) -> None:
        """Run a command in the end; once more for a while if it fails."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(("\t".join(command) + "\n").encode())
        self._process.stdin.flush()
