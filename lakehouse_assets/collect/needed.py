"""What may not be collected: what metadata names, and what runs hold.

A file has as many paths as links lead to it: sets of places know it by all of them.
"""

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

from lakehouse_assets.collect.listing import Listed
from lakehouse_assets.commit.fork import FORK_NAME
from lakehouse_assets.commit.manifests import read_manifest_lists, read_manifests
from lakehouse_assets.commit.owner import mark_location
from lakehouse_assets.commit.pins import COPY
from lakehouse_assets.commit.tokens import KEEP, RESUMABLE
from lakehouse_assets.declare.table import LONGEST_WORKER
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.storage.place import Place, StorageKind, aliases, case_folded, crc_owner

DIGEST_BYTES = 16
"""The bytes of a digest. Of 10^9 places, two have one digest with a probability of 10^-21; then one more file would be
kept, and none taken."""
# Tables of Hadoop catalogs, and readers without a catalog, find the current metadata by this file.
HINT = "version-hint.text"


def without_links(place: Place) -> Place:
    """Returns the file's place with no links in the path to its folder; objects of S3 have none."""
    if place.kind is not StorageKind.FILE or "\0" in place.key:
        return place
    folder, _, name = place.key.rpartition("/")
    return Place(place.kind, place.bucket, f"{_real(folder or '/').rstrip('/')}/{name}")


def folder_without_links(folder: Place) -> Place:
    """Returns the folder's place with no links in its path, whether the folder exists or not."""
    return Place(folder.kind, folder.bucket, _real(folder.key)) if folder.kind is StorageKind.FILE else folder


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def all_aliases(location: str) -> frozenset[Place]:
    """Returns all places that some client takes the location for, and the same without links. Raises UnknownStorage."""
    found = aliases(location)
    return found | frozenset(map(without_links, found))


def digest(place: Place) -> bytes:
    """Returns a hash that stands for a place, the same in every process."""
    return blake2b(place.raw, digest_size=DIGEST_BYTES).digest()


@dataclass
class PlaceSet:
    """A set of places that takes about 100 bytes for each."""

    _exact: set[bytes] = field(default_factory=set)
    _names: set[bytes] = field(default_factory=set)

    def add(self, location: str) -> None:
        """Adds all places that some client takes the location for. Raises UnknownStorage."""
        for place in all_aliases(location):
            self._exact.add(digest(place))
            if (name := case_folded(place)) != place:
                self._names.add(digest(name))

    def __contains__(self, place: Place) -> bool:
        return digest(place) in self._exact

    def has(self, of_place: bytes) -> bool:
        """Tells whether the place with this digest is in the set: a pass asks many sets for each place."""
        return of_place in self._exact

    def has_twin(self, place: Place) -> bool:
        """Tells whether another place in the set differs only by case or by Unicode normalisation."""
        name = case_folded(place)
        if name == place and not self._names:
            return False
        of_name = digest(name)
        return of_name in self._names or (name != place and of_name in self._exact)


@dataclass
class Reader:
    """Finds what metadata names. Manifests and their lists never change, so each is read once."""

    io: FileIO
    found: Callable[[str], None]
    """Called with every location, with some more than once."""
    _known: set[str] = field(default_factory=set)

    def read(self, location: str, metadata: TableMetadata) -> None:
        """Finds what the metadata file at ``location`` names.

        Its snapshots are those of every ref and of history, as far as they are kept; the metadata log and statistics
        are a part of it. Raises UnreadableMetadata where a file is missing, torn or foreign: what it named is not known
        then, so nothing of the table may be judged. Raises OSError where the storage can't be read, and UnknownStorage.
        """
        try:
            for name in chain(_named_by(location, metadata), self._manifests(metadata)):
                self.found(name)
        except FileNotFoundError as error:
            raise UnreadableMetadata(
                f"a file that the table's metadata names is not there: {error}. Restore it, or expire the snapshots "
                "that name it; until then nobody knows which files the table needs"
            ) from error

    def beside(self, found: Callable[[str], None]) -> Reader:
        """Returns a reader that reads nothing again that this one has read."""
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
    """Finds what the metadata file itself names, without reading manifests."""
    yield location
    yield f"{location.rpartition('/')[0]}/{HINT}"
    yield mark_location(metadata.location)
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)


