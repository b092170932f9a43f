"""What ``pymq doctor`` finds."""

from dataclasses import dataclass
from enum import StrEnum

from pymq.cli.output import Row
from pymq.errors import NoPermission, PymqError


class State(StrEnum):
    """How one thing is."""

    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        check: look-up, name server, broker, topic, permission, group, lag.
        state: well or not.
        text: what was found.
        advice: what to do; empty: nothing.
    """

    check: str
    state: State
    text: str
    advice: str = ""

    def row(self) -> Row:
        """Return it for JSON."""
        return {
            "check": self.check,
            "state": self.state.value,
            "text": self.text,
            "advice": self.advice or None,
        }


def acl_advice(error: PymqError) -> str:
    """Return what to do about a question that was not answered."""
    if isinstance(error, NoPermission):
        return "access control is on: ask for the permission, or use an account that has it"
    return "see what is wrong with the brokers above"
