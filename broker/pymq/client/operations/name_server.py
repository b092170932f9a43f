"""Requests to name servers: routes, clusters, lists of topics."""

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.bodies import ClusterInfo, TopicList, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.routes import DeleteTopicRoutesRequest, RouteRequest


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


def delete_topic_routes(topic: str) -> Operation[None]:
    """Make a name server forget a topic (216)."""
    header = DeleteTopicRoutesRequest(topic=topic)
    request = new_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
    return Plain(request, f"to forget topic {topic!r}", nothing)


def topic_names(response: Command) -> list[str]:
    """The reader of a list of topics."""
    return TopicList.decode(response.body).topics if response.body else []
