"""The keys of messages: indexing them, and finding messages by them."""

import logging
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import OffsetOutOfRange, StoreError
from pymq.store.dispatch import Dispatch
from pymq.store.index.index_prefetch import IndexPrefetchJob
from pymq.store.index.indexer import Indexer
from pymq.store.index.key_index import KeyIndex
from pymq.store.index.key_query import QUERY_COUNT_MAX, KeyQuery, QueryResult
from pymq.store.log.commit_log import CommitLog
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)


class Keys:
    """The keys of one store's messages; belongs to the thread of the store.

    Args:
        log: where the messages are.
        index: of their keys; None without an index.
        dispatch: says which messages are visible.
        gate: says whether the store is open.
        clock: for names of index files, and deadlines.
        root_path: of the store, for error messages.
    """

    def __init__(
        self,
        log: CommitLog,
        index: KeyIndex | None,
        dispatch: Dispatch,
        gate: WriteGate,
        clock: Clock,
        root_path: Path,
    ) -> None:
        self._log = log
        self._index = index
        self._indexer = None if index is None else Indexer(log, index, clock)
        self._dispatch = dispatch
        self._gate = gate
        self._clock = clock
        self._root_path = root_path

    # -- indexing -----------------------------------------------------------------------------

    @property
    def behind_bytes(self) -> int:
        """Bytes of visible records whose keys are not indexed yet."""
        return 0 if self._index is None else max(0, self._dispatch.end - self._index.end)

    def begin_prefetch(self) -> IndexPrefetchJob | None:
        """Return a job that reads what ``index_step`` needs; None: it is all in memory.

        Raises:
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        return None if self._indexer is None else self._indexer.begin_prefetch(self._dispatch.end)

    def finish_prefetch(self, job: IndexPrefetchJob) -> None:
        """Use what a job has read, if the store was not closed."""
        if self._indexer is not None and not self._gate.is_closed:
            self._indexer.finish_prefetch(job)

    def index_step(self) -> int:
        """Index the keys of some visible records; return how many bytes of the log these are.

        A few milliseconds of work, to be repeated until it returns 0.

        Raises:
            DiskFull, FlushFailed, StoreError: the index could not be written; try again later.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        return 0 if self._indexer is None else self._indexer.step(self._dispatch.end)

    def index_rest(self, within_s: float) -> bool:
        """Index everything visible, within a time limit; return whether all of it is done.

        Errors are logged: the next start indexes the rest.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        try:
            while self.index_step():
                if self._clock.monotonic_s() > deadline_s:
                    return False
        except StoreError as error:
            _log.warning("keys could not be indexed: %s", error)
            return False
        return True

    # -- finding ------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> QueryResult:
        """Return messages of a topic that have a key, newest first; reads in this thread.

        Messages that are not indexed yet are not found, see ``behind_bytes``.

        Args:
            topic: the messages' topic.
            key: one of their KEYS, or their unique key.
            count_max: messages wanted at most, 1..64.
            begin_ms, end_ms: first and last store time wanted.

        Raises:
            StoreError: this store has no key index, or it is damaged.
            StoreClosed: the store was closed.
        """
        job = self.begin_query(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        job.run()
        return self.finish_query(job)

    def begin_query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> KeyQuery:
        """Return a job that looks for messages as ``query`` does.

        Raises:
            StoreError: this store has no key index.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        if self._index is None:
            raise StoreError(
                f"{self._root_path}: keys are not indexed here (key_index, RocketMQ "
                "messageIndexEnable, is off)"
            )
        return KeyQuery(
            self._log,
            self._index,
            topic,
            key,
            count_max=count_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def finish_query(self, job: KeyQuery) -> QueryResult:
        """Return the messages that a job has found.

        Raises:
            StoreError: index or log are damaged, or could not be read.
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        if job.error is not None:
            raise job.error
        result = QueryResult([], job.index_last_ms, job.index_last_physical)
        for physical_offset, size in job.places:
            try:
                result.buffers.append(self._log.slice(physical_offset, size))
            except OffsetOutOfRange:
                break  # It has expired in the meantime, and so have all older ones.
        return result
