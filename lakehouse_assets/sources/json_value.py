"""The values of a topic that are JSON objects, read into the columns of a table.

Records, offsets and what they mean are kafka.py's.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_assets.sources.field_names import match_names

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_CHANGED = re.compile(r"Column\(/(?P<field>.*)\) changed from (?P<wanted>\w+) to (?P<is>\w+)")
"""Arrow's words (26) for a value that is not of its column's JSON type."""
NO_TYPE = re.compile(r"\b(time|uuid|fixed|map)\b(?!:)")
"""A type, nested or not, that can't be read from JSON; before a colon it is the name of a field."""


@dataclass(frozen=True)
class Json:
    """Values that are JSON objects; a field becomes the column of its name, other fields are left out.

    Dates and times are text as ISO 8601 has it, decimals numbers or text. A field whose name differs from a column's in
    case only fails the run, as the column would be null in silence.

    Example:
        >>> from lakehouse_assets import Json, KafkaTopic
        >>> KafkaTopic("flight-events", value=Json()).name
        'kafka:flight-events'
    """

    type: Literal["json"] = field(default="json", repr=False)
    """What it is called in YAML, and in what a worker is given."""
    ignore_case: bool = False
    """Whether a field also becomes the column whose name differs from its own in case only."""

    def problems(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yields the columns whose types JSON does not have. columns: their types by name."""
        for name, type_ in columns.items():
            if found := NO_TYPE.search(type_):
                instead = "a struct of the fields that it has" if found[1] == "map" else "string"
                part = "which" if type_.startswith(found[1]) else f"whose {found[1]}"
                yield f"column {name!r} is of the type {type_}, {part} can't be read from JSON: declare it {instead}"

    def parse(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Returns a row for each value. Raises ValueError, which names none, if one of them can't be read."""
        import pyarrow as pa
        import pyarrow.json

        objects = [_object(value, exact=self.ignore_case) for value in values]
        match_names(objects, pa.struct([*schema]), ignore_case=self.ignore_case)
        # A value may stand on several lines.
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([(field.name, _read_as(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )
        text = "\n".join(map(_text, objects)).encode() if self.ignore_case else b"\n".join(values)
        try:
            read = pyarrow.json.ReadOptions(block_size=len(text) + 1)
            found = pyarrow.json.read_json(io.BytesIO(text), read, options)
            return found.select(schema.names).cast(schema).combine_chunks().to_batches()[0]
        except pa.ArrowException as error:
            raise ValueError(_told(str(error))) from None


class Number(str):
    """A number as it is written in JSON, so that none of its digits is lost."""

    __slots__ = ()


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Returns the type to have Arrow read from JSON for a column's, as it reads no dates and no large lists there."""
    import pyarrow as pa

    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_read_as(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _read_as(field.type)) for field in kind])
    return kind


def _told(problem: str) -> str:
    """Says which field is of another type than its column, where that is what Arrow complains of."""
    if found := ARROW_CHANGED.search(problem):
        return f"its field {found['field']!r} is of the type {found['is']}, and its column takes {found['wanted']}"
    return problem


def _object(value: bytes, *, exact: bool) -> dict[str, Any]:
    """Returns the object that a value is; Arrow (26) ends the process over one that is null. Raises ValueError.

    exact: whether its numbers are Numbers.
    """
    numbers: dict[str, Any] = {"parse_float": Number, "parse_int": Number, "parse_constant": Number} if exact else {}
    try:
        found = json.loads(value, **numbers)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _text(value: Any) -> str:
    """Returns the text of a value whose numbers are Numbers."""
    match value:
        case Number():
            return value
        case dict():
            return f"{{{','.join(f'{json.dumps(name)}:{_text(one)}' for name, one in value.items())}}}"
        case list():
            return f"[{','.join(map(_text, value))}]"
    return json.dumps(value)
