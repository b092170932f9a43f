"""Transactions, as a feature: its parts and how they are wired."""

from pymq.broker.duties import Periodic
from pymq.broker.handlers.transactions import TransactionHandlers
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.transactions.checks import TransactionChecks
from pymq.broker.transactions.discarded import DiscardedTransactions
from pymq.broker.transactions.end_runs import EndRuns
from pymq.broker.transactions.escaped import close_escaped
from pymq.broker.transactions.messages import TransactionalMessages
from pymq.broker.transactions.transactions import Transactions
from pymq.protocol.bodies import ConsumerOffsetTable
from pymq.protocol.codes import RequestCode
from pymq.protocol.message import TRANSACTION_PREPARED
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.transaction_records import QUEUE_ID, op_record

_CURSORS_INTERVAL_S = 1.0


def make_transactions(site: Site, tables: Tables, core: Core) -> Feature:
    """Transactional messages."""
    discarded = DiscardedTransactions(
        site.store.keys if site.store_config.key_index else None,
        core.key_indexing.wait_indexed,
        site.readers,
        lambda: site.store.queue_bounds(CHECK_MAX_TIME_TOPIC, QUEUE_ID)[1] > 0,
    )
    messages = TransactionalMessages(site.config, core.hooks, site.store_host)
    core.hooks.add(TRANSACTION_PREPARED, messages.prepare, messages.prepare_many)
    transactions = Transactions(
        site.clock,
        site.store,
        tables.offsets,
        messages,
        core.log_writer,
        discarded,
        site.store_host,
    )
    handlers = TransactionHandlers(
        site.config, site.clock, site.store, core.cold_reads, transactions
    )

    async def take_escaped(told: ConsumerOffsetTable) -> None:
        cursor = told.offsets.get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(QUEUE_ID, 0)
        await close_escaped(
            transactions.table,
            core.log_writer,
            lambda offset: op_record(
                offset, store_host=site.store_host, now_ms=site.clock.wall_ms()
            ),
            cursor,
        )

    core.takeovers.offsets.append(take_escaped)
    end_runs = EndRuns(
        site.store_config, site.store, core.cold_reads, transactions, site.store_host
    )
    checks = TransactionChecks(
        site.config,
        site.clock,
        site.store,
        core.responses,
        tables.topics,
        tables.clients,
        transactions,
        store_config=site.store_config,
        store_host=site.store_host,
    )
    return Feature(
        handlers=handlers.table(),
        run_handlers={RequestCode.END_TRANSACTION: end_runs.take},
        openings=[transactions.load],
        duties=[
            Periodic("transaction cursors", transactions.save_cursors, _CURSORS_INTERVAL_S),
            discarded,
            checks,
        ],
    )
