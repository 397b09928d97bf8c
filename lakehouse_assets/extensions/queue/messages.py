"""Reads which partitions messages ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.aws import bucket_and_key
from lakehouse_assets.errors import UnknownPartitions
from lakehouse_assets.keys_text import keys_text

LONGEST_REASON = 1000
"""In characters: it may quote much of a message."""
Wanted = tuple[str, str]
"""A table's identifier, and a partition key or "" without partitions."""


class BadMessage(ValueError):
    """Nobody can act on the message; the text becomes the dead letter's reason."""


@dataclass(frozen=True)
class Arrived:
    """An object that arrived in a bucket."""

    bucket: str
    key: str
    """As S3 has it: not encoded."""


@dataclass(frozen=True)
class Asked:
    """A request for keys or a range; with neither, for a whole table."""

    table: str
    partitions: tuple[str, ...] | None = None
    first: str | None = None
    last: str | None = None
    """Inclusive."""


ENVELOPES = 2
"""The most SNS envelopes that are opened, one within another: AWS sends nothing deeper. The EventBridge event or S3
notification inside does not count."""


def said_by(body: str) -> list[Arrived | Asked]:
    """Returns what a message says; nothing for S3's test of a notification. Raises BadMessage.

    An S3 notification's envelope (none, SNS, EventBridge) decides how keys are encoded:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html,
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html.
    """
    try:
        return list(_said(_object(body)))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise BadMessage(f"the message lacks a required field: {error!r}") from error


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise BadMessage(f"the message is a JSON {type(found).__name__}, expected an object")
    return found


def _said(message: Mapping[str, Any], depth: int = 0) -> Iterator[Arrived | Asked]:
    """Yields what a message says. depth: the envelopes already opened."""
    if message.get("Type") == "Notification" and isinstance(message.get("Message"), str) and depth < ENVELOPES:
        yield from _said(_object(message["Message"]), depth + 1)
    elif message.get("Event") == "s3:TestEvent":
        return
    elif "Records" in message:
        if not message["Records"]:
            raise BadMessage("the message has no Records, so it names no object")
        for record in message["Records"]:
            _expect(record["eventName"], "ObjectCreated:", "s3:ObjectCreated:")
            # The key is form-encoded: a space is a plus.
            encoded = record["s3"]["object"]["key"]
            yield Arrived(record["s3"]["bucket"]["name"], unquote_plus(encoded, errors="strict"))
    elif "detail-type" in message:
        _expect(message["detail-type"], "Object Created")
        yield Arrived(message["detail"]["bucket"]["name"], message["detail"]["object"]["key"])
    elif "table" in message:
        yield _asked(message)
    else:
        raise BadMessage(
            f"the message is not of a known kind; it has {', '.join(sorted(map(str, message))[:5]) or 'nothing'}"
        )


def _expect(name: str, *prefixes: str) -> None:
    if not name.startswith(prefixes):
        raise BadMessage(f"the message reports {name}, expected {prefixes[0].removesuffix(':')}")


def _asked(message: Mapping[str, Any]) -> Asked:
    unknown = message.keys() - {"table", "partitions"}
    if unknown:
        raise BadMessage(f"the request has {', '.join(sorted(unknown))}, expected only table and partitions")
    table, partitions = message["table"], message.get("partitions")
    match partitions:
        case None:
            return Asked(_text(table))
        case {"first": first, "last": last, **rest} if not rest:
            return Asked(_text(table), None, _text(first), _text(last))
        case [_, *_]:
            return Asked(_text(table), tuple(map(_text, partitions)))
        case []:
            raise BadMessage("the request's list of partitions is empty")
    raise BadMessage('the request\'s partitions must be a list of keys, or {"first": …, "last": …}')


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadMessage(f"the request has {value!r}, expected a string")
    return value


@dataclass(frozen=True)
class RoutedRequest:
    """The partitions that a message asks for."""

    wanted: tuple[Wanted, ...]
    problem: str = ""
    """Why all or a part can't be served."""


