"""Tag codes of many messages at once: the Java hash of each one's TAGS property.

Source: RocketMQ MessageExtBrokerInner.tagsString2tagsCode.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.protocol.hashes import java_hash
from pymq.protocol.record_batch import Bytes, Longs, gather, spans

_TAGS = b"TAGS\x01"
#: How a tag begins that is not a text's first property.
_LATER = b"\x02TAGS"
#: How many bytes of a text are looked at when its tag should stand first, and be short.
_WINDOW_BYTES = 24
#: Longer tags are hashed one by one.
_HASH_STEPS_MAX = 64


def tag_codes(data: Bytes, starts: Longs, ends: Longs) -> Longs:
    """Return the tag codes of messages, 0 for those without a tag, int64 of shape (n,).

    The last TAGS of a text counts, and an empty one does not, as for every reader.

    Args:
        data: the buffer that holds the messages.
        starts, ends: where properties text i begins and ends in it; ascending.
    """
    codes = np.zeros(len(starts), np.int64)
    # As pymq writes them: each text begins with its tag. A later one would stand behind a mark.
    is_first = data[starts[0] : starts[0] + len(_TAGS)].tobytes() == _TAGS
    if is_first and not _holds(data, _LATER) and _set_first_codes(codes, data, starts, ends):
        return codes
    codes[:] = 0
    if _holds(data, _TAGS):
        _set_codes(codes, data, starts, ends)
    return codes


def _holds(data: Bytes, text: bytes) -> bool:
    """Say whether five bytes may occur in a row: their first four do. Mostly two do not."""
    return all(_holds_word(data, np.frombuffer(text, word, 1)) for word in (np.uint16, np.uint32))


def _holds_word(data: Bytes, word: npt.NDArray[Any]) -> bool:
    """Several times as fast as ``bytes.find``."""
    size = word.itemsize
    return any(
        (np.frombuffer(data, word.dtype, (len(data) - at) // size, at) == word).any()
        for at in range(min(size, len(data) - size + 1))
    )


def _set_first_codes(codes: Longs, data: Bytes, starts: Longs, ends: Longs) -> bool:
    """Set the codes if every text begins with a tag, and a short one; say whether it is so."""
    if starts[-1] + _WINDOW_BYTES > len(data):
        return False
    texts = gather(data, starts, f"V{_WINDOW_BYTES}").view(np.uint8).reshape(-1, _WINDOW_BYTES)
    columns = np.ascontiguousarray(texts.T)
    if not (columns[: len(_TAGS)] == np.frombuffer(_TAGS, np.uint8)[:, np.newaxis]).all():
        return False
    lengths = ends - starts
    hashes = np.zeros(len(starts), np.uint32)
    going = np.ones(len(starts), np.bool_)
    for step in range(len(_TAGS), _WINDOW_BYTES):
        units = columns[step]
        going &= (units != 2) & (lengths > step)
        if not going.any():
            codes[:] = hashes.view(np.int32)
            return True
        if (units >= 0x80).any() and (units[going] >= 0x80).any():
            return False
        hashes = np.where(going, hashes * np.uint32(31) + units, hashes)
    return False


def _set_codes(codes: Longs, data: Bytes, starts: Longs, ends: Longs) -> None:
    """Set the codes of the texts that have a tag, wherever it stands."""
    at = np.flatnonzero(data == 1)  # behind every name
    for back, letter in enumerate(b"SGAT", 1):
        at = at[data[at - back] == letter]
    owner = np.minimum(ends.searchsorted(at, "right"), len(ends) - 1)
    name = at - 4
    inside = (name >= starts[owner]) & (at < ends[owner])
    inside &= (name == starts[owner]) | (data[name - 1] == 2)
    value, owner = at[inside] + 1, owner[inside]
    separators = np.append(np.flatnonzero(data == 2), len(data))
    lengths = np.minimum(separators[separators.searchsorted(value)], ends[owner]) - value
    value, owner, lengths = value[lengths > 0], owner[lengths > 0], lengths[lengths > 0]
    if len(value):
        codes[owner] = _java_hashes(data, value, lengths)


def _java_hashes(data: Bytes, starts: Longs, lengths: Longs) -> npt.NDArray[np.int32]:
    """Return the Java hash of each UTF-8 text of at least one byte."""
    hashes = np.zeros(len(starts), np.uint32)
    for step in range(longest := int(lengths.max())):
        if longest > _HASH_STEPS_MAX:
            break
        going = lengths > step
        units = data[np.where(going, starts + step, starts)]
        if (units >= 0x80).any():
            break
        hashes = np.where(going, hashes * np.uint32(31) + units, hashes)
    else:
        return hashes.view(np.int32)
    texts = map(data.tobytes().__getitem__, spans(starts, starts + lengths))
    return np.array([_java_hash(text) for text in texts], np.int32)


@functools.lru_cache(4096)
def _java_hash(text: bytes) -> int:
    return java_hash(text.decode("utf-8", "replace"))
