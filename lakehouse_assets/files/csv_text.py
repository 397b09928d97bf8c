"""A CSV file's bytes as columns of text, strictly: RFC 4180 with the file's own marks, each row as long as the header.

PyArrow parses what csv_marks.py has looked at. What the texts mean is cell_types.py's.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from lakehouse_assets.files.csv_form import CsvForm, MalformedFile
from lakehouse_assets.files.csv_marks import MarkCheck

READ_AT_ONCE = 2**20
# Bytes. PyArrow reads blocks of that size, and a row has to fit into two.
LONGEST_ROW = 2**24
GZIP = b"\x1f\x8b"
"""The first bytes of each gzip file (RFC 1952)."""


def records_of(source: BinaryIO, form: CsvForm) -> Iterator[tuple[list[str], int]]:
    """Yields the cells of each line that is not blank, the header's first, and on which line they begin, from 1.

    It reads as batches_of() does, but slower, and rows of any length. Raises MalformedFile.
    """
    return _records(_checked(source, form), form)


def batches_of(source: BinaryIO, form: CsvForm, columns: int, nulls: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows, its header first, as columns of binary: text in UTF-8, not proven to be.

    columns: how many each row has. nulls: which cells are null, unless they are quoted.
    Raises MalformedFile, without a line for rows of another length, or much longer than LONGEST_ROW.
    """
    names = [str(number) for number in range(columns)]
    options: dict[str, Any] = {
        "read_options": arrow_csv.ReadOptions(use_threads=False, block_size=LONGEST_ROW, column_names=names),
        "parse_options": arrow_csv.ParseOptions(
            delimiter=form.delimiter,
            quote_char=form.quote or False,
            double_quote=not form.escape,
            escape_char=form.escape or False,
            newlines_in_values=True,
        ),
        "convert_options": arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[*nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    }
    stream = _Stream(_checked(source, form))
    try:
        with arrow_csv.open_csv(io.BufferedReader(stream, READ_AT_ONCE), **options) as reader:
            yield from reader
    except pa.ArrowInvalid:
        if not stream.failed and stream.found_any:
            raise MalformedFile(f"has rows that are not of {columns} cells, or too long") from None
    if stream.failed:
        raise stream.failed from None


def _records(blocks: Iterable[bytes], form: CsvForm) -> Iterator[tuple[list[str], int]]:
    stream = _Stream(blocks)
    lines = io.TextIOWrapper(io.BufferedReader(stream), "utf-8", errors="replace", newline="")
    quoting: dict[str, Any] = (
        {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    )
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(
        lines, delimiter=form.delimiter, escapechar=form.escape or None, doublequote=not form.escape, **quoting
    )
    before = 0
    for cells in reader:
        if stream.failed:
            break
        if cells:
            yield cells, before + 1
        before = reader.line_num
    if stream.failed:
        raise stream.failed


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file; remembers what was raised, as PyArrow reads ahead in a thread of its own."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), memoryview(b"")
        self.failed: MalformedFile | None = None
        self.found_any = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self._rest and (block := next(self._blocks, None)) is not None:
                self._rest = memoryview(block)
        except MalformedFile as error:
            self.failed = error
            return 0
        taken = min(len(buffer), len(self._rest))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        self.found_any = self.found_any or taken > 0
        return taken


def _checked(source: BinaryIO, form: CsvForm) -> Iterator[bytes]:
    """Yields the file in UTF-8; lines that are left out are blank, so that all others keep their numbers."""
    blocks = _in_utf8(source, form)
    if form.skip:
        blocks = _blank_first(blocks, form.skip)
    if form.comment:
        blocks = _blank_comments(blocks, form)
    if form.delimiter == " ":
        blocks = _single_blanks(blocks, form)
    return MarkCheck(form).checked(blocks)


def _in_utf8(source: BinaryIO, form: CsvForm) -> Iterator[bytes]:
    decoder = None if form.is_utf8 else codecs.getincrementaldecoder(form.encoding)()
    lines, first = 0, True
    while True:
        read = source.read(READ_AT_ONCE)
        block = read
        if decoder is not None:
            try:
                block = decoder.decode(read, final=not read).encode()
            except UnicodeDecodeError as error:
                problem = f"holds bytes that are not {form.encoding}"
                raise MalformedFile(problem, lines + read[: error.start].count(b"\n") + 1) from None
        if first and block:
            block, first = block.removeprefix(codecs.BOM_UTF8), False
        if not lines and read.startswith(GZIP):
            raise MalformedFile("is compressed by gzip, so its name should end with .gz")
        if b"\0" in block:
            line = lines + block[: block.index(b"\0")].count(b"\n") + 1
            raise MalformedFile("holds NUL characters: it is no text, or needs encoding='utf-16'", line)
        lines += block.count(b"\n")
        if block:
            yield block
        if not read:
            return


def _blank_first(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        while count and block:
            _, end, block = block.partition(b"\n")
            count -= len(end)
            yield end
        yield block


def _blank_comments(blocks: Iterator[bytes], form: CsvForm) -> Iterator[bytes]:
    quote, comment, inside = form.quote.encode() or b"\n\n", form.comment.encode(), False
    for line in _by_line(blocks):
        if not inside and line.startswith(comment):
            yield b"\n"
        else:
            inside ^= line.count(quote) % 2 == 1
            yield line


def _single_blanks(blocks: Iterator[bytes], form: CsvForm) -> Iterator[bytes]:
    """Yields lines with one blank between cells, and none around them. A quoted cell ends on its line."""
    quote = re.escape(form.quote.encode())
    cells = re.compile((b"(%b[^%b\n]*%b)|" % (quote, quote, quote) if quote else b"(\0)|") + rb"[ \t]+")
    for line in _by_line(blocks):
        yield cells.sub(lambda found: found[1] or b" ", line.strip(b" \t\r\n")).strip() + b"\n"


def _by_line(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def as_text(column: pa.BinaryArray) -> tuple[pa.StringArray, list[int]]:
    """Returns the texts of a column, and the numbers of those that are not UTF-8; these are null."""
    try:
        return column.cast(pa.string()), []
    except pa.ArrowInvalid:
        cells = column.to_pylist()
    texts = [cell if cell is None else _decoded(cell) for cell in cells]
    wrong = [n for n, (cell, text) in enumerate(zip(cells, texts, strict=True)) if cell is not None and text is None]
    return pa.array(texts, pa.string()), wrong


def _decoded(cell: bytes) -> str | None:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None
