"""Where each consumer group is in each queue: what it has committed, and what it has pulled.

Source: RocketMQ ConsumerOffsetManager.
"""

from collections.abc import Callable, Collection, Mapping

from pymq.broker.state.known_deletions import KnownDeletions
from pymq.broker.state.light_places import is_light_place, light_offsets
from pymq.broker.state.offset_hand_over import (
    joined_places,
    merged,
    split_places,
    warn_of_set_back,
)
from pymq.broker.state.offset_moves import Moves, is_later, is_same_run
from pymq.broker.state.offset_places import Place, Table, joined, places_of, split
from pymq.broker.state.offset_texts import OffsetTexts
from pymq.broker.state.told_resets import ToldResets
from pymq.clock import Clock
from pymq.protocol.bodies import ConsumerOffsetTable, DataVersion
from pymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from pymq.protocol.names import REVIVE_END_GROUP, REVIVE_GROUP, TRANSACTION_GROUP
from pymq.protocol.offset_changes import OffsetChanges

#: RocketMQ consumerOffsetUpdateVersionStep.
VERSION_STEP = 500
#: Groups of the broker itself: a master has offsets of theirs after every start.
_OWN_GROUPS = (REVIVE_GROUP, REVIVE_END_GROUP, TRANSACTION_GROUP)


