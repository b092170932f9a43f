"""The broker: stores what producers send and hands it to consumers.

``broker.Broker`` owns the lifetime of the parts that ``assembly`` makes; ``handlers`` answer
requests; ``state`` holds the tables that handlers read and write.
"""

from pymq import extras

extras.require("fcntl", by="the broker")
extras.require("numpy", by="the broker")
