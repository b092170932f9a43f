"""Masters and slaves, and the controllers, RocketMQ's or ours, that choose among them."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pymq.client import operations
from pymq.client.administration.asking import Asking
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


class Replicas:
    """Replication, and changes of masters: ``admin.replicas``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def reports(self, addresses: Iterable[str]) -> dict[str, BrokerReport]:
        """Return what each broker says, asked together: one that is away delays no other.

        Args:
            addresses: ``host:port`` of each.
        """
        every = list(dict.fromkeys(addresses))
        states = await self._each(every, operations.broker_state)
        left = [one for one in every if not isinstance(states[one], PymqError)]
        configs = await self._each(left, operations.broker_config)
        left = [one for one in left if _is_there(configs[one])]
        statuses = await self._each(left, operations.replication_status)
        left = [one for one in left if _is_there(statuses[one])]
        epochs = await self._each(left, operations.epoch_cache)
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

    async def _each(
        self, addresses: Sequence[str], make: Callable[[], operations.Operation[T]]
    ) -> dict[str, T | PymqError]:
        found: dict[str, T | PymqError] = {}

        async def ask(address: str) -> None:
            try:
                answer = await self._asking.one(address, make())
            except ConnectionFailed as error:
                hint = "is that process running, and reachable from here?"
                found[address] = error.retold(f"{error}; {hint}")
            except PymqError as error:
                found[address] = error
            else:
                found[address] = answer

        await asyncio.gather(*map(ask, addresses))
        return {one: found[one] for one in addresses}

    async def is_master(self, address: str) -> bool:
        """Return whether a broker of 5.x, or one of ours, runs as a master now.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        found = await self._asking.one(address, operations.replication_status())
        return found.master

    # --- controllers

    async def leader(self, controllers: Sequence[str]) -> str:
        """Return ``host:port`` of the controller that leads.

        Args:
            controllers: ``host:port`` of some of them, or all.

        Raises:
            ConnectionFailed: none of them can be reached, or knows who leads.
        """
        reasons = []
        answers = await self._each(controllers, operations.controller_metadata)
        for address, answer in answers.items():
            if isinstance(answer, PymqError):
                reasons.append(f"{address}: {answer}")
            elif answer.leader_address:
                return answer.leader_address
            else:
                reasons.append(f"{address}: it knows no leader")
        raise ConnectionFailed(f"no controller leads ({'; '.join(reasons)})")

    async def groups(self, leader: str, names: Iterable[str]) -> dict[str, ReplicaInfo]:
        """Return broker name -> its group, as the controller that leads has it.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        table = await self._ask_leader(leader, operations.replica_table(sorted(names)))
        return table.groups

    async def designate(self, leader: str, cluster: str, name: str, broker_id: int) -> int:
        """Have the controller that leads make a broker the master; return the epoch.

        Raises:
            PymqError: it does not answer, or refuses.
        """
        operation = operations.designate_master(cluster, name, broker_id)
        answer: ElectMasterResponse = await self._ask_leader(leader, operation)
        if answer.master_broker_id != broker_id or answer.master_epoch is None:
            raise RemoteProtocolError(
                f"controller {leader} made {answer.master_broker_id} the master of {name!r} for "
                f"epoch {answer.master_epoch}, expected {broker_id}"
            )
        return answer.master_epoch

    async def _ask_leader(self, leader: str, operation: operations.Operation[T]) -> T:
        try:
            return await self._asking.one(leader, operation)
        except ConnectionFailed as error:
            raise error.retold(f"{error}; the controllers say that it leads them") from error


def _is_there(answer: object) -> bool:
    """Can more be asked? What somebody refused or does not know is an answer."""
    return not isinstance(answer, PymqError) or isinstance(answer, _UNKNOWN)


def _value(answer: T | PymqError | None) -> T | None:
    return None if isinstance(answer, PymqError) else answer


def _error(answer: object) -> PymqError | None:
    return answer if isinstance(answer, PymqError) else None
