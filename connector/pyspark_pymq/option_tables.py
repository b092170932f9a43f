"""The options of source and sink. No network: a mistyped one is found at ``load()``/``start()``.

Source                    default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)           ``host:port``, several separated by ``;`` or ``,``
brokerAddressMap          as advertised        where brokers are reached, seen from the driver and
                                               from the executors: ``ADVERTISED=REACHED``, several
                                               separated by ``,``, each ``host:port`` or a host
subscribe                 one of these three   topics, separated by ``,``
subscribePattern          one of these three   a regular expression of Python that matches a whole
                                               name: all such topics, those to come included. Never
                                               the system's; retry topics and dead letters only
                                               if the expression begins with ``%``
assign                    one of these three   queues in JSON: ``{"topic": {"broker": [0, 1]}}``, or
                                               ``{"topic": [0, 1]}`` on every broker
topicRefreshMs            30000                how often ``subscribePattern`` looks for new topics
startingOffsets           latest / earliest    stream / batch; or group: where ``consumerGroup``
                                               stands; or JSON, as below
startingTimestamp         none                 the first message stored then or later: ms since
                                               1970, or ISO 8601 with an offset from UTC
startingOffsetsByTimestamp  none               such times by queue, in JSON
startingOffsetsByTimestampStrategy  error      if nothing was stored so late; latest: at the end
groupOffsetFallback       earliest             where a queue starts in which the group has committed
                                               nothing; or latest, or fail
endingOffsets             latest               or JSON
endingTimestamp           none                 before the first message stored then or later
endingOffsetsByTimestamp  none                 such times by queue, in JSON
maxOffsetsPerTrigger      no limit             most messages of a micro-batch
maxBytesPerTrigger        no limit             most bytes of a micro-batch, as they are stored; with
                                               brokers of RocketMQ an estimate, from samples
minOffsetsPerTrigger      none                 fewest messages of a micro-batch, unless it is late
maxTriggerDelay           15m                  how late: after the last one, or the query's start;
                                               ``15m``, ``90s``, or milliseconds
failOnDataLoss            true                 false: log, continue at the next offset there is
tags                      ``*``                ``A || B``: only messages with one of these tags
sql                       none                 ``amount > 100 AND region = 'EU'``: only messages
                                               whose properties match; not together with tags
columns                   pymq                 without a schema of the user: pymq, kafka, or columns
                                               and these, separated by ``,``: ``pymq,brokerName``
includeProperties         false                adds the column ``properties``
metadata                  none                 topics: one row for each queue instead of messages;
                                               batch only
valueFormat               binary               what bodies are: binary, string, json or avro
valueSchema               the user's schema    json: type of the values, as DDL or as Spark's JSON
avroSchema                none                 avro: the schema of the values, JSON
avroSchemaFile            none                 avro: a file with it, read once on the driver
badRecords                fail                 null: bodies that cannot be decoded are null;
                                               sideTopic: they go to badRecordsTopic
badRecordsTopic           none                 where bad records go, at least once each
corruptBodies             fail                 null: what cannot be decompressed is null, even
                                               with badRecords=fail
expectedBrokers           none                 brokers, separated by ``,``, without whose queues
                                               a batch, or a new stream, does not start
consumerGroup             TOOLS_CONSUMER       what the broker's permissions and statistics see
commitOffsetsToBroker     false                true: tell brokers how far the stream is, as the
                                               progress of consumerGroup
minPartitions             1                    fewest tasks of a batch, if it has as many rows
maxPartitions             no limit             most tasks of a batch
maxRecordsPerPartition    no limit             most messages of a task; comes before
                                               ``maxPartitions``
pullBytes                 8388608              bytes to ask for at once
readFromReplica           true                 read old messages from a slave while the broker
                                               suggests it; false: from masters only
requestTimeoutMs          3000                 wait for one answer
retryTimeoutMs            180000               keep trying this long while a broker is away;
                                               name servers forget a silent one after 120 s

Sink                      default              meaning
------------------------  -------------------  --------------------------------------------------
nameServer                (required)           as above
brokerAddressMap          as advertised        as above
topic                     column ``topic``     overrides the column
delivery                  exactlyOnce, or      exactlyOnce: a micro-batch, or a batch write, is
                          atLeastOnce where    seen as a whole and once; needs a pymq broker.
                          no pymq broker is    atLeastOnce: straight into the queues of all brokers
sinkBroker                as the name server   exactlyOnce: the broker that stores all of the sink
                          remembers, or any
txnAppId                  the query's id, or   exactlyOnce: name of the sink; with txnVersion, a
                          a random one         batch write that is repeated writes nothing
txnVersion                micro-batch's id     number of a batch write with txnAppId: larger than
                          in foreachBatch      that of the one before
valueFormat               binary               what bodies become: binary or string (a column of
                                               either), json or avro (a struct)
avroSchema                none                 avro: the schema of the values, JSON
avroSchemaFile            none                 avro: a file with it, read on the driver
dedupKey                  none                 a column whose text is the message's id, UNIQ_KEY
maxMessageSize            4194304              as the broker's: bounds a message and a request
requestTimeoutMs          10000                wait for one answer
retryTimeoutMs            180000               keep trying this long while a broker is away, or does
                                               not secure what it stores

Offsets in JSON: ``{"topic": {"broker": {"0": 17, "1": -2}}}``; -2 is the earliest, -1 the latest.
An end offset from a query's progress can be pasted. A queue that is not named starts at its
earliest message and ends at its latest one.

Of several starts, startingTimestamp comes first, then startingOffsetsByTimestamp, then
startingOffsets; ends likewise. Starts are for new queries: one with a checkpoint resumes there.
Times are the brokers' (when messages were stored), not the producers'. An end counts for streams,
too: they read nothing beyond it, and a queue without one goes on. Every message of a queue counts
for the limits, whatever its tags. With a trigger of available-now, or once, nothing is waited for.
"""

