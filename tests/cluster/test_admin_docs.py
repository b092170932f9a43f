"""The programs and commands of ``docs/admin.md`` and ``docs/commands.md``, in their order."""

import tomllib
from pathlib import Path

from tests.readme import User, blocks

from pymq.cli.profiles import chosen
from pymq.testing import Cluster


def test_the_programs_of_admin_md(tmp_path: Path) -> None:
    with Cluster() as cluster:
        user = User(tmp_path, cluster.name_server)
        outputs = [user.run_program(one) for one in blocks("docs/admin.md")]
    assert len(outputs) == 3
    assert outputs[0].count("None -> 0") == 4
    assert cluster.broker_name in outputs[1]


def test_the_commands_of_commands_md(tmp_path: Path) -> None:
    with Cluster() as cluster:
        user = User(tmp_path, cluster.name_server)
        for block in blocks("docs/commands.md"):
            if block.language == "console":
                user.run_commands(block)
            else:
                file = tmp_path / "config.toml"
                file.write_text(block.text, encoding="utf-8")
                environment = {"PYMQ_CONFIG": str(file)}
                for name in tomllib.loads(block.text)["profiles"]:
                    assert chosen(name, environment, tmp_path).name_server
