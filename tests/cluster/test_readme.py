"""The README's tour works as it is written, also the second time."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_processes import PATIENT, Running, running
from tests.readme import PROJECT, Block, User, blocks, facts

README = blocks("README.md")
#: These lead to the environment that runs the tests.
ENTER = ["./build.sh env", ". .venv/bin/activate"]


def with_command(command: str) -> Block:
    """Return the block in which a user types a command."""
    (found,) = (block for block in README if command in block.commands)
    return found


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Running]:
    """``pymq up`` as in the README, but on free ports."""
    assert "pymq up" in with_command("pymq up").commands
    with running("up", "--namesrv-port", "0", "--broker-port", "0", cwd=tmp_path) as process:
        yield process


def test_the_tour_twice(servers: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMQ_CONFIG", str(PATIENT))
    shown = [line for line in with_command("pymq up").text.splitlines() if not line.startswith("$")]
    printed = [servers.line() for _ in shown]
    assert [line[:14] for line in printed] == [line[:14] for line in shown]
    user = User(tmp_path, printed[0].split()[-1])
    for round_number in (1, 2):
        for block in README:
            if block.language == "python" and not block.is_for_spark:
                user.run_program(block)
            elif block.commands and "pymq up" not in block.commands:
                out = user.run_commands(block)
                if "pymq group lag billing" in block.commands:
                    # The message of the command line, once a round: the program reads its ten.
                    assert re.search(rf"^total lag {round_number}$", out, re.MULTILINE), out
    assert servers.stop() == (0, "")


def test_every_block_is_run_by_a_test() -> None:
    """Or it is one of the two that nobody can run: the demo and the tests, and the tree."""
    left = [block for block in README if not block.commands and block.language != "python"]
    verbs, tree = left
    help_text = subprocess.run(
        [PROJECT / "build.sh", "help"], capture_output=True, text=True, check=True
    ).stdout
    for line in verbs.text.splitlines():
        program, verb, comment, *_ = line.split()
        assert (program, comment) == ("./build.sh", "#")
        assert re.search(rf"^\s+{verb}\s", help_text, re.MULTILINE), line
    assert with_command("pymq up").commands == [*ENTER, "pymq up"]
    for path in paths_of(tree):
        assert (PROJECT / path).exists(), path


def paths_of(tree: Block) -> Iterator[str]:
    """Yield the paths that a tree of folders shows."""
    parent = ""
    for line in tree.text.splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            yield parent + name
        else:
            parent = name
            yield name


def test_the_chinese_readme_shows_the_same_code() -> None:
    chinese = blocks("README.zh.md")
    for block, other in zip(README, chinese, strict=True):
        assert (block.language, block.text) == (other.language, other.text), (
            f"README.md:{block.line} and README.zh.md:{other.line} differ"
        )


def test_both_languages_state_the_same_facts() -> None:
    for english, chinese in zip(facts("README.md"), facts("README.zh.md"), strict=True):
        assert english == chinese
