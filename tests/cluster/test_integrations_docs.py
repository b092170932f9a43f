"""The programs of ``docs/integrations.md`` run as they are written."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.handling import handle_until
from tests.readme import NAME_SERVER, PROJECT, blocks

from pymq import Message, ReceivedMessage, blocking
from pymq.integrations import structured_logging
from pymq.integrations.structured_logging import MessageFilter, logged, message_fields
from pymq.testing import Cluster

PAGE = PROJECT / "docs" / "integrations.md"
LIMIT_S = 120.0
#: Programs that take what is there and end: when nothing comes for so long, on a busy machine.
IDLE_DOCUMENTED, IDLE = "timeout_s=2)", "timeout_s=8)"


def program(of: str, cluster: Cluster) -> str:
    """Return the program that has some text, for a cluster."""
    (found,) = (
        block.text
        for block in blocks("docs/integrations.md")
        if block.language == "python" and of in block.text
    )
    return found.replace(NAME_SERVER, cluster.name_server).replace(IDLE_DOCUMENTED, IDLE)


def execute(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "program"}
    module = type(sys)("program")
    names = module.__dict__
    sys.modules["program"] = module  # Where types of annotations are looked up.
    exec(compile(text, PAGE.name, "exec"), names)
    return names


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.05)


def test_fastapi(pymq_cluster: Cluster) -> None:
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("starlette.testclient")
    app = execute(program("FastAPI(lifespan", pymq_cluster))["app"]
    with testclient.TestClient(app) as client:
        ids = {client.post(f"/orders/{number}").json()["id"] for number in range(3)}
        until(lambda: len(client.get("/shipped").json()) == 3, "all are shipped")
        assert sorted(client.get("/shipped").json()) == ["order 0", "order 1", "order 2"]
    assert {message.message_id for message in pymq_cluster.messages("orders")} == ids
    assert pymq_cluster.lag("shipping") == 0
    # A second life of the application: everything is made again.
    with testclient.TestClient(app) as client:
        client.post("/orders/7")
        until(lambda: client.get("/shipped").json() == ["order 7"], "it is shipped")


def test_jupyter(pymq_cluster: Cluster, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    assert IDLE in program("# %%", pymq_cluster)
    cells = [one for one in program("# %%", pymq_cluster).split("# %%\n") if one.strip()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, startup_timeout=LIMIT_S, kernel_name="python3"
    )
    client.execute(env=environment)
    results = [cell["outputs"][-1]["data"]["text/plain"] for cell in notebook.cells]
    assert results == ["5", "['0', '1', '2', '3', '4']", "<SendStatus.OK: 'SEND_OK'>"]


def test_faststream(pymq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faststream")
    names = execute(program("class Order(BaseModel)", pymq_cluster))

    async def run() -> None:
        app = names["app"]
        running = asyncio.ensure_future(app.run())
        while not pymq_cluster.messages("parcels"):
            await asyncio.sleep(0.05)
        app.exit()
        await running

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    (parcel,) = pymq_cluster.messages("parcels")
    assert (parcel.body, parcel.tags) == (b'{"parcel":17}', "new")
    assert "Ulm " in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:(?s).*AST parsing")  # FastStream looks at its caller's file
def test_faststream_in_memory(pymq_cluster: Cluster) -> None:
    pytest.importorskip("faststream")
    execute(program("TestRocketBroker(", pymq_cluster))["test_a_greeting"]()
    assert pymq_cluster.topics() == []


def test_celery(pymq_cluster: Cluster) -> None:
    pytest.importorskip("celery")
    names = execute(program("Celery(", pymq_cluster))
    try:
        names["add"].delay(2, 3)
        (message,) = pymq_cluster.messages("celery")
        assert b'"program.add"' in message.body
    finally:
        names["app"].close()


def test_structured_logging(pymq_cluster: Cluster) -> None:
    text = program("JsonLines()", pymq_cluster)
    assert IDLE in text
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (booked,) = [line for line in lines if line["message"] == "booked"]
    (shown,) = (json.loads(b.text) for b in blocks("docs/integrations.md") if b.text[0] == "{")
    assert booked.keys() == shown.keys()
    changing = {"time", "mq_message_id", "mq_queue"}
    assert {n: v for n, v in booked.items() if n not in changing} == {
        n: v for n, v in shown.items() if n not in changing
    }
    (handled,) = [line for line in lines if line["logger"] == "pymq.messages"]
    assert handled["mq_message_id"] == booked["mq_message_id"]
    assert handled["mq_handled_ms"] > 0 and handled["level"] == "INFO"


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler = Keep()
    handler.addFilter(MessageFilter())
    logger = logging.getLogger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_handlers_of_all_kinds_are_told_apart(
    pymq_cluster: Cluster, records: list[logging.LogRecord]
) -> None:
    """Many at a time, in threads and in tasks: no record has the fields of another message."""
    log = logging.getLogger("shop")
    sizes: list[int] = []

    def own() -> list[logging.LogRecord]:
        return [record for record in records if record.name == "shop"]

    def failures() -> list[logging.LogRecord]:
        return [record for record in records if "mq_error" in record.__dict__]

    def plain(message: ReceivedMessage) -> None:
        for _ in range(3):
            log.info("%s", message.message_id)
            time.sleep(0.001)

    async def waiting(message: ReceivedMessage) -> None:
        for _ in range(3):
            log.info("%s", message.message_id)
            await asyncio.sleep(0.001)

    def several(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        assert message_fields()["mq_batch_count"] == len(messages)
        log.info("%s", messages[0].message_id)

    def failing(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise ValueError("no")

    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send_batch([Message("logged", b"%d" % number) for number in range(40)])
    for number, handler in enumerate((plain, waiting)):
        group = f"log-{number}"
        name_server = pymq_cluster.name_server
        consumer = blocking.Consumer(name_server, group, from_where="earliest").subscribe("logged")
        expected = 3 * 40 * (number + 1)
        with consumer:
            handle_until(
                consumer,
                logged(handler, group=group),
                lambda: len(own()) == expected,  # noqa: B023 - it is called in this turn
                concurrency=16,
            )
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "log-batch", from_where="earliest"
    ).subscribe("logged")
    with consumer:
        handle_until(consumer, logged(several), lambda: sum(sizes) == 40, batch_size=8)
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "log-fail", from_where="earliest"
    ).subscribe("logged")
    with consumer:
        handle_until(consumer, logged(failing, group="log-fail"), lambda: len(failures()) == 40)
    assert len(own()) > 2 * 40 * 3
    assert all(record.getMessage() == record.__dict__["mq_message_id"] for record in own())
    failed = failures()
    assert len(failed) == 40 and all(record.levelname == "ERROR" for record in failed)
    assert message_fields() == {}


def test_structlog_gets_the_fields(pymq_cluster: Cluster) -> None:
    structlog = pytest.importorskip("structlog")
    events: list[dict[str, Any]] = []

    def keep(_: object, __: str, event: dict[str, Any]) -> dict[str, Any]:
        events.append(dict(event))
        raise structlog.DropEvent

    logger = structlog.wrap_logger(None, processors=[structured_logging.add_message_fields, keep])
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("structured", b"x", tags="t"))
    consumer = blocking.Consumer(
        pymq_cluster.name_server, "structured", from_where="earliest"
    ).subscribe("structured")
    with consumer:
        handler = logged(lambda _: logger.info("seen", mq_tags="mine"))
        handle_until(consumer, handler, lambda: events)
    logger.info("outside")
    assert (events[0]["mq_topic"], events[0]["mq_tags"]) == ("structured", "mine")
    assert events[1] == {"event": "outside"}
