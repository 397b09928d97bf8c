"""What `lakehouse columns` infers from a file: form, names and types of columns.

A type is suggested only if its grammar takes each value that was read.
"""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_assets.files.advice import NULLS, takes, time_patterns
from lakehouse_assets.files.cell_types import NOT_FINITE, Spelling, time_pattern
from lakehouse_assets.files.csv_text import CsvForm, MalformedFile, UnclosedQuote, as_text, batches_of, records_of
from lakehouse_assets.files.delivered import NotUnpacked, unpacked
from lakehouse_assets.files.json_values import Number, kind_of, objects_of
from lakehouse_assets.type_text import NAME, RESERVED


def clean_names(names: Sequence[str]) -> list[str]:
    """Returns a column name for each name in a file. No two are equal, as Spark compares them, without case.

    A name that can't stay as it is becomes snake case.

    Examples:
        >>> clean_names(["", "Flight No.", "", "1960", "Größe", "P95", "p95"])
        ['row', 'flight_no', 'c_3', 'c_1960', 'grosse', 'P95', 'p95_2']
    """
    found: list[str] = []
    for place, name in enumerate(names):
        wanted = name if NAME.fullmatch(name) and name.lower() not in RESERVED else _snake_case(name, place)
        taken = {other.lower() for other in found}
        numbered = (f"{wanted}_{number}" for number in range(2, len(names) + 2))
        found.append(next(one for one in (wanted, *numbered) if one.lower() not in taken))
    return found


def _snake_case(name: str, place: int) -> str:
    """Returns a name in snake case. place: the column's, from 0."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    # A capital after a small letter or a digit begins a word.
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)
    words = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_").lower()
    # A first column without a name usually numbers the rows.
    if not words:
        return f"c_{place + 1}" if place else "row"
    return words if words[0].isalpha() else f"c_{words}"


# The bytes and rows at a file's beginning that decide its form.
HEAD, ROWS = 2**22, 200
# The bytes of one read from the head.
PIECE = 2**15
DELIMITERS = (",", ";", "\t", "|", " ")
QUOTES = "\"'"
COMMENT = "#"
# Rows above the header, such as a title.
MOST_SKIPPED = 20
BACKSLASHED = r"\\[tnrN0\\]"
"""A backslash that may escape the letter after it."""
ENCODINGS, UTF_16 = ("utf-8", "cp1252"), "utf-16"
# A number's column may have NaN as a value.
POSSIBLE_NULLS = tuple(text for text in NULLS if text not in NOT_FINITE)
ZERO_IN_FRONT = r"^[+-]?0[0-9]"
"""A leading zero, as in postal codes: a number would lose it."""
NUMBER = re.compile(r"[+-]?[0-9][0-9.,]*([eE][+-]?[0-9]+)?|[+-]?[.][0-9]+")
SEPARATORS = ((".", ""), (",", ""), (",", "."), (".", ","))
"""The marks before a fraction, and between groups of three digits; the most usual pair first."""


class Candidate(NamedTuple):
    """A type that a column may have."""

    type: str
    separators: int = 0
    """An index in SEPARATORS."""
    pattern: str = ""

    def may_take(self, text: str) -> bool:
        """Whether it may take a text: a quick test, so that few candidates are tried with Arrow."""
        if self.pattern:
            return time_pattern(self.pattern).matches(text)
        return self.type == "boolean" or any(map(str.isdigit, text)) or text in NOT_FINITE


CANDIDATES = (
    Candidate("boolean"),
    *(Candidate(type_, separators) for separators in range(len(SEPARATORS)) for type_ in ("long", "double")),
    *map(Candidate, ("date", "timestamptz", "timestamp")),
    *(
        Candidate(type_, 0, pattern)
        for type_ in ("date", "timestamp", "timestamptz")
        for pattern in time_patterns(type_)
    ),
)
"""In order of preference."""
NUMERIC = ("long", "double")
FRACTION_OR_GROUP = r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$"
"""A number such as ``1.234``, whose mark may precede a fraction or separate groups."""


@dataclass(frozen=True)
class Sniffed:
    """How a file is written, and the types of its columns."""

    columns: Mapping[str, str]
    options: Mapping[str, Any]
    """The options of read_csv() or read_json() that differ from the defaults, except read_json()'s ``rename``."""
    remarks: Sequence[str]
    """What the file alone does not tell, a sentence each."""


