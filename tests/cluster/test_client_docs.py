"""The programs of ``docs/client.md`` run as they are written, and its tables name what there is."""

import re
from collections.abc import Awaitable

from tests.cluster.scenarios import wait_until
from tests.readme import NAME_SERVER, PROJECT, blocks

import pymq
from pymq import Admin, Consumer, Message, Network, Producer, PullConsumer
from pymq.testing import Cluster

PAGE = PROJECT / "docs" / "client.md"
#: What code in the tables belongs to: ``x.name`` and ``X(name=...)``.
OWNERS = {
    "producer": Producer,
    "message": pymq.ReceivedMessage,
    "Producer": Producer,
    "Consumer": Consumer,
    "PullConsumer": PullConsumer,
    "Message": Message,
    "Network": Network,
    "Batcher": pymq.Batcher,
    "selectors": pymq.selectors,
    "Admin": Admin,
}


#: How long the first program goes on; here: until it has done what it is for.
A_WHILE = "asyncio.sleep(2)"
HANDLED = "paid ['order-17'] b'3 apples'"


def test_the_programs(pymq_cluster: Cluster) -> None:
    programs = [block.text for block in blocks("docs/client.md") if block.language == "python"]
    assert len(programs) == 2 and programs[0].count(A_WHILE) == 1
    printed: list[str] = []

    def note(*values: object) -> None:
        printed.append(" ".join(map(str, values)))

    def handled() -> Awaitable[None]:
        return wait_until(lambda: HANDLED in printed, "it handles the message")

    for text in programs:
        program = text.replace(NAME_SERVER, pymq_cluster.name_server)
        names = {"print": note, "handled": handled}
        exec(compile(program.replace(A_WHILE, "handled()"), PAGE.name, "exec"), names)
    assert any("SEND_OK" in line for line in printed)
    assert HANDLED in printed
    assert pymq_cluster.lag("bookkeeping", "shop") == 0


def test_what_the_tables_name_is_there() -> None:
    rows = [line.split(" | ")[-1] for line in PAGE.read_text().splitlines() if line[:2] == "| "]
    code = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    named = [found for text in code for found in re.findall(r"\b(\w+)\.(\w+)", text)]
    arguments = [
        (owner, name)
        for text in code
        for owner, inside in re.findall(r"\b([A-Z]\w+)\(([^()]*)\)", text)
        for name in re.findall(r"(\w+)=", inside)
    ]
    checked = 0
    for owner, name in (*named, *arguments):
        if owner in OWNERS:
            known = OWNERS[owner]
            there = {*dir(known), *getattr(known.__init__, "__annotations__", ())}
            assert name in there, f"{owner}: {name}"
            checked += 1
    assert checked > 20
