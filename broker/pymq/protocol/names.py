"""Names of topics and groups: legal names, derived names, and those of the system.

Legal characters are letters, digits, ``_``, ``-``, ``%`` and ``|``, but neither ``/`` nor ``.``: so
a topic's name is a file name that cannot leave its directory.

Source: RocketMQ TopicValidator, Validators, MixAll, NamespaceUtil.
"""

import re

from pymq.errors import LocalProtocolError

TOPIC_BYTES_MAX = 127
#: Topics derived from groups (retry, dead letter); above 127 B only 5.x peers can read them.
DERIVED_TOPIC_BYTES_MAX = 255
GROUP_BYTES_MAX = 120

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
#: Between group and topic in the names of retry topics of popped messages.
POP_RETRY_MARK_V1 = "_"
POP_RETRY_MARK_V2 = "+"
SYSTEM_PREFIX = "rmq_sys_"
#: Of light queues, which have no topic of their own.
LMQ_PREFIX = "%LMQ%"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
#: Of topics without messages, whose routes show RocketMQ's brokers the members of a group.
MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
#: The journal of exactly-once sinks, an extension of pymq.
SINK_TOPIC = SYSTEM_PREFIX + "PYMQ_SINKS"
REPLY_SUFFIX = "_REPLY_TOPIC"

#: Template of automatically created topics (AUTO_CREATE_TOPIC_KEY_TOPIC).
DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = SYSTEM_PREFIX + "wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)

#: System topics that only the broker itself writes to; see ``takes_no_sends``.
NO_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        SINK_TOPIC,
        TIMER_TOPIC,  # RocketMQ takes what is sent there, and delivers no timer message any more.
    }
)

TOOLS_GROUP = "TOOLS_CONSUMER"
#: Holds the cursors of the transaction topics.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: Holds the cursors of the revive topic.
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: Holds the ends of the revive topic's queues, as far as the saved offsets of groups count them.
REVIVE_END_GROUP = "CID_RMQ_SYS_REVIVE_END"

#: Consumer groups known to every broker; the value tells whether they may broadcast.
BUILT_IN_GROUPS = {
    TOOLS_GROUP: False,
    "FILTERSRV_CONSUMER": False,
    "SELF_TEST_C_GROUP": False,
    "CID_ONS-HTTP-PROXY": True,
    "CID_ONSAPI_PULL": True,
    "CID_ONSAPI_PERMISSION": True,
    "CID_ONSAPI_OWNER": True,
    TRANSACTION_GROUP: True,
}

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_ILLEGAL = re.compile(r"[^%|a-zA-Z0-9_-]")


def check_topic(name: str) -> None:
    """Check a topic name.

    Raises:
        LocalProtocolError: the name is empty, too long, or has an illegal character.
    """
    _check("topic", name, topic_bytes_max(name) if isinstance(name, str) else TOPIC_BYTES_MAX)


def topic_objection(name: str) -> str | None:
    """Say in RocketMQ's words why a broker refuses a topic name; None for a legal one."""
    if not name.strip():
        return "The specified topic is blank."
    if not is_legal(name):
        return (
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    if len(name) > topic_bytes_max(name):
        return "The specified topic is longer than topic max length."
    return None


def topic_bytes_max(name: str) -> int:
    """Return how long a topic with such a name can be."""
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return DERIVED_TOPIC_BYTES_MAX if derived else TOPIC_BYTES_MAX


def check_group(name: str) -> None:
    """Check the name of a producer or consumer group.

    Raises:
        LocalProtocolError: the name is empty, too long, or has an illegal character.
    """
    _check("group", name, GROUP_BYTES_MAX)


def is_legal(name: str) -> bool:
    """Does the name consist of one or more legal characters?"""
    return _LEGAL.fullmatch(name) is not None


def _check(what: str, name: object, length_max: int) -> None:
    if not isinstance(name, str):
        raise LocalProtocolError(f"{what} name {name!r:.80} is a {type(name).__name__}, not a str")
    if not name:
        raise LocalProtocolError(f"a {what} name is empty, expected 1..{length_max} characters")
    if len(name) > length_max:
        raise LocalProtocolError(
            f"{what} name {name[:40]!r}... has {len(name)} characters, expected 1..{length_max}"
        )
    illegal = _ILLEGAL.search(name)
    if illegal is not None:
        raise LocalProtocolError(
            f"{what} name {name!r} has {illegal[0]!r} at {illegal.start()}, expected letters, "
            "digits, '_', '-', '%' and '|' only"
        )


def retry_topic(group: str) -> str:
    """Return the topic of messages that a group failed to consume."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of messages that a group failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of request-reply answers in a cluster."""
    return cluster + REPLY_SUFFIX


def pop_retry_topic(topic: str, group: str, *, v2: bool) -> str:
    """Return the topic of messages of ``topic`` that a group popped and did not acknowledge.

    Args:
        topic: subscribed by the group.
        group: the group.
        v2: whether to use the form of 5.x that can be taken apart again.
    """
    return f"{RETRY_PREFIX}{group}{POP_RETRY_MARK_V2 if v2 else POP_RETRY_MARK_V1}{topic}"


def popped_topic(name: str, group: str) -> str:
    """Return the topic that a group subscribed, of that topic or one of its retry topics."""
    for mark in (POP_RETRY_MARK_V2, POP_RETRY_MARK_V1):
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def revive_topic(cluster: str) -> str:
    """Return the topic in which brokers of a cluster keep who popped and acknowledged what."""
    return REVIVE_PREFIX + cluster


def is_retry_topic(name: str) -> bool:
    """Is this the retry topic of some group?"""
    return name.startswith(RETRY_PREFIX)


def takes_no_sends(name: str) -> bool:
    """Does only the broker itself write to the topic?

    RocketMQ takes what is sent to a revive topic, and counts it as what its consumers popped.
    """
    return name in NO_SEND_TOPICS or name.startswith(REVIVE_PREFIX)


def is_system_topic(name: str, *, cluster: str | None = None, broker: str | None = None) -> bool:
    """Does the topic belong to the system?

    Args:
        name: the topic.
        cluster: name of the cluster, whose own topic and reply topic count as system topics.
        broker: name of the broker, whose own topic counts.
    """
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX):
        return True
    if cluster is not None and name in (cluster, reply_topic(cluster)):
        return True
    return broker is not None and name == broker