@dataclass(frozen=True)
class Routes:
    """Routes messages to declared tables."""

    tables: Sequence[Table]
    landing: str
    """LAKEHOUSE_LANDING."""
    keys_of: Callable[[Table], Sequence[str]]
    """Returns the existing keys, in order."""

    def read(self, body: str) -> RoutedRequest:
        """Returns the partitions that a message asks for. Raises nothing: bad messages must not stop others."""
        try:
            said = said_by(body)
        except BadMessage as error:
            return RoutedRequest((), str(error)[:LONGEST_REASON])
        found: dict[Wanted, None] = {}
        problems: list[str] = []
        for one in said:
            try:
                found |= dict.fromkeys(self._of_object(one) if isinstance(one, Arrived) else self._of_request(one))
            except BadMessage as error:
                problems.append(str(error))
            except Exception as error:  # from a library, for an unforeseen key
                problems.append(f"the message can't be read: {error!r}")
        return RoutedRequest(tuple(found), "; ".join(problems)[:LONGEST_REASON])

    def _of_object(self, arrived: Arrived) -> list[Wanted]:
        """Returns the partitions of all tables that declare arrivals of the object.

        Raises BadMessage if no table can have such a partition.
        """
        # Unlike a request, this needs no check of adds_again: a table with arrivals can't be declared with such a mode.
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
        """Returns the partition that an object belongs to; None if the table does not declare such objects."""
        if table.arrivals is None:
            return None
        bucket, folder = self._place(table.domain)
        if (bucket and arrived.bucket != bucket) or not arrived.key.startswith(folder):
            return None
        inside = arrived.key.removeprefix(folder)
        return table.arrivals.partition_key(inside, {part.name: part.form for part in table.alignment.parts})

    def _place(self, domain: str) -> tuple[str, str]:
        """Returns the bucket and the key prefix of a domain's part of the landing.

        A landing that is a local folder names no bucket: then objects of any bucket match by their key alone.
        """
        if "://" not in self.landing:
            return "", f"{domain}/"
        bucket, folder = bucket_and_key(self.landing)
        return bucket, "/".join(part for part in (folder, domain) if part) + "/"

    def _of_request(self, asked: Asked) -> list[Wanted]:
        table = self._by_name.get(asked.table)
        if table is None:
            raise BadMessage(f"this code location has no table {asked.table!r}")
        if table.write_mode.adds_again:
            raise BadMessage(
                f"table {table.identifier} would append its rows for each message, and messages may come twice: "
                "declare Append(dedup_on=…)"
            )
        if asked.first is not None and asked.last is not None:
            keys: Sequence[str] = self._range(table, asked.first, asked.last)
        else:
            keys = asked.partitions or ()
            if table.partitions is not None and not keys:
                raise BadMessage(
                    f"table {table.identifier} has partitions: the request must name some of them or a range"
                )
            self._check(table, keys)
        return [(table.identifier, key) for key in keys or ("",)]

    @cached_property
    def _by_name(self) -> Mapping[str, Table]:
        return {table.identifier: table for table in self.tables}

    def _range(self, table: Table, first: str, last: str) -> Sequence[str]:
        keys = self.keys_of(table) if table.partitions is not None else ()
        if unknown := [key for key in (first, last) if key not in keys]:
            raise BadMessage(
                f"table {table.identifier} has no partition {keys_text(unknown, listed=2)} to begin or end the range"
            )
        found = keys[keys.index(first) : keys.index(last) + 1]
        if not found:
            raise BadMessage(f"table {table.identifier}: the range begins with {first}, after its end {last}")
        return found

    def _check(self, table: Table, keys: Sequence[str]) -> None:
        """Raises BadMessage for keys that the table can never have.

        Keys that do not exist yet, such as tomorrow's, pass: their items wait in the inbox.
        """
        try:
            # JSON may escape half of a surrogate pair, which can't be stored.
            "".join(keys).encode()
            table.alignment.region(keys)
        except UnknownPartitions as error:
            raise BadMessage(str(error)) from error
        except UnicodeEncodeError as error:
            raise BadMessage(
                f"table {table.identifier} can't have a partition that is not valid text: {error}"
            ) from error
