"""The index files of a store, and how their bytes are divided into slots and items."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mode

import numpy as np

from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.index.index_format import HEADER_BYTES, IndexHeader, IndexLayout, unpack_header
from pymq.store.inspection.findings import Findings, Kind, Severity


@dataclass(frozen=True, slots=True)
class IndexFileName:
    """An index file of the store's size."""

    path: Path
    header: IndexHeader


def list_index_files(
    config: StoreConfig, files: Files, findings: Findings, severity: Severity
) -> tuple[list[IndexFileName], IndexLayout | None]:
    """Return the index files of the usual size, and their layout; None if it is not known.

    Args:
        config: where they are, and the layout that is tried first.
        files: the operating system.
        findings: what does not fit is added there.
        severity: of a file of another size.
    """
    listed = [
        one
        for one in files.list_directory(config.index_path)
        if not one.is_directory and one.name.isascii() and one.name.isdigit()
    ]
    sizes = [one.size for one in listed if one.size]
    if not sizes:
        return [], None
    size = mode(sizes)
    found: list[IndexFileName] = []
    for entry in listed:
        path = config.index_path / entry.name
        if entry.size == 0:
            findings.add(
                Kind.INDEX_FILE, Severity.REPAIR, path, None, "0 B: its creation was interrupted"
            )
        elif entry.size != size:
            findings.add(
                Kind.INDEX_FILE,
                severity,
                path,
                None,
                f"{entry.size} B",
                f"{size} B like the others",
            )
        else:
            found.append(IndexFileName(path, _header(files, path)))
    layout = IndexLayout(config.index_slot_count, config.index_item_limit)
    if layout.file_bytes != size:
        counted = [one for one in found if one.header.next_number > 2]
        guessed = next(filter(None, (_guess_layout(files, one, size) for one in counted)), None)
        if guessed is None:
            findings.add(
                Kind.NOT_LOOKED_AT,
                Severity.NOTE,
                config.index_path,
                None,
                f"index files of {size} B: give maxHashSlotNum and maxIndexNum in a "
                f"configuration file (expected {layout.file_bytes} B for {layout.slot_count} and "
                f"{layout.item_limit})",
            )
        return found, guessed
    return found, layout


def _header(files: Files, path: Path) -> IndexHeader:
    fd = files.open(path)
    try:
        return unpack_header(files.pread(fd, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0"))
    finally:
        files.close(fd)


def _guess_layout(files: Files, one: IndexFileName, size: int) -> IndexLayout | None:
    """Return the only layout that fits a file; None if there is none, or more than one.

    Its size is 40 + 4 * slots + 20 * items, so that the number of slots is known up to a multiple
    of five. With the right number, item 1 belongs to the first message and the last item to the
    last one, and the slot of the last item's key leads to it.
    """
    header = one.header
    if (size - HEADER_BYTES) % 4 or header.next_number * 20 > size:
        return None
    least = (size - HEADER_BYTES) // 4 % 5
    # At least the items that the header counts follow the slots.
    count = (size - HEADER_BYTES - 4 * least) // 20 - header.next_number + 1
    if count < 1:
        return None
    fd = files.open(one.path)
    try:
        view = files.map_for_reading(fd, size)
    finally:
        files.close(fd)
    item = HEADER_BYTES + 4 * least + 20
    last = item + 20 * (header.next_number - 2)
    fits = np.ndarray((count,), ">i8", view, item + 4, (20,)) == header.first_physical
    fits &= np.ndarray((count,), ">i4", view, item + 16, (20,)) == 0
    fits &= np.ndarray((count,), ">i8", view, last + 4, (20,)) == header.last_physical
    found = []
    for step in np.flatnonzero(fits).tolist():
        slots = least + 5 * step
        key_hash = int(np.ndarray((), ">i4", view, last + 20 * step))
        if slots and key_hash >= 0:
            at = HEADER_BYTES + 4 * (key_hash % slots)
            if int(np.ndarray((), ">i4", view, at)) == header.next_number - 1:
                found.append(slots)
    del fits
    files.unmap(view)
    if len(found) != 1:
        return None
    return IndexLayout(found[0], (size - HEADER_BYTES - 4 * found[0]) // 20)
