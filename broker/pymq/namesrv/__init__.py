"""The name server: brokers announce themselves, clients ask where a topic lives.

``routes`` is the table, a pure value; ``kv`` keeps the key-value configuration; ``handlers``
answer requests; ``server`` listens on a port. Name servers do not know one another: every broker
registers with all of them, every client asks one.
"""

from typing import TYPE_CHECKING

from pymq import extras

extras.require("resource", by="the name server")

if TYPE_CHECKING:
    from pymq.namesrv.config import NamesrvConfig
    from pymq.namesrv.server import NameServer
else:

    def __getattr__(name: str) -> object:
        if name == "NameServer":
            from pymq.namesrv.server import NameServer

            return NameServer
        if name == "NamesrvConfig":
            from pymq.namesrv.config import NamesrvConfig

            return NamesrvConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["NameServer", "NamesrvConfig"]
