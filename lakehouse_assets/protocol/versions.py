"""The codec of durable JSON, and the version that it carries: code refuses what it would misread.

What else the JSON holds is known where it is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pyiceberg.io import FileIO

VERSION = 1


class Durable:
    """The base of frozen dataclasses that are written as JSON with a version, and are read by their fields' types."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def to_fields(self) -> dict[str, Any]:
        """Returns a JSON object with the version; datetimes in ISO 8601."""
        return {"version": VERSION, **self._codec().dump_python(self, mode="json")}

    def to_json(self) -> str:
        """Returns the same as text, as from_json() reads it."""
        return json.dumps(self.to_fields())

    def write(self, io: FileIO, location: str) -> None:
        """Writes the same in one piece, over what is there. read_json() reads it (receipts.py)."""
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(self.to_json().encode())

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Reads a JSON object, or its text.

        Raises ValueError for another version, for other fields, and for a text that is torn.
        """
        fields = json.loads(data) if isinstance(data, str) else data
        if not isinstance(fields, Mapping):
            raise ValueError("this is no JSON object")
        if (version := fields.get("version")) != VERSION:
            raise ValueError(
                f"this is of version {version!r}, this code reads version {VERSION}: deploy the code location and the "
                "workers from one build"
            )
        found: Self = cls._codec().validate_python({name: of for name, of in fields.items() if name != "version"})
        return found

    @classmethod
    @cache
    def _codec(cls) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter  # here: most processes that know the kind never read or write one

        return TypeAdapter(cls)
