"""Requests to name servers: routes, clusters, lists of topics, values they keep."""

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.bodies import ClusterInfo, TopicList, TopicRoute
from pymq.protocol.codes import MQ_VERSION_CLUSTER_ROUTES, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.routes import (
    DeleteTopicRoutesRequest,
    KVKeyRequest,
    KVValueResponse,
    PutKVRequest,
    RouteRequest,
)


def route(topic: str) -> Operation[TopicRoute]:
    """Where a topic lives (105)."""
    request = new_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))
    return Plain(
        request, f"the route of topic {topic!r}", lambda response: TopicRoute.decode(response.body)
    )


def cluster_info() -> Operation[ClusterInfo]:
    """All clusters and brokers (106)."""
    request = new_request(RequestCode.GET_BROKER_CLUSTER_INFO)
    return Plain(request, "the clusters", lambda response: ClusterInfo.decode(response.body))


def topic_list() -> Operation[list[str]]:
    """The names of all topics, the system's among them (206)."""
    request = new_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return Plain(request, "the list of topics", topic_names)


def delete_topic_routes(topic: str, cluster: str | None = None) -> Operation[None]:
    """Make a name server forget a topic (216).

    Args:
        topic: which.
        cluster: only there, if ``forgets_in_cluster`` says that it can; None: everywhere.
    """
    header = DeleteTopicRoutesRequest(topic=topic, cluster_name=cluster)
    request = new_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    return Plain(request, f"to forget topic {topic!r}", nothing)


def forgets_in_cluster(topic: str, cluster: str) -> Operation[bool]:
    """Whether a name server can forget a topic in a cluster and keep it in the others (105)."""

    def read(response: Command) -> bool:
        if response.version >= MQ_VERSION_CLUSTER_ROUTES or response.code != ResponseCode.SUCCESS:
            return True
        brokers = TopicRoute.decode(response.body).brokers
        return all(broker.cluster == cluster for broker in brokers)

    request = new_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))
    accepted = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
    return Plain(request, f"the route of topic {topic!r}", read, accepted)


def find_value(namespace: str, key: str) -> Operation[str | None]:
    """What a name server keeps under a key (101); None: nothing."""
    request = new_request(RequestCode.GET_KV_CONFIG, KVKeyRequest(namespace=namespace, key=key))
    return Plain(
        request,
        f"the value of {namespace}/{key}",
        lambda response: KVValueResponse.from_fields(response.fields).value,
        (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
    )


def put_value(namespace: str, key: str, value: str) -> Operation[None]:
    """Have a name server keep a value, also when it starts again (100)."""
    header = PutKVRequest(namespace=namespace, key=key, value=value)
    request = new_request(RequestCode.PUT_KV_CONFIG, header)
    return Plain(request, f"to keep {namespace}/{key}", nothing)


def topic_names(response: Command) -> list[str]:
    """The reader of a list of topics."""
    return TopicList.decode(response.body).topics if response.body else []
