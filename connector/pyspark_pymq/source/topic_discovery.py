"""Which topics a pattern matches at the moment; asked for now and then, not with every question.

A topic that was found stays: name servers that have just started know few topics, and of one that
was deleted it must be told what was not read.
"""

import logging
from collections.abc import Callable, Iterable

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError
from pymq.protocol.names import is_system_topic, reply_topic
from pyspark_pymq.source.topic_choice import TopicChoice
from pyspark_pymq.unrouted_queues import UNROUTED

LOG = logging.getLogger(__name__)


class TopicDiscovery:
    """The topics of a choice, new ones included. Lives in one driver process, for one query.

    Args:
        choice: of the user.
        refresh_s: how often a pattern's topics are looked for.
        monotonic_s: the clock.
    """

    def __init__(
        self, choice: TopicChoice, refresh_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        self._choice = choice
        self._refresh_s = refresh_s
        self._monotonic_s = monotonic_s
        self._topics = list(choice.named_topics)
        self._others: list[str] = []
        self._next_s = monotonic_s()
        self._said = ""
        self._failing_since_s: float | None = None

    @property
    def topics(self) -> list[str]:
        """The topics, as last seen."""
        return self._topics

    @property
    def others(self) -> list[str]:
        """Topics of users that a pattern does not match, as last seen; for errors."""
        return self._others

    @property
    def is_due(self) -> bool:
        """Whether it is time to look for new topics."""
        return self._choice.pattern is not None and self._monotonic_s() >= self._next_s

    def look_at_once(self) -> None:
        """Have the next question look for topics."""
        self._next_s = self._monotonic_s()

    def refresh(self, client: BulkClient, known: Iterable[str], *, patience_s: float) -> None:
        """Look for new topics, if it is time to.

        Args:
            client: open.
            known: topics that the query has read.
            patience_s: how long name servers may be away while no topic is known.

        Raises:
            PymqError: they were away for longer.
        """
        if self._choice.pattern is None:
            return
        found = set(self._topics) | set(known)
        if self.is_due:
            try:
                found |= self._matching(client, found)
                self._failing_since_s = None
            except PymqError as error:
                now_s = self._monotonic_s()
                if self._failing_since_s is None:
                    self._failing_since_s = now_s
                if not found and now_s - self._failing_since_s >= patience_s:
                    raise
                if str(error) != self._said:
                    self._said = str(error)
                    LOG.warning("looking for new topics is tried again later: %s", error)
            # Counted from the answer: one that takes long must not be asked for all the time.
            self._next_s = self._monotonic_s() + self._refresh_s
        self._topics = sorted(found)

    def _matching(self, client: BulkClient, known: set[str]) -> set[str]:
        """Return the topics that match and can be read."""
        names = client.topic_names()
        info = client.cluster_info()  # asked second: has the brokers of all topics before
        own = {*info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        matching = self._choice.matching(names, own)
        others = set(names) - set(matching) - own
        self._others = sorted(name for name in others if not is_system_topic(name))
        self._said = ""
        return {name for name in matching if name in known or self._is_readable(client, name)}

    def _is_readable(self, client: BulkClient, topic: str) -> bool:
        """Say whether a new topic has queues by now; otherwise it is looked at the next time."""
        try:
            client.read_queues(topic)
        except UNROUTED as error:
            LOG.info("topic %s matches, and is looked at later: %s", topic, error)
            return False
        LOG.info("topic %s matches %s and is read", topic, self._choice)
        return True
