"""The controller's requests: the wire names of every header and body, both ways."""

import json

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol import controller as wire
from pymq.protocol.headers.codec import Header
from pymq.protocol.json_object import JsonObject

HEADERS: list[tuple[Header, dict[str, str]]] = [
    (
        wire.ControllerMetadataResponse(
            group="g", leader_id="n0", leader_address="h:1", is_leader=True, peers="n0-h:2"
        ),
        {
            "group": "g",
            "controllerLeaderId": "n0",
            "controllerLeaderAddress": "h:1",
            "isLeader": "true",
            "peers": "n0-h:2",
        },
    ),
    (
        wire.NextBrokerIdRequest(cluster_name="c", broker_name="b"),
        {"clusterName": "c", "brokerName": "b"},
    ),
    (
        wire.NextBrokerIdResponse(cluster_name="c", broker_name="b", next_broker_id=3),
        {"clusterName": "c", "brokerName": "b", "nextBrokerId": "3"},
    ),
    (
        wire.ApplyBrokerIdRequest(
            cluster_name="c", broker_name="b", broker_id=2, check_code="h:1;17"
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "appliedBrokerId": "2",
            "registerCheckCode": "h:1;17",
        },
    ),
    (
        wire.ApplyBrokerIdResponse(cluster_name="c", broker_name="b"),
        {"clusterName": "c", "brokerName": "b"},
    ),
    (
        wire.RegisterReplicaRequest(
            cluster_name="c", broker_name="b", broker_id=1, broker_address="h:1", invoke_time_ms=5
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "brokerId": "1",
            "brokerAddress": "h:1",
            "invokeTime": "5",
        },
    ),
    (
        wire.RegisterReplicaResponse(
            cluster_name="c",
            broker_name="b",
            master_broker_id=1,
            master_address="h:1",
            master_epoch=7,
            sync_state_set_epoch=8,
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "masterBrokerId": "1",
            "masterAddress": "h:1",
            "masterEpoch": "7",
            "syncStateSetEpoch": "8",
        },
    ),
    (
        wire.ElectMasterRequest(
            cluster_name="c", broker_name="b", broker_id=2, is_designated=True, invoke_time_ms=5
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "brokerId": "2",
            "designateElect": "true",
            "invokeTime": "5",
        },
    ),
    (
        wire.ElectMasterResponse(
            master_broker_id=1, master_address="h:1", master_epoch=7, sync_state_set_epoch=8
        ),
        {
            "masterBrokerId": "1",
            "masterAddress": "h:1",
            "masterEpoch": "7",
            "syncStateSetEpoch": "8",
        },
    ),
    (wire.ReplicaInfoRequest(broker_name="b"), {"brokerName": "b"}),
    (
        wire.ReplicaInfoResponse(master_broker_id=1, master_address="h:1", master_epoch=7),
        {"masterBrokerId": "1", "masterAddress": "h:1", "masterEpoch": "7"},
    ),
    (
        wire.RoleChangedRequest(
            master_broker_id=1, master_address="h:1", master_epoch=7, sync_state_set_epoch=8
        ),
        {
            "masterBrokerId": "1",
            "masterAddress": "h:1",
            "masterEpoch": "7",
            "syncStateSetEpoch": "8",
        },
    ),
    (
        wire.AlterSyncStateSetRequest(
            broker_name="b", master_broker_id=1, master_epoch=7, invoke_time_ms=5
        ),
        {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "7", "invokeTime": "5"},
    ),
    (wire.AlterSyncStateSetResponse(epoch=9), {"newSyncStateSetEpoch": "9"}),
    (
        wire.CleanBrokerDataRequest(
            cluster_name="c",
            broker_name="b",
            broker_ids="1;2",
            clean_living=True,
            invoke_time_ms=5,
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "brokerControllerIdsToClean": "1;2",
            "isCleanLivingBroker": "true",
            "invokeTime": "5",
        },
    ),
]

_IDENTITY = wire.ReplicaIdentity(broker_name="b", broker_id=1, address="h:1", is_alive=True)
_IDENTITY_JSON = {"brokerName": "b", "brokerId": 1, "brokerAddress": "h:1", "alive": True}
BODIES: list[tuple[JsonObject, object]] = [
    (
        wire.SyncStateSet(frozenset({2, 1}), 4),
        {"syncStateSet": [1, 2], "syncStateSetEpoch": 4},
    ),
    (
        wire.ElectedMaster(
            members=wire.BrokerMemberGroup(cluster="c", broker_name="b", addresses={1: "h:1"}),
            sync_state_set=frozenset({1}),
        ),
        {
            "brokerMemberGroup": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"1": "h:1"}},
            "syncStateSet": [1],
        },
    ),
    (
        wire.ReplicaTable(
            groups={
                "b": wire.ReplicaInfo(
                    master_broker_id=1,
                    master_address="h:1",
                    master_epoch=7,
                    sync_state_set_epoch=8,
                    in_sync=[_IDENTITY],
                )
            }
        ),
        {
            "replicasInfoTable": {
                "b": {
                    "masterBrokerId": 1,
                    "masterAddress": "h:1",
                    "masterEpoch": 7,
                    "syncStateSetEpoch": 8,
                    "inSyncReplicas": [_IDENTITY_JSON],
                    "notInSyncReplicas": [],
                }
            }
        },
    ),
    (
        wire.EpochCache(
            cluster_name="c",
            broker_name="b",
            broker_id=1,
            epochs=[wire.EpochEntry(epoch=1, start=0, end=9), wire.EpochEntry(epoch=2, start=9)],
            max_offset=11,
        ),
        {
            "clusterName": "c",
            "brokerName": "b",
            "brokerId": 1,
            "epochList": [
                {"epoch": 1, "startOffset": 0, "endOffset": 9},
                {"epoch": 2, "startOffset": 9, "endOffset": (1 << 63) - 1},
            ],
            "maxOffset": 11,
        },
    ),
]


@pytest.mark.parametrize(("header", "fields"), HEADERS, ids=lambda one: type(one).__name__)
def test_headers(header: Header, fields: dict[str, str]) -> None:
    assert header.to_fields() == fields
    assert type(header).from_fields(fields) == header


@pytest.mark.parametrize(("body", "members"), BODIES, ids=lambda one: type(one).__name__)
def test_bodies(body: JsonObject, members: object) -> None:
    assert json.loads(body.encode()) == members
    assert type(body).decode(json.dumps(members)) == body


def test_a_group_without_a_master() -> None:
    """Java leaves the id and the address out, and so do we."""
    assert wire.ReplicaInfoResponse(master_epoch=3).to_fields() == {"masterEpoch": "3"}


def test_broker_names() -> None:
    assert wire.decode_broker_names(b'["a","b"]') == ["a", "b"]
    assert wire.decode_broker_names(b"") == []
    for wrong in (b"{}", b"[1]", b"nonsense"):
        with pytest.raises(RemoteProtocolError):
            wire.decode_broker_names(wrong)
