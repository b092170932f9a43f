"""Golden stores of ours, served by an official broker, then by ours again.

How they are made is told in ``test_golden_stores.py``.
"""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
from tests.interop.conftest import require_peers, some
from tests.interop.golden import (
    HALF_TOPIC,
    OP_TOPIC,
    check_same,
    parse_messages,
)
from tests.interop.golden_places import (
    CHECKING_BACK,
    TOPIC_COUNT,
    VERSIONS,
    check_whole,
    end_of,
    place_in,
)
from tests.interop.golden_writers import (
    append,
    check_continued,
    check_report,
    continued_questions,
    fill,
    send_waiting,
    visible_count,
    when_asked,
)
from tests.interop.test_store_exchange import OURS

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("version", "end"),
    some(
        product(VERSIONS, ["stop", "kill"]),
        turns={("4.9.7", "kill"): pytest.mark.by_turns(of="golden", turn="own")},
    ),
)
def test_ours_then_official_then_ours(tmp_path: Path, seed: int, version: str, end: str) -> None:
    """An official broker serves our store, delivers and asks for what waits in it, and adds."""
    require_peers(version)
    topics = [f"ours-{number}" for number in range(TOPIC_COUNT)]
    with place_in(tmp_path) as place:
        store = place.directory("store")
        with place.broker(OURS, store) as ours:
            ledger = fill(place, ours, version, topics, store, seed=seed)
        questions = continued_questions(version, topics, ledger, seed)
        with place.broker(OURS, store) as ours:  # killed before
            before = check_report(place.report(version, questions), ledger, topics)
            # At the moment of the kill one may have been stored that nobody was told of.
            untold = place.message_count(topics) - visible_count(ledger)
            ledger += send_waiting(place, topics, seed)
            end_of(ours, end)
        ledger = list(map(when_asked, ledger))
        with place.broker(version, store, **CHECKING_BACK) as official:
            count = visible_count(ledger) + untold
            ledger += append(place, version, topics, seed, count_before=count)
            questions = continued_questions(version, topics, ledger, seed)
            report = place.report(version, questions)
            end_of(official, end)
        check_continued(report, before)
        check_report(report, ledger, topics)
        with place.broker(OURS, store) as ours:
            ours_report = place.report(version, questions)
            ours.stop()
        # Until its end the official broker may go on asking, and we record what it did not.
        check_continued(ours_report, parse_messages(report))
        check_same(
            without_transactions(ours_report),
            without_transactions(report),
            f"ours after {version}",
        )
        check_whole(store)
    shutil.rmtree(store)


def without_transactions(report: list[str]) -> list[str]:
    """Return the lines of a report that are not about the topics of transactions."""
    return [line for line in report if line.split("\t")[1] not in (HALF_TOPIC, OP_TOPIC)]
