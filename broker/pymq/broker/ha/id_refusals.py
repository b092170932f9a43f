"""What becomes of a broker whose id another one has: does it ask for it again, and as what?"""

from pymq.broker.ha.membership_texts import COPY, ID_REFUSED, REPLACED
from pymq.net.said_once import SaidOnce
from pymq.protocol.command import Command
from pymq.protocol.controller import RegisterReplicaResponse


class IdRefusals:
    """What a broker says, and keeps, when another one has its id.

    Args:
        said: says it.
        group: the broker's.

    Attributes:
        is_copy: whether the controllers say that this broker is a copy of another one. They forget
            that, with the connection or when another one leads.
        has_had: whether this process has had the id. Then it is no copy, and says so: of that, too,
            the controllers may know nothing any more.
    """

    def __init__(self, said: SaidOnce, group: str) -> None:
        self._said = said
        self._group = group
        self._remark: str | None = None
        self.has_had = False
        self.is_copy = False

    def refused(self, broker_id: int, answer: Command) -> None:
        """The id was refused.

        Raises:
            RemoteProtocolError: the answer is malformed.
        """
        remark = answer.remark or f"code {answer.code}"
        if remark != self._remark:
            self._said.over(("refused", self._remark))
        self._remark = remark
        original = RegisterReplicaResponse.from_fields(answer.fields).copy_of
        if original and not self.has_had:
            self.is_copy = True
            self._said.warn("copy", COPY, broker_id, self._group, original)
            return
        self._said.warn(("refused", remark), ID_REFUSED, broker_id, self._group, remark)

    def replaced(self, broker_id: int, why: str | None) -> None:
        """Another broker has the id that this one had."""
        self._said.warn("replaced", REPLACED, broker_id, self._group, why)

    def over(self, broker_id: int) -> None:
        """The broker has its id."""
        self.has_had = True
        self._said.over(("refused", self._remark))
        self._said.over("replaced", "this broker is broker %d again", broker_id)
