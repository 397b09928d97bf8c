"""Reads what a message of the queue says: objects that arrived, partitions that somebody asks for, or nothing.

Which tables are meant is in route.py; where messages come from, and how they go, is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus


class BadMessage(ValueError):
    """A message that nobody can act on; its text is the reason, for the dead-letter queue."""


@dataclass(frozen=True)
class Arrived:
    """An object that arrived in a bucket."""

    bucket: str
    key: str
    """The key as S3 has it: nothing in it is encoded."""


@dataclass(frozen=True)
class Asked:
    """An explicit request for partition keys of a table, or for a range of them.

    A request with neither is for all of a table without partitions.
    """

    table: str
    partitions: tuple[str, ...] | None = None
    first: str | None = None
    """The first key of a range."""
    last: str | None = None
    """The last key of the range, which is part of it."""


Said = Arrived | Asked
ENVELOPES = 2
"""The most wrappings that are opened: SNS may wrap what EventBridge wraps; AWS sends nothing deeper."""


def read(body: str) -> list[Said]:
    """Reads what a message says: an empty list for S3's own test of a notification.

    An S3 notification is read bare, wrapped by SNS, or as EventBridge sends it; the envelope decides how its keys are
    encoded: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html,
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html. Raises BadMessage for a message that
    nobody can act on.
    """
    try:
        return list(_said(_object(body)))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise BadMessage(f"the message lacks what its kind must have: {error!r}") from error


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is no JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise BadMessage(f"the message is a JSON {type(found).__name__}, expected an object")
    return found


def _said(message: Mapping[str, Any], depth: int = 0) -> Iterator[Said]:
    if message.get("Type") == "Notification" and isinstance(message.get("Message"), str) and depth < ENVELOPES:
        yield from _said(_object(message["Message"]), depth + 1)
    elif message.get("Event") == "s3:TestEvent":
        return
    elif "Records" in message:
        yield from map(_record, _some(message["Records"]))
    elif "detail-type" in message:
        yield _detail(message)
    elif "table" in message:
        yield _asked(message)
    else:
        raise BadMessage(
            f"the message is of no known kind; it has {', '.join(sorted(map(str, message))[:5]) or 'nothing'}"
        )


def _some(records: list[Any]) -> list[Any]:
    if not records:
        raise BadMessage("the message has no Records: it tells of no object")
    return records


def _record(record: Mapping[str, Any]) -> Arrived:
    _expect(record["eventName"], "ObjectCreated:", "s3:ObjectCreated:")
    # Keys are encoded as forms are: a blank is a plus.
    return Arrived(record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"], errors="strict"))


def _detail(event: Mapping[str, Any]) -> Arrived:
    _expect(event["detail-type"], "Object Created")
    return Arrived(event["detail"]["bucket"]["name"], event["detail"]["object"]["key"])


def _expect(name: str, *prefixes: str) -> None:
    if not name.startswith(prefixes):
        raise BadMessage(f"the message tells of {name}, expected {prefixes[0].removesuffix(':')}")


def _asked(message: Mapping[str, Any]) -> Asked:
    unknown = message.keys() - {"table", "partitions"}
    if unknown:
        raise BadMessage(f"the request has {', '.join(sorted(unknown))}, known are table and partitions")
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
