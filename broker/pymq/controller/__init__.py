"""The controller: says which broker of a group is its master, and for which epoch.

``groups`` and ``elections`` are the rules, pure values; ``liveness`` knows who is alive; ``stores``
keep the groups and say which of several controllers leads; ``registry`` changes a group in the
store; ``failover`` acts when brokers come and go; ``notices`` tells brokers their roles;
``handlers`` answer requests; ``server`` listens on a port.

Nothing is granted from memory: every answer about a master was read from the store, by the process
that led at that moment, and every change is conditional on both.
"""

from typing import TYPE_CHECKING

from pymq import extras

extras.require("resource", by="the controller")

if TYPE_CHECKING:
    from pymq.controller.config import ControllerConfig
    from pymq.controller.server import Controller
else:

    def __getattr__(name: str) -> object:
        if name == "Controller":
            from pymq.controller.server import Controller

            return Controller
        if name == "ControllerConfig":
            from pymq.controller.config import ControllerConfig

            return ControllerConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Controller", "ControllerConfig"]
