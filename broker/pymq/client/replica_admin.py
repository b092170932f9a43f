"""Looking at masters and slaves, and asking controllers, RocketMQ's or ours, for another master."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pymq.client import operations
from pymq.client.blocking import BlockingClient
from pymq.client.many_requests import ask_many
from pymq.errors import BrokerError, ConnectionFailed, PymqError, RemoteProtocolError
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.protocol.controller import ElectMasterResponse, EpochCache, ReplicaInfo

T = TypeVar("T")

#: What a broker says that is asked for something that it does not support, or has not.
_UNKNOWN = (BrokerError, RemoteProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """What one broker says of itself; None: it does not say that, or not to us.

    Attributes:
        state: under RocketMQ's names (28).
        config: its settings, as properties text (26).
        status: how replication goes (907); brokers of 4.9 do not say it.
        epochs: of its log (1007); brokers without a controller have none.
        problem: why there is no ``state``, or no more than that.
    """

    state: dict[str, str] | None = None
    config: str | None = None
    status: ReplicationStatus | None = None
    epochs: EpochCache | None = None
    problem: PymqError | None = None


class ReplicaAdmin:
    """Asks brokers and controllers.

    Args:
        client: stays the caller's; closing it ends this, too.
        timeout_s: for connections to be made, and for each answer.
    """

    def __init__(self, client: BlockingClient, *, timeout_s: float) -> None:
        self._pool = client._pool
        self._timeout_s = timeout_s

    def reports(self, addresses: Iterable[str]) -> dict[str, BrokerReport]:
        """Return what each broker says, asked together: one that is away delays no other.

        Args:
            addresses: ``host:port`` of each.
        """
        every = list(dict.fromkeys(addresses))
        states = self._each(every, operations.broker_state)
        left = [one for one in every if not isinstance(states[one], PymqError)]
        configs = self._each(left, operations.broker_config)
        left = [one for one in left if _is_there(configs[one])]
        statuses = self._each(left, operations.replication_status)
        left = [one for one in left if _is_there(statuses[one])]
        epochs = self._each(left, operations.epoch_cache)
        return {
            one: BrokerReport(
                state=_value(states[one]),
                config=_value(configs.get(one)),
                status=_value(statuses.get(one)),
                epochs=_value(epochs.get(one)),
                problem=next(
                    (
                        answer
                        for answer in (
                            states[one],
                            *(found.get(one) for found in (configs, statuses, epochs)),
                        )
                        if isinstance(answer, PymqError) and not isinstance(answer, _UNKNOWN)
                    ),
                    _error(states[one]),
                ),
            )
            for one in every
        }

    def _each(
        self, addresses: Sequence[str], operation: Callable[[], operations.Operation[T]]
    ) -> dict[str, T | PymqError]:
        answers = ask_many(
            self._pool,
            [(address, operation()) for address in addresses],
            timeout_s=self._timeout_s,
            hints=dict.fromkeys(addresses, "is that process running, and reachable from here?"),
        )
        return dict(zip(addresses, answers, strict=True))

    def is_master(self, address: str) -> bool:
        """Return whether a broker of 5.x, or one of ours, runs as a master now.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        found = self._pool.ask(
            address, operations.replication_status(), timeout_s=self._timeout_s
        )
        return found.master

    # --- controllers

    def leader(self, controllers: Sequence[str]) -> str:
        """Return ``host:port`` of the controller that leads.

        Args:
            controllers: ``host:port`` of some of them, or all.

        Raises:
            ConnectionFailed: none of them can be reached, or knows who leads.
        """
        reasons = []
        for address, answer in self._each(controllers, operations.controller_metadata).items():
            if isinstance(answer, PymqError):
                reasons.append(f"{address}: {answer}")
            elif answer.leader_address:
                return answer.leader_address
            else:
                reasons.append(f"{address}: it knows no leader")
        raise ConnectionFailed(f"no controller leads ({'; '.join(reasons)})")

    def groups(self, leader: str, names: Iterable[str]) -> dict[str, ReplicaInfo]:
        """Return broker name -> its group, as the controller that leads has it.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        return self._ask_leader(leader, operations.replica_table(sorted(names))).groups

    def designate(self, leader: str, cluster: str, name: str, broker_id: int) -> int:
        """Have the controller that leads make a broker the master; return the epoch.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        operation = operations.designate_master(cluster, name, broker_id)
        answer: ElectMasterResponse = self._ask_leader(leader, operation)
        if answer.master_broker_id != broker_id or answer.master_epoch is None:
            raise RemoteProtocolError(
                f"controller {leader} made {answer.master_broker_id} the master of {name!r} for "
                f"epoch {answer.master_epoch}, expected {broker_id}"
            )
        return answer.master_epoch

    def _ask_leader(self, leader: str, operation: operations.Operation[T]) -> T:
        hint = "the controllers say that it leads them"
        return self._pool.ask(leader, operation, timeout_s=self._timeout_s, hint=hint)


def _is_there(answer: object) -> bool:
    """Can more be asked? What somebody refused or does not know is an answer."""
    return not isinstance(answer, PymqError) or isinstance(answer, _UNKNOWN)


def _value(answer: T | PymqError | None) -> T | None:
    return None if isinstance(answer, PymqError) else answer


def _error(answer: object) -> PymqError | None:
    return answer if isinstance(answer, PymqError) else None
