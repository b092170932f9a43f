"""What a producer can be told: the settings of all clients, and limits of its own."""

from dataclasses import dataclass

from pymq.client.checks import check_count, check_seconds
from pymq.client.cluster.config import ClientConfig
from pymq.protocol.compression import check_installed

#: Unanswered sends of one producer.
IN_FLIGHT_MAX = 10_000
#: Bytes of unanswered sends of one producer, from which on no other begins.
IN_FLIGHT_BYTES_MAX = 64 << 20
#: Long enough for a broker that restarts, and for a failover.
DEADLINE_S = 30.0
#: Left at least to a send that has waited for room.
MOMENT_S = 0.001
_RETRIES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of one producer; fixed for its lifetime.

    Attributes:
        deadline_s: for a whole send: waiting for room, the route, all attempts, and the pauses
            between them.
        retries: how often a failed send is tried again at most; ``None``: as often as there is
            time for until ``deadline_s``.
        in_flight_max: sends that may be unanswered.
        in_flight_bytes_max: no send begins while so many bytes of bodies and properties are
            unanswered. One message may go beyond it, so that a large one can be sent at all.
        avoid_slow_brokers: keep away from brokers that take long to answer, while there are others
            (RocketMQ's sendLatencyFaultEnable).
        wait_stored: ``False``: the broker answers before its disk and slaves have confirmed.
    """

    deadline_s: float = DEADLINE_S
    retries: int | None = None
    in_flight_max: int = IN_FLIGHT_MAX
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    avoid_slow_brokers: bool = False
    wait_stored: bool = True

    def __post_init__(self) -> None:
        # Without slots it would be super().__post_init__(); with them the class is made twice.
        ClientConfig.__post_init__(self)
        check_seconds("deadline_s", self.deadline_s)
        if self.compress_bytes_min is not None:
            check_installed(self.compression)  # not when the first large body is sent
        if self.retries is not None:
            check_count("retries", self.retries, 0, _RETRIES_MAX)
        check_count("in_flight_max", self.in_flight_max, 1)
        check_count("in_flight_bytes_max", self.in_flight_bytes_max, 1)
