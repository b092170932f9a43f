"""The frames with which a master and a slave prove a secret to each other."""

import random
import struct

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.replication import PushReader
from pymq.protocol.replication_secret import (
    FRAME_BYTES,
    MASTER_NONCE_BYTES,
    REFUSAL_BYTES,
    SLAVE_NONCE_BYTES,
    WORD_BYTES,
    Refusal,
    encode_challenge,
    encode_hello,
    encode_proof,
    encode_refusal,
    encode_welcome,
    is_challenge,
    is_hello,
    is_known_hello,
    is_same,
    refusal_at,
    refusal_of,
)

SECRET = b"0123456789abcdef"
HELLO = encode_hello(bytes(range(SLAVE_NONCE_BYTES)))
CHALLENGE = encode_challenge(bytes(range(MASTER_NONCE_BYTES)))
PROOF = encode_proof(SECRET, HELLO, CHALLENGE)
WELCOME = encode_welcome(SECRET, HELLO, CHALLENGE, PROOF)


def test_the_frames_are_those_of_version_1() -> None:
    """What another version would have to keep, or to number differently."""
    assert HELLO.hex() == (
        "fe70796d71485301fe00010203040506fe0708090a0b0c0dfe0e0f1011121314fe15161718191a1b"
    )
    assert CHALLENGE.hex() == "fe70796d71484301" + bytes(range(32)).hex()
    assert PROOF[:8].hex() == "fe70796d71485001"
    assert WELCOME[:8].hex() == "fe70796d71485701"
    assert encode_refusal(Refusal.WRONG_SECRET).hex() == "fe70796d7148520300000000"
    assert {len(one) for one in (HELLO, CHALLENGE, PROOF, WELCOME)} == {FRAME_BYTES}
    # Computed with: printf 'pymq HA slave\0' and the two frames | openssl dgst -sha256 -hmac
    assert PROOF[8:].hex() == (
        "1f2d04ce34e7553b5bc051b28c52fe2716700e202152242982f28914a1629287"
    )
    assert WELCOME[8:].hex() == (
        "cbd2d08c04935f279762eac4751edfcb11087881c3a17dfafd973f6bd0b0d922"
    )


def test_a_hello_means_nothing_to_a_master_of_rocketmq(seed: int) -> None:
    dice = random.Random(seed)
    for nonce in (bytes(28), b"\xff" * 28, *(dice.randbytes(28) for _ in range(1_000))):
        hello = encode_hello(nonce)
        for (word,) in struct.iter_unpack(">q", hello):
            assert -(1 << 57) <= word < -1  # -1: RocketMQ's "nothing was reported yet"
        assert struct.unpack_from(">i", hello)[0] not in (1, 2)


def test_a_refusal_looks_like_a_heartbeat_at_an_impossible_offset() -> None:
    for reason in Refusal:
        frame = encode_refusal(reason)
        assert len(frame) == REFUSAL_BYTES
        offset, size = struct.unpack(">qi", frame)
        assert offset < -1
        assert size == 0
        assert refusal_at(offset) is refusal_of(frame[:WORD_BYTES]) is reason
        reader = PushReader()
        reader.room()[: len(frame)] = frame
        with pytest.raises(RemoteProtocolError, match="pymqHaSecret|same version|empty store"):
            list(reader.received(len(frame)))


def test_words_are_told_apart() -> None:
    words = [frame[:WORD_BYTES] for frame in (HELLO, CHALLENGE, PROOF, WELCOME)]
    assert [is_known_hello(word) for word in words] == [True, False, False, False]
    assert [is_challenge(word) for word in words] == [False, True, False, False]
    later = HELLO[: WORD_BYTES - 1] + b"\x02"
    assert is_hello(later)
    assert not is_known_hello(later)
    assert [refusal_of(word) for word in words] == [None] * 4
    assert refusal_of(encode_refusal(Refusal.NO_SECRET)[:7] + b"\x63") is None
    for report in (0, -1, 1, 1 << 40):
        assert not is_hello(struct.pack(">q", report))
        assert refusal_at(report) is None


def test_a_proof_depends_on_every_bit_of_what_was_said() -> None:
    """A changed hello, challenge or proof, another secret or nonce: it is another proof."""

    def flipped(frame: bytes) -> list[bytes]:
        number = int.from_bytes(frame, "big")
        return [(number ^ 1 << bit).to_bytes(len(frame), "big") for bit in range(len(frame) * 8)]

    proofs = [PROOF]
    proofs += [encode_proof(SECRET, hello, CHALLENGE) for hello in flipped(HELLO)]
    proofs += [encode_proof(SECRET, HELLO, challenge) for challenge in flipped(CHALLENGE)]
    proofs += [encode_proof(secret, HELLO, CHALLENGE) for secret in flipped(SECRET)]
    welcomes = [WELCOME]
    welcomes += [encode_welcome(SECRET, hello, CHALLENGE, PROOF) for hello in flipped(HELLO)]
    welcomes += [encode_welcome(SECRET, HELLO, CHALLENGE, proof) for proof in flipped(PROOF)]
    welcomes += [encode_welcome(secret, HELLO, CHALLENGE, PROOF) for secret in flipped(SECRET)]
    macs = [frame[WORD_BYTES:] for frame in (*proofs, *welcomes)]
    assert len(set(macs)) == len(macs)
    assert is_same(PROOF, encode_proof(SECRET, HELLO, CHALLENGE))
    assert not any(is_same(other, PROOF) for other in flipped(PROOF))


def test_a_proof_is_of_no_use_as_a_welcome() -> None:
    """Whoever does not know the secret cannot have the other side make what he needs."""
    assert not is_same(PROOF[WORD_BYTES:], WELCOME[WORD_BYTES:])
    assert not is_same(encode_proof(SECRET, HELLO, CHALLENGE + PROOF)[8:], WELCOME[8:])
