"""Keeps a queue to one code location: another one would set aside the messages that it does not know.

The queue itself says whose it is, by a tag, since locations may share nothing else; messages are not known here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.storage.place import place_of

TAG = "lakehouse-location"
UNTAGGABLE = re.compile(r"[^\w .:/=+@-]")
LONGEST_NAME = 200
"""This and UNTAGGABLE keep the tag within what SQS allows
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_TagQueue.html)."""


class AnothersQueue(RuntimeError):
    """The queue belongs to another code location."""


@dataclass(frozen=True)
class Claim:
    """One code location's claim on a queue."""

    sqs: Any
    """A boto3 client."""
    queue: str
    """Its URL."""
    owner: str
    """The location's owner_name()."""

    def hold(self) -> None:
        """Makes the queue this location's, if it is nobody's.

        If two locations begin at the same moment, the one that wrote last has it from its next tick on. Raises
        AnothersQueue if it is another's, and what boto3 raises.
        """
        tags = self.sqs.list_queue_tags(QueueUrl=self.queue).get("Tags", {})
        if TAG not in tags:
            self.sqs.tag_queue(QueueUrl=self.queue, Tags={TAG: self.owner})
        elif tags[TAG] != self.owner:
            raise AnothersQueue(
                f"the queue {self.queue} is of the code location {tags[TAG]}, as its tag {TAG} says; this one is "
                f"{self.owner}. One queue, one location: give this one a queue of its own, or remove the tag if the "
                "other one is gone"
            )


def owner_name(location: str, staging: str) -> str:
    """Returns what the tag says of a code location: the same in all its processes and deployments.

    location: its name. staging: LAKEHOUSE_STAGING.
    """
    where = hashlib.sha256(place_of(staging).raw).hexdigest()[:12]
    return f"{UNTAGGABLE.sub('_', location)[:LONGEST_NAME]} {where}"
