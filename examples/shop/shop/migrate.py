"""Brings the tables of a service up to date, with Alembic.

Each service has migrations of its own, in ``migrations/<service>``, and a table of its own for what
was done, so that several services may share a database. ``python -m shop.migrate`` does it
for all services; a service does it for itself when it starts.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config

from shop.database import open_engine
from shop.parts import Definition
from shop.settings import Settings, from_arguments

MIGRATIONS = Path(__file__).with_name("migrations")


def config_of(definition: Definition) -> Config:
    """Return Alembic's configuration for a service, without a connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", str(MIGRATIONS / definition.name))
    config.attributes["metadata"] = definition.base.metadata
    config.attributes["version_table"] = f"{definition.name}_version"
    return config


def upgrade(definition: Definition, settings: Settings) -> None:
    """Bring a service's tables up to date. Idempotent, and may be done by several at a time."""
    engine = open_engine(
        settings.database_of(definition.name), sqlite_sync=settings.sqlite_sync
    )
    config = config_of(definition)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring the tables of all services up to date; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shop.migrate")
    from shop.definitions import DEFINITIONS  # a service that does this for itself needs no other

    settings, _ = from_arguments(parser, arguments)
    for definition in DEFINITIONS.values():
        upgrade(definition, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