class _Column:
    def __init__(self) -> None:
        self.candidates = CANDIDATES
        """The types that take all values so far."""
        self.sample: pa.StringArray | None = None
        """The first values; None if there is none."""
        self.nulls: set[str] = set()
        """The texts that were taken for missing values."""
        self.has_backslash = False
        self.unclear = ""
        """A number of FRACTION_OR_GROUP, if there is one."""

    def look(self, texts: pa.StringArray, nulls: pa.BooleanArray) -> None:
        """Removes candidates that don't fit the texts. nulls: which are missing values, unless the column is text."""
        self.nulls |= {*pc.unique(texts.filter(nulls)).to_pylist()}
        values = pc.unique(texts.filter(pc.invert(nulls)))
        self.has_backslash |= bool(pc.any(pc.match_substring_regex(values, BACKSLASHED)).as_py())
        if not self.candidates or not len(values):
            return
        if self.sample is None:
            self.sample = values[:ROWS]
        if pc.any(pc.match_substring_regex(values, ZERO_IN_FRONT)).as_py():
            self.candidates = tuple(one for one in self.candidates if one.type not in NUMERIC)
        # Most candidates fail on the first value, which is tested without Arrow.
        self.candidates = tuple(one for one in self.candidates if one.may_take(values[0].as_py()))
        for sample in (values[:ROWS], values):  # a few first: most other candidates fail there
            self.candidates = tuple(one for one in self.candidates if _takes(sample, one))
        if not self.unclear and self.separators:
            unclear = values.filter(pc.match_substring_regex(values, FRACTION_OR_GROUP))
            self.unclear = unclear[0].as_py() if len(unclear) else ""

    @property
    def separators(self) -> set[int]:
        """The separators by which its values are numbers, as indices in SEPARATORS."""
        return {one.separators for one in self.candidates if one.type in NUMERIC}

    def best(self, separators: int) -> list[Candidate]:
        """Returns the candidates that fit if the file's numbers have these separators, the best first."""
        fits = [one for one in self.candidates if one.type not in NUMERIC or one.separators == separators]
        return [] if self.sample is None else fits

    def others(self, best: Candidate) -> list[str]:
        """Returns the patterns that fit too but mean other times."""
        meant = time_pattern(best.pattern).to_iso(self.sample)
        fits = [one.pattern for one in self.candidates if one.pattern and one.type == best.type]
        return [pattern for pattern in fits if time_pattern(pattern).to_iso(self.sample) != meant]


def sniff(path: Path) -> Sniffed:
    """Reads a whole CSV file. Raises MalformedFile, NotUnpacked and OSError."""
    with unpacked(str(path)) as content:
        head = _Head(content.read(HEAD))
    form, names = _form(head)
    trim = _needs_trim(head, form)
    try:
        columns = _read_columns(path, form, len(names), trim)
    except _NotUtf8:  # found behind the head, which was UTF-8
        form = replace(form, encoding=ENCODINGS[1])
        columns = _read_columns(path, form, len(names), trim)
    # One pair of separators for the whole file: that by which most columns are numbers; of equal ones the most usual.
    numeric = [sum(_is_numeric(column, one) for column in columns) for one in range(len(SEPARATORS))]
    separators = numeric.index(max(numeric))
    return _sniffed(form, names, columns, separators, trim)


def _sniffed(form: CsvForm, names: Sequence[str], columns: Sequence[_Column], separators: int, trim: bool) -> Sniffed:
    clean = clean_names(names)
    types, formats, remarks = {}, {}, list[str]()
    nulls: set[str] = set()
    for name, column in zip(clean, columns, strict=True):
        fits = column.best(separators)
        types[name] = fits[0].type if fits else "string"
        if not fits:  # a string, in which a text such as "-" or "None" may be a value
            nulls |= column.nulls & {"", "NA"}
            continue
        nulls |= column.nulls
        if fits[0].type in NUMERIC:
            remarks += _unclear_separators(name, column, columns, separators)
        if fits[0].pattern:
            formats[name] = fits[0].pattern
            if others := column.others(fits[0]):
                remarks.append(f"{name} is read as {fits[0].pattern}; {' and '.join(others)} would fit as well")
    options = {one.name: getattr(form, one.name) for one in fields(form) if getattr(form, one.name) != one.default}
    spelt = sorted(nulls, key=POSSIBLE_NULLS.index)
    if spelt and spelt != [""]:
        options["null"] = spelt[0] if len(spelt) == 1 else spelt
    decimal, thousands = SEPARATORS[separators]
    options |= ({"decimal": decimal} if decimal != "." else {}) | ({"thousands": thousands} if thousands else {})
    options |= ({"formats": formats} if formats else {}) | ({"trim": True} if trim else {})
    if form.header and (rename := {old: new for old, new in zip(names, clean, strict=True) if old != new}):
        options["rename"] = rename
    if any(column.has_backslash for column in columns):
        remarks.append(r"backslashes stay as they are: if \t and \n stand for tabs and line breaks, export it as CSV")
    return Sniffed(types, options, remarks)


