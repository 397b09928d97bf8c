"""CSV as text: its form, separators, quotes, decoding and lines.

A quote opens a cell after a delimiter and closes it before one; between two quotes, anything may stand (RFC 4180).
PyArrow parses files, but accepts misplaced quotes; so MarkCheck checks the *marks* (quotes, escapes, line ends) first.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from lakehouse_assets.files.delivered import check_encoding, without_mark


class MalformedFile(ValueError):
    """A file is no CSV of this form. line: the first wrong one, from 1; None if unknown."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


class UnclosedQuote(MalformedFile):
    """The file ends within a quoted cell. line: where the cell begins."""


@dataclass(frozen=True)
class CsvForm:
    """How a CSV file is written. Raises ValueError if its marks can't be told apart."""

    delimiter: str = ","
    """One character; a blank stands for any number of blanks and tabs."""
    quote: str = '"'
    """Empty if the file has none."""
    escape: str = ""
    """The mark before a quote in a quoted cell, and before itself; empty if such a quote is doubled."""
    encoding: str = "utf-8"
    """A Python codec, such as ``cp1252``."""
    header: bool = True
    """Whether the first row has the columns' names."""
    skip: int = 0
    """Lines before the header, or the first row."""
    comment: str = ""
    """The start of lines to leave out; empty for none."""

    def __post_init__(self) -> None:
        marks = [mark for mark in (self.delimiter, self.quote, self.escape) if mark]
        if not self.delimiter or any(len(mark) > 1 or not mark.isascii() or mark in "\r\n" for mark in marks):
            raise ValueError(f"delimiter, quote and escape are one ASCII character each, found {marks}")
        if len({*marks}) < len(marks):
            raise ValueError(f"delimiter, quote and escape must differ, found {marks}")
        if self.skip < 0:
            raise ValueError(f"skip={self.skip} is no number of lines")
        if self.comment and (self.comment[0] in marks or self.comment[0].isalnum() or self.comment.isspace()):
            raise ValueError(f"comment={self.comment!r} could begin a row; expected a mark such as '#'")
        check_encoding(self.encoding)

    @property
    def is_utf8(self) -> bool:
        """Whether the bytes need no decoding."""
        return codecs.lookup(self.encoding).name == "utf-8"


NEWLINE, RETURN = b"\n\r"
Places = npt.NDArray[np.intp]
"""Indices of bytes in a block."""


