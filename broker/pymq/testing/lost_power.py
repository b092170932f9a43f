"""What a disk may hold after a power loss: a model alongside real files.

The real files are the page cache: they hold everything that was written. The model holds what is
certainly on the disk (the *durable* state), and what has changed since (*pending*). Losing power
makes one possible disk out of the two:

* A 4 KiB page that was written since its file was flushed is on the disk in any of its versions
  since then, independently of other pages. The newest version may be torn: some of its 512 B
  sectors are there, the others are of an older version.
* A file's length, unflushed, is any of those it had. Bytes that were never written read as zeros.
* A file whose truncation to length 0 is not on the disk has all its old content; what was written
  after the truncation is not in it.
* Names in a directory (creations, renames, removals) are durable once that directory was flushed.
  Unflushed, each may have happened or not; a rename happens as a whole. A file whose data was
  flushed may be gone if its name was not.
* Whatever was flushed is there as it was.
* What a *failed* flush of a file was to bring there is lost: the system takes its pages for clean
  all the same, and a later flush, by whomever, brings only what was written since. Lengths and
  names are the file system's own: they stay pending.

This allows more than file systems do: they write a journal in order, and some flush a new file's
name with the file. What survives here relies on none of that.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass(slots=True, eq=False)
class FileNode:
    """One file, whatever its names.

    ``pending`` are the changes since the last flush, in order: a new length, or bytes at a
    position.
    """

    durable: bytes = b""
    pending: list[int | tuple[int, bytes]] = field(default_factory=list)

    def make_durable(self) -> None:
        """Make the whole content durable."""
        self.durable = _applied(self.durable, self.pending)
        self.pending.clear()

    def lose_writes(self) -> None:
        """Forget the bytes that were not flushed, but not the lengths: the flush has failed."""
        length = len(self.durable)
        for index, change in enumerate(self.pending):
            length = change if isinstance(change, int) else max(length, _end(change))
            self.pending[index] = length


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """One directory: the names that are certainly on the disk, and the current ones.

    ``pending`` are the changes since the last flush, in order; a removed name becomes None.
    """

    durable: dict[str, Node] = field(default_factory=dict)
    current: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, names: dict[str, Node | None]) -> None:
        """Change names, as a single change."""
        _rename(self.current, names)
        self.pending.append(names)

    def make_durable(self) -> None:
        """Make all names durable."""
        self.durable = dict(self.current)
        self.pending.clear()


Node = FileNode | DirectoryNode


class Disk:
    """The disk below a directory; whoever changes a file there reports it.

    Processes come and go, but unflushed changes stay with the machine: one model serves them all,
    until power is lost.
    """

    def __init__(self, root: Path) -> None:
        """Begin with the current files, all of them durable; ``root`` exists."""
        self._root = root
        self._top = DirectoryNode()
        _adopt(root, self._top)

    def holds(self, path: Path) -> bool:
        """Tell whether a path is on this disk."""
        return path.is_relative_to(self._root)

    def file(self, path: Path) -> FileNode:
        """Return the file that currently has this name."""
        node = self._directory(path.parent).current[path.name]
        assert isinstance(node, FileNode), path
        return node

    def _directory(self, path: Path) -> DirectoryNode:
        node: Node = self._top
        for part in path.relative_to(self._root).parts:
            assert isinstance(node, DirectoryNode), path
            node = node.current[part]
        assert isinstance(node, DirectoryNode), path
        return node

    # -- what was done ------------------------------------------------------------------------

    def opened(self, path: Path) -> FileNode:
        """Return the file of a name; record a new one."""
        directory = self._directory(path.parent)
        if path.name not in directory.current:
            directory.change({path.name: FileNode()})
        return self.file(path)

    def made_directory(self, path: Path) -> None:
        """Record a new directory."""
        self._directory(path.parent).change({path.name: DirectoryNode()})

    def renamed(self, source: Path, target: Path) -> None:
        """Record a rename within one directory."""
        assert source.parent == target.parent, f"{source} to {target}: only within a directory"
        directory = self._directory(source.parent)
        directory.change({source.name: None, target.name: directory.current[source.name]})

    def removed(self, path: Path) -> None:
        """Record that a name was removed."""
        self._directory(path.parent).change({path.name: None})

    def flushed_directory(self, path: Path) -> None:
        """Record that a directory's names were flushed."""
        self._directory(path).make_durable()

    # -- what is left -------------------------------------------------------------------------

    def lose_power(self, chance: random.Random, target: Path) -> None:
        """Write one possible disk to ``target``, which must not exist."""
        _Loss(chance).directory(self._top, target)


