"""The command ``pymq``: runs servers, and manages topics, groups and messages by hand.

``main`` passes the servers (``servers``: namesrv, broker, controller, up) to the standard library's
argparse and everything else to a typer application (``application``), so that a server neither
waits for nor needs typer and rich. Only this package reads configuration files, the environment and
arguments, sets up logging, and chooses the event loop.
"""
