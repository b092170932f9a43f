"""The code blocks of the READMEs, and a user who types them in."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
#: Where the README's servers listen; those of a test are somewhere else.
NAME_SERVER = "127.0.0.1:9876"
STEP_S = 300.0  # a program of Spark's, on a machine that has other things to do

_SECTION = re.compile(r"^## .*$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block."""

    language: str
    text: str
    #: In the file, of its first line.
    line: int

    @property
    def commands(self) -> list[str]:
        """What a user types at a prompt."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def is_for_spark(self) -> bool:
        """Does it need Spark, and so a JVM?"""
        return self.language == "python" and "from pyspark" in self.text


def blocks(name: str) -> list[Block]:
    """Return the code blocks of a README, in order."""
    text = (PROJECT / name).read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2)
        for match in _BLOCK.finditer(text)
    ]


def facts(name: str) -> list[Counter[str]]:
    """Return what is said in any language, per section: names in backticks, and figures."""
    text = (PROJECT / name).read_text(encoding="utf-8")
    return [
        Counter([*(" ".join(code.split()) for code in _CODE.findall(part)), *_NUMBER.findall(part)])
        for part in _SECTION.split(_BLOCK.sub("", text))
    ]


@dataclass(frozen=True, slots=True)
class User:
    """Types commands and runs programs in a folder, with the environment activated.

    Attributes:
        folder: where.
        name_server: takes the place of the README's.
    """

    folder: Path
    name_server: str

    def run_commands(self, block: Block) -> str:
        """Run what stands behind the prompts, and return what it prints."""
        script = "\n".join(["set -e", *block.commands])
        return self._run(["bash", "-c", script], block)

    def run_program(self, block: Block, *, times: int = 1) -> str:
        """Run a Python program, several times in one interpreter; return what it prints."""
        path = self.folder / f"README-{block.line}.py"
        text = block.text.replace(NAME_SERVER, self.name_server)
        path.write_text("\n".join([text] * times), encoding="utf-8")
        return self._run([sys.executable, path.name], block)

    def _run(self, command: list[str], block: Block) -> str:
        binaries = str(Path(sys.executable).parent)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": os.pathsep.join([binaries, os.environ["PATH"]]),
                "NAMESRV_ADDR": self.name_server,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S,
        )
        assert done.returncode == 0, (
            f"README.md:{block.line} ended with {done.returncode}\n{block.text}\n"
            f"{done.stdout}\n{done.stderr}"
        )
        return done.stdout
