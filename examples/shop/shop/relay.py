"""The process that sends what is in the outboxes: ``python -m shop.relay --broker ...``.

Run at least one for the services that have an outbox; several do no harm.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pymq import Producer, PymqError
from shop.database import Database
from shop.errors import Unavailable
from shop.faults import Faults
from shop.orders.tables import Outbox as OrderOutbox
from shop.outbox import Relay
from shop.payments.tables import Outbox as PaymentOutbox
from shop.settings import PATIENT, Settings, from_arguments

_log = logging.getLogger(__name__)

PAUSE_S = 1.0
OUTBOXES: dict[str, type[Any]] = {"orders": OrderOutbox, "payments": PaymentOutbox}


async def run_relay(settings: Settings, service: str, database: Database, faults: Faults) -> None:
    """Send what is in the outbox of a service, until this is cancelled."""
    while True:
        try:
            async with Producer(
                settings.broker, group=f"relay-{service}", network=PATIENT
            ) as producer:
                relay = Relay(database, OUTBOXES[service], producer, faults)
                while True:
                    if not await relay.step():
                        await asyncio.sleep(settings.relay_s)
        except (PymqError, Unavailable) as error:
            _log.warning("outbox of %s: %s", service, error)
        except Exception:  # the other outbox must go on
            _log.exception("outbox of %s", service)
        await asyncio.sleep(PAUSE_S)


async def _run(settings: Settings, services: Sequence[str]) -> None:
    faults = Faults(settings.faults)
    databases = [
        Database(settings.database_of(service), sqlite_sync=settings.sqlite_sync)
        for service in services
    ]
    tasks = [
        asyncio.create_task(run_relay(settings, service, database, faults))
        for service, database in zip(services, databases, strict=True)
    ]
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for database in databases:
        database.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run relays until SIGTERM or Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shop.relay")
    parser.add_argument(
        "--service",
        action="append",
        choices=list(OUTBOXES),
        help="whose outbox; several times for several (default: all)",
    )
    settings, given = from_arguments(parser, arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    asyncio.run(_run(settings, given.service or list(OUTBOXES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
