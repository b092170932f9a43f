"""Writing a batch exactly once: tasks stage their rows at one broker, the driver publishes them.

What a task has staged nobody sees. It tells the driver where that is, in the message it returns;
one request of the driver then makes it all visible, or is told that the batch was published before.
Nothing has to be taken back when a task or a job fails: what nobody publishes ages out with the
log. The requests: ``docs/sinks.md``.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import datasource

from pymq.client import operations
from pymq.client.cluster.config import ClientConfig
from pymq.client.operations import SinkState
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import BrokerError, ConfigurationError, PymqError
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.sink_decisions import PublishRequest, StagedRuns
from pyspark_pymq.retrying import Retries, note_limit
from pyspark_pymq.sink.digest import Digest
from pyspark_pymq.sink.gathering import check_runs
from pyspark_pymq.sink.home import SinkHome, find_again
from pyspark_pymq.sink.identity import BatchIdentity
from pyspark_pymq.sink.options import SinkOptions

LOG = logging.getLogger(__name__)
#: How often a batch is told that takes long to be published.
TOLD_EVERY_S = 60.0

#: What can be done about a refusal.
_CURES = {
    SinkCode.BATCH_TOO_OLD: "Was the checkpoint restored from a backup? Or was txnVersion counted "
    "down?",
    SinkCode.OTHER_QUERY: "A query with a new checkpoint is another query: give it another "
    "txnAppId. Where `pymq sink forget` lets it begin again, what both have written is there twice",
    SinkCode.RUNS_LOST: "The broker lost what it had not flushed, or a slave that lacked part of "
    "it has become the master, or the rows waited longer for this than it keeps messages. "
    "Nothing is missing: start the query again, and this batch is written again",
}


@dataclass(frozen=True, slots=True)
class Staged(datasource.WriterCommitMessage):
    """What a task reports when all it was given is staged.

    Attributes:
        identity: of its batch.
        home: where that is; None if the task had no rows.
        runs: what is staged; none if the batch was published already.
    """

    identity: BatchIdentity
    home: SinkHome | None
    runs: StagedRuns
    digest: Digest


def is_new(
    client: BulkClient, identity: BatchIdentity, home: SinkHome, retries: Retries
) -> bool:
    """Ask whether a batch is to be written; from now on older runs of its query may not write.

    Raises:
        BrokerError: it must not be written.
        PymqError: the broker did not answer for too long.
    """
    while True:
        try:
            return client.ask(home.address, operations.sink_state(identity.batch())).is_new
        except PASSING as error:
            retries.wait_after(error)
            home = find_again(client, identity, home, retries)
        except BrokerError as error:
            raise _explained(error, identity) from error.__cause__


def publish(options: SinkOptions, messages: Sequence[Staged]) -> None:
    """Publish what the tasks of a batch have staged; it may have been published before.

    Raises:
        ConfigurationError: the tasks do not agree on what they wrote.
        BrokerError: it must not be published, or is not there any more.
        PymqError: the broker did not answer for too long. It may be published all the same: the
            query's next start, or the job's with a txnAppId, finds out.
    """
    written = [message for message in messages if message.home is not None]
    if not written:
        return
    identity, home = written[0].identity, written[0].home
    assert home is not None
    digest = sum((message.digest for message in written), Digest())
    brokers = sorted({message.home.broker for message in written if message.home is not None})
    if len(brokers) > 1:
        raise ConfigurationError(
            f"{identity}: tasks took it to different brokers ({', '.join(brokers)}), of which not "
            "all can see the same. Nothing was published. Run it again, or choose one with option "
            "sinkBroker"
        )
    runs = StagedRuns.joined([message.runs for message in written])
    check_runs(len(runs), str(identity))
    request = PublishRequest(
        batch=identity.batch(digest.rows, str(digest)),
        runs=runs,
        is_lasting=identity.is_lasting,
        # Twice as long as it is asked for again.
        kept_ms=int(2000 * (options.retry_timeout_s + options.request_timeout_s)),
    )
    state = _publish(options, identity, home, request)
    if state.is_new:
        LOG.info(
            "%s: %d rows in %d tasks published at broker %s",
            identity,
            digest.rows,
            len(written),
            home.broker,
        )
    else:
        _compare(identity, digest, state)


def _publish(
    options: SinkOptions, identity: BatchIdentity, home: SinkHome, request: PublishRequest
) -> SinkState:
    """Ask until there is an answer.

    A broker that is still publishing the batch is waited for however long it takes: it has decided,
    and goes on with it.
    """
    retries = Retries(options.retry_timeout_s, f"publishing {identity}")
    config = ClientConfig(
        name_servers=options.name_servers,
        timeout_s=options.request_timeout_s,
        network=options.network,
    )
    told_s = time.monotonic()
    with BulkClient(options.name_servers, config=config) as client:
        while True:
            try:
                return client.ask(home.address, operations.publish_batch(request))
            except PASSING as error:
                if _is_decided(client, identity, home):
                    retries.progressed()
                    if time.monotonic() - told_s > TOLD_EVERY_S:
                        told_s = time.monotonic()
                        LOG.warning("%s is still being published at %s", identity, home.broker)
                _wait(retries, error, options)
                home = find_again(client, identity, home, retries)
            except BrokerError as error:
                if error.code != ResponseCode.FLUSH_DISK_TIMEOUT:
                    raise _explained(error, identity) from error.__cause__
                _wait(retries, error, options)


def _is_decided(client: BulkClient, identity: BatchIdentity, home: SinkHome) -> bool:
    """Say whether a broker has decided to publish a batch; False if it does not answer."""
    try:
        row = client.ask(home.address, operations.sink_state(identity.batch())).row
    except PymqError:
        return False
    return row is not None and row.last.batch == identity.number


def _wait(retries: Retries, error: PymqError, options: SinkOptions) -> None:
    try:
        retries.wait_after(error)
    except PymqError:
        note_limit(error, options.retry_timeout_s)
        raise


def _compare(identity: BatchIdentity, digest: Digest, state: SinkState) -> None:
    """Say what became of a batch that was written twice."""
    row = state.row
    before = "?" if row is None else row.last.digest
    if before == str(digest):
        LOG.info("%s was published before, with the same %d rows", identity, digest.rows)
        return
    LOG.warning(
        "%s was published before, with other rows than it has now: %s then, %s now (rows, bytes of "
        "bodies, checksum). What was published stays, and what is different now is not written. "
        "That is harmless if the query computes something else each time it runs; but if its "
        "checkpoint was set back, rows may be missing",
        identity,
        before,
        digest,
    )


def _explained(error: BrokerError, identity: BatchIdentity) -> BrokerError:
    """Return a refusal with what can be done about it."""
    if error.code in _CURES:
        error.add_note(f"{identity}: {_CURES[SinkCode(error.code)]}")
    return error
