"""The programs of ``test_typing`` as pyright sees them, in its strict mode."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.test_typing import RIGHT, WRONG

import pymq

LIMIT_S = 300.0
#: Programs that say something without a use for it.
OFF = ("reportUnusedExpression", "reportUnusedVariable", "reportUnusedImport")


def pyright(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pyright", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """File -> lines in which pyright finds errors, all checked in one go."""
    pytest.importorskip("pyright")
    folder = tmp_path_factory.mktemp("pyright")
    asked = pyright(folder, "--version")
    if asked.returncode:  # Its package fetches the program when it runs for the first time.
        pytest.skip(f"pyright cannot be run here: {asked.stderr.strip()[-200:]}")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "names.py").write_text(f"from pymq import {', '.join(pymq.__all__)}\n")
    settings = {"typeCheckingMode": "strict", **dict.fromkeys(OFF, False)}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = pyright(folder, "--outputjson", f"--pythonpath={sys.executable}", ".")
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 3, report["summary"]
    found: dict[str, set[int]] = {}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            name, line = Path(one["file"]).name, one["range"]["start"]["line"] + 1
            found.setdefault(name, set()).add(line)
    return found


def test_right_programs_pass(lines: dict[str, set[int]]) -> None:
    assert set(lines) <= {"wrong.py"}, lines


def test_slips_are_found(lines: dict[str, set[int]]) -> None:
    expected = {n for n, line in enumerate(WRONG.splitlines(), 1) if "# E: " in line}
    assert lines["wrong.py"] == expected
