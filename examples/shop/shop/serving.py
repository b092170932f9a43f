"""The process of a service: arguments, tables, uvicorn."""

import argparse
import logging
import math
import sys
from collections.abc import Sequence

import uvicorn

from shop import migrate
from shop.parts import Definition
from shop.settings import PORTS, from_arguments
from shop.web import create_app

BACKLOG = 1024


def main(definition: Definition, arguments: Sequence[str] | None = None) -> int:
    """Run a service until SIGTERM or Ctrl-C.

    Args:
        definition: the service.
        arguments: of the command line.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog=f"python -m shop.{definition.name}")
    parser.add_argument("--host", default="127.0.0.1", help="listen on this address")
    parser.add_argument("--port", type=int, default=PORTS[definition.name], help="and port")
    settings, given = from_arguments(parser, arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    for chatty in ("httpx", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    migrate.upgrade(definition, settings, patience_s=math.inf)
    uvicorn.run(
        create_app(definition, settings),
        host=given.host,
        port=given.port,
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=round(settings.close_s),
    )
    return 0
