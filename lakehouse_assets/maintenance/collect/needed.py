"""Finds the files that metadata names or runs hold."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain

import dagster as dg
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, RESUME_RETRY_TAG
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.fork import FORK_NAME
from lakehouse_assets.commit.manifests import read_manifest_lists, read_manifests
from lakehouse_assets.commit.owner import mark_location
from lakehouse_assets.commit.tokens import KEEP, RESUMABLE
from lakehouse_assets.declare.table import LONGEST_WORKER
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.maintenance.collect.listing import Listed
from lakehouse_assets.storage.place import Place, StorageKind, aliases, case_folded, crc_owner

DIGEST_BYTES = 16
"""10^9 places collide with a probability of 10^-21; a collision only keeps one more file."""
# Hadoop catalogs, and readers without a catalog, find the current metadata by this file.
HINT = "version-hint.text"


def without_links(place: Place) -> Place:
    """Resolves links in a local file's path, but not the file itself."""
    # realpath() refuses a null character; no local file has one in its name.
    if place.kind is not StorageKind.FILE or "\0" in place.key:
        return place
    folder, _, name = place.key.rpartition("/")
    return Place(place.kind, place.bucket, f"{_real(folder or '/').rstrip('/')}/{name}")


def folder_without_links(folder: Place) -> Place:
    """Resolves links in the folder's path."""
    return Place(folder.kind, folder.bucket, _real(folder.key)) if folder.kind is StorageKind.FILE else folder


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def all_aliases(location: str) -> frozenset[Place]:
    """Returns all places that a client may read the location as, also without links. Raises UnknownStorage."""
    found = aliases(location)
    return found | frozenset(map(without_links, found))


def digest(place: Place) -> bytes:
    """Returns a short hash, which sets keep instead of the place."""
    return blake2b(place.raw, digest_size=DIGEST_BYTES).digest()


@dataclass
class PlaceSet:
    """A set of places, at about 100 bytes each."""

    _exact: set[bytes] = field(default_factory=set)
    _names: set[bytes] = field(default_factory=set)
    """The case-folded forms of places that are not in this form themselves."""

    def add(self, location: str) -> None:
        """Adds all aliases of a location. Raises UnknownStorage."""
        for place in all_aliases(location):
            self._exact.add(digest(place))
            if (name := case_folded(place)) != place:
                self._names.add(digest(name))

    def __contains__(self, place: Place) -> bool:
        return digest(place) in self._exact

    def has(self, of_place: bytes) -> bool:
        """Whether the set has the place with this digest."""
        return of_place in self._exact

    def has_twin(self, place: Place) -> bool:
        """Whether the set has a place that differs from this one only by case or Unicode normalisation.

        The place itself must not be in the set: it might count as its own twin.
        """
        name = case_folded(place)
        # Then each place in the set is in case-folded form, like this one: none can be a twin.
        if name == place and not self._names:
            return False
        # The twin is in another form, or is the case-folded form itself.
        of_name = digest(name)
        return of_name in self._names or (name != place and of_name in self._exact)


@dataclass
class Reader:
    """Finds the locations that metadata names; reads each manifest and manifest list once."""

    io: FileIO
    found: Callable[[str], None]
    """Called with each location."""
    _known: set[str] = field(default_factory=set)

    def read(self, location: str, metadata: TableMetadata) -> None:
        """Finds the locations that a metadata file names, for all its snapshots. Raises UnknownStorage and OSError.

        Raises UnreadableMetadata if a file is missing, torn or foreign: then no file may be judged.
        """
        try:
            for name in chain(_named_by(location, metadata), self._manifests(metadata)):
                self.found(name)
        except FileNotFoundError as error:
            raise UnreadableMetadata(
                f"a file that the table's metadata names does not exist: {error}. Restore it, or expire the snapshots "
                "that name it; until then it is unknown which files the table needs"
            ) from error

    def beside(self, found: Callable[[str], None]) -> Reader:
        """Returns a reader that skips what this one has read."""
        return Reader(self.io, found, set(self._known))

    def _manifests(self, metadata: TableMetadata) -> Iterator[str]:
        lists = self._new(snapshot.manifest_list for snapshot in metadata.snapshots)
        yield from lists
        listed: dict[str, ManifestFile] = {}
        for manifests in read_manifest_lists(self.io, lists):
            listed |= {manifest.manifest_path: manifest for manifest in manifests}
        new = self._new(listed)
        yield from new
        for _, entries in read_manifests(self.io, [listed[path] for path in new]):
            yield from (entry.data_file.file_path for entry in entries)
        self._known |= {*lists, *new}  # only now: after an error they are read again

    def _new(self, paths: Iterable[str]) -> list[str]:
        return [path for path in dict.fromkeys(paths) if path not in self._known]


