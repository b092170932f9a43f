"""The commands that serve, known to the fast path and to the help alike."""

#: Handled by ``servers`` without the packages that the rest stands on; each with its summary.
SERVERS = {
    "up": "Run a name server and a broker in one process.",
    "namesrv": "Run a name server; takes RocketMQ's own properties file.",
    "broker": "Run a broker; takes RocketMQ's own properties file.",
}
