"""The marks of a CSV file, as they are told to read_csv(), and the error for a file that has others.

What is done with them is csv_text.py's.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from lakehouse_assets.files.reading import check_encoding


class MalformedFile(ValueError):
    """A file is no CSV of this form. line: the first one that is wrong, from 1; None where it can't be told."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


@dataclass(frozen=True)
class CsvForm:
    """The marks of a CSV file. Raises ValueError for marks that can't be told apart."""

    delimiter: str = ","
    """What separates cells: one character. A blank stands for any number of blanks and tabs."""
    quote: str = '"'
    """What surrounds cells that hold a delimiter, a line break or a quote; empty if the file has none."""
    escape: str = ""
    """What precedes a quote within a quoted cell, and itself, such as a backslash; empty if such a quote is doubled."""
    encoding: str = "utf-8"
    """A codec of Python's, such as ``cp1252`` or ``utf-16``."""
    header: bool = True
    """Whether the first line names the columns."""
    skip: int = 0
    """How many lines are before the header, or before the first row."""
    comment: str = ""
    """What begins lines that are left out; empty if none are."""

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
        """Whether the bytes need no translation."""
        return codecs.lookup(self.encoding).name == "utf-8"
