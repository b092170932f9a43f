"""Bad requests: a real 5.3.3 and ours answer each with the same code, and ours with a clear remark.

RocketMQ does not check which fields a request has: what is missing or no number is null, and the
answer is whatever follows from that, mostly the name of a Java exception, sometimes SUCCESS for
something that was not done. Ours names the field. Everything else agrees, or is listed below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest
from tests.interop.bad_requests import BROKER, NAME_SERVER, Case, Server, cases, expression_cases
from tests.interop.conftest import RealCluster
from tests.interop.peers import RealNameServer

from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION: Final = "5.3.3"
ERROR: Final = "1"
#: Answers of RocketMQ to what it read as null, as if nothing were missing: OK, no message, nothing
#: to poll.
_AS_IF_NULL: Final = ("0", "208", "210")

#: Cases that we answer otherwise on purpose: pattern of names, our code, the reason.
DELIBERATE: Final = (
    (
        r"320.*",
        "13",
        "a batch that cannot be read is refused for good: with SYSTEM_ERROR its sender would try "
        "it again",
    ),
    (r"324 without topic|325 without b", ERROR, "every missing field is named alike"),
    (
        r"14 (topic|queueId)=.*",
        "0",
        "a queue without messages begins at 0, as in 4.9.7: those "
        "sent before the first start of a group are not skipped",
    ),
    (r"46 \({70}.*", "23", "how deep an expression may nest is limited, not left to the stack"),
    (r"15 .*=-\d+", ERROR, "a negative offset would be handed to every client of the group"),
    (r"25.*", "16", "a setting that has no effect is not accepted in silence"),
    (r"2001.*|2002.*", ERROR, "no limits on cold reads to set: they delay nobody"),
    (r"215 topic=.*", "29", "what cannot be a topic was not deleted"),
    (r"321 .*=.*", ERROR, "an official broker makes a queue of whatever it was asked about before"),
    (r"n318.*", "16", "the configuration of the name server is fixed unless its owner says so"),
)
#: Remarks that differ on purpose.
REMARKS: Final = (
    (r".* (queueId|e)=.*", "RocketMQ adds the whole topic configuration, or the client's address"),
    (r"222 offset=.*|200051 offset=.*", "how far the queue is depends on earlier requests"),
    (r"309.*", "whether there is a message at that offset depends on earlier requests"),
    (r"323.*", "says what is wrong"),
)


@pytest.fixture(scope="module")
def brokers(real_cluster: Callable[[str], RealCluster]) -> Iterator[tuple[Server, Server]]:
    """A real broker and ours, with the same topics, groups and messages."""
    real = real_cluster(VERSION)
    settings = {"allow_config_update": True, "property_filter": True}
    with Cluster(broker=settings) as cluster:
        pair = Server(real.broker.address), Server(cluster.broker_address)
        for one in pair:
            one.prepare()
        yield pair
        for one in pair:
            one.close()


@pytest.fixture(scope="module")
def name_servers() -> Iterator[tuple[Server, Server]]:
    with RealNameServer(VERSION) as real, Cluster() as cluster:
        pair = Server(real.address), Server(cluster.name_server)
        yield pair
        for one in pair:
            one.close()


def test_a_broker_answers_bad_requests_as_rocketmq_does(brokers: tuple[Server, Server]) -> None:
    assert list(_differences(brokers, cases(BROKER), "")) == []


def test_a_filter_that_cannot_be_is_refused_as_by_rocketmq(
    brokers: tuple[Server, Server],
) -> None:
    assert list(_differences(brokers, expression_cases(), "")) == []


def test_a_name_server_answers_bad_requests_as_rocketmq_does(
    name_servers: tuple[Server, Server],
) -> None:
    assert list(_differences(name_servers, cases(NAME_SERVER), "n")) == []


def _differences(
    servers: tuple[Server, Server], requests: Iterable[Case], kind: str
) -> Iterator[str]:
    real, ours = servers
    for case in requests:
        theirs, found = real.ask(case), ours.ask(case)
        problem = _objection(case, kind + case.name, theirs, found)
        if problem is not None:
            yield f"{case.name[:80]}: {problem}: real {theirs}, ours {found}"


def _objection(case: Case, name: str, real: tuple[str, str], ours: tuple[str, str]) -> str | None:
    """Return what is wrong with our answer, None if nothing is."""
    (real_code, real_remark), (code, remark) = real, ours
    if code != "0" and not remark and not _is_java(real_remark):
        return "no remark"
    if "invalid literal" in remark or "Error:" in remark:
        return "a remark in the language of the implementation"
    names_field = case.unread is not None and (case.unread in remark or case.unread == "body")
    if real_code == code:
        if names_field or case.unread is not None or _is_java(real_remark):
            return None
        if _plain(remark).startswith(_plain(real_remark)) or _listed(REMARKS, name):
            return None
        return "another remark"
    if code == ERROR and names_field and (name.endswith("=x") or real_code in _AS_IF_NULL):
        return None
    if any(re.fullmatch(pattern, name) and code == wanted for pattern, wanted, _ in DELIBERATE):
        return None
    return "another code"


def _listed(patterns: tuple[tuple[str, str], ...], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern, _ in patterns)


def _is_java(remark: str) -> bool:
    """Is a remark an exception, or the one that nobody set?"""
    return (
        re.match(r"(java|org|com)\.|Cannot invoke|not set any response code|$", remark) is not None
    )


def _plain(remark: str) -> str:
    """Return a remark without the page that it refers to, and without addresses."""
    first = re.sub(r"\s*See https?://\S+ for further details\.", "", remark)
    return re.sub(r"/?127\.0\.0\.1:\d+", "<address>", first).rstrip(" ,")
