"""Exactly-once sinks, as a feature: its parts and how they are wired."""

from pymq.broker.duties import Periodic
from pymq.broker.forgotten_files import SINKS
from pymq.broker.ha.progress import secured
from pymq.broker.handlers.sinks import SinkHandlers
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.sinks.journal import SinkJournal
from pymq.broker.sinks.publishing import Publishing
from pymq.broker.state.sinks import SinkTable

#: What the file does not have a start reads from the journal.
_SAVE_INTERVAL_S = 60.0
_SAY_AGAIN_INTERVAL_S = 60.0


def make_sinks(site: Site, tables: Tables, core: Core) -> Feature:
    """Exactly-once sinks."""
    table = SinkTable()
    core.saving.add_periodic(SINKS, table, interval_s=_SAVE_INTERVAL_S)
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