class OffsetTable:
    """(topic, group) -> queue id -> next queue offset to consume.

    An offset below the stored one is accepted, too: consumers may be reset.

    A reset is pending until a member of the group pulls from the queue: it is told where to go on
    then. What members commit before that is of the time before the reset, and so may be what they
    commit before they have gone there (``ToldResets``).

    Attributes:
        version: that of RocketMQ: higher after each ``VERSION_STEP`` changes, and a slave's is the
            highest of its masters'. Who was there last is told by it.
        moves: what has changed; slaves are told of it.
        on_change: called after every change; to be set by whoever tells them.
        names_position: whether the file of this master says up to which change it has all: then a
            slave that has acted can be told from one that was away (``take_back``).
        moved: at a slave of such a master, the places that have moved here since it was followed
            last; None: this is the table of a master.
        is_known: whether there was a file, or a master has told what it has.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.version = DataVersion()
        self.moves: Moves[tuple[str, str]] = Moves()
        self.on_change: Callable[[], None] = lambda: None
        self.names_position = False
        self.moved: set[Place] | None = None
        #: The master's change up to which everything is here: at a slave, of what it was told; at
        #: the master, of its file when it started, or of what it has taken back.
        self._position = ""
        #: The places of which slaves have given back what has moved there; since our start.
        self._taken_back: set[Place] = set()
        self._offsets: Table = {}
        #: Where pulls ended; since our start.
        self._pulled: Table = {}
        #: Pending ones. They survive a restart, unlike in RocketMQ: a reset that was acknowledged
        #: would be lost to members that go on with what they know.
        self._resets: Table = {}
        self._told = ToldResets(self._clock)
        #: ((topic, group), queue id) of those that the master does not know: it may have lost them.
        self._last_copies: set[Place] = set()
        #: The same of offsets.
        self._last_offsets: set[Place] = set()
        #: Was the master's version older than that here when it was heard last?
        self._was_older = False
        self.is_known = False
        self.is_changed = False
        #: The same for a second file, which also holds the offsets of light groups in light queues.
        self.is_light_changed = False
        self.has_light_file = False
        self._texts = OffsetTexts()
        self._deletions = KnownDeletions()

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset."""
        key = topic, group
        queues = self._offsets.setdefault(key, {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            if self.moved is not None:
                self.moved.add((key, queue_id))
            self._touch(key)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if there is none."""
        return self._offsets.get((topic, group), {}).get(queue_id)

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record where a pull ended."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            queues = self._pulled[topic, group] = {}
        queues[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the last pull ended, or None if there was none since our start."""
        return self._pulled.get((topic, group), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group back or forward, whatever its members do."""
        self.commit(group, topic, queue_id, offset)
        self._resets.setdefault((topic, group), {})[queue_id] = offset
        self._touch(None)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Is a reset pending?"""
        return queue_id in self._resets.get((topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a member that pulls shall go on, once; None if no reset is pending."""
        if not self._resets and not self._told:  # asked by every pull
            return None
        queues = self._resets.get((topic, group), {})
        offset, place = queues.pop(queue_id, None), ((topic, group), queue_id)
        if offset is None:
            self._told.end(place)
        else:
            self._told.note(place, offset)
            if not queues:
                del self._resets[topic, group]
            if self.moved is not None:
                self.moved.add(place)
            self._touch(None)
        return offset

    def is_overtaken(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a commit is of the time before a reset."""
        is_told = self._told.overtake(((topic, group), queue_id), offset)
        return is_told or self.has_reset(group, topic, queue_id)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Have a group be where another one is; a reset of it in these queues is over."""
        queues = self._offsets.get((topic, source))
        if queues:
            key = topic, target
            for queue_id in queues:
                self.take_reset(target, topic, queue_id)
                self._told.end((key, queue_id))
            self._offsets[key] = dict(queues)
            if self.moved is not None:
                self.moved.update((key, queue_id) for queue_id in queues)
            self._touch(key)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offsets of a group in a topic, by queue id."""
        return self._offsets.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, sorted."""
        return sorted(topic for topic, owner in self._offsets if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic, sorted."""
        return sorted(group for owner, group in self._offsets if owner == topic)

    def delete_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        self._delete(lambda key: key[0] == topic)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Forget all offsets in one queue."""
        for table in self._tables():
            for key, queues in list(table.items()):
                if key[0] == topic and queues.pop(queue_id, None) is not None:
                    if not queues:
                        del table[key]
                    self._touch(key)

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._delete(lambda key: key[1] == group)

    def _delete(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for table in self._tables():
            for key in filter(is_gone, list(table)):
                del table[key]
                self._touch(key)

    def follow_deletions(
        self, recorded: Callable[[], Mapping[str, int]], first_offset: Callable[[str, int], int]
    ) -> None:
        """Forget what the file says of topics that were deleted after it was saved.

        Args:
            recorded: returns the deletions of topics; see ``KnownDeletions``.
            first_offset: (topic, queue id) -> offset of the first message of a queue.
        """
        for key in self._deletions.follow(recorded, self._tables(), first_offset):
            self._touch(key)
        if self.is_known and not self._deletions.is_told:
            self.is_changed = True  # The file says it from now on.

    def _tables(self) -> tuple[Table, ...]:
        return self._offsets, self._pulled, self._resets

    def body(self) -> ConsumerOffsetTable:
        """Return the table as sent to slaves."""
        body = self._body(self._offsets)
        body.version = self.version  # RocketMQ's brokers need one
        if self.moved is not None:  # that there are none is news for a master, too
            body.resets, body.moved = body.resets or {}, body.moved or {}
        return body

    def _body(self, offsets: Table) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(
            offsets=joined(offsets),
            resets=joined(self._resets) if self._resets else None,
            version=None if self.version == DataVersion() else self.version,
            position=self._told_position() or None,
            moved=joined_places(self.moved) if self.moved else None,
        )

    def _told_position(self) -> str:
        if self.names_position:
            return self.moves.position
        # What a master does not keep up to date must not be in its file.
        return "" if self.moved is None else self._position

    def _touch(self, key: tuple[str, str] | None) -> None:
        """Record a change of a (topic, group), or of something else."""
        self.is_changed = self.is_light_changed = True
        if key is not None:
            self._texts.forget(key)
        self.moves.note(key)
        if self.moves.number % VERSION_STEP == 0:
            self.version = self.version.next(self._clock.wall_ms())
        self.on_change()

    def to_text(self) -> str:
        """Return the text of ``consumerOffset.json``."""
        content = self._body({}).to_json() | self._deletions.to_json()
        keys: Collection[tuple[str, str]] = self._offsets
        if self.has_light_file:
            keys = [key for key in keys if not is_light_place(key)]
        return self._texts.whole(content, self._offsets, keys)

    def restore(self, value: object) -> None:
        """Take over the contents of ``consumerOffset.json``."""
        self.is_known = True
        body = ConsumerOffsetTable.from_json(value)
        self._deletions.restore(value)
        self._offsets |= split(body.offsets)
        self._resets |= split(body.resets or {})
        self.version = body.version or self.version
        self._position = body.position or ""
        moved = split_places(body.moved)
        if self.moved is not None:
            self.moved |= moved
        else:  # A slave that has acted is the master now: others know less of these.
            self._taken_back |= moved

    def take_over(self, body: ConsumerOffsetTable) -> None:
        """Have the offsets of a master; what only we know is kept, as in RocketMQ."""
        self._take(split(body.offsets), split(body.resets or {}))
        self.version = body.version or self.version
        self._follow("")

    def _take(self, offsets: Table, resets: Table) -> None:
        """Have the offsets of others, with what we have beside them, and all of their resets."""
        changed = {key for key, queues in offsets.items() if self._offsets.get(key) != queues}
        if changed or resets != self._resets:
            self._offsets |= offsets
            self._resets = resets
            for key in changed:
                self._touch(key)
            self._touch(None)

    def _follow(self, position: str) -> None:
        """Record up to which change of a master everything is here."""
        self.is_known = True
        if self.moved is not None:
            self.moved.clear()
        if position != self._position:
            self._position = position
            self.is_changed = True

    def take_back(self, body: ConsumerOffsetTable) -> bool:
        """Have the offsets of a slave that may have acted for us; False: ours are newer.

        A slave that has followed us beyond what is in our file knows everything better. Of another
        one only that counts which has moved there. Where this is not known, because the slave is
        RocketMQ's or our file is lost, all of it counts. But nothing does if its version is older
        than ours and it has not followed the run that wrote our file.
        """
        told, moved = body.version or DataVersion(), split_places(body.moved)
        offsets, resets = split(body.offsets), split(body.resets or {})
        theirs = places_of(offsets) | places_of(resets) | places_of(self._resets)
        position, is_known = body.position or "", body.moved is not None and bool(self._position)
        is_ours = is_known and is_same_run(position, self._position)
        if not is_ours and _rank(self.version) > _rank(told):
            return False
        their_resets = moved
        if is_known:
            if is_later(position, self._position):
                theirs -= self._taken_back - moved  # there, another slave has acted
                self._position = position
            else:
                theirs = moved
            their_resets = theirs
        taken = merged(self._offsets, offsets, theirs & places_of(offsets))
        if not is_ours:
            warn_of_set_back(self._offsets, taken, but_not=_OWN_GROUPS)
        self._taken_back |= moved
        self._take(taken, merged(self._resets, resets, their_resets))
        self.version = max(self.version, told, key=_rank)
        return True

    def changes(self, since: int | None) -> OffsetChanges:
        """Return the offsets that have changed after a change, and all resets.

        Args:
            since: number of that change, of ``moves``; None: all offsets.

        Returns:
            A (topic, group) that has no offsets any more is there, without queues.
        """
        offsets = self._offsets
        if since is not None:
            offsets = {key: self._offsets.get(key, {}) for key in self.moves.since(since)}
        return OffsetChanges(
            offsets=joined(offsets),
            is_whole=since is None,
            resets=joined(self._resets),
            version=self.version,
        )

    def take_changes(self, body: OffsetChanges, position: str = "") -> None:
        """Take over what ``changes`` of a master returned; that is all up to a position of its.

        What it has not, of all that it has, was deleted there. Unless no group has an offset there,
        or its version is older than that here: then it may have lost its file, and what is here is
        the last copy, until it has had as many changes.
        """
        told, version = split(body.offsets), self.version
        is_older = body.version is not None and _rank(body.version) < _rank(version)
        if body.is_whole:
            self._last_copies.clear()
            self._last_offsets.clear()
            if is_older or not any(key[1] not in _OWN_GROUPS for key in told):
                self._last_copies.update(places_of(self._resets))
                self._last_offsets.update(places_of(self._offsets))
            else:
                for key in [one for one in self._offsets if one not in told]:
                    del self._offsets[key]
                    self._touch(key)
        elif self._was_older and not is_older:  # what it does not have by now is over
            self._last_copies.clear()
            self._last_offsets.clear()
        self._was_older = is_older
        for key, queues in told.items():
            if queues:
                known = self._offsets.get(key, {})
                if self._last_offsets:  # what the master knows it ends itself
                    self._last_offsets.difference_update((key, queue_id) for queue_id in queues)
                    last = {q: one for q, one in known.items() if (key, q) in self._last_offsets}
                    queues = last | queues
                if known != queues:
                    self._offsets[key] = queues
                    self._touch(key)
            elif self._offsets.pop(key, None) is not None:
                self._resets.pop(key, None)
                self._touch(key)
        self._take_resets(split(body.resets))
        self.version = version if is_older else body.version or self.version
        self._follow(position)

    def _take_resets(self, resets: Table) -> None:
        """Have those that are pending at a master, and the last copies of others."""
        # Some of them are over here, too; and what the master knows it ends itself.
        self._last_copies &= places_of(self._resets) - places_of(resets)
        for key, queue_id in self._last_copies:
            resets.setdefault(key, {})[queue_id] = self._resets[key][queue_id]
        if resets != self._resets:
            self._resets = resets
            self._touch(None)

    def light_offsets(self) -> dict[str, int]:
        """Return the offsets of light groups in light queues, by ``topic@group``."""
        return light_offsets(self._offsets)

    def restore_light(self, offsets: Mapping[str, int]) -> None:
        """Take over what ``light_offsets`` returned."""
        self._offsets |= split({key: {LIGHT_QUEUE_ID: one} for key, one in offsets.items()})


def _rank(version: DataVersion) -> tuple[int, int, int]:
    """Return what RocketMQ compares versions by."""
    return version.state_version, version.counter, version.timestamp_ms
