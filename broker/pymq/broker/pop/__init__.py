"""Popping: messages that a consumer gets for a limited time, without owning a queue.

A pop takes messages from queues, past the group's offset, and leaves a checkpoint behind: who has
to acknowledge which messages until when. Messages that nobody acknowledged in time go to a retry
topic, which is popped together with the topic itself.

``checkpoint`` is one of them, ``checkpoint_table`` all that are open, ``revive_journal`` keeps
them and the acknowledgements in the revive topic, ``revival`` looks after those that are due.
``popping`` takes messages, ``progress`` knows up to where they were taken, ``pop_polls`` holds
requests that found none.
"""
