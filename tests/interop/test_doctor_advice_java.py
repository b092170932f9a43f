"""Commands of the official ``mqadmin`` that ``pymq doctor`` advises, run by it as they are."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin
from tests.interop.mqadmin_scenes import NEW, OLD

from pymq import Network, blocking
from pymq.cli.diagnosis import Diagnosis
from pymq.cli.findings import Finding, State
from pymq.client import operations
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import GroupConfig
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

LIMIT_S = 30.0
#: What mqadmin 4 can set, at other values than its own defaults.
OFF = GroupConfig(
    group="billing",
    consume_enable=False,
    consume_from_min_enable=True,
    consume_broadcast_enable=True,
    retry_queue_count=2,
    retry_max_times=-1,
    which_broker_when_consume_slowly=2,
    notify_consumer_ids_changed_enable=False,
)
#: And what only mqadmin 5 can.
ONLY_5: dict[str, Any] = {
    "consume_message_orderly": True,
    "retry_policy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
}


@pytest.fixture(scope="module", params=[OLD, NEW])
def mqadmin(
    request: pytest.FixtureRequest, java_client: Callable[[str], JavaClient]
) -> Iterator[Mqadmin]:
    require_peers(request.param)
    yield Mqadmin(java_client(request.param))


def words_of(advice: str, subcommand: str) -> list[str]:
    """Return subcommand and arguments of the ``mqadmin`` that advice begins with."""
    name, *words = shlex.split(advice.split(" (")[0])
    assert (name, words[0]) == ("mqadmin", subcommand)
    return words


def set_group(name_server: str, broker: str, config: GroupConfig) -> None:
    with BulkClient((name_server,)) as client:
        address = client.cluster_info().brokers[broker].addresses[0]
        client.ask(address, operations.update_group(config))


def wrong(name_server: str, *, topic: str | None = None, group: str | None = None) -> list[Finding]:
    found = Diagnosis(
        (name_server,),
        topic=topic,
        group=group,
        network=Network(),
        timeout_s=LIMIT_S,
        watch_s=0.1,
    ).run()
    return [one for one in found if one.state is State.WRONG]


def test_a_group_may_consume_again_and_keeps_its_other_settings(mqadmin: Mqadmin) -> None:
    off = OFF if mqadmin.version == OLD else replace(OFF, **ONLY_5)
    on = GroupConfig(group="billing", retry_max_times=9)
    with Cluster(brokers=2) as cluster:
        set_group(cluster.name_server, "broker-a", off)
        set_group(cluster.name_server, "broker-b", on)
        finding = next(
            one for one in wrong(cluster.name_server, group="billing") if "may not" in one.text
        )
        printed = mqadmin.run(None, *words_of(finding.advice, "updateSubGroup"))
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            found = admin.groups.config("billing")
    assert found == {"broker-a": replace(off, consume_enable=True), "broker-b": on}, printed


def test_a_broker_that_permits_too_little_permits_everything_again(mqadmin: Mqadmin) -> None:
    with Cluster(brokers=2, broker={"allow_config_update": True}) as cluster:
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            admin.topics.create("orders", queue_count=1)
        address = cluster.broker_address
        printed = mqadmin.run(
            None, "updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v", "4"
        )
        assert "success" in printed, printed
        (finding,) = wrong(cluster.name_server, topic="orders")
        printed = mqadmin.run(None, *words_of(finding.advice, "updateBrokerConfig"))
        assert "success" in printed, printed
        assert wrong(cluster.name_server, topic="orders") == []
