"""What is asked of ``mqadmin``, scene by scene, and what its answers have in common.

Each step is one command line, run against an official cluster and against ours; what it prints
has to be the same on both once times, addresses, ids and counters are masked, or what the step says
instead. ``UNASKED`` holds the commands that no scene runs, with the reason.

Steps of a scene build on one another; scenes do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

#: What of a masked output is compared.
View: TypeAlias = Callable[[str], str]

OLD, NEW = "4.9.7", "5.3.3"

_TABLE_SPACES = re.compile(r" {2,}")
#: Of a message: a hash table, whose order depends on that in the record.
_PROPERTIES = re.compile(r"(\b[pP]roperties(?:=|: +)\{)([^}]*)\}")
_MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:.]\d{3})?"), "<time>"),
    (re.compile(r"\b1[0-9]{12}\b"), "<ms>"),
    (re.compile(r"(?<![0-9A-Za-z])[0-9A-F]{32,}"), "<id>"),
    (re.compile(r"(\d+\.\d+\.\d+\.\d+):\d+"), "<address>"),
    (re.compile(r"interop-\d+-\d+"), "<instance>"),
    (re.compile(r"(spentTimeMills=|\brt=)\d+"), r"\1<ms>"),
    (re.compile(r"(write perm of broker\S+ in name server\S+ OK,) [1-9]\d*"), r"\1 <count>"),
    (re.compile(r'"counter":\d+|Consume TPS: .*'), "<counter>"),
    # The tools log to the same output, of connections that they close, say.
    (re.compile(r"^<time> +(INFO|WARN) +Rocketmq.*\n", re.MULTILINE), ""),
    # Settings of our own.
    (re.compile(r"^(pymq\w+|diskFreeEnoughBytes) .*\n", re.MULTILINE), ""),
    # Directories of the two stores.
    (re.compile(r"(commitLogDiskRatio)_/\S+"), r"\1_<directory>"),
    # Of an exception only its own lines: where it was thrown depends on how we call the tools.
    (re.compile(r"^\s+(at .*|\.\.\. \d+ more)\n", re.MULTILINE), ""),
    # Topics of what is still to come here, and of groups that come and go with transactions.
    (re.compile(r"^.*\brmq_sys_(REVIVE_LOG|wheel_timer).*\n", re.MULTILINE), ""),
    (re.compile(r"^((DefaultCluster +)?RMQ_SYS_TRANS_\w+) .*$", re.MULTILINE), r"\1"),
    # An exception that went through RocketMQ's own hands says so.
    (
        re.compile(r"java\.lang\.RuntimeException: ([^\n]*), org\.apache\.\S+\(\w+\.java:\d+\)"),
        r"\1",
    ),
    # Tools of 4.x cannot read what 5.3.3 says.
    (re.compile(r"^java\.lang\.NullPointerException: .*getTransferedTps.*\n", re.MULTILINE), ""),
    # Where to read more: our remarks say what to do instead.
    (re.compile(r"(See https?:\S+ for further details\.|For more information, [^\n]*)\n?"), ""),
    # 5.3.3 takes a topic for one of its own consumer groups (ConsumerManager.registerConsumer).
    (re.compile(r"^(DefaultCluster +)?(orders-\S+) +\2 .*\n", re.MULTILINE), ""),
    (re.compile(r"MessageTrack \[consumerGroup=orders-[^\]]*\]\n?"), ""),
    # Places in the log depend on what else was stored.
    (re.compile(r"(CommitLog Offset: +|storeSize=|commitLogOffset=)\d+"), r"\1<place>"),
    (re.compile(r"(physicOffset|physicSize)=\d+"), r"\1=<place>"),
    (re.compile(r"(MasterCommitLogMaxOffset)\s+\d+"), r"\1 <place>"),
)


def masked(text: str) -> str:
    """Return an output without what differs between any two runs."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return _PROPERTIES.sub(_in_order, text)


def _in_order(found: re.Match[str]) -> str:
    return found[1] + ", ".join(sorted(found[2].split(", "))) + "}"


