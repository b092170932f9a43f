"""Exactly-once sinks, as a feature: its parts and how they are wired."""

from pathlib import Path

from pymq.broker.duties import Periodic
from pymq.broker.ha.progress import secured
from pymq.broker.handlers.sinks import SinkHandlers
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.sinks.journal import SinkJournal
from pymq.broker.sinks.publishing import Publishing
from pymq.broker.state.sinks import SinkTable
from pymq.store.state.sealed_file import SealedFile

_FILE = "sinks.json"
#: What the file does not have a start reads from the journal.
_SAVE_INTERVAL_S = 60.0
_SAY_AGAIN_INTERVAL_S = 60.0


def make_sinks(site: Site, tables: Tables, core: Core) -> Feature:
    """Exactly-once sinks."""
    table = SinkTable()
    core.saving.add_periodic(_FILE, table, interval_s=_SAVE_INTERVAL_S)
    journal = SinkJournal(
        site.store,
        core.log_writer,
        table,
        site.clock,
        secured(core.flusher.wait_flushed, core.replicas),
        config=site.store_config,
        host=site.store_host,
    )
    publishing = Publishing(
        site.store,
        core.responses,
        journal,
        table,
        core.staged,
        core.statistics.take,
        delay_levels_ms=site.store_config.delay_levels_ms,
    )
    handlers = SinkHandlers(tables.topics, table, journal, publishing)

    def load() -> None:
        journal.load()
        publishing.load()

    return Feature(
        handlers=handlers.table(),
        openings=[load],
        duties=[publishing, Periodic("sinks", journal.say_again, _SAY_AGAIN_INTERVAL_S)],
    )


def make_sinks_of_slave(site: Site, tables: Tables, core: Core) -> Feature:
    """Of a slave: nothing is published, and nothing is known."""
    return Feature(openings=[lambda: forget_sinks(site.store_config.root_path)])


def forget_sinks(root: Path) -> None:
    """Have the next master run read everything from the journal.

    The file counts the entries of the log that there was. A slave's log may lose its end, and go on
    with what another master has written: what the file says would be taken for what stands there.

    Args:
        root: directory of the store.

    Raises:
        StoreError: the file may still be there.
    """
    SealedFile(root / "config" / _FILE).remove()