def _unclear_separators(name: str, column: _Column, columns: Sequence[_Column], separators: int) -> Iterator[str]:
    """Yields a remark if a column's numbers have two readings, unless another column's numbers decide between them."""
    if not (text := column.unclear):
        return
    mark = "." if "." in text else ","
    is_decimal = SEPARATORS[separators][0] == mark
    # The indices of the separators by which ``mark`` means what it was taken for.
    alike = {n for n, known in enumerate(SEPARATORS) if mark in known and (known[0] == mark) == is_decimal}
    others = sorted(column.separators - alike)
    # No remark if this is the only reading, or if another column's numbers can be read in no other way.
    if not others or any(one.separators and one.separators <= alike for one in columns):
        return
    decimal, thousands = SEPARATORS[others[0]]
    options = f"decimal={decimal!r}" + (f", thousands={thousands!r}" if thousands else "")
    readings = (text.replace(mark, "."), text.replace(mark, ""))
    read, other = readings if is_decimal else reversed(readings)
    yield f"{text} in {name} is read as {read}; with {options} it would be {other}"


def _is_numeric(column: _Column, separators: int) -> bool:
    return any(one.type in NUMERIC for one in column.best(separators))


def _takes(texts: pa.StringArray, candidate: Candidate) -> bool:
    formats = {"": candidate.pattern} if candidate.pattern else {}
    return takes(texts, "", candidate.type, Spelling(*SEPARATORS[candidate.separators], formats=formats))


class _Head:
    """A file's first HEAD bytes, cut after a line if there are more. UTF-16 becomes UTF-8."""

    def __init__(self, read: bytes) -> None:
        self._is_cut, self.encoding = len(read) == HEAD, _encoding(read)
        if self.encoding == UTF_16:
            read = codecs.getincrementaldecoder(UTF_16)("replace").decode(read).encode()
        # Without a newline, all that was read stays.
        self.text = read[: read.rfind(b"\n") + 1] or read if self._is_cut else read

    def records(self, form: CsvForm) -> Iterator[tuple[list[str], int]]:
        """Yields the first ROWS records, or those before one that was cut. Raises MalformedFile."""
        if form.encoding == UTF_16:
            form = replace(form, encoding="utf-8")
        try:
            yield from islice(records_of(_Pieces(self.text), form), ROWS)
        except UnclosedQuote:
            if not self._is_cut:
                raise


