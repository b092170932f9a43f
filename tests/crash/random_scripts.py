"""What a session does by chance."""

import random
from collections.abc import Sequence

from tests.crash.session import TOPICS, Script, Send, Session


def random_script(seed: int, steps: int) -> Script:
    """Return a script by chance."""

    def run(session: Session) -> None:
        chance = random.Random(seed)
        for _ in range(steps):
            _step(session, chance)
        if chance.random() < 0.5:
            session.stop()

    return run


def _step(session: Session, chance: random.Random) -> None:
    action = chance.random()
    if action < 0.5:
        session.put(*(_send(chance) for _ in range(chance.choice((1, 1, 2, 5)))))
    elif action < 0.72:
        session.flush()
    elif action < 0.78:
        session.flush_queues()
    elif action < 0.80:
        session.index()
    elif action < 0.83:
        session.prepare()
    elif action < 0.88:
        session.save()
    elif action < 0.92:
        session.finish_deletes()
        session.begin_delete(chance.choice(TOPICS))
    elif action < 0.96:
        session.restart()
    else:
        session.pass_time(chance.choice((0, 100, 3_500)))


def _send(chance: random.Random) -> Send:
    sizes: Sequence[int] = [
        chance.choice((0, 10, 40, 200)) for _ in range(chance.choice((1, 1, 1, 3)))
    ]
    return Send(chance.choice(TOPICS), chance.randrange(2), tuple(sizes))
