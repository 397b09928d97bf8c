"""The digest of Arrow rows that proves a rewrite: a 64-bit hash for each row, summed as a multiset.

It sees a null that moved to another column or level, a null struct that became a struct of nulls, an empty list that
became null, and rows that swapped values. Floats count by their bits (0.0 is not -0.0), maps in their entries' order,
times in their type's unit. It doesn't resist deliberate collisions; by chance two rows collide once in 2**64.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_assets.wire.work import Digest

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# Few enough to keep temporary arrays in a processor's cache.
ROWS_AT_ONCE = 32_768
# Bytes that are hashed together.
WORD = 8
# Odd constants without a pattern (the golden ratio, pi and e), so that positions, lengths and kinds do not cancel out.
STEP, LENGTH, ROW, SEED, NULL = (
    np.uint64(n)
    for n in (0x9E3779B97F4A7C15, 0x243F6A8885A308D3, 0xB7E151628AED2A6B, 0x452821E638D01377, 0xA4093822299F31D1)
)
# Masks the lower half of a hash.
LOW = np.uint64(0xFFFFFFFF)


def digest(batches: Iterable[pa.RecordBatch | pa.Table]) -> Digest:
    """Returns the digest of rows, whatever their order and batches. Compare only the same columns in order."""
    parts = (part for batch in batches for part in _parts(batch))
    return reduce(add, (_of_hashes(row_hashes(part)) for part in parts), Digest())


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Returns the hash of each row."""
    rows = np.full(batch.num_rows, ROW)
    for column in batch.columns:
        rows = _mixed(rows + _hashes(column))
    return rows


def _parts(batch: pa.RecordBatch | pa.Table) -> Iterable[pa.RecordBatch]:
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    parts: list[pa.RecordBatch] = table.to_batches(max_chunksize=ROWS_AT_ONCE)
    return parts


def _of_hashes(rows: Hashes) -> Digest:
    if not len(rows):
        return Digest()
    # In halves, whose sums fit into 64 bits.
    low, high = int((rows & LOW).sum()), int((rows >> np.uint64(32)).sum())
    return Digest(len(rows), low, high, int(np.bitwise_xor.reduce(rows)))


def _mixed(values: Hashes) -> Hashes:
    """Maps values one to one; each input bit changes half of the output bits.

    The last step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _hashes(array: pa.Array) -> Hashes:
    hashes = _of_values(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return hashes


def _of_values(array: pa.Array) -> Hashes:
    """Returns the hash of each value; for nulls, any number."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _of_values(array.storage)
    if pa.types.is_null(kind):
        return np.full(len(array), NULL)
    if pa.types.is_struct(kind):
        return _of_structs(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _of_lists(array)
    # Arrow packs eight booleans into a byte.
    if pa.types.is_boolean(kind):
        return _of_values(pc.cast(array, pa.int8()))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        return _of_fixed(array)
    if pa.types.is_primitive(kind):
        return _mixed(_integers(array).view(np.uint64))
    return _of_bytes(pc.cast(array, pa.large_binary()))


def _of_structs(array: pa.StructArray) -> Hashes:
    hashes = np.full(len(array), SEED)
    for n in range(array.type.num_fields):
        hashes = _mixed(hashes + _hashes(array.field(n)))
    return hashes


def _of_lists(array: pa.ListArray) -> Hashes:
    # The offsets of a slice need not begin at 0.
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return _in_order(_hashes(values), np.diff(offsets))


def _in_order(elements: Hashes, lengths: Integers) -> Hashes:
    """Returns the hash of each list: the sum of its elements, each mixed with its position, which covers the length.

    One running sum serves all lists; each list's sum is a difference.
    """
    ends = np.cumsum(lengths)
    positions = np.arange(len(elements)) - np.repeat(ends - lengths, lengths)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(_mixed(elements + (positions + 1).view(np.uint64) * STEP), out=sums[1:])
    hashes: Hashes = sums[ends] - sums[ends - lengths]
    return hashes


def _of_bytes(array: pa.LargeBinaryArray) -> Hashes:
    """Reads all words of 8 bytes at once, with zeros behind a value's end; the length tells them from real zeros."""
    _, offset_buffer, data_buffer = array.buffers()
    if not len(array):
        return np.empty(0, np.uint64)
    # An offset has WORD bytes, too.
    offsets = np.frombuffer(offset_buffer, np.int64, len(array) + 1, array.offset * WORD)
    lengths = np.diff(offsets)
    # One word longer, as a word is read at the last byte as well.
    data = np.zeros(offsets[-1] - offsets[0] + WORD, np.uint8)
    if data_buffer is not None:
        data[:-WORD] = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    words_each = (lengths + WORD - 1) // WORD
    ends = np.cumsum(words_each)
    within = np.arange(ends[-1]) - np.repeat(ends - words_each, words_each)
    at = np.repeat(offsets[:-1] - offsets[0], words_each) + within * WORD
    # A word begins at each byte.
    anywhere = np.ndarray(len(data) - WORD + 1, "<u8", data, strides=(1,))
    bytes_left = np.minimum(np.repeat(lengths, words_each) - within * WORD, WORD)
    # Clears the bytes behind a value's end, which belong to the next value.
    words = anywhere[at] & (np.uint64(0xFFFFFFFFFFFFFFFF) >> ((WORD - bytes_left) * 8).view(np.uint64))
    return _mixed(_in_order(words, words_each) + lengths.view(np.uint64) * LENGTH)


def _of_fixed(array: pa.Array) -> Hashes:
    width = array.type.byte_width
    padded = np.zeros((len(array), -(-width // WORD) * WORD), np.uint8)
    if len(array):
        data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        padded[:, :width] = data.reshape(len(array), width)
    hashes = np.full(len(array), SEED)
    for words in padded.view(np.uint64).T:
        hashes = _mixed(hashes + words)
    return hashes


def _integers(array: pa.Array) -> Integers:
    """Reads the bits of numbers and times, floats too, as integers."""
    width = array.type.bit_width // 8
    if not len(array):
        return np.empty(0, np.int64)
    return np.frombuffer(array.buffers()[1], f"<i{width}", len(array), array.offset * width).astype(np.int64)
