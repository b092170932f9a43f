"""Handles messages one by one with a time limit for each; start as many as you like.

::

    python worker.py 127.0.0.1:9876 orders

Ends when nothing has come for a while.
"""

import asyncio
import sys

from pymq import ReceivedMessage, SimpleConsumer

HIDDEN_S = 30.0


async def handle(message: ReceivedMessage) -> None:
    """Do something with a message."""
    print(message.body.decode())


async def main(name_server: str, topic: str) -> None:
    """Receive, handle, acknowledge."""
    consumer = SimpleConsumer(name_server, "workers", from_where="earliest")
    async with consumer.subscribe(topic):
        while messages := await consumer.receive(8, HIDDEN_S, timeout_s=3):
            for message in messages:
                try:
                    async with asyncio.timeout(HIDDEN_S / 8):
                        await handle(message)
                except Exception as error:
                    print(f"{message.message_id} comes again in a second: {error!r}")
                    await consumer.change_invisible(message, 1)
                else:
                    await consumer.ack(message)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
