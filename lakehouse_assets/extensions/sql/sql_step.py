"""The step of a table that is a SQL file."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

from lakehouse_assets.extensions.sql.query import Query, QueryError, parse, place_in
from lakehouse_assets.wire.code import Step


class SqlStep(Step):
    """A file with one query, ``module:path.sql``; the path begins in the module's folder."""

    runner = "lakehouse_assets.extensions.sql.worker"

    def load(self) -> Callable[..., Any]:
        """Reads the query. Raises as text()."""
        from lakehouse_assets.extensions.sql.worker import rows_of

        query, file = self.query, self.file
        return lambda spark, window: rows_of(query, spark, window, file)

    def source(self, imported: dict[str, str] | None = None) -> str:
        """Returns the query without comments and layout."""
        return self.query.canonical

    def packages(self) -> set[str]:
        """Returns the package with the file."""
        return {self._module.partition(".")[0]}

    def description(self) -> str:
        """Returns the comment at the head of the file."""
        lines = []
        for line in self.text.lstrip().splitlines():
            if not line.startswith("--"):
                break
            lines.append(line.lstrip("-").strip())
        return "\n".join(lines).strip()

    def reads(self) -> list[str]:
        """Returns the tables of the lake in the query, each once."""
        from lakehouse_assets.extensions.sql.tables import tables_read

        return [*dict.fromkeys(read.name for read in tables_read(self.query))]

    @property
    def file(self) -> str:
        """The file for messages: its package's folders and its path."""
        return str(PurePosixPath(*self._module.split("."), self._path)) if self._is_package else self._path

    @cached_property
    def query(self) -> Query:
        """The query. Raises QueryError, and as text."""
        try:
            return parse(self.text)
        except QueryError as error:
            place = place_in(self.text, error.offset)
            raise QueryError(f"{self.file}{place and f':{place}'}: {error.problem}") from None

    @cached_property
    def text(self) -> str:
        """The file's text. Raises ImportError, OSError or ValueError if it can't be read."""
        folders = self._folders
        for folder in folders:
            place = os.path.join(folder, *PurePosixPath(self._path).parts)
            importer: Any = pkgutil.get_importer(folder)
            try:
                if hasattr(importer, "get_data"):  # a zip's
                    return str(importer.get_data(place).decode("utf-8-sig"))
                with open(place, encoding="utf-8-sig", newline="") as file:
                    return file.read()
            except FileNotFoundError:
                continue
            except UnicodeDecodeError as error:
                raise ValueError(f"{place} is not in UTF-8: {error}") from None
        raise FileNotFoundError(f"there is no file {self._path} in {' or '.join(folders)}")

    @property
    def _module(self) -> str:
        return self.reference.partition(":")[0]

    @property
    def _path(self) -> str:
        path = self.reference.partition(":")[2]
        if ".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute():
            raise ValueError(f"{path} leads out of {self._module}: only its own files reach the workers")
        return path

    @cached_property
    def _spec(self) -> Any:
        spec = find_spec(self._module)
        if spec is None:
            raise ImportError(f"there is no module {self._module}")
        return spec

    @property
    def _is_package(self) -> bool:
        return self._spec.submodule_search_locations is not None

    @property
    def _folders(self) -> list[str]:
        return [*(self._spec.submodule_search_locations or [os.path.dirname(self._spec.origin)])]
