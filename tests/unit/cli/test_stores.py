"""``pymq store``: exit status, text and JSON of its verbs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock, open_store, overwrite, put_ok, record

from pymq.cli.main import main

SIZES = {"segment_bytes": 4096, "queue_file_bytes": 400}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "store"
    clock = FakeClock()
    store = open_store(root, clock, **SIZES, delay_levels_ms=(7000,))
    for number in range(100):
        clock.now_ms += 1000
        late = record(b"late", topic="SCHEDULE_TOPIC_XXXX", queue_id=0)
        late.properties = b"DELAY\x011"
        put_ok(store, record(b"x" * 50, queue_id=number % 3), late)
    store.close()
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"TopicTest@readers":{0:30,1:33}}}'
    )
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


@pytest.fixture
def levels(tmp_path: Path) -> str:
    """Return a configuration file with the delays that the store was written with."""
    path = tmp_path / "broker.conf"
    path.write_text("messageDelayLevel=7s 8s\nstorePathRootDir=/nowhere\ndiskFreeEnoughBytes=1\n")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["store", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status, out, err = run(capsys, *arguments, "-o", "json")
    assert not err
    return status, json.loads(out)


def test_check_of_a_whole_store(
    capsys: pytest.CaptureFixture[str], root: Path, levels: str
) -> None:
    status, out, err = run(capsys, "check", str(root), "-c", levels)
    assert (status, err) == (0, "") and out.endswith("ok: no damage\n")
    assert "200 records" in out and "clean stop" in out
    status, report = run_json(capsys, "check", str(root), "-c", levels)
    assert status == 0 and report["ok"] and not report["findings"]
    assert report["counts"]["queueEntries"] == 200 and report["log"]["firstOffset"] == 0


def test_check_of_a_damaged_store(
    capsys: pytest.CaptureFixture[str], root: Path, levels: str
) -> None:
    path = root / "consumequeue" / "TopicTest" / "1" / ("0" * 20)
    overwrite(path, 45, b"U")
    status, out, _ = run(capsys, "check", str(root), "-c", levels)
    assert status == 1 and out.endswith("DAMAGED: 1 findings\n")
    assert f"{path} at 40: found offset 2: (" in out and "pymq store rebuild" in out
    status, report = run_json(capsys, "check", str(root), "-c", levels)
    assert status == 1 and not report["ok"] and report["damageCount"] == 1
    (group,) = report["findings"]
    (finding,) = group["first"]
    assert (group["severity"], group["kind"], group["count"]) == ("damage", "QUEUE_WRONG", 1)
    assert (finding["path"], finding["position"]) == (str(path), 40)


def test_other_delay_levels_than_the_store_was_written_with_are_seen(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    status, report = run_json(capsys, "check", str(root))
    assert status == 1
    assert {group["kind"] for group in report["findings"]} == {"QUEUE_WRONG"}


@pytest.mark.parametrize("verb", ["check", "show"])
def test_what_cannot_be_looked_at(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    status, out, err = run(capsys, verb, str(tmp_path / "nowhere"))
    assert (status, out) == (2, "") and "no store is there" in err
    assert run(capsys, verb, str(tmp_path), "-c", str(tmp_path / "none"))[0] == 2


def test_an_unclean_stop_is_no_damage(
    capsys: pytest.CaptureFixture[str], root: Path, levels: str
) -> None:
    (root / "abort").touch()
    status, out, _ = run(capsys, "check", str(root), "-c", levels)
    assert status == 0 and "the next start of a broker repairs 1 findings" in out
    assert "REPAIR: how the store was left" in out


def test_show(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    status, out, err = run(capsys, "show", str(root))
    assert (status, err) == (0, "") and "stopped cleanly" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["TopicTest", "0", "0", "34", "34"] in [line[:5] for line in lines]
    assert ["readers", "TopicTest", "2", "4"] in lines
    status, out, _ = run(capsys, "show", str(root), "--topics")
    assert ["TopicTest", "3", "100"] in [line.split()[:3] for line in out.splitlines()]
    status, found = run_json(capsys, "show", str(root))
    assert status == 0 and found["messages"] == 200 and found["cleanStop"]
    assert found["log"]["files"] == len(list((root / "commitlog").iterdir()))
    assert found["groups"] == [
        {
            "group": "readers",
            "topic": "TopicTest",
            "queues": 2,
            "behind": 4,
            "offsets": {"0": 30, "1": 33},
        }
    ]


def test_rebuild(capsys: pytest.CaptureFixture[str], root: Path, levels: str) -> None:
    shutil.rmtree(root / "consumequeue" / "TopicTest" / "1")
    status, out, err = run(capsys, "rebuild", str(root), "-c", levels)
    assert (status, err) == (0, "") and out.endswith("were rebuilt from the log\n")
    status, report = run_json(capsys, "check", str(root), "-c", levels)
    assert status == 0 and not report["findings"]
    status, found = run_json(capsys, "rebuild", str(root), "-c", levels)
    assert status == 0 and found["messages"] == 200


def test_rebuild_of_a_damaged_log_is_refused(
    capsys: pytest.CaptureFixture[str], root: Path, levels: str
) -> None:
    overwrite(root / "commitlog" / ("0" * 20), 1000, bytes(200))
    status, out, err = run(capsys, "rebuild", str(root), "-c", levels)
    assert (status, out) == (1, "") and "rebuilding" not in err and "Restore it" in err
