"""The values of a topic that are JSON objects, read into the columns of a table.

Records, offsets and what they mean are kafka.py's.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_CHANGED = re.compile(r"Column\(/(?P<field>.*)\) changed from (?P<wanted>\w+) to (?P<is>\w+)")
"""Arrow's words (26) for a value that is not of its column's JSON type."""
NO_TYPES = ("time", "uuid", "fixed")
"""What types that can't be read from JSON begin with."""


@dataclass(frozen=True)
class Json:
    """Values that are JSON objects; a field becomes the column of its name, other fields are left out.

    Dates and times are text as ISO 8601 has it, decimals numbers or text.

    Example:
        >>> from lakehouse_assets import Json, KafkaTopic
        >>> KafkaTopic("flight-events", value=Json()).name
        'kafka:flight-events'
    """

    type: Literal["json"] = field(default="json", repr=False)
    """What it is called in YAML, and in what a worker is given."""

    def problems(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yields the columns whose types JSON does not have. columns: their types by name."""
        for name, type_ in columns.items():
            if type_.startswith(NO_TYPES) and not type_.startswith("timestamp"):
                yield f"column {name!r} is of the type {type_}, which can't be read from JSON: declare it string"

    def parse(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Returns a row for each value. Raises ValueError, which names none, if one of them can't be read."""
        import pyarrow as pa
        import pyarrow.json

        if not all(map(_is_object, values)):
            raise ValueError("it is no JSON object")

        def read_as(field: pa.Field) -> pa.DataType:
            return pa.string() if pa.types.is_date(field.type) else field.type  # Arrow's JSON has no dates

        # A value may stand on several lines.
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([(field.name, read_as(field)) for field in schema]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )
        text = b"\n".join(values)
        try:
            read = pyarrow.json.ReadOptions(block_size=len(text) + 1)
            found = pyarrow.json.read_json(io.BytesIO(text), read, options)
            return found.select(schema.names).cast(schema).combine_chunks().to_batches()[0]
        except pa.ArrowException as error:
            raise ValueError(_told(str(error))) from None


def _told(problem: str) -> str:
    """Says which field is of another type than its column, where that is what Arrow complains of."""
    if found := ARROW_CHANGED.search(problem):
        return f"its field {found['field']!r} is of the type {found['is']}, and its column takes {found['wanted']}"
    return problem


def _is_object(value: bytes) -> bool:
    """Tells whether a value is one JSON object. Arrow (26) ends the process over a value that is null."""
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False