from pymq.protocol.framing import FRAME_BYTES_MAX
from pyspark_pymq import option_positions as positions
from pyspark_pymq import option_values as values
from pyspark_pymq.format_options import FORMAT_OPTIONS, READ_OPTIONS

#: Longer than the 120 s after which name servers drop a silent broker from their routes: rows of
#: which only the number of the queue is given go to another one from then on.
RETRY_S = 180.0
#: RocketMQ ``maxMessageSize`` where nobody has changed it.
MESSAGE_BYTES_DEFAULT = 4 << 20
#: No peer takes a larger frame (RocketMQ ``com.rocketmq.remoting.frameMaxLength``), whatever the
#: broker's maxMessageSize; the rest is for a frame's header, and for what a pull adds.
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)

_SHARED: values.Table = {
    "nameServer": ("name_servers", values.name_servers),
    "brokerAddressMap": ("network", values.broker_address_map),
    "requestTimeoutMs": ("request_timeout_s", values.duration_s(1)),
    "retryTimeoutMs": ("retry_timeout_s", values.duration_s(100)),
}
SOURCE_OPTIONS: values.Table = {
    **_SHARED,
    "subscribe": ("topics", values.topics),
    "subscribePattern": ("topic_pattern", positions.pattern),
    "assign": ("assigned", positions.assigned),
    "topicRefreshMs": ("topic_refresh_s", values.duration_s(100)),
    "startingOffsets": ("starting", values.starting),
    "startingTimestamp": ("starting_at", positions.timestamp),
    "startingOffsetsByTimestamp": ("starting_times", positions.starting_times),
    "startingOffsetsByTimestampStrategy": ("is_strict_about_times", positions.error_or_latest),
    "groupOffsetFallback": ("group_fallback", positions.fallback),
    "endingOffsets": ("ending", values.ending),
    "endingTimestamp": ("ending_at", positions.timestamp),
    "endingOffsetsByTimestamp": ("ending_times", positions.ending_times),
    "maxOffsetsPerTrigger": ("offsets_max", values.count(1)),
    "maxBytesPerTrigger": ("bytes_max", values.count(1)),
    "minOffsetsPerTrigger": ("offsets_min", values.count(1)),
    "maxTriggerDelay": ("trigger_delay_s", positions.long_duration_s(1)),
    "failOnDataLoss": ("fail_on_data_loss", values.flag),
    **FORMAT_OPTIONS,
    **READ_OPTIONS,
    "corruptBodies": ("null_corrupt_bodies", values.null_or_fail),
    "expectedBrokers": ("expected_brokers", values.brokers),
    "tags": ("tags", values.tags),
    "sql": ("sql", values.sql),
    "columns": ("columns", values.columns),
    "includeProperties": ("include_properties", values.flag),
    "metadata": ("metadata", values.metadata),
    "consumerGroup": ("consumer_group", values.group),
    "commitOffsetsToBroker": ("commits_offsets", values.flag),
    "minPartitions": ("partitions_min", values.count(1)),
    "maxPartitions": ("partitions_max", values.count(1)),
    "maxRecordsPerPartition": ("task_rows_max", values.count(1)),
    "pullBytes": ("pull_bytes", values.count(1024, 64 << 20)),
    "readFromReplica": ("reads_replicas", values.flag),
}
SINK_OPTIONS: values.Table = {
    **_SHARED,
    "topic": ("topic", values.topic),
    "delivery": ("delivery", values.delivery),
    "sinkBroker": ("sink_broker", values.broker),
    "txnAppId": ("txn_app_id", values.name),
    "txnVersion": ("txn_version", values.count(0, values.LONG_MAX)),
    **FORMAT_OPTIONS,
    "dedupKey": ("dedup_column", str.strip),
    "maxMessageSize": ("message_bytes_max", values.count(1024, MESSAGE_BYTES_MAX)),
}