def whole(text: str) -> str:
    """Everything, but for the width of columns."""
    return "\n".join(_TABLE_SPACES.sub("  ", line).rstrip() for line in text.splitlines()).strip()


def unordered(text: str) -> str:
    """All lines, sorted: those of a Java hash table come in any order."""
    return "\n".join(sorted(whole(text).splitlines()))


def rates_masked(text: str) -> str:
    """All lines, sorted, without figures that have decimals."""
    return re.sub(r"\d+\.\d+", "N", unordered(text))


def numbers_masked(text: str) -> str:
    """Everything but the numbers that stand alone, and the order of lines."""
    text = re.sub(r"\b\d+-\d+\(", "N-N(", unordered(text))  # how far timers have come
    return re.sub(r"(?<![\w.-])-?\d+(\.\d+)?(?![\w-])", "N", text)


def keys(text: str) -> str:
    """What stands before the first ``:`` or ``=`` of each line, sorted; without figures."""
    text = re.sub(r"\d+\.\d+", "N", whole(text))
    return "\n".join(sorted(re.split(r"[:=]", line)[0].strip() for line in text.splitlines()))


@dataclass(frozen=True, slots=True)
class Step:
    """One command line, and what is expected of it.

    Attributes:
        line: may name ``{broker}``, ``{topic}`` and other values of ``test_mqadmin.Side``.
        view: of the output, has to be equal on both sides.
        ours: what our masked output contains instead, a regular expression; the official one does
            not. To be read with the comment beside it.
        more: may our output have lines that the official one has not?
        fewer: may it lack some?
        versions: of the tools that have it.
        endless: it repeats itself at intervals.
        settles: the two may differ for some seconds, until both have counted everything.
    """

    line: str
    view: View = whole
    ours: str | None = None
    versions: tuple[str, ...] = (OLD, NEW)
    more: bool = False
    fewer: bool = False
    endless: bool = False
    settles: bool = False

    @property
    def command(self) -> str:
        """Its name."""
        return self.line.split()[0]


_FIXED = r"CODE: 16  DESC: the configuration of this name server is fixed while it runs"
#: Limits would have no effect here; RocketMQ takes them all the same.
_NO_LIMITS = "CODE: 1  DESC: this broker limits no cold reads"
#: To come: in the same words for all.
_NOT_YET = r"request type \d+ not supported|CODE: N  DESC:  request type N not supported"


def _new(line: str, view: View = whole, ours: str | None = None) -> Step:
    """Return a step of the tools of 5.x alone."""
    return Step(line, view, ours, versions=(NEW,))


