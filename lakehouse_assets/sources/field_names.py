"""The names of the fields of a topic's values, compared with those of the columns that they become.

How a value is decoded is json_value.py's and avro_value.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class OtherCase(ValueError):
    """A field has the name of a column but for its case, so that the column would be null in silence."""


def match_names(objects: Sequence[dict[str, Any]], fields: pa.StructType, *, ignore_case: bool, path: str = "") -> None:
    """Gives fields the names of their columns where they differ in case, in place and nested ones too.

    A field of the column's very name counts, whatever others there are. fields: the columns. path: to the objects, for
    messages. Raises OtherCase for the first that differs unless ``ignore_case``, ValueError where two are one column.
    """
    own = {field.name.lower(): field.name for field in fields}
    names: set[str] = set().union(*objects)
    for name in sorted(names.difference(own.values())):
        if (column := own.get(name.lower())) is None:
            continue
        for one in objects:
            if name not in one or column in one:
                continue
            if not ignore_case:
                raise OtherCase(
                    f"the field {path + name!r} differs from the column {path + column!r} in case only, which would be "
                    "null: declare ignore_case=True of its value, or name them alike"
                )
            if twin := next((other for other in one if other != name and other.lower() == name.lower()), None):
                raise ValueError(f"its fields {path + name!r} and {path + twin!r} are both the column {column!r}")
            one[column] = one.pop(name)
    for field in fields:
        within = [one[field.name] for one in objects if field.name in one]
        _match_within(within, field.type, ignore_case=ignore_case, path=f"{path}{field.name}.")


def _match_within(values: Sequence[Any], kind: pa.DataType, *, ignore_case: bool, path: str) -> None:
    """Does the same for the objects that values of a nested type hold."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        match_names([one for one in values if isinstance(one, dict)], kind, ignore_case=ignore_case, path=path)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = [item for one in values if isinstance(one, list) for item in one]
        _match_within(items, kind.value_type, ignore_case=ignore_case, path=path)
    elif pa.types.is_map(kind):
        items = [item for one in values if isinstance(one, dict) for item in one.values()]
        _match_within(items, kind.item_type, ignore_case=ignore_case, path=path)