FORK_BASE = re.compile(rf"{FORK_NAME}(?P<token>.+)-[0-9a-f]{{8}}\.metadata\.json(\.gz)?$")
"""The name of a fork base has its run's token."""
PIN = re.compile("/" + COPY.replace(".", r"\.").format(table=r"(?P<table>[^/]+)", snapshot=r"(?P<snapshot>\d+)") + "$")
"""The name of a pinned input's copy has its table and the snapshot."""
METADATA_TEXT = re.compile(r'"(?:[^"\\]|\\.)*\.metadata\.json"')
"""A text in JSON that ends as the names of metadata files do."""


class RunState(StrEnum):
    """The state of a run token. The first two hold the run's files, the others don't."""

    ALIVE = "alive"
    RESUMABLE = "resumable"
    FINISHED = "finished"
    DEAD = "dead"


HELD = (RunState.ALIVE, RunState.RESUMABLE)


@dataclass(frozen=True)
class Chain:
    """The run at the head of a chain and all runs that resumed it, as Dagster knows them."""

    created_ms: int
    """The time when the head was created, by the clock of Dagster's storage."""
    unfinished: bool
    """Whether any run of the chain is not finished."""
    succeeded: bool
    """Whether any run of the chain has succeeded."""


@dataclass(frozen=True)
class Periods:
    """The periods for which the collector waits."""

    grace: timedelta = timedelta(days=3)
    """The time between the first sight of a file that nobody needs and its move to the trash."""
    unnamed: timedelta = LONGEST_WORKER + RESUMABLE
    """The age below which a file that no run names is kept: a worker may still report it, or a writer that is no part
    of this code location may still commit it. It is the longest worker's time and the time in which its run may be
    resumed."""
    unknown: timedelta = KEEP
    """The age beyond which a run that Dagster does not know is dead."""
    resumable: timedelta = RESUMABLE + timedelta(days=1)
    """The time in which a run may be resumed, and a day more: the clock of Dagster's storage may differ from the
    storage's."""


def is_over(period: timedelta, since_ms: int, now_ms: int) -> bool:
    """Tells whether a time is at least a period ago."""
    return now_ms - since_ms >= period / timedelta(milliseconds=1)


