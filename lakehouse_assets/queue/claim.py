"""Whose a queue is: one code location takes its messages, as nobody else could tell which of them are its own.
The queue itself says so, by a tag, since locations may share nothing else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from lakehouse_assets.storage.place import place_of

TAG = "lakehouse-location"
UNTAGGABLE = re.compile(r"[^\w .:/=+@-]")
LONGEST_NAME = 200
"""What a tag can't have (https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_TagQueue.html)."""


class AnothersQueue(RuntimeError):
    """The queue is another code location's."""


@dataclass(frozen=True)
class Claim:
    """sqs: a boto3 client. queue: its URL. owner: of owner_name()."""

    sqs: Any
    queue: str
    owner: str

    def hold(self) -> None:
        """Make the queue this location's, if it is nobody's.

        Of two that begin at the same moment, the one that wrote last has it from its next tick on. Raises AnothersQueue
        if it is another's, and what boto3 raises.
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
    """The code location of that name, with that LAKEHOUSE_STAGING: the same in all its processes and deployments."""
    where = hashlib.sha256(place_of(staging).raw).hexdigest()[:12]
    return f"{UNTAGGABLE.sub('_', location)[:LONGEST_NAME]} {where}"
