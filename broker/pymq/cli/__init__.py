"""The command ``pymq``: servers, and what one does by hand with topics, groups and messages.

``main`` hands the servers (``servers``: namesrv, broker, up) to the standard library's argparse
and everything else to a typer application (``application``), so that a server neither waits for
nor needs typer and rich. Only this package reads configuration files, the environment and
arguments, sets up logging, and picks the event loop.
"""