def chains(instance: dg.DagsterInstance, tokens: Collection[str]) -> dict[str, Chain]:
    """Returns, for each token whose run Dagster knows, the state of the run and of those that resumed it.

    This takes two queries, however many tokens there are: the runs, then the resumed runs since the oldest of them.
    """
    heads = instance.get_run_records(dg.RunsFilter(run_ids=list(tokens))) if tokens else []
    if not heads:
        return {}
    # Dagster's filter takes what was created later than a time.
    since = min(record.create_timestamp for record in heads)
    resumed = instance.get_run_records(dg.RunsFilter(tags={RESUME_RETRY_TAG: "true"}, created_after=since))
    members = {record.dagster_run.run_id: [record.dagster_run] for record in heads}
    head_of = {token: token for token in members}
    for record in sorted(resumed, key=lambda record: record.storage_id):  # parents come before those that resume them
        run = record.dagster_run
        head = head_of.get(run.parent_run_id or run.tags.get(PARENT_RUN_ID_TAG, ""))  # Python's API sets no tags
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
    """Returns the state of a token.

    chain: None where Dagster does not know the run: it is another instance's, or was deleted. newest_ms: when the last
    of the run's files was written, by the storage's clock, as now_ms.
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
    """The files that the runs of one table left in storage, as they were listed."""

    receipts: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    """The files in the run's folder, by token."""
    bases: dict[str, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    """The fork bases in the table's folder, and their checksums, by token."""

    @classmethod
    def of(cls, folder: Place, listed: Iterable[Listed]) -> RunFiles:
        """Sorts the files in the folder of a table's receipts by their run.

        folder: ``<staging>/<identifier>``; in it is a folder for each token.
        """
        found = cls()
        for file in listed:
            token, slash, _ = file.place.key.removeprefix(folder.key).strip("/").partition("/")
            if slash:
                found.receipts[token].append(file)
        return found

    def note(self, file: Listed) -> None:
        """Keeps the file if it is a fork base, or the checksum of one."""
        if token := token_of_base(crc_owner(file.place)):
            self.bases[token].append(file)

    @property
    def newest_ms(self) -> dict[str, int]:
        """The time when the last file was written that belongs to a run by its path, by token."""
        return {
            token: max(file.modified_ms for file in [*self.receipts.get(token, ()), *self.bases.get(token, ())])
            for token in {**self.receipts, **self.bases}
        }


def pinned_snapshots(
    table: str,
    leavings: Iterable[RunFiles],
    chains_of: Callable[[Collection[str]], Mapping[str, Chain]],
    now_ms: int,
) -> set[int]:
    """Returns the snapshots of a table that runs which are alive, or may be resumed, have pinned to read them.

    leavings: of the tables whose steps read this one. chains_of: what Dagster knows of runs. now_ms: by the storage's
    clock.
    """
    pins: dict[str, set[int]] = defaultdict(set)
    newest: dict[str, int] = {}
    for of_reader in leavings:
        for token, ms in of_reader.newest_ms.items():
            newest[token] = max(ms, newest.get(token, 0))
        for token, files in of_reader.receipts.items():
            found = (PIN.search(file.place.key) for file in files)
            pins[token] |= {int(pin["snapshot"]) for pin in found if pin and pin["table"] == table}
    known = chains_of(pins.keys())
    held = (one for one in pins if state_of(known.get(one), newest[one], now_ms, Periods()) in HELD)
    return set[int]().union(*(pins[token] for token in held))


@dataclass
class StagedFiles:
    """The files that runs name."""

    held: PlaceSet = field(default_factory=PlaceSet)
    """The files of runs that may still need them."""
    free: dict[bytes, str] = field(default_factory=dict)
    """The token of a file whose run is finished or dead, by the digest of the file's place."""

    def set_free(self, token: str, location: str) -> None:
        """Remembers that a finished or dead run names the location."""
        for place in all_aliases(location):
            self.free[digest(place)] = token


def token_of_base(place: Place) -> str | None:
    """Returns the token in the name of a fork base; None for any other file."""
    found = FORK_BASE.search(place.key.rpartition("/")[2]) if FORK_NAME in place.key else None
    return found["token"] if found else None


def read_staged(io: FileIO, staging_io: FileIO, leavings: RunFiles, states: Mapping[str, RunState]) -> StagedFiles:
    """Reads which files the runs name.

    These are the forks in their receipts, the fork bases of runs that may still need them, and all manifests and files
    of these.

    What can't be read is left out, as no run can use it either: its files go by their age. io: of the table. Raises
    OSError where the storage can't be read.
    """
    found = StagedFiles()
    for token in {**leavings.receipts, **leavings.bases}:
        held = states[token] in HELD
        reader = Reader(io, found.held.add if held else partial(found.set_free, token))
        forks = {fork for receipt in leavings.receipts.get(token, ()) for fork in _forks(staging_io, receipt)}
        # A fork base of a rewrite names the head snapshot, which its worker reads; no receipt says so until it is done.
        forks |= {crc_owner(base.place).location for base in leavings.bases.get(token, ())} if held else set()
        for fork in sorted(forks):
            try:
                reader.found(fork)
                reader.read(fork, FromInputFile.table_metadata(io.new_input(fork)))
            except (FileNotFoundError, ValueError, ValidationError, UnreadableMetadata):
                continue
    return found


def _forks(io: FileIO, receipt: Listed) -> set[str]:
    """Returns the metadata files that a receipt names, of whatever kind of work it is."""
    if PIN.search(receipt.place.key):
        return set()  # of what it names, the table keeps the pinned snapshot; the rest is nobody's business
    try:
        with io.new_input(receipt.place.location).open() as stream:
            return {json.loads(text) for text in METADATA_TEXT.findall(stream.read().decode())}
    except (FileNotFoundError, ValueError):
        return set()
