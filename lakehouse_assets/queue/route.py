"""Finds which partitions of which tables a message asks for, by what the tables declare.

How messages are written is in envelope.py; when the partitions are run is decided in decide.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import UnknownPartitions
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.queue.envelope import Arrived, Asked, BadMessage, read
from resources.aws import bucket_and_key

LONGEST_REASON = 1000
"""The most characters of a reason: it may quote much of a message."""
Wanted = tuple[str, str]
"""A table's identifier and a partition key of it; the key is "" for a table without partitions."""


@dataclass(frozen=True)
class RoutedRequest:
    """The partitions that a message asks for, as far as it can be served."""

    wanted: tuple[Wanted, ...]
    """The partitions, each once; none for S3's own test."""
    problem: str = ""
    """Why the message, or a part of it, can't be served; empty if it can."""


@dataclass(frozen=True)
class Routes:
    """The declared tables, as messages are routed to their partitions."""

    tables: Sequence[Table]
    landing: str
    """The value of LAKEHOUSE_LANDING."""
    keys_of: Callable[[Table], Sequence[str]]
    """Returns the partition keys that a table has by now, in order."""

    def read(self, body: str) -> RoutedRequest:
        """Reads which partitions a message asks for.

        Raises nothing: what is wrong with the message, whatever it is, must not keep others from being read.
        """
        try:
            said = read(body)
        except BadMessage as error:
            return RoutedRequest((), str(error)[:LONGEST_REASON])
        found: dict[Wanted, None] = {}
        problems: list[str] = []
        for one in said:
            try:
                found |= dict.fromkeys(self._of_object(one) if isinstance(one, Arrived) else self._of_request(one))
            except BadMessage as error:
                problems.append(str(error))
            except Exception as error:  # a library's, of a key that nobody has thought of
                problems.append(f"the message can't be read: {error!r}")
        return RoutedRequest(tuple(found), "; ".join(problems)[:LONGEST_REASON])

    def _of_object(self, arrived: Arrived) -> list[Wanted]:
        """Returns the partition of each table that can have it. Raises BadMessage if none can."""
        found, problems = [], []
        for table in self.tables:
            if (key := self._key(table, arrived)) is None:
                continue
            try:
                self._check(table, [key] if key else [])
                found.append((table.identifier, key))
            except BadMessage as error:
                problems.append(str(error))
        if not found:
            nobody = f"no table declares arrivals of s3://{arrived.bucket}/{arrived.key}"
            raise BadMessage("; ".join(problems) or nobody)
        return found

    def _key(self, table: Table, arrived: Arrived) -> str | None:
        if table.arrivals is None:
            return None
        bucket, folder = self._place(table.domain)
        inside = arrived.key.removeprefix(folder)
        if (bucket and arrived.bucket != bucket) or (folder and inside == arrived.key):
            return None
        return table.arrivals.partition_key(inside, [part.name for part in table.alignment.parts])

    def _place(self, domain: str) -> tuple[str, str]:
        """Returns the bucket of the domain's part of the drop zone, and the prefix of its keys.

        A folder has no bucket: its keys are those within LAKEHOUSE_LANDING, of any bucket.
        """
        if "://" not in self.landing:
            return "", f"{domain}/"
        bucket, folder = bucket_and_key(self.landing)
        return bucket, "/".join(part for part in (folder, domain) if part) + "/"

    def _of_request(self, asked: Asked) -> list[Wanted]:
        table = self._by_name.get(asked.table)
        if table is None:
            raise BadMessage(f"there is no table {asked.table!r} here")
        if table.write_mode.adds_again:
            raise BadMessage(
                f"table {table.identifier} appends its rows each time that it is asked, and messages may come twice: "
                "declare Append(dedup_on=…)"
            )
        if asked.first is not None and asked.last is not None:
            keys: Sequence[str] = self._range(table, asked.first, asked.last)
        else:
            keys = asked.partitions or ()
            if table.partitions is not None and not keys:
                raise BadMessage(f"table {table.identifier} has partitions: the request must name some, or a range")
            self._check(table, keys)
        return [(table.identifier, key) for key in keys or ("",)]

    @cached_property
    def _by_name(self) -> Mapping[str, Table]:
        return {table.identifier: table for table in self.tables}

    def _range(self, table: Table, first: str, last: str) -> Sequence[str]:
        keys = self.keys_of(table) if table.partitions is not None else ()
        if unknown := [key for key in (first, last) if key not in keys]:
            raise BadMessage(
                f"table {table.identifier} has no partition {keys_text(unknown, listed=2)} to begin or end with"
            )
        found = keys[keys.index(first) : keys.index(last) + 1]
        if not found:
            raise BadMessage(f"table {table.identifier}: the range begins with {first}, after its end {last}")
        return found

    def _check(self, table: Table, keys: Sequence[str]) -> None:
        """Raises BadMessage for partitions that the table can't have; those of days to come wait for their time."""
        try:
            "".join(keys).encode()
            table.alignment.region(keys)
        except UnknownPartitions as error:
            raise BadMessage(str(error)) from error
        except UnicodeEncodeError as error:
            raise BadMessage(f"table {table.identifier} can't have a partition that is no text: {error}") from error