def _named_by(location: str, metadata: TableMetadata) -> Iterator[str]:
    yield location
    yield f"{location.rpartition('/')[0]}/{HINT}"
    yield mark_location(metadata.location)
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)


# The end of a fork base's name, as fork_name() makes it: the run's token, and 8 digits of a hash.
FORK_BASE = re.compile(rf"{FORK_NAME}(?P<token>.+)-[0-9a-f]{{8}}\.metadata\.json(\.gz)?$")
PINNED_END = ".metadata.json"
"""The end of the names of copies of pinned inputs' metadata, which lie among a run's receipts."""
METADATA_TEXT = re.compile(r'"(?:[^"\\]|\\.)*\.metadata\.json"')
"""A JSON string that names a metadata file, in receipts of any kind of work."""


class RunState(StrEnum):
    """ALIVE and RESUMABLE hold the run's files."""

    ALIVE = "alive"
    RESUMABLE = "resumable"
    FINISHED = "finished"
    DEAD = "dead"


HELD = (RunState.ALIVE, RunState.RESUMABLE)


@dataclass(frozen=True)
class Chain:
    """A run and its resumptions."""

    created_ms: int
    """By the clock of Dagster's storage."""
    unfinished: bool
    succeeded: bool


@dataclass(frozen=True)
class Periods:
    """The collector's waiting times."""

    grace: timedelta = timedelta(days=3)
    """From the first sight of an unneeded file to its move."""
    unnamed: timedelta = LONGEST_WORKER + RESUMABLE
    """The minimum age of a file that nothing names: a worker may still report it, or another writer
    may still commit it."""
    unknown: timedelta = KEEP
    """The age of the last file of a run unknown to Dagster at which the run counts as dead."""
    resumable: timedelta = RESUMABLE + timedelta(days=1)
    """The age at which a failed run counts as dead. A day longer, as the clocks of Dagster's storage and of the files
    may differ."""


def is_over(period: timedelta, since_ms: int, now_ms: int) -> bool:
    """Whether the period has passed."""
    return now_ms - since_ms >= period / timedelta(milliseconds=1)


def chains(instance: dg.DagsterInstance, tokens: Collection[str]) -> dict[str, Chain]:
    """Returns the known chains by token, the id of a chain's first run. Takes two queries."""
    heads = instance.get_run_records(dg.RunsFilter(run_ids=list(tokens))) if tokens else []
    if not heads:
        return {}
    # created_after excludes this time itself, but a run is resumed after it was created.
    since = min(record.create_timestamp for record in heads)
    resumed = instance.get_run_records(dg.RunsFilter(tags={RESUME_RETRY_TAG: "true"}, created_after=since))
    members = {record.dagster_run.run_id: [record.dagster_run] for record in heads}
    head_of = {token: token for token in members}
    # In the order of creation: a run comes before its resumptions.
    for record in sorted(resumed, key=lambda record: record.storage_id):
        run = record.dagster_run
        # As in run/resume.py: Dagster's Python API records the parent only in the run, not in a tag.
        head = head_of.get(run.parent_run_id or run.tags.get(PARENT_RUN_ID_TAG, ""))
        if head is not None and run.run_id not in members:
            head_of[run.run_id] = head
            members[head].append(run)
    return {
        record.dagster_run.run_id: Chain(
            int(record.create_timestamp.timestamp() * 1000),
            unfinished=any(not run.is_finished for run in members[record.dagster_run.run_id]),
            succeeded=any(run.is_success for run in members[record.dagster_run.run_id]),
        )
        for record in heads
    }


