"""The name server's answers: one method per request code.

Nothing here waits, and the only file is that of the key-value configuration: a request is answered
in the turn of the event loop in which it arrived.

Source: RocketMQ DefaultRequestProcessor, ClientRequestProcessor.
"""

import hashlib
import logging
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace

from pymq.clock import Clock
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.kv import ORDER_TOPIC_CONFIG, KVConfig
from pymq.namesrv.live_settings import LiveSettings
from pymq.namesrv.lowest_ids import LowestIds
from pymq.namesrv.registrations import Registration
from pymq.namesrv.routes import RouteTable
from pymq.net.dispatcher import Handler, Request
from pymq.protocol import fastjson
from pymq.protocol.bodies import (
    BrokerData,
    DataVersion,
    KVTable,
    TopicList,
    TopicRoute,
)
from pymq.protocol.codes import MQ_VERSION_STRICT_JSON, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.routes import (
    AddWritePermResponse,
    BrokerHeartbeatRequest,
    BrokerMemberGroupRequest,
    BrokerNameRequest,
    DataVersionRequest,
    DataVersionResponse,
    DeleteTopicRoutesRequest,
    KVKeyRequest,
    KVNamespaceRequest,
    KVValueResponse,
    PutKVRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RouteRequest,
    TopicsOfClusterRequest,
    UnregisterBrokerRequest,
    WipeWritePermResponse,
)
from pymq.protocol.headers.topics import TopicRequest
from pymq.protocol.registration_body import RegisterBrokerBody
from pymq.setting_changes import read_changes
from pymq.settings import format_properties

_log = logging.getLogger(__name__)

_OK = int(ResponseCode.SUCCESS)
_ERROR = int(ResponseCode.SYSTEM_ERROR)
_NO_PERMISSION = int(ResponseCode.NO_PERMISSION)
_CRC_MASK = 0x7FFFFFFF
_QUOTED_INTEGER_KEY = re.compile(rb'(?<!\\)"(-?[0-9]+)":')


