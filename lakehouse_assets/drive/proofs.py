"""What the loop has to know of the proof that a chunk's work is done: how to recognise one, and where to look for it.
Each kind of work has a proof of its own shape; the loop only hands it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from resources.launchers.base import Attempt

Proof = TypeVar("Proof")
ProofFound = TypeVar("ProofFound", covariant=True)


class Proofs(Protocol[ProofFound]):
    """Recognises the proofs of one kind of work."""

    def parse(self, reported: object, attempt: Attempt) -> ProofFound | None:
        """The proof that a worker reported for the attempt, as ``{"proof": reported}``.

        None for anything else: what the worker's own code reports may be of any shape.
        """
        ...

    def find(self, ordinals: Iterable[int]) -> Mapping[int, ProofFound]:
        """The durable proofs of these chunks that are there and fit the work asked for, by ordinal.

        Raises OSError while the storage can't be read: a proof that can't be read is not one that is missing.
        """
        ...
