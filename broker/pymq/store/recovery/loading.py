"""Consume queues and key index of a store, as its settings say that they are; to be loaded."""

from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.index.index_format import IndexLayout
from pymq.store.index.key_index import KeyIndex
from pymq.store.queues.queue_table import QueueTable


def make_queues(config: StoreConfig, files: Files) -> QueueTable:
    """Return the queues of a store; nothing is read yet."""
    return QueueTable(
        files,
        config.queues_path,
        file_bytes=config.queue_file_bytes,
        open_max=config.queue_files_open_max,
        extensions=config.queue_extensions_path,
        extension_file_bytes=(
            config.queue_extension_file_bytes if config.queue_extension else None
        ),
    )


def make_index(config: StoreConfig, files: Files) -> KeyIndex | None:
    """Return the key index of a store, None if it has none; nothing is read yet."""
    if not config.key_index:
        return None
    layout = IndexLayout(config.index_slot_count, config.index_item_limit)
    return KeyIndex(files, config.index_path, layout)
