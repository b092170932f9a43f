"""How a slave and its master prove to each other that they know one secret, before all else.

::

    slave -> master   hello      "S" | the slave's nonce: 4 words of 0xFE and 7 bytes      40 bytes
    master -> slave   challenge  "C" | the master's nonce: 32 bytes                        40 bytes
    slave -> master   proof      "P" | HMAC-SHA256 of "slave", hello, challenge            40 bytes
    master -> slave   welcome    "W" | HMAC-SHA256 of "master", hello, challenge, proof    40 bytes
    master -> slave   refusal    "R" | 4 bytes 0; instead of a challenge or a welcome      12 bytes

Each begins with a word of 8 bytes: 0xFE, ``pymqH``, the letter, and the version, of a refusal the
reason. What the two say afterwards is the same as without a proof.

A hello may reach a master of RocketMQ, which takes every 8 bytes for a report. So each word of it
is a negative number: no offset, no confirmation, and no frame of automatic failover, which begins
with a small number of 4 bytes. It is not below -2^57, or the gap that such a master computes from
it would overflow, and count as none. A refusal looks like a heartbeat at a negative offset, from
which a slave without a secret goes away.

Nobody gets a proof without having given one, except who takes the master's address: that is why
the slave's comes first. The nonces of both sides are in both proofs, so that no proof is of use a
second time; the labels differ, so that none is of use in the other direction; and the frames
themselves are in them, version included, so that nobody in between can change any.

A master says a refusal later, too, with or without a secret: when it has not got what a slave
needs. To slaves of RocketMQ, whose log is not empty then, it is a push at another offset than the
end of their log, from which they go away.
"""

import hashlib
import hmac
import struct
from enum import IntEnum

_MARK, _VERSION = b"\xfepymqH", 1
#: Of the first word of each frame.
WORD_BYTES = 8
#: Of a hello, a challenge, a proof and a welcome; of a refusal.
FRAME_BYTES, REFUSAL_BYTES = 40, 12
#: Random bytes that each side contributes.
SLAVE_NONCE_BYTES, MASTER_NONCE_BYTES = 28, 32
_NONCE_PART_BYTES = 7

assert len(_MARK) + 2 == WORD_BYTES
assert SLAVE_NONCE_BYTES // _NONCE_PART_BYTES * 8 + WORD_BYTES == FRAME_BYTES
assert MASTER_NONCE_BYTES + WORD_BYTES == hashlib.sha256().digest_size + WORD_BYTES == FRAME_BYTES


class Refusal(IntEnum):
    """Why a master sends a slave away; the number is sent."""

    NO_SECRET = 1
    PROOF_WANTED = 2
    WRONG_SECRET = 3
    OTHER_VERSION = 4
    LOG_AHEAD = 5
    LOG_DELETED = 6
    LOG_DIVERGED = 7

    @property
    def text(self) -> str:
        """What it means, and what to do, for the log of the slave."""
        return _TEXTS[self]


_TEXTS = {
    Refusal.NO_SECRET: (
        "it has no secret, and so cannot prove that it is this slave's master; set the same "
        "pymqHaSecret there, or list its address in pymqHaNetworks here if it may do without"
    ),
    Refusal.PROOF_WANTED: (
        "it wants a proof of its secret, and this slave has none; set the same pymqHaSecret here, "
        "or list this slave's address in pymqHaNetworks there if it may do without"
    ),
    Refusal.WRONG_SECRET: (
        "its secret is not the one of this slave; set the same pymqHaSecret at both"
    ),
    Refusal.OTHER_VERSION: (
        "it proves its secret in another way, because it is another version of pymq; install the "
        "same version at both"
    ),
    Refusal.LOG_AHEAD: (
        "its log ends before this slave's (its own log says where): this one has followed another "
        "master, or the master has lost the end of its log; see which of the two has what was "
        "acknowledged, make that one the master, and start the other one with an empty store"
    ),
    Refusal.LOG_DELETED: (
        "it has deleted the part of its log that this slave needs next; start this slave with an "
        "empty store, or with a copy of the master's"
    ),
    Refusal.LOG_DIVERGED: (
        "its log has other bytes than this slave's before the end of this one (its own log says "
        "where): it has lost the end of its log and taken other messages since, or this store is "
        "not one of its group; nothing was changed here; see which of the two has what was "
        "acknowledged, make that one the master, and start the other one with an empty store"
    ),
}


def encode_hello(nonce: bytes) -> bytes:
    """Return what a slave says first.

    Args:
        nonce: ``SLAVE_NONCE_BYTES`` random bytes, used once.
    """
    parts = range(0, SLAVE_NONCE_BYTES, _NONCE_PART_BYTES)
    return _word(b"S") + b"".join(_MARK[:1] + nonce[at : at + _NONCE_PART_BYTES] for at in parts)


def encode_challenge(nonce: bytes) -> bytes:
    """Return a master's answer to a hello.

    Args:
        nonce: ``MASTER_NONCE_BYTES`` random bytes, used once.
    """
    return _word(b"C") + nonce


def encode_proof(secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    """Return a slave's answer to a challenge, which only those can make who know the secret."""
    return _word(b"P") + _mac(secret, b"slave", hello, challenge)


def encode_welcome(secret: bytes, hello: bytes, challenge: bytes, proof: bytes) -> bytes:
    """Return a master's answer to a proof, which only those can make who know the secret."""
    return _word(b"W") + _mac(secret, b"master", hello, challenge, proof)


def encode_refusal(reason: Refusal) -> bytes:
    """Return what a master says before it closes the connection."""
    return _word(b"R", reason) + bytes(REFUSAL_BYTES - WORD_BYTES)


def is_same(received: bytes, expected: bytes) -> bool:
    """Compare a proof or a welcome; how long that takes tells nothing."""
    return hmac.compare_digest(received, expected)


def is_hello(word: bytes) -> bool:
    """Does a slave begin to prove that it knows the secret, perhaps in another version?"""
    return word[:-1] == _word(b"S")[:-1]


def is_known_hello(word: bytes) -> bool:
    """Is this the first word of a hello of this version?"""
    return word == _word(b"S")


def is_challenge(word: bytes) -> bool:
    """Is this the first word of a challenge of this version?"""
    return word == _word(b"C")


def refusal_of(word: bytes) -> Refusal | None:
    """Return why a master refuses this slave; None: this is not the first word of a refusal."""
    if word[:-1] != _word(b"R")[:-1] or word[-1] not in Refusal.__members__.values():
        return None
    return Refusal(word[-1])


def refusal_at(physical_offset: int) -> Refusal | None:
    """Return why a master refuses this slave, if that is what a push at some offset means."""
    return refusal_of(struct.pack(">q", physical_offset))


def _word(letter: bytes, last: int = _VERSION) -> bytes:
    return _MARK + letter + bytes((last,))


def _mac(secret: bytes, label: bytes, *frames: bytes) -> bytes:
    # Each frame has one length, and no label contains a zero: there is one way to read them.
    return hmac.digest(secret, b"pymq HA " + label + b"\0" + b"".join(frames), "sha256")
