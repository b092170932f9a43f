"""``python -m shop.page`` starts the page."""

import argparse
import logging
import sys

import uvicorn

from shop.page.service import create_page
from shop.settings import from_arguments

PORT = 8000


def main() -> int:
    """Serve the page until SIGTERM or Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shop.page")
    parser.add_argument("--host", default="127.0.0.1", help="listen on this address")
    parser.add_argument("--port", type=int, default=PORT, help="and port")
    settings, given = from_arguments(parser)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    uvicorn.run(
        create_page(settings),
        host=given.host,
        port=given.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=round(settings.close_s),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
