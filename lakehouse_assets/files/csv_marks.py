"""Looks at the quotes, escapes and line ends of a CSV file before it is parsed, since PyArrow takes wrong ones.

A quote opens a cell behind a delimiter and closes it before one; between two quotes anything may stand (RFC 4180).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from lakehouse_assets.files.csv_form import CsvForm, MalformedFile

NEWLINE, RETURN = b"\n\r"
Places = npt.NDArray[np.intp]


class MarkCheck:
    """Looks at one file's marks, block by block."""

    def __init__(self, form: CsvForm) -> None:
        self._quote, self._escape = form.quote.encode(), form.escape.encode()
        self._escaped = re.compile(re.escape(self._escape) + b"(.)", re.DOTALL) if self._escape else None
        # What may be beside a quote that surrounds a cell; a second quote only where that is how one is written.
        self._neighbours = np.zeros(256, bool)
        self._neighbours[[NEWLINE, RETURN, *form.delimiter.encode(), *(b"" if self._escape else self._quote)]] = True
        self._inside, self._opened = False, 0
        self._before, self._lines = NEWLINE, 0
        self._ends_by_newline, self._lone_return = False, 0

    def checked(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks of a file. Raises MalformedFile, with the line."""
        held = b""
        for given in chain(blocks, [None]):
            block = held + (given or b"")
            # What follows a mark at the end of a block comes with the next one.
            whole = block if given is None else block.rstrip(self._quote + self._escape + b"\r")
            held = block[len(whole) :]
            self._look(whole)
            yield whole
        if self._inside:
            raise MalformedFile("has a quote that is never closed", self._opened)

    def _look(self, block: bytes) -> None:
        plain = self._without_escapes(block)
        letters = np.frombuffer(plain, np.uint8)
        quotes = np.flatnonzero(letters == self._quote[0]) if self._quote else np.array([], np.intp)
        around = np.concatenate(([self._before], letters, [NEWLINE]))
        if b"\r" in plain or self._lone_return:
            self._look_at_returns(plain, letters, quotes, around)
        elif b"\n" in plain:
            self._ends_by_newline = True
        if len(quotes):
            self._look_at_quotes(plain, quotes, around)
        self._lines += plain.count(b"\n")
        self._before = plain[-1] if plain else self._before

    def _line(self, plain: bytes, place: int) -> int:
        return self._lines + plain[:place].count(b"\n") + 1

    def _without_escapes(self, block: bytes) -> bytes:
        """Returns the block with other letters in place of what is escaped."""
        if self._escaped is None:
            return block
        known = (self._quote, self._escape)
        if other := next((pair for pair in self._escaped.finditer(block) if pair[1] not in known), None):
            told = f"has {other[0].decode(errors='replace')!r}, which escapes neither a quote nor itself"
            raise MalformedFile(told, self._line(block, other.start()))
        return self._escaped.sub(b"xx", block)

    def _look_at_quotes(self, plain: bytes, quotes: Places, around: npt.NDArray[np.uint8]) -> None:
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
        """Refuses a carriage return in a cell of a file whose lines end otherwise: PyArrow would begin a row there."""
        returns = np.flatnonzero(letters == RETURN)
        lone = self._outside(returns[around[returns + 2] != NEWLINE], quotes)
        if len(lone) and not self._lone_return:
            self._lone_return = self._line(plain, lone[0])
        if len(self._outside(np.flatnonzero(letters == NEWLINE), quotes)):
            self._ends_by_newline = True
        if self._lone_return and self._ends_by_newline:
            raise MalformedFile("has a carriage return in a cell that is not quoted", self._lone_return)

    def _outside(self, places: Places, quotes: Places) -> Places:
        """Returns those that are in no quoted cell."""
        outside: Places = places[(np.searchsorted(quotes, places) + self._inside) % 2 == 0]
        return outside
