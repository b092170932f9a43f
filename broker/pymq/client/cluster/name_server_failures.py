"""What the failures of several name servers come to: one error, the same in every client.

Name servers know nothing of each other, so the next one is asked whatever goes wrong with one. If
all have failed, those that do not know a topic count more than those that could not say.
"""

from collections.abc import Sequence

from pymq.errors import BrokerError, ConnectionFailed, PymqError, TopicNotExist


class NameServerFailures:
    """Gathers the failures of one question.

    Args:
        addresses: ``host:port`` of all name servers.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._errors: list[PymqError] = []

    def add(self, error: PymqError) -> None:
        """Record why a name server gave no answer."""
        self._errors.append(error)

    def error(self) -> PymqError:
        """Return what to raise when the last one has failed, too.

        TopicNotExist if any of them does not know the topic, certain if none does, else the first
        refusal; notes give the other failures. ConnectionFailed with all of them if none answered.
        """
        for kind in (TopicNotExist, BrokerError):
            for error in self._errors:
                if isinstance(error, kind):
                    others = [one for one in self._errors if not isinstance(one, TopicNotExist)]
                    for other in others:
                        if other is not error:
                            error.add_note(str(other))
                    if isinstance(error, TopicNotExist):
                        error.is_certain = not others
                    return error
        reasons = "; ".join(map(str, self._errors))
        return ConnectionFailed(
            f"no name server of {', '.join(self._addresses)} answers: {reasons}. Is it running, "
            "and is the address right?"
        )