class _Pieces(io.BytesIO):
    """Bytes that are read in small pieces: most forms fail early."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(PIECE)


class _NotUtf8(Exception):
    """A cell is not in UTF-8."""


def _read_columns(path: Path, form: CsvForm, width: int, trim: bool) -> list[_Column]:
    columns = [_Column() for _ in range(width)]
    for texts, nulls in _batches(path, form, width, trim):
        for column, own, missing in zip(columns, texts, nulls, strict=True):
            column.look(own, missing)
    return columns


def _batches(
    path: Path, form: CsvForm, width: int, trim: bool
) -> Iterator[tuple[list[pa.StringArray], list[pa.BooleanArray]]]:
    """Yields the texts of all columns, and which are missing values.

    Reads the file twice at once, as it is and with nulls: only the reader knows which texts were quoted.
    """
    header_rows = int(form.header)
    with unpacked(str(path)) as content, unpacked(str(path)) as again:
        both = zip(batches_of(content, form, width, []), batches_of(again, form, width, POSSIBLE_NULLS), strict=True)
        for texts, nulls in both:
            read = [as_text(column) for column in texts.slice(header_rows).columns]
            if any(wrong for _, wrong in read):
                raise _NotUtf8
            found = [column for column, _ in read]
            if trim:
                found = [pc.utf8_trim(column, " \t") for column in found]
            yield found, [pc.is_null(column) for column in nulls.slice(header_rows).columns]
            header_rows = 0


def _form(head: _Head) -> tuple[CsvForm, list[str]]:
    """Returns a file's marks and column names: of all forms, the one that fits best. Raises MalformedFile."""
    found = []
    # Why the first form that failed can't be read, and why _judge() first refused one.
    broken: MalformedFile | None = None
    refused: MalformedFile | None = None
    for delimiter in DELIMITERS:
        for quote in (*QUOTES, ""):
            form = CsvForm(delimiter, quote, encoding=head.encoding)
            try:
                rows = [*head.records(form)]
            except MalformedFile as error:
                broken = broken or error
                continue
            if quote == "'" and not re.search(rb"(^|[,;\t| ])'[^'\n]*'", head.text):
                continue  # only apostrophes
            if not quote and any(cell.startswith('"') for cells, _ in rows for cell in cells):
                continue  # it has quotes
            try:
                judged = _judge(rows, form) if rows else None
            except MalformedFile as error:
                refused = refused or error
                continue
            if judged:
                found.append(judged)
    # With a wrong delimiter, almost any file is one column.
    if refused and not any(len(names) > 1 for _, _, names in found):
        raise refused
    if not found:
        raise broken or MalformedFile(
            "has rows of unlike lengths; see delimiter= and skip=" if head.text else "is empty"
        )
    return max(found, key=lambda one: one[0])[1:]


def _judge(rows: list[tuple[list[str], int]], form: CsvForm) -> tuple[tuple[float, ...], CsvForm, list[str]] | None:
    """Returns how well a form fits, the form with the lines to skip, and the column names; None if it can't be right.

    rows: the cells and the line of each. The table is taken to begin after the last row that does not have the usual
    number of cells.
    """
    width, _ = Counter(len(cells) for cells, _ in rows).most_common(1)[0]
    begin = next((n for n in reversed(range(len(rows))) if len(rows[n][0]) != width), -1) + 1
    if begin > min(MOST_SKIPPED, len(rows) - 1):
        return None
    skipped, (names, line) = rows[:begin], rows[begin]
    # Are the lines above the table comments?
    uncommented = [cells for cells, _ in rows if not cells[0].startswith(COMMENT)]
    if skipped and uncommented and all(len(cells) == width for cells in uncommented):
        form, skipped, names = replace(form, comment=COMMENT), [], uncommented[0]
    # Is the last line above it a header that ends with a delimiter?
    if skipped and len(skipped[-1][0]) == width + 1 and not skipped[-1][0][-1]:
        raise MalformedFile(
            f"has a header of {width + 1} cells, the last one empty, and rows of {width}", skipped[-1][1]
        )
    if skipped:
        if wide := next((number for cells, number in skipped if len(cells) == width), None):
            raise MalformedFile(f"has rows of unlike lengths above line {line}, and line {wide} may be a row", wide)
        form = replace(form, skip=line - 1)
    # Are these names a header, or the first row? Numbers are no names.
    is_header = not all(NUMBER.fullmatch(name.strip()) for name in names) and len({*names}) == len(names)
    if form.skip and is_header and any(NUMBER.fullmatch(name.strip()) for name in names):
        raise MalformedFile(f"has rows of unlike lengths above line {line}, which holds numbers and may be a row", line)
    if not is_header:
        form, names = replace(form, header=False), [f"c_{n}" for n in range(1, width + 1)]
    if width == 1 and (form.delimiter, form.quote) != (",", '"'):
        return None  # one column needs no marks: only the defaults count
    # A name that still has its quotes shows that the file has another quote than the form.
    unquoted = not any(len(name) > 1 and name[0] == name[-1] and name[0] in QUOTES for name in names)
    # Forms are compared by the first of these that differs.
    score = (width > 1, not skipped, form.delimiter != " ", unquoted, width, form.quote == '"')
    return score, form, names


