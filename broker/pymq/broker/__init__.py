"""The broker: stores what producers send and hands it to consumers.

``broker.Broker`` builds the parts and owns their lifetime; ``requests`` maps request codes to
``handlers``; ``state`` holds the tables that handlers read and write.
"""

from pymq import extras

extras.require("numpy", by="the broker")
