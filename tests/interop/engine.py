"""A Docker engine: the one that answers here, or one of our own for as long as the tests run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[2]
#: Keeps the base of images, which takes minutes to make.
DATA = Path.home() / ".cache" / "pymq" / "docker"
START_S = 120.0
_PREFIX = "pymq-docker-"
#: For all that a fixture makes before its first test, to which pytest gives 600 s in all.
SETUP_S = 480.0


class NoEngine(Exception):
    """There is none, and none can be started; the text says why."""


@contextmanager
def engine(*verb: str) -> Iterator[dict[str, str]]:
    """Yield the environment in which clients find an engine, once it has an image.

    Args:
        verb: of ``build.sh``, which makes the image.

    Raises:
        NoEngine: there is none, or all that takes longer than ``SETUP_S``.
    """
    deadline_s = time.monotonic() + SETUP_S
    # Its reaper is an image that would have to be pulled.
    environment = {"TESTCONTAINERS_RYUK_DISABLED": "true"}
    if shutil.which("docker") is None:
        raise NoEngine("no docker command (Debian: apt-get install docker.io)")
    if answers(environment) is None:
        _build_image(environment, deadline_s, *verb)
        yield environment
        return
    program = shutil.which("dockerd")
    if program is None or os.getuid() != 0:
        raise NoEngine(
            f"{answers(environment)}; to start one takes root and dockerd (Debian: apt-get "
            "install docker.io)"
        )
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # One at a time: a second one at the same images would not start. Its tests are skipped if
        # the first one has it for too long.
        _lock(stack.enter_context((DATA / "lock").open("w")), deadline_s)
        _clear_away()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        environment["DOCKER_HOST"] = f"unix://{folder}/socket"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(program, "--data-root", DATA, "--exec-root", folder / "exec"),
                    *("--pidfile", folder / "pid", "--host", environment["DOCKER_HOST"]),
                    # It would leave behind rules that drop what this machine forwards.
                    *("--iptables=false", "--ip6tables=false", "--ip-forward=false"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            start_by_s = min(time.monotonic() + START_S, deadline_s)
            while (why := answers(environment)) is not None:
                if process.poll() is not None or time.monotonic() > start_by_s:
                    lines = (folder / "log").read_text(errors="replace").splitlines()
                    raise NoEngine(f"dockerd does not start here: {lines[-1:] or why}")
                time.sleep(0.1)
            _build_image(environment, deadline_s, *verb)
            yield environment
        finally:
            process.terminate()
            process.wait(60)


def _clear_away() -> None:
    """Remove what a run left that was killed.

    The network of its container would still be there, and answer for the next one.
    """
    for folder in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        for network in folder.glob("exec/netns/*"):
            subprocess.run(["umount", network], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _lock(file: IO[str], deadline_s: float) -> None:
    """Wait for another test run that has an engine.

    Raises:
        NoEngine: it keeps it for too long.
    """
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise NoEngine(
                    f"another test run has had the engine of {DATA} for {SETUP_S:g} s"
                ) from None
            time.sleep(1.0)
        else:
            return


def answers(environment: dict[str, str]) -> str | None:
    """Return why no engine answers; None: it does."""
    done = subprocess.run(
        ["docker", "info", "--format", "{{.ServerVersion}}"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()


def _build_image(environment: dict[str, str], deadline_s: float, *verb: str) -> None:
    """Make an image with a verb of ``build.sh``.

    Raises:
        NoEngine: there is no base for it, or no time.
    """
    try:
        done = subprocess.run(
            [PROJECT / "build.sh", *verb],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s - time.monotonic(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoEngine(
            f"an engine and ./build.sh {verb[0]} take longer than {SETUP_S:g} s here"
        ) from error
    if "the base of the image needs" in done.stderr:
        raise NoEngine(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


def remove_image(name: str, environment: dict[str, str]) -> None:
    """Remove an image, but for its base."""
    command = ["docker", "image", "rm", "--force", name]
    subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