class Handlers:
    """Answers requests from the route table and the key-value configuration."""

    def __init__(
        self,
        config: NamesrvConfig,
        settings: LiveSettings,
        routes: RouteTable,
        kv: KVConfig,
        lowest_ids: LowestIds,
        clock: Clock,
    ) -> None:
        self._config = config
        self._settings = settings
        self._routes = routes
        self._kv = kv
        self._lowest_ids = lowest_ids
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._read_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._read_kv_namespace,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._no_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._read_config,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
        }

    # --- brokers

    def _register_broker(self, request: Request) -> Command:
        header = RegisterBrokerRequest.from_fields(request.fields)
        if header.body_crc32 and zlib.crc32(request.body) & _CRC_MASK != header.body_crc32:
            return request.response(_ERROR, "crc32 not match")
        # A broker says the same every 30 s; ten thousand topics take a tenth of a second to parse.
        digest = hashlib.blake2b(request.body, digest_size=16).digest()
        known = self._routes.registration_of(header.broker_address)
        if known is not None and known.body_digest == digest:
            topics, filter_servers = known.topics, known.filter_servers
        else:
            body = _registration_body(header, request)
            topics, filter_servers = body.topics, tuple(body.filter_servers)
        timeout_ms = header.heartbeat_timeout_ms
        broker = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_address,
            topics=topics,
            body_digest=digest,
            ha_address=header.ha_server_address,
            filter_servers=filter_servers,
            acting_master=header.enable_acting_master,
            zone_name=(request.fields or {}).get("__ZONE_NAME"),
            expiry_s=timeout_ms / 1000 if timeout_ms is not None else None,
            connection=request.connection,
        )
        before = self._routes.broker(broker.broker_name)
        master = self._routes.register(broker, self._clock.monotonic_s())
        self._lowest_ids.came(broker, before)
        answer = RegisterBrokerResponse()
        if master is not None:
            answer = RegisterBrokerResponse(
                master_address=master.address, ha_server_address=master.ha_address
            )
        return request.response(_OK, None, answer.to_fields(), self._order_topics())

    def _order_topics(self) -> bytes:
        """Return what a registering broker is told about order topics; empty: nothing."""
        table = self._kv.table(ORDER_TOPIC_CONFIG)
        if table is None or not self._config.return_order_topic_config:
            return b""
        return KVTable(table=dict(table)).encode()

    def _unregister_broker(self, request: Request) -> Command:
        header = UnregisterBrokerRequest.from_fields(request.fields)
        known = self._routes.registration_of(header.broker_address)
        self._routes.unregister(broker_name=header.broker_name, address=header.broker_address)
        if known is not None and known.broker_name == header.broker_name:
            self._lowest_ids.left([known])
        _log.info("broker %s at %s unregistered", header.broker_name, header.broker_address)
        return request.response(_OK)

    def _heartbeat(self, request: Request) -> Command:
        header = BrokerHeartbeatRequest.from_fields(request.fields)
        self._routes.heard_of(header.broker_address, self._clock.monotonic_s())
        return request.response(_OK)

    def _query_data_version(self, request: Request) -> Command:
        header = DataVersionRequest.from_fields(request.fields)
        theirs = DataVersion.decode(request.body) if request.body else None
        ours = self._routes.version_of(header.broker_address)
        self._routes.heard_of(header.broker_address, self._clock.monotonic_s())
        answer = DataVersionResponse(changed=ours is None or ours != theirs)
        return request.response(_OK, None, answer.to_fields(), ours.encode() if ours else b"")

    def _member_group(self, request: Request) -> Command:
        header = BrokerMemberGroupRequest.from_fields(request.fields)
        members = self._routes.broker(header.broker_name) or BrokerData(
            broker_name=header.broker_name, cluster=header.cluster_name
        )
        return request.response(_OK, body=fastjson.dump({"brokerMemberGroup": members.to_json()}))

    def _clusters(self, request: Request) -> Command:
        return request.response(_OK, body=self._routes.clusters().encode())

    def _wipe_write_permission(self, request: Request) -> Command:
        header = BrokerNameRequest.from_fields(request.fields)
        count = self._routes.wipe_write_permission(header.broker_name)
        _log.info("write permission of broker %s wiped: %d topics", header.broker_name, count)
        answer = WipeWritePermResponse(wipe_topic_count=count)
        return request.response(_OK, None, answer.to_fields())

    def _add_write_permission(self, request: Request) -> Command:
        header = BrokerNameRequest.from_fields(request.fields)
        count = self._routes.add_write_permission(header.broker_name)
        _log.info("write permission of broker %s added: %d topics", header.broker_name, count)
        return request.response(_OK, None, AddWritePermResponse(add_topic_count=count).to_fields())

    # --- topics

    def _route(self, request: Request) -> Command:
        header = RouteRequest.from_fields(request.fields)
        find = self._routes.route
        if self._config.support_acting_master:
            find = self._routes.acting_route
        route = find(header.topic)
        if route is None:
            return request.response(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}",
            )
        if self._config.order_message_enable:
            route = replace(
                route, order_topic_conf=self._kv.value(ORDER_TOPIC_CONFIG, header.topic)
            )
        body = route.encode()
        wants_quoted_keys = (
            request.command.version >= MQ_VERSION_STRICT_JSON or header.accept_standard_json_only
        )
        if not wants_quoted_keys:
            body = _QUOTED_INTEGER_KEY.sub(rb"\1:", body)
        return request.response(_OK, body=body)

    def _register_topic(self, request: Request) -> Command:
        header = TopicRequest.from_fields(request.fields)
        queues = TopicRoute.decode(request.body).queues
        if not self._routes.register_topic(header.topic, queues):
            # SUCCESS, as in RocketMQ: the sender repeats it with its next registration.
            _log.warning("topic %s of unknown brokers was not registered", header.topic)
        return request.response(_OK)

    def _delete_topic(self, request: Request) -> Command:
        header = DeleteTopicRoutesRequest.from_fields(request.fields)
        self._routes.delete_topic(header.topic, cluster=header.cluster_name or None)
        _log.info("topic %s deleted from %s", header.topic, header.cluster_name or "all clusters")
        return request.response(_OK)

    def _all_topics(self, request: Request) -> Command:
        if not self._config.enable_all_topic_list:
            return request.response(_NO_PERMISSION, "disabled by enableAllTopicList=false")
        return request.response(_OK, body=self._routes.topics().encode())

    def _topics_of_cluster(self, request: Request) -> Command:
        header = TopicsOfClusterRequest.from_fields(request.fields)
        return self._topic_list(request, self._routes.topics_of_cluster(header.cluster))

    def _system_topics(self, request: Request) -> Command:
        return self._topic_list(request, self._routes.system_topics())

    def _no_topics(self, request: Request) -> Command:
        """Answer a request for topics of deployment units, which pymq does not have."""
        return self._topic_list(request, TopicList())

    def _topic_list(self, request: Request, topics: TopicList) -> Command:
        if not self._config.enable_topic_list:
            return request.response(_NO_PERMISSION, "disabled by enableTopicList=false")
        return request.response(_OK, body=topics.encode())

    # --- configuration

    def _put_kv(self, request: Request) -> Command:
        header = PutKVRequest.from_fields(request.fields)
        self._kv.put(header.namespace, header.key, header.value)
        return request.response(_OK)

    def _read_kv(self, request: Request) -> Command:
        header = KVKeyRequest.from_fields(request.fields)
        value = self._kv.value(header.namespace, header.key)
        if value is None:
            return request.response(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return request.response(_OK, None, KVValueResponse(value=value).to_fields())

    def _delete_kv(self, request: Request) -> Command:
        header = KVKeyRequest.from_fields(request.fields)
        self._kv.delete(header.namespace, header.key)
        return request.response(_OK)

    def _read_kv_namespace(self, request: Request) -> Command:
        header = KVNamespaceRequest.from_fields(request.fields)
        table = self._kv.table(header.namespace)
        if table is None:
            return request.response(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return request.response(_OK, body=KVTable(table=dict(table)).encode())

    def _read_config(self, request: Request) -> Command:
        return request.response(_OK, body=format_properties(self._settings.properties()).encode())

    def _update_config(self, request: Request) -> Command:
        self._settings.change(read_changes(request.body))
        return request.response(_OK)


def _registration_body(header: RegisterBrokerRequest, request: Request) -> RegisterBrokerBody:
    if not request.body:
        return RegisterBrokerBody()
    if header.compressed:
        return RegisterBrokerBody.decode_compressed(request.body, request.command.version)
    return RegisterBrokerBody.decode(request.body)
