"""The snippets of ``docs/testing.md``, in the project of somebody who has copied them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.readme import STEP_S, blocks

DOCUMENT = "docs/testing.md"
#: Needs an engine: ``tests/interop/test_container.py`` runs it.
WITH_ENGINE = "test_container.py"
#: Has them wait for longer than they would, on a busy machine.
PATIENT = """
from pymq.testing import until

for one in (until.wait_until, until.wait_until_async):
    one.__kwdefaults__["timeout_s"] = 60.0
"""


def files() -> dict[str, str]:
    """Return the Python snippets by the names that stand in their first lines."""
    found = {}
    for block in blocks(DOCUMENT):
        if block.language == "python":
            first, _, rest = block.text.partition("\n")
            name = first.removeprefix("# ")
            assert name.endswith(".py") and name not in found, f"{DOCUMENT}:{block.line}: {first}"
            found[name] = rest
    return found


def run_in(folder: Path, *command: str, **more: str) -> str:
    binaries = str(Path(sys.executable).parent)
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    path = os.pathsep.join([binaries, os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PATH": path} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_python_snippet_is_a_test_that_passes(tmp_path: Path) -> None:
    written = files()
    assert WITH_ENGINE in written
    for name, text in written.items():
        if name != WITH_ENGINE:
            (tmp_path / name).write_text(text.replace("deadline_s=0.5", "deadline_s=2"))
    (tmp_path / "conftest.py").write_text(written["conftest.py"] + PATIENT)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    out = run_in(
        tmp_path,
        *(sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"),
        TMPDIR=str(temporary),
    )
    assert "6 passed" in out, out
    assert not list(temporary.glob("*pymq-scratch*"))


def test_the_shell_snippet(tmp_path: Path) -> None:
    (script,) = (block.text for block in blocks(DOCUMENT) if block.language == "bash")
    out = run_in(tmp_path, "bash", "-e", "-m", "-c", script)
    assert "order 7" in out
    assert not list(tmp_path.iterdir()), "the ports file is gone"


def test_no_other_snippets() -> None:
    assert {block.language for block in blocks(DOCUMENT)} == {"python", "bash"}