class MarkCheck:
    """Checks one file's marks, block by block."""

    def __init__(self, form: CsvForm) -> None:
        self._quote, self._escape = form.quote.encode(), form.escape.encode()
        self._escaped = _escaped(form)
        # What may be next to a quote that surrounds a cell; a second quote only if quotes are doubled.
        self._neighbours = np.zeros(256, bool)
        self._neighbours[[NEWLINE, RETURN, *form.delimiter.encode(), *(b"" if self._escape else self._quote)]] = True
        # The state before the next block: whether it begins in a quoted cell, and the line on which that cell begins;
        # the last byte, and the number of lines that have ended. A file begins as after a newline.
        self._inside, self._opened = False, 0
        self._before, self._lines = NEWLINE, 0
        # Whether a newline has ended a row.
        self._ends_by_newline = False
        # The line of the first unquoted carriage return without a newline after it.
        self._lone_return: int | None = None

    def checked(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks. Raises MalformedFile, with the line."""
        held = b""
        # None stands for the end of the file: nothing is held then.
        for given in chain(blocks, [None]):
            block = held + (given or b"")
            # A mark is judged by the byte after it: marks at the end of a block wait for the next one.
            whole = block if given is None else block.rstrip(self._quote + self._escape + b"\r")
            held = block[len(whole) :]
            self._look(whole)
            yield whole
        if self._inside:
            raise UnclosedQuote("has a quote that is never closed", self._opened)

    def _look(self, block: bytes) -> None:
        plain = self._without_escapes(block)
        letters = np.frombuffer(plain, np.uint8)
        quotes = np.flatnonzero(letters == self._quote[0]) if self._quote else np.array([], np.intp)
        # around[n] is the byte before byte n, around[n + 2] the one after it.
        around = np.concatenate(([self._before], letters, [NEWLINE]))
        # After a lone carriage return, each unquoted newline counts: the two together are refused.
        if b"\r" in plain or self._lone_return is not None:
            self._look_at_returns(plain, letters, quotes, around)
        elif not self._ends_by_newline and b"\n" in plain:
            self._ends_by_newline = self._has_unquoted_newline(letters, quotes)
        if len(quotes):
            self._look_at_quotes(plain, quotes, around)
        self._lines += plain.count(b"\n")
        self._before = plain[-1] if plain else self._before

    def _line(self, plain: bytes, place: int) -> int:
        return self._lines + plain[:place].count(b"\n") + 1

    def _without_escapes(self, block: bytes) -> bytes:
        """Replaces escaped marks by letters, so that they don't count as marks."""
        if self._escaped is None:
            return block
        known = {*filter(None, (self._quote, self._escape))}  # without b"", which an escape at the file's end escapes
        if other := next((pair for pair in self._escaped.finditer(block) if pair[1] not in known), None):
            told = f"has {other[0].decode(errors='replace')!r}, which escapes neither a quote nor itself"
            raise MalformedFile(told, self._line(block, other.start()))
        return self._escaped.sub(b"xx", block)

    def _look_at_quotes(self, plain: bytes, quotes: Places, around: npt.NDArray[np.uint8]) -> None:
        # Quotes open and close a cell in turn. Judged is the byte before an opening quote and after a closing one. A
        # doubled quote closes the cell and opens it again: the quote next to it is among the neighbours.
        closing = (np.arange(len(quotes)) + self._inside) % 2 == 1
        wrong = np.flatnonzero(~self._neighbours[np.where(closing, around[quotes + 2], around[quotes])])
        if len(wrong):
            first = int(wrong[0])
            told = "has a quote in a cell that does not begin with one"
            if closing[first]:
                begun = self._line(plain, quotes[first - 1]) if first else self._opened
                told = f"has text behind the quote that closes the cell which begins on line {begun}"
            raise MalformedFile(told, self._line(plain, quotes[first]))
        self._inside = bool((len(quotes) + self._inside) % 2)
        self._opened = self._line(plain, quotes[-1])

    def _look_at_returns(
        self, plain: bytes, letters: npt.NDArray[np.uint8], quotes: Places, around: npt.NDArray[np.uint8]
    ) -> None:
        """Refuses a carriage return in an unquoted cell of a file with newlines: PyArrow would begin a row there."""
        returns = np.flatnonzero(letters == RETURN)
        lone = self._outside(returns[around[returns + 2] != NEWLINE], quotes)
        if len(lone) and self._lone_return is None:
            self._lone_return = self._line(plain, lone[0])
        self._ends_by_newline |= self._has_unquoted_newline(letters, quotes)
        if self._lone_return is not None and self._ends_by_newline:
            raise MalformedFile("has a carriage return in a cell that is not quoted", self._lone_return)

    def _has_unquoted_newline(self, letters: npt.NDArray[np.uint8], quotes: Places) -> bool:
        return len(self._outside(np.flatnonzero(letters == NEWLINE), quotes)) > 0

    def _outside(self, places: Places, quotes: Places) -> Places:
        """Returns the places that are not in a quoted cell: an even number of quotes comes before each."""
        outside: Places = places[(np.searchsorted(quotes, places) + self._inside) % 2 == 0]
        return outside


READ_AT_ONCE = 2**20
# In bytes. PyArrow reads blocks of this size, and a row must fit into two.
LONGEST_ROW = 2**24
GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file (RFC 1952)."""


def records_of(source: BinaryIO, form: CsvForm) -> Iterator[tuple[list[str], int]]:
    """Yields the cells of each row that is not blank, the header included, and the line on which it begins, from 1.

    Slower than batches_of(), but takes rows of any length. Raises MalformedFile.
    """
    return _records(_checked(source, form), form)


def batches_of(source: BinaryIO, form: CsvForm, columns: int, nulls: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows, first its header, as binary columns: single cells may not be UTF-8.

    nulls: cells that are null, unless quoted. Raises MalformedFile, without a line for rows of another length, or much
    longer than LONGEST_ROW.
    """
    # Columns have numbers here: the header is read as the first row.
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
        if not stream.failed and stream.found_any:  # of an empty file, Arrow complains too
            raise MalformedFile(f"has rows that are not of {columns} cells, or too long") from None
    if stream.failed:
        raise stream.failed from None


def _records(blocks: Iterable[bytes], form: CsvForm) -> Iterator[tuple[list[str], int]]:
    stream = _Stream(blocks)
    lines = io.TextIOWrapper(io.BufferedReader(stream), "utf-8", errors="replace", newline="")
    quoting: dict[str, Any] = (
        {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    )
    # Python's default refuses cells of more than 131,072 characters.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(
        lines, delimiter=form.delimiter, escapechar=form.escape or None, doublequote=not form.escape, **quoting
    )
    # The line on which the last row ended.
    before = 0
    for cells in reader:
        if stream.failed:
            break
        if cells:  # none for a blank line
            yield cells, before + 1
        before = reader.line_num
    if stream.failed:
        raise stream.failed


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file. Keeps what they raise in ``failed``, as PyArrow reads ahead in another thread."""

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
    """Yields the file in UTF-8, checked. Lines to leave out become blank, so that the others keep their numbers."""
    blocks = _in_utf8(source, form)
    if form.skip:
        blocks = _blank_first(blocks, form.skip)
    if form.comment or form.delimiter == " ":
        lines = _lines(blocks, form)
        blocks = _single_blanks(lines, form) if form.delimiter == " " else (line for line, _ in lines)
    return MarkCheck(form).checked(blocks)


def _in_utf8(source: BinaryIO, form: CsvForm) -> Iterator[bytes]:
    """Yields the file in UTF-8, without a byte order mark. Raises MalformedFile if it is no text in its encoding."""
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
            except UnicodeError:  # of UTF-16 and UTF-32
                raise MalformedFile(without_mark(form.encoding), 1) from None
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
            count -= len(end)  # 0 if the line goes on in the next block
            yield end
        yield block


def _lines(blocks: Iterator[bytes], form: CsvForm) -> Iterator[tuple[bytes, bool]]:
    """Yields lines, comments blanked, and whether each begins within a quoted cell."""
    quote, comment, inside = form.quote.encode() or b"\n\n", form.comment.encode(), False  # no line has b"\n\n"
    escaped = _escaped(form)
    for line in _by_line(blocks):
        if comment and not inside and line.startswith(comment):
            yield b"\n", False
            continue
        yield line, inside
        plain = escaped.sub(b"", line) if escaped else line
        # An odd number of quotes leaves a cell open, or closes one.
        inside ^= plain.count(quote) % 2 == 1


def _escaped(form: CsvForm) -> re.Pattern[bytes] | None:
    """Returns a pattern of an escape with the byte after it; None if the form has no escape."""
    return re.compile(re.escape(form.escape.encode()) + b"(.?)", re.DOTALL) if form.escape else None


def _single_blanks(lines: Iterator[tuple[bytes, bool]], form: CsvForm) -> Iterator[bytes]:
    """Makes each run of blanks and tabs one blank, and removes those around a line; leaves quoted cells as they are.

    lines: of _lines().
    """
    quote, escape = (re.escape(mark.encode()) for mark in (form.quote, form.escape))
    letters = b"[^%b%b]*" % (quote, escape)
    inner = b"%b(?:%b.%b)*" % (letters, escape, letters) if escape else letters
    quoted = b"%b%b(?:%b|\\Z)" % (quote, inner, quote) if quote else b"(?!)"  # never matches
    # The groups: a quoted cell, and the end of a line after blanks.
    cells = re.compile(b"(%b)|[ \t]+(\r?\n|\\Z)?" % quoted, re.DOTALL)

    def single(found: re.Match[bytes]) -> bytes:
        if found[1] or found[2] is not None:
            return found[1] or found[2]
        return b" " if found.start() else b""

    for line, inside in lines:
        # A quote before a line that begins in a quoted cell lets the pattern find the rest of this cell.
        opening = form.quote.encode() if inside else b""
        yield cells.sub(single, opening + line).removeprefix(opening)


def _by_line(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def as_text(column: pa.BinaryArray) -> tuple[pa.StringArray, list[int]]:
    """Returns the cells as text, null if not UTF-8, and the rows of those that are not."""
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