def state_of(chain: Chain | None, newest_ms: int, now_ms: int, periods: Periods) -> RunState:
    """Returns the state of a token's run. newest_ms: when its last file was written, by the storage's clock.

    chain: None if the run is another Dagster instance's, or was deleted.
    """
    if chain is None:
        return RunState.DEAD if is_over(periods.unknown, newest_ms, now_ms) else RunState.ALIVE
    if chain.unfinished:
        return RunState.ALIVE
    if chain.succeeded:
        return RunState.FINISHED
    return RunState.DEAD if is_over(periods.resumable, chain.created_ms, now_ms) else RunState.RESUMABLE


@dataclass
class RunFiles:
    """The files that one table's runs left. ``receipts``: all in a run's folder, by token."""

    receipts: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    bases: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    """Fork bases and checksums, by token."""

    @classmethod
    def of(cls, folder: Place, listed: Iterable[Listed]) -> RunFiles:
        """Sorts files in ``<staging>/<identifier>`` by run."""
        found = cls()
        for file in listed:
            token, slash, _ = file.place.key.removeprefix(folder.key).strip("/").partition("/")
            # A file directly in the folder is no run's.
            if slash:
                found.receipts[token].append(file)
        return found

    def note(self, file: Listed) -> None:
        """Adds a fork base or its checksum."""
        if token := token_of_base(crc_owner(file.place)):
            self.bases[token].append(file)

    @property
    def newest_ms(self) -> dict[str, int]:
        """The time of each run's last file."""
        return {
            token: max(file.modified_ms for file in [*self.receipts.get(token, ()), *self.bases.get(token, ())])
            for token in {**self.receipts, **self.bases}
        }


@dataclass
class StagedFiles:
    """The files that runs name."""

    held: PlaceSet = field(default_factory=PlaceSet)
    """Of alive and resumable runs."""
    free: dict[bytes, str] = field(default_factory=dict)
    """Tokens of finished and dead runs, by a place's digest."""

    def set_free(self, token: str, location: str) -> None:
        """Adds a location of a finished or dead run."""
        for place in all_aliases(location):
            self.free[digest(place)] = token


def token_of_base(place: Place) -> str | None:
    """Returns the token in the name of a fork base; None for other files."""
    found = FORK_BASE.search(place.key.rpartition("/")[2]) if FORK_NAME in place.key else None
    return found["token"] if found else None


def read_staged(io: FileIO, staging_io: FileIO, leavings: RunFiles, states: Mapping[str, RunState]) -> StagedFiles:
    """Reads the files named by receipts' forks and by held fork bases. Raises OSError.

    Skips unreadable metadata, which no run can use: its files go by their age.
    """
    found = StagedFiles()
    for token in {**leavings.receipts, **leavings.bases}:
        held = states[token] in HELD
        reader = Reader(io, found.held.add if held else partial(found.set_free, token))
        forks = {fork for receipt in leavings.receipts.get(token, ()) for fork in _forks(staging_io, receipt)}
        # A rewrite's worker reads the head snapshot that its fork base names; no receipt names it until the end.
        forks |= {crc_owner(base.place).location for base in leavings.bases.get(token, ())} if held else set()
        for fork in sorted(forks):
            try:
                reader.found(fork)
                reader.read(fork, FromInputFile.table_metadata(io.new_input(fork)))
            except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
                continue
    return found


def _forks(io: FileIO, receipt: Listed) -> set[str]:
    if receipt.place.key.endswith(PINNED_END):
        # It is the metadata of an input: that table itself keeps the pinned snapshot and its files.
        return set()
    try:
        with io.new_input(receipt.place.location).open() as stream:
            return {json.loads(text) for text in METADATA_TEXT.findall(stream.read().decode())}
    except (FileNotFoundError, ValueError):
        return set()