class _Loss:
    """One power loss, with its own likelihood that unflushed changes reached the disk."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._kept = chance.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))
        self._torn = chance.choice((0.0, 0.3, 1.0))
        self._journal = chance.random() < 0.5  # changes of names in order, or in any

    def directory(self, node: DirectoryNode, target: Path) -> None:
        chance = self._chance
        names = dict(node.durable)
        pending = node.pending
        if self._journal:
            pending = pending[: round(len(pending) * chance.uniform(0, 2 * self._kept))]
        for change in pending:
            if self._journal or chance.random() < self._kept:
                _rename(names, change)
        target.mkdir()
        for name, child in sorted(names.items()):
            if isinstance(child, DirectoryNode):
                self.directory(child, target / name)
            else:
                _lay_down(target / name, self.content(child))

    def content(self, node: FileNode) -> bytes:
        """Return what a file may hold."""
        pending = node.pending
        if not pending:
            return node.durable
        # The length first: it decides which truncations have happened.
        lengths = [len(node.durable)]
        cuts = []
        for index, change in enumerate(pending):
            length = change if isinstance(change, int) else max(lengths[-1], _end(change))
            if length < lengths[-1]:
                cuts.append(index)
            lengths.append(length)
        reached = self._version(len(pending))
        first = max((index for index in cuts if index < reached), default=-1) + 1
        end = min((index for index in cuts if index >= reached), default=len(pending))
        base = _applied(node.durable, pending[:first])
        writes = [change for change in pending[first:end] if not isinstance(change, int)]
        size = lengths[reached]
        content = bytearray(max([size, len(base), *map(_end, writes)]))
        content[: len(base)] = base
        pages = {
            page
            for position, data in writes
            for page in range(position // PAGE_BYTES, -(-(position + len(data)) // PAGE_BYTES))
        }
        for page in sorted(pages):
            start = page * PAGE_BYTES
            content[start : start + PAGE_BYTES] = self._page(content, start, writes)
        return bytes(content[:size])

    def _version(self, count: int) -> int:
        """Return a version of something with ``count`` changes: often the last, or the first."""
        if self._chance.random() < self._kept:
            return count
        return self._chance.choice((0, self._chance.randint(0, count)))

    def _page(
        self, content: bytearray, start: int, writes: list[tuple[int, bytes]]
    ) -> bytes | bytearray:
        stop = min(start + PAGE_BYTES, len(content))
        versions = [content[start:stop]]
        for position, data in writes:
            if position < stop and position + len(data) > start:
                low, high = max(position, start), min(position + len(data), stop)
                page = bytearray(versions[-1])
                page[low - start : high - start] = data[low - position : high - position]
                versions.append(page)
        newer = self._version(len(versions) - 1)
        if not newer or self._chance.random() >= self._torn:
            return versions[newer]
        torn = bytearray(versions[newer])
        older = versions[self._chance.randrange(newer)]
        for sector in range(0, len(torn), SECTOR_BYTES):
            if self._chance.random() < 0.5:
                torn[sector : sector + SECTOR_BYTES] = older[sector : sector + SECTOR_BYTES]
        return torn


def _adopt(path: Path, node: DirectoryNode) -> None:
    for entry in os.scandir(path):
        child: Node
        if entry.is_dir():
            child = DirectoryNode()
            _adopt(path / entry.name, child)
        else:
            child = FileNode((path / entry.name).read_bytes())
        node.current[entry.name] = child
    node.make_durable()


def _rename(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _end(write: tuple[int, bytes]) -> int:
    return write[0] + len(write[1])


def _applied(content: bytes, changes: list[int | tuple[int, bytes]]) -> bytes:
    if not changes:
        return content
    done = bytearray(content)
    for change in changes:
        if isinstance(change, int):
            length = change
        else:
            length = max(len(done), _end(change))
        if length < len(done):
            del done[length:]
        else:
            done.extend(bytes(length - len(done)))
        if not isinstance(change, int):
            done[change[0] : _end(change)] = change[1]
    return bytes(done)


def _lay_down(path: Path, content: bytes) -> None:
    """Write a file with holes where whole pages are zero."""
    with path.open("xb", buffering=0) as file:
        file.truncate(len(content))
        for start in range(0, len(content), PAGE_BYTES):
            page = content[start : start + PAGE_BYTES]
            if page.count(0) != len(page):
                file.seek(start)
                file.write(page)