SCENES: Final[dict[str, list[Step]]] = {
    "clusters and brokers": [
        Step("clusterList", numbers_masked),
        Step("clusterList -m", numbers_masked),
        Step("clusterList -i 60", numbers_masked, endless=True),
        Step("brokerStatus -b {broker}", keys, more=True),
        Step("brokerStatus -c DefaultCluster", keys, more=True),
        Step("brokerStatus -b 127.0.0.1:1"),
    ],
    "topics": [
        Step("topicList", unordered),
        Step("topicList -c", unordered),
        Step("topicStatus -t {topic}"),
        Step("topicStatus -t nosuch"),
        Step("topicRoute -t {topic}"),
        Step("topicRoute -t {topic} -l", versions=(NEW,)),
        Step("topicRoute -t nosuch"),
        Step("topicClusterList -t {topic}"),
        Step("topicClusterList -t nosuch"),
        Step("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2"),
        Step("updateTopic -b {broker} -t made-{v} -r 3 -w 5 -p 6"),
        Step("updateTopic -c DefaultCluster -t made2-{v}"),
        Step("updateTopic -b {broker} -t made3-{v} -u true -s true"),
        Step("topicRoute -t made-{v}"),
        Step("topicRoute -t made3-{v}"),
        Step("topicStatus -t made-{v}"),
        Step("updateTopic -b {broker} -t bad^name"),
        Step("updateTopic -b {broker} -t SCHEDULE_TOPIC_XXXX"),
        Step("updateTopicPerm -t made-{v} -p 4 -c DefaultCluster"),
        Step("updateTopicPerm -t made-{v} -p 4 -c DefaultCluster"),
        Step("updateTopicPerm -t made-{v} -p 2 -b {broker}"),
        Step("updateTopicPerm -t nosuch -p 2 -b {broker}"),
        Step("topicRoute -t made-{v}"),
        Step("deleteTopic -t made-{v} -c DefaultCluster"),
        Step("deleteTopic -t made2-{v} -c DefaultCluster"),
        Step("deleteTopic -t made3-{v} -c DefaultCluster"),
        Step("topicRoute -t made-{v}"),
        Step("deleteTopic -t nosuch -c DefaultCluster"),
    ],
    "attributes of topics": [
        _new("updateTopic -b {broker} -t typed -a +message.type=FIFO"),
        _new("updateTopic -b {broker} -t typed -a +message.type=DELAY"),
        _new("updateTopic -b {broker} -t typed -a +message.type=Nonsense"),
        _new("updateTopic -b {broker} -t typed -a -message.type"),
        _new("updateTopic -b {broker} -t typed -a +no.such=1"),
        _new("updateTopic -b {broker} -t typed -a +queue.type=Nonsense"),
        _new("updateTopic -b {broker} -t typed -a +queue.type=BatchCQ"),
        _new("updateTopic -b {broker} -t simple -a +queue.type=SimpleCQ"),
        _new("updateTopic -b {broker} -t simple -a +queue.type=BatchCQ"),
        _new("updateTopic -b {broker} -t simple -a -queue.type"),
        _new("updateTopic -b {broker} -t simple -a +cleanup.policy=DELETE"),
        _new("updateTopic -b {broker} -t timed -a +reserve.time=100"),
        _new("updateTopic -b {broker} -t timed -a +reserve.time=-2"),
        _new("updateTopic -b {broker} -t timed -a +reserve.time=soon"),
        _new("updateTopic -b {broker} -t timed -a nonsense"),
        _new("updateTopic -b {broker} -t timed -a message.type=FIFO"),
        _new("updateTopic -b {broker} -t timed --attributes=-reserve.time"),
        # What we cannot do is refused.
        _new(
            "updateTopic -b {broker} -t batches -a +queue.type=BatchCQ",
            ours="CODE: 1  DESC: BatchCQ is not supported by this broker",
        ),
        _new(
            "updateTopic -b {broker} -t compacted -a +cleanup.policy=COMPACTION",
            ours="CODE: 1  DESC: COMPACTION is not supported by this broker",
        ),
        _new("deleteTopic -t typed -c DefaultCluster"),
        _new("deleteTopic -t simple -c DefaultCluster"),
        _new("deleteTopic -t timed -c DefaultCluster"),
        _new("deleteTopic -t batches -c DefaultCluster"),
        _new("deleteTopic -t compacted -c DefaultCluster"),
    ],
    "lists of topics and groups": [
        _new("updateTopicList -b {broker} -f {topics_file}"),
        _new("updateTopicList -c DefaultCluster -f {topics_file}"),
        _new("topicRoute -t listed-2"),
        _new("updateTopicList -b {broker} -f {bad_topics_file}"),
        _new("topicRoute -t listed-4"),
        _new("updateSubGroupList -b {broker} -f {groups_file}"),
        _new("updateSubGroupList -c DefaultCluster -f {groups_file}"),
        _new("getConsumerConfig -g listed-group-2"),
        _new("deleteTopic -t listed-1 -c DefaultCluster"),
        _new("deleteTopic -t listed-2 -c DefaultCluster"),
        _new("deleteSubGroup -g listed-group-1 -c DefaultCluster"),
        _new("deleteSubGroup -g listed-group-2 -c DefaultCluster"),
    ],
    "groups": [
        Step(
            "updateSubGroup -b {broker} -g g1-{v} -s true -m false -d true -q 2 -r 5 -i 0 -w 1"
            " -a false"
        ),
        Step("updateSubGroup -c DefaultCluster -g g2-{v}"),
        Step("getConsumerConfig -g g1-{v}"),
        Step("getConsumerConfig -g nosuch"),
        _new("updateSubGroup -b {broker} -g g3-{v} --attributes +no.such=1"),
        _new("updateSubGroup -b {broker} -g g3-{v} -o true -p {policy}"),
        _new("getConsumerConfig -g g3-{v}"),
        Step("deleteSubGroup -b {broker} -g g1-{v} -r true"),
        Step("deleteSubGroup -c DefaultCluster -g g2-{v}"),
        _new("deleteSubGroup -c DefaultCluster -g g3-{v}"),
        Step("deleteSubGroup -b {broker} -g nosuch"),
        Step("getConsumerConfig -g g1-{v}"),
    ],
    "progress": [
        Step("consumerProgress -g {online}"),
        Step("consumerProgress -g {online} -t {topic}", versions=(NEW,)),
        Step("consumerProgress -g {online} -s true"),
        Step("consumerProgress", numbers_masked),
        Step("consumerProgress -g {offline}"),
        Step("consumerProgress -g nosuch"),
        Step("brokerConsumeStats -b {broker}", unordered),
        Step("brokerConsumeStats -b {broker} -o true", unordered),
        Step("brokerConsumeStats -b {broker} -l 3", unordered),
    ],
    "connections": [
        Step("consumerConnection -g {online}"),
        Step("consumerConnection -g {online} -b {broker}", versions=(NEW,)),
        Step("consumerConnection -g nosuch"),
        Step("producerConnection -g {writers} -t {topic}"),
        Step("producerConnection -g nosuch -t {topic}"),
        Step("producer -b {broker}", unordered),
        Step("consumerStatus -g {online}"),
        Step("consumerStatus -g {online} -i {client}", keys),
        Step("consumerStatus -g {online} -s", whole),
        Step("consumerStatus -g nosuch"),
    ],
    "statistics": [
        Step("statsAll", rates_masked, settles=True),
        Step("statsAll -a", rates_masked, settles=True),
        Step("statsAll -t {topic}", rates_masked, settles=True),
    ],
    "messages": [
        Step("queryMsgById -i {id}", versions=(OLD,)),
        _new("queryMsgById -i {id} -t {topic}"),
        Step("queryMsgById -i {id} -g {online} -d {client}", versions=(OLD,)),
        _new("queryMsgById -i {id} -t {topic} -g {online} -d {client}"),
        _new("queryMsgById -i 7F0000010000000000000000FFFFFFFF -t {topic}"),
        _new("queryMsgById -i {single_id} -t {single} -s true"),
        Step("queryMsgByKey -t {topic} -k k1"),
        Step("queryMsgByKey -t {topic} -k nosuch"),
        Step("queryMsgByKey -t nosuch -k k1"),
        Step("queryMsgByUniqueKey -t {topic} -i {unique}"),
        Step("queryMsgByUniqueKey -t {topic} -i {unique} -a", versions=(NEW,)),
        Step("queryMsgByUniqueKey -t {topic} -i {unique} -g {online} -d {client}"),
        Step("queryMsgByUniqueKey -t {topic} -i 00000000000000000000000000000000"),
        Step("queryMsgByOffset -t {topic} -b broker-a -i 1 -o 1"),
        Step("queryMsgByOffset -t {topic} -b broker-a -i 1 -o 100"),
        Step("queryMsgTraceById -i {unique}"),
        Step("printMsg -t {topic}", unordered),
        Step("printMsg -t {topic} -s a -d false", unordered),
        Step("printMsg -t nosuch"),
        Step("printMsgByQueue -t {topic} -a broker-a -i 1 -p true -d true"),
        Step("printMsgByQueue -t {topic} -a broker-a -i 1 -f true"),
        Step("printMsgByQueue -t {topic} -a broker-a -i 1 -p true -s a"),
        Step("queryCq -t {topic} -q 1 -i 0 -b {broker}"),
        Step("queryCq -t {topic} -q 1 -i 1 -c 2 -b {broker} -g {online}"),
        Step("queryCq -t {topic} -q 9 -i 1 -c 2 -b {broker}"),
        Step("queryCq -t {topic} -q 1 -i 100 -b {broker}"),
        Step("queryCq -t nosuch -q 0 -i 0 -b {broker}"),
    ],
    "sends": [
        Step("sendMessage -t {single} -p hello -k key1 -c tagx"),
        Step("sendMessage -t {single} -p hello -b broker-a -i 0"),
        Step("sendMessage -t {topic} -p hello -b nosuch -i 1"),
        Step("sendMsgStatus -b broker-a -c 3", numbers_masked),
        Step("consumeMessage -t {single}", unordered),
        Step("consumeMessage -t {topic} -b broker-a -i 2 -o 1 -c 1"),
        Step("consumeMessage -t {single} -g {offline} -c 3"),
        Step("consumeMessage -t nosuch"),
        Step("checkMsgSendRT -t {single} -a 3 -s 10", numbers_masked),
        Step("clusterRT -a 3 -i 60 -c DefaultCluster -s 10", numbers_masked, endless=True),
    ],
    "configuration of the broker": [
        # Ours also names what RocketMQ leaves out while it is not set.
        Step("getBrokerConfig -b {broker}", keys, more=True, fewer=True),
        Step("getBrokerConfig -c DefaultCluster", keys, more=True, fewer=True),
        Step("updateBrokerConfig -b {broker} -k longPollingEnable -v true"),
        Step("updateBrokerConfig -c DefaultCluster -k longPollingEnable -v true"),
        # RocketMQ says "success", and does nothing.
        Step(
            "updateBrokerConfig -b {broker} -k nosuchKey -v true",
            ours="CODE: 16  DESC: nosuchKey has no effect here",
        ),
        Step("updateBrokerConfig -b {broker} -k brokerConfigPath -v /nowhere"),
    ],
    "configuration of the name server": [
        # Ours shows what has an effect, and changes while it runs only if that was allowed.
        Step("getNamesrvConfig", keys, more=True, fewer=True),
        Step("updateNamesrvConfig -k enableTopicList -v true", ours=_FIXED),
        Step("updateNamesrvConfig -k kvConfigPath -v /nowhere"),
        Step("updateKvConfig -s space -k key -v value"),
        Step("deleteKvConfig -s space -k key"),
        Step("deleteKvConfig -s nospace -k key"),
        Step("wipeWritePerm -b broker-a"),
        Step("topicRoute -t {topic}"),
        Step("addWritePerm -b broker-a"),
        Step("topicRoute -t {topic}"),
        Step("wipeWritePerm -b nosuch"),
        Step("addWritePerm -b nosuch"),
    ],
    "order of topics": [
        Step("updateTopic -c DefaultCluster -t ordered-{v} -o true -r 4 -w 4"),
        Step("topicRoute -t ordered-{v}"),
        Step("updateOrderConf -t ordered-{v} -m get"),
        Step("updateOrderConf -t ordered-{v} -m put -v broker-a:2"),
        Step("updateOrderConf -t ordered-{v} -m get"),
        Step("updateOrderConf -t ordered-{v} -m delete"),
        Step("updateOrderConf -t ordered-{v} -m get"),
        Step("updateOrderConf -t ordered-{v} -m nonsense"),
        Step("deleteTopic -t ordered-{v} -c DefaultCluster"),
    ],
    "cleaning": [
        Step("cleanExpiredCQ -b {broker}"),
        Step("cleanExpiredCQ -c DefaultCluster"),
        Step("cleanExpiredCQ -c nosuch"),
        Step("cleanUnusedTopic -b {broker}"),
        Step("cleanUnusedTopic -c DefaultCluster"),
        Step("deleteExpiredCommitLog -b {broker}"),
        Step("deleteExpiredCommitLog -c DefaultCluster"),
    ],
    "exports": [
        Step("exportMetadata -c DefaultCluster -f {{dir}}", unordered),
        Step("exportMetadata -b {broker} -t -f {{dir}}", unordered),
        Step("exportMetadata -b {broker} -g -f {{dir}}", unordered),
        Step("exportMetadata -c DefaultCluster -s -f {{dir}}", unordered),
        Step("exportConfigs -c DefaultCluster -f {{dir}}", unordered),
        _new("exportMetrics -c DefaultCluster -f {{dir}}", numbers_masked),
        # The tool of 4.9.7 misses a figure that its own broker calls otherwise, and fails.
        Step("exportMetrics -c DefaultCluster -f {{dir}}", ours="evaluateReport", versions=(OLD,)),
        _new("exportPopRecord -b {broker} -d true", ours=_NOT_YET),
        _new("exportPopRecord -c DefaultCluster -d true", ours=_NOT_YET),
    ],
    "offsets": [
        Step("cloneGroupOffset -s {online} -d {offline} -t {topic} -o true"),
        Step("consumerProgress -g {offline}"),
        Step("resetOffsetByTime -g {offline} -t {topic} -s 0"),
        Step("consumerProgress -g {offline}"),
        Step("resetOffsetByTime -g {offline} -t {topic} -s now"),
        Step("resetOffsetByTime -g nosuch -t {topic} -s now"),
        Step("resetOffsetByTime -g {offline} -t nosuch -s now"),
        _new("resetOffsetByTime -g {offline} -t {topic} -s -1 -q 1 -o 2 -b {broker}"),
        _new("resetOffsetByTime -g {offline} -t {topic} -s -1 -q 1 -o 200 -b {broker}"),
        Step("skipAccumulatedMessage -g {offline} -t {topic}"),
        Step("skipAccumulatedMessage -g {online} -t {topic}"),
    ],
    "what a broker of 5.x has besides": [
        _new("setConsumeMode -b {broker} -t {topic} -g {offline} -m POP -q 2"),
        _new("setConsumeMode -c DefaultCluster -t {topic} -g {offline} -m PULL"),
        _new("haStatus -b {broker}"),
        _new("haStatus -c DefaultCluster"),
        _new("resetMasterFlushOffset -b {broker} -o 100"),
        _new("getBrokerEpoch -b broker-a"),
        _new("getBrokerEpoch -c DefaultCluster"),
        _new("getColdDataFlowCtrInfo -b {broker}", unordered),
        _new("getColdDataFlowCtrInfo -c DefaultCluster", unordered),
        _new("updateColdDataFlowCtrGroupConfig -b {broker} -g {online} -v 100", ours=_NO_LIMITS),
        _new("removeColdDataFlowCtrGroupConfig -b {broker} -g {online}", ours=_NO_LIMITS),
        _new("setCommitLogReadAheadMode -b {broker} -m 1"),
        _new("setCommitLogReadAheadMode -c DefaultCluster -m 0"),
        _new("setCommitLogReadAheadMode -b {broker} -m 7"),
        _new("checkRocksdbCqWriteProgress -c DefaultCluster -t {topic}", ours=_NOT_YET),
        _new("rocksDBConfigToJson -b {broker}"),
    ],
}

_CONTROLLER = "asks a controller: test_controller_java runs it"
_ACL = "access control, which is switched off"
_STATIC = "static topics"
_CONTAINER = "asks a broker container"
_LOCAL = "reads files on the machine it runs on, nothing else"

#: Commands that no scene runs, and why.
UNASKED: Final[dict[str, str]] = {
    "startMonitoring": "runs for ever in threads of its own: test_mqadmin runs what it is made of",
    **dict.fromkeys(["addBroker", "removeBroker"], _CONTAINER),
    **dict.fromkeys(["updateStaticTopic", "remappingStaticTopic"], _STATIC),
    **dict.fromkeys(
        [
            *("getSyncStateSet", "getControllerMetaData", "getControllerConfig"),
            *("updateControllerConfig", "electMaster", "cleanBrokerMetadata"),
        ],
        _CONTROLLER,
    ),
    **dict.fromkeys(
        [
            *("updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion"),
            *("updateGlobalWhiteAddr", "getAclConfig"),
            *("createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser"),
            *("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"),
        ],
        _ACL,
    ),
    **dict.fromkeys(["exportMetadataInRocksDB", "dumpCompactionLog"], _LOCAL),
}