def _encoding(head: bytes) -> str:
    """Returns the first encoding that can decode a file's head; latin-1 can decode any."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return UTF_16
    for encoding in ENCODINGS:
        try:
            # Incrementally, as the head may end within a character.
            codecs.getincrementaldecoder(encoding)().decode(head)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _needs_trim(head: _Head, form: CsvForm) -> bool:
    """Whether there are blanks around a column's name or a number. Those around other texts may be meant."""
    rows = (cells for cells, _ in head.records(form))
    names = next(rows) if form.header else []
    padded = [cell for cells in rows for cell in cells if cell.strip(" \t") != cell]
    return any(name.strip(" \t") != name for name in names) or any(
        NUMBER.fullmatch(cell.strip(" \t")) for cell in padded
    )


JSON_HEAD = 2**20
"""In characters."""
# The types to try for a field's values, in this order.
OF_INTEGERS, OF_REALS = ("long", "decimal(38,0)"), ("double", "decimal(38,18)")
OF_STRINGS = ("date", "timestamp", "timestamptz", "string")


def columns_of_json(location: str, encoding: str = "utf-8") -> Sniffed:
    """Returns the fields in a file's first megabyte, or its first object if that is longer, in order of appearance.

    Raises ValueError for a file that read_json() can't read, and for a field whose values have no type in common;
    OSError.
    """
    objects, size, remarks = [], 0, list[str]()
    try:
        with unpacked(location) as content:
            for line in objects_of(content, encoding):
                if size >= JSON_HEAD:
                    told = "later objects may have other fields or types"
                    remarks = [f"these are the columns of the first megabyte: {told}"]
                    break
                if isinstance(line.found, str):
                    raise ValueError(f"line {line.number} {line.found}")
                objects.append(line.found)
                size += line.size
    except NotUnpacked as error:
        raise ValueError(str(error)) from None
    if not objects:
        raise ValueError("it has no object")
    return Sniffed(_members(objects, ""), {}, remarks)


def _members(objects: Sequence[dict[str, Any]], path: str) -> dict[str, str]:
    """Returns field → type. path: of the objects, with a dot at its end; empty for the file's own."""
    names = dict.fromkeys(chain.from_iterable(objects))
    return {name: _type_of([one.get(name) for one in objects], f"{path}{name}") for name in names}


def _type_of(values: Sequence[Any], path: str) -> str:
    """Returns the narrowest type that takes all values; nulls fit any. Raises ValueError if no type does."""
    found = [value for value in values if value is not None]
    kinds = {kind_of(value): type(value) for value in found}
    if len(kinds) > 1:
        raise ValueError(f"field {path} is {' and '.join(sorted(kinds))}, which no type takes together{_way_out(path)}")
    kind: type[Any] = next(iter(kinds.values()), str)
    if kind is bool:
        return "boolean"
    if kind is list:
        return f"list<{_type_of([*chain.from_iterable(found)], path)}>"
    if kind is dict:
        return _of_objects(found, path)
    if kind is Number:
        whole = all(number.lstrip("-").isdecimal() for number in found)
        return _smallest(found, OF_INTEGERS if whole else OF_REALS, path)
    return _smallest(found, OF_STRINGS, path) if found else "string"


def _of_objects(objects: Sequence[dict[str, Any]], path: str) -> str:
    """Returns a struct, or a map if the names can't be those of a struct's members."""
    names = dict.fromkeys(chain.from_iterable(objects))
    is_struct = names and all(map(NAME.fullmatch, names)) and len({name.lower() for name in names}) == len(names)
    if not is_struct:
        return f"map<string, {_type_of([*chain.from_iterable(one.values() for one in objects)], path)}>"
    return f"struct<{', '.join(f'{name}: {type_}' for name, type_ in _members(objects, f'{path}.').items())}>"


def _smallest(values: Sequence[Number | str], types: Sequence[str], path: str) -> str:
    """Returns the first of the types that takes all values. Raises ValueError if none does."""
    # Half of a surrogate pair is no UTF-8: it becomes a question mark.
    texts = pa.array([value.encode(errors="replace").decode() for value in values], pa.string())
    for type_ in types:
        if type_ == "string" or takes(texts, path, type_, Spelling()):
            return type_
    raise ValueError(f"field {path} has numbers such as {values[0]}, which no type takes together{_way_out(path)}")


def _way_out(path: str) -> str:
    return f"; ignore=[{path!r}] leaves it out"
