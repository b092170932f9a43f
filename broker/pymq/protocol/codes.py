"""Numbers of the remoting protocol: request and response codes, languages, flag bits.

Source: RocketMQ RequestCode, ResponseCode, LanguageCode, PermName, MessageSysFlag, PullSysFlag.
"""

from enum import IntEnum, IntFlag

#: The version that we report in every frame: V5_3_3 (MQVersion ordinal).
MQ_VERSION = 479
MQ_VERSION_TEXT = "V5_3_3"

#: Route requests of this version (4.9.4) or later are answered in strict JSON.
MQ_VERSION_STRICT_JSON = 401

#: Name servers of this version (4.9.4) or later forget a topic in one cluster only; those before
#: forget it in all of them, and enter it again only when a topic of its broker changes.
MQ_VERSION_CLUSTER_ROUTES = 401

#: Brokers of this version (4.9.3) or later know themselves how often a group's messages are tried;
#: those before fail if what is sent back does not say it.
MQ_VERSION_OWN_TIMES = 399

#: Brokers of this version (5.0.0-SNAPSHOT) or later have timer messages; those before take a
#: delivery time for a property like any other.
MQ_VERSION_TIMERS = 412

#: Brokers of this version (5.3.0) or later refuse offsets of groups that they do not have; those
#: before take them.
MQ_VERSION_GROUPS_CHECKED = 473

#: Consumers of this version (3.0.7) or later tell their offsets and reset them.
MQ_VERSION_OFFSETS = 28
#: Consumers of this version (3.1.8) or later tell about themselves and consume on demand.
MQ_VERSION_ASKED = 62
#: Requests of this version (3.4.9) or later may say how often a message is tried.
MQ_VERSION_RETRIES = 121


class RequestCode(IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    CLONE_GROUP_OFFSET = 314
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    BATCH_ACK_MESSAGE = 200151


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014


class LanguageCode(IntEnum):
    """Implementation language of the sender of a frame."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class CommandFlag(IntFlag):
    """Bits of a frame header's ``flag``."""

    RESPONSE = 1
    ONE_WAY = 2


class Permission(IntFlag):
    """What is permitted on a topic's queues, or on a broker (PermName)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class MessageFlag(IntFlag):
    """System flag bits of a message (MessageSysFlag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


#: The bits that say which hosts of a message are IPv6.
HOST_IPV6_MASK = int(MessageFlag.BORN_HOST_IPV6 | MessageFlag.STORE_HOST_IPV6)
#: The two transaction bits of a message's system flag.
TRANSACTION_MASK = int(MessageFlag.TRANSACTION_PREPARED | MessageFlag.TRANSACTION_COMMIT)
#: The three compression-type bits.
COMPRESSION_MASK = 0x700


class PullFlag(IntFlag):
    """System flag bits of a pull request (PullSysFlag)."""

    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    SUBSCRIPTION = 0x4
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10


#: Extension of pymq: a pull request field that raises RocketMQ's limit of 32 messages / 256 KiB to
#: the request's own maxMsgNums and this many bytes. Official brokers ignore it.
PULL_BYTES_FIELD = "pymqMaxBytes"

#: Extension of pymq: a send whose body is pre-encoded records (``preencoded_records.py``), with
#: the header of SEND_MESSAGE_V2 and the field below. A request without a body asks whether the
#: broker takes such sends on this connection; official ones answer REQUEST_CODE_NOT_SUPPORTED.
SEND_RECORDS = 479_001
#: Sizes of the records, packed, in base64.
RECORD_SIZES_FIELD = "pymqSizes"
#: The part that staged records belong to, a number (``sink_bodies.StagedRun``).
PART_FIELD = "pymqPart"


#: Extension of pymq: how far ranges of queues go within a number of bytes (``range_bodies.py``).
FITTING_RANGES = 479_007
#: Extension of pymq: a slave says which topics and groups it has; answered when its master has
#: others (``headers.replication.MetadataRequest``).
AWAIT_METADATA = 479_008
#: Extension of pymq: a slave says up to which change it has the consumer offsets; answered with
#: what has changed since (``headers.replication.OffsetsRequest``).
AWAIT_OFFSETS = 479_009


class SinkRequest(IntEnum):
    """Extensions of pymq: requests of exactly-once sinks; see ``docs/sinks.md``."""

    STAGE_RECORDS = 479_002  #: store records of a batch where no consumer sees them
    PUBLISH_BATCH = 479_003  #: decide that they are the batch, and make them visible
    SINK_STATE = 479_004  #: which batch comes next
    SHOW_SINKS = 479_005
    FORGET_SINK = 479_006


class SinkCode(IntEnum):
    """Response codes of sinks."""

    BATCH_TOO_OLD = 479_101
    OTHER_QUERY = 479_102
    FENCED = 479_103  #: a newer run of the query has begun
    RUNS_LOST = 479_104  #: what was staged is not there any more: stage it again
    ROWS_LOST = 479_105  #: published, without some rows that the broker lost afterwards


_OTHER_NAMES = {
    SEND_RECORDS: "SEND_RECORDS",
    FITTING_RANGES: "FITTING_RANGES",
    AWAIT_METADATA: "AWAIT_METADATA",
    AWAIT_OFFSETS: "AWAIT_OFFSETS",
}


#: Requests that change nothing. RocketMQ calls each after what it does.
READING_CODES = frozenset(
    code
    for code in RequestCode
    if code.name.removeprefix("CONTROLLER_").split("_")[0]
    in {"GET", "QUERY", "VIEW", "SEARCH", "PULL"}
) | {
    RequestCode.LITE_PULL_MESSAGE,
    SinkRequest.SHOW_SINKS,
    FITTING_RANGES,
    AWAIT_METADATA,
    AWAIT_OFFSETS,
}


#: What an error says besides when a request that changes something has no answer.
MAY_BE_DONE = "; it may have taken effect"


def consequence_of(code: int) -> str:
    """Return what an error says besides when this request has no answer."""
    return "" if code in READING_CODES else MAY_BE_DONE


def request_name(code: int) -> str:
    """Return the name of a request code, or the number itself if it has none."""
    if code in _OTHER_NAMES:
        return _OTHER_NAMES[code]
    for names in (RequestCode, SinkRequest):
        try:
            return names(code).name
        except ValueError:
            pass
    return str(code)
