"""Generated lakes: small tables, neighbours, runs and litter of every kind, each from a seed; and what is true of them.
The truth comes from PyIceberg's own readers. Nothing of the collector is used to make or to judge a lake."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from lakehouse_assets.commit.staged import read_all
from lakehouse_assets.maintenance.collect.needed import Chain
from tests.support.collected import DAY_MS, aged, put
from tests.support.forks import Daily, daily_rows

DAYS = [f"2024-01-0{n}" for n in range(1, 6)]
OLD, RECENT = 60.0, 1.0
NAMES = [
    "part-0.parquet",
    "with space.parquet",
    "hash#1.parquet",
    "a%2Fb.parquet",
    "question?x=1.parquet",
    "line\nend.parquet",
    "cafe\u0301.parquet",
    "caf\u00e9.parquet",
    "plus+and&amp.parquet",
    "00000-1-0a.metadata.json",
    "snap-1-1-0a.avro",
    "0a-m0.avro",
    "stats.puffin",
]


@dataclass
class GeneratedLake:
    """One lake. orphans: files that the collector must find. spared: files that nobody names and that must stay.
    skipped: tables that must not be judged. runs: what Dagster knows. late: commits that come while the lake is
    collected, each of a file that nobody named before. notes: what was generated, to read."""

    catalog: Catalog
    folder: Path
    seed: int
    random: random.Random
    tables: list[Daily] = field(default_factory=list)
    orphans: set[Path] = field(default_factory=set)
    spared: set[Path] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    runs: dict[str, Chain] = field(default_factory=dict)
    late: list[Callable[[], None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    now_ms: int = 0

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def all_orphans(self) -> set[Path]:
        """Without those of tables that are skipped for their neighbours."""
        skipped = [table for table in self.tables if table.identifier in self.skipped]
        kept = [root for table in skipped for root in (*roots_of(table.table), self.staging / table.identifier)]
        return {path for path in self.orphans if not any(path.is_relative_to(folder) for folder in kept)}


def path_of(location: str) -> Path:
    """A local path, for any way to write it."""
    return Path("/" + re.sub(r"^file:", "", location).lstrip("/"))


def roots_of(table: Table) -> list[Path]:
    """The folders that a table's files are written to."""
    return [path_of(text) for text in (table.location(), table.properties.get("write.data.path", "")) if text]


def live_files(table: Table) -> set[Path]:
    """What PyIceberg finds that a local table needs, for every snapshot."""
    return {path_of(location) for location in live_locations(table)}


def live_locations(table: Table) -> set[str]:
    """What PyIceberg finds that the table needs, for every snapshot."""
    metadata, found = table.metadata, {table.metadata_location}
    found |= {entry.metadata_file for entry in metadata.metadata_log}
    found |= {file.statistics_path for file in [*metadata.statistics, *metadata.partition_statistics]}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return found


def generate(catalog: Catalog, folder: Path, seed: int, now_ms: int) -> GeneratedLake:
    """A lake in an empty folder, whose catalog has the namespace nyc."""
    lake = GeneratedLake(catalog, folder, seed, random.Random(seed), now_ms=now_ms)
    for _ in range(lake.random.randint(1, 2)):
        _table(lake)
    for change in (_neighbour, _recreated, _renamed):
        if lake.chance(0.25):
            change(lake)
    for table in lake.tables:
        for litter in (_litter, _checksums, _dead_worker, _receipts, _left_forks, _late):
            if lake.chance(0.6):
                litter(lake, table)
    return lake


def _table(lake: GeneratedLake, **options: str) -> Daily:
    name = f"nyc.t{len(lake.tables)}_{uuid4().hex[:6]}"
    lake.catalog.create_table(name, **_declaration(lake, **options))
    table = Daily(lake.catalog, name)
    lake.tables.append(table)
    table.append(daily_rows(*DAYS, each=20))
    for change in (_replaced, _tagged, _branched, _statistics, _odd_names, _aliases, _expired):
        if lake.chance(0.4):
            lake.notes.append(f"{name}: {change.__name__}")
            change(lake, table)
    for path in live_files(table.table):
        aged(path, OLD)
    return table


def _declaration(lake: GeneratedLake, **options: str) -> dict[str, object]:
    from tests.support.forks import SCHEMA, SPEC

    properties: dict[str, str] = {}
    if lake.chance(0.15):
        properties["write.data.path"] = (lake.folder / "elsewhere" / uuid4().hex[:6]).as_uri()
    if lake.chance(0.3):
        properties["write.metadata.previous-versions-max"] = "1"
    return {"schema": SCHEMA, "partition_spec": SPEC, "properties": properties, **options}


def _replaced(lake: GeneratedLake, table: Daily) -> None:
    table.table.overwrite(daily_rows(DAYS[0], each=5), overwrite_filter=f"day = '{DAYS[0]}'")


def _tagged(lake: GeneratedLake, table: Daily) -> None:
    now = table.table
    now.manage_snapshots().create_tag(now.current_snapshot().snapshot_id, "kept").commit()
    _replaced(lake, table)


def _branched(lake: GeneratedLake, table: Daily) -> None:
    now = table.table
    now.manage_snapshots().create_branch(now.current_snapshot().snapshot_id, "side").commit()
    table.table.append(daily_rows(DAYS[1]), branch="side")


def _statistics(lake: GeneratedLake, table: Daily) -> None:
    now = table.table
    path = path_of(now.location()) / "metadata" / f"{uuid4()}.stats"
    put(path)
    file = StatisticsFile(
        snapshot_id=now.current_snapshot().snapshot_id,
        statistics_path=path.as_uri(),
        file_size_in_bytes=100,
        file_footer_size_in_bytes=10,
        blob_metadata=[],
    )
    now.update_statistics().set_statistics(file).commit()


def _odd_names(lake: GeneratedLake, table: Daily) -> None:
    """Live files with names that clients decode, cut or fold."""
    for name in lake.random.sample(NAMES[:9], 2):
        _add_file(table, f"{path_of(table.table.location())}/data/day={DAYS[2]}/{name}", prefix="file://")


def _aliases(lake: GeneratedLake, table: Daily) -> None:
    """Live files that are named by another scheme than the table's location."""
    path = f"{path_of(table.table.location())}/data/day={DAYS[2]}/{uuid4()}.parquet"
    _add_file(table, path, prefix=lake.random.choice(["", "file:"]))


def _late(lake: GeneratedLake, table: Daily) -> None:
    """Old files that look like orphans until somebody commits them."""
    for _ in range(2):
        path = f"{path_of(table.table.location())}/data/day={DAYS[2]}/{uuid4()}.parquet"
        lake.spared.add(aged(Path(write_file(table, path)), OLD))
        lake.late.append(lambda path=path: name_file(table, path, "file://"))


def _add_file(table: Daily, path: str, prefix: str) -> None:
    """A file of one row that a writer other than PyIceberg has written, committed."""
    name_file(table, write_file(table, path), prefix)


def write_file(table: Daily, path: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rows = daily_rows(DAYS[2]).cast(table.table.schema().as_arrow())
    pq.write_table(rows, path, filesystem=fs.LocalFileSystem())
    return path


def name_file(table: Daily, path: str, prefix: str) -> None:
    now = table.table
    template = next(
        entry.data_file
        for manifest in now.current_snapshot().manifests(now.io)
        for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=True)
        if str(entry.data_file.partition[0]) == _epoch_day(DAYS[2])
    )
    file = DataFile.from_args(
        content=template.content,
        file_path=prefix + path,
        file_format=template.file_format,
        partition=template.partition,
        record_count=1,
        file_size_in_bytes=os.path.getsize(path),
        sort_order_id=None,
        spec_id=template.spec_id,
    )
    file._spec_id = template.spec_id
    with now.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def _epoch_day(day: str) -> str:
    from datetime import date

    return str((date.fromisoformat(day) - date(1970, 1, 1)).days)


def _expired(lake: GeneratedLake, table: Daily) -> None:
    """Files that were live once: of snapshots that were expired."""
    before = live_files(table.table)
    table.table.overwrite(daily_rows(DAYS[3]), overwrite_filter=f"day = '{DAYS[3]}'")
    now = table.table
    refs = {ref.snapshot_id for ref in now.metadata.refs.values()}
    if gone := [s.snapshot_id for s in now.metadata.snapshots if s.snapshot_id not in refs]:
        now.maintenance.expire_snapshots().by_ids(gone).commit()
        lake.orphans |= {aged(path, OLD) for path in before - live_files(table.table) if path.exists()}


def _neighbour(lake: GeneratedLake) -> None:
    """A table in, around or at another one's place, or the same one under another name: neither may be judged."""
    first = lake.random.choice(lake.tables)
    location = first.table.location()
    kind = lake.random.choice(["shared", "nested", "around", "twice"])
    lake.notes.append(f"{first.identifier}: {kind}")
    if kind == "twice":
        name = f"nyc.twin_{uuid4().hex[:6]}"
        lake.catalog.register_table(name, first.table.metadata_location)
        other = Daily(lake.catalog, name)
        lake.tables.append(other)
        other.append(daily_rows(DAYS[4]))
    else:
        where = {"shared": location, "nested": f"{location}/data/inner", "around": location.rpartition("/")[0]}[kind]
        other = _table(lake, location=where)
    lake.skipped |= {first.identifier, other.identifier}
    if kind == "around":  # around everything that lies in the warehouse's folder
        inside = path_of(location).parent
        lake.skipped |= {t.identifier for t in lake.tables if path_of(t.table.location()).is_relative_to(inside)}


def _recreated(lake: GeneratedLake) -> None:
    """Dropped without its files, and created again in the same folder."""
    table = lake.random.choice(lake.tables)
    if table.identifier in lake.skipped:
        return
    _published(lake, table)
    old, properties = table.table, dict(table.table.properties)
    lake.notes.append(f"{table.identifier}: dropped and recreated")
    lake.spared |= {path for path in live_files(old) if path.is_relative_to(path_of(old.location()))}
    lake.catalog.drop_table(table.identifier)
    properties.pop("write.data.path", None)
    lake.catalog.create_table(
        table.identifier, old.schema(), location=old.location(), partition_spec=old.spec(), properties=properties
    )
    # Older metadata of the dropped table may name what it had expired.
    lake.orphans = {path for path in lake.orphans if not any(path.is_relative_to(root) for root in roots_of(old))}
    table.append(daily_rows(*DAYS, each=20))


def _published(lake: GeneratedLake, table: Daily) -> None:
    """A run whose receipts are still there."""
    token = uuid4().hex
    lake.runs[token] = Chain(lake.now_ms - DAY_MS, unfinished=False, succeeded=True)
    receipt = table.receipt(token, 0, [DAYS[4]], daily_rows(DAYS[4]))
    table.publish(token, [DAYS[4]], *read_all(table.table.io.properties, [receipt]))
    put(lake.staging / table.identifier / token / "00000.json", receipt.to_json().encode(), days_old=RECENT)


def _renamed(lake: GeneratedLake) -> None:
    table = lake.random.choice(lake.tables)
    if table.identifier in lake.skipped:
        return
    lake.notes.append(f"{table.identifier}: renamed")
    name = f"nyc.renamed_{uuid4().hex[:6]}"
    lake.catalog.rename_table(table.identifier, name)
    table.identifier = name


def _litter(lake: GeneratedLake, table: Daily) -> None:
    """Files that nobody names: old ones, young ones, some with a time in the future."""
    folder = path_of(table.table.location())
    for name in lake.random.sample(NAMES, 5):
        path = folder / lake.random.choice(["data/day=2024-01-01", "metadata", "data/deep/er", "."]) / name
        if path.exists():
            continue
        if lake.chance(0.7):
            lake.orphans.add(put(path, days_old=OLD + lake.random.uniform(-1, 1)))
        else:
            lake.spared.add(put(path, days_old=lake.random.choice([RECENT, 0, -1])))


def _checksums(lake: GeneratedLake, table: Daily) -> None:
    """Hadoop's, of live files and of orphans."""
    # Not of metadata files, which later commits may drop from the log.
    files = lake.random.sample(sorted(path for path in live_files(table.table) if path.suffix != ".json"), 3)
    lake.spared |= {_checksum(path) for path in files if path.exists()}
    old = [path for path in lake.orphans if path.is_relative_to(path_of(table.table.location()))]
    lake.orphans |= {_checksum(path) for path in old[:2]}


def _checksum(path: Path) -> Path:
    return put(path.with_name(f".{path.name}.crc"), b"crc\0", days_old=OLD)


def _dead_worker(lake: GeneratedLake, table: Daily) -> None:
    """A fork without a receipt: its worker died, long ago or just now."""
    before = _files_below(table)
    table.receipt(uuid4().hex, 0, [DAYS[0]], daily_rows(DAYS[0]))
    old = lake.chance(0.6)
    new = {aged(path, OLD if old else RECENT) for path in _files_below(table) - before}
    (lake.orphans if old else lake.spared).update(new)


def _left_forks(lake: GeneratedLake, table: Daily) -> None:
    """Fork bases of a run in any state."""
    _leave(lake, table, receipt=False)


def _receipts(lake: GeneratedLake, table: Daily) -> None:
    """Forks with receipts of a run in any state."""
    for _ in range(2):
        _leave(lake, table, receipt=True)


def _leave(lake: GeneratedLake, table: Daily, *, receipt: bool) -> None:
    token, before = uuid4().hex, _files_below(table)
    state = lake.random.choice(["alive", "resumable", "finished", "dead", "unknown", "unknown and old"])
    lake.notes.append(f"{table.identifier}: a run that is {state}")
    chain, days = _chain(lake, state)
    if chain:
        lake.runs[token] = chain
    told = table.receipt(token, 0, [DAYS[0]], daily_rows(DAYS[0]))
    left = _files_below(table) - before
    if not receipt:  # its worker died as well: its data goes by age, which is young
        base = path_of(told.fork_base)
        lake.spared |= {aged(path, days) for path in left - {base}} if days < OLD else set()
        lake.orphans |= {aged(path, days) for path in left - {base}} if days >= OLD else set()
        left = {base}
    if receipt:
        path = lake.staging / table.identifier / token / "00000.json"
        left.add(put(path, told.to_json().encode()))
        left.add(put(path.with_name("00000.attempt.json"), json.dumps({"version": 1}).encode()))
    for path in left:
        aged(path, days)
    gone = state in ("finished", "dead", "unknown and old")
    (lake.orphans if gone else lake.spared).update(left)


def _chain(lake: GeneratedLake, state: str) -> tuple[Chain | None, float]:
    """What Dagster knows of a run, and how old its files are, in days."""
    match state:
        case "alive":
            return Chain(lake.now_ms - 40 * DAY_MS, unfinished=True, succeeded=False), 10
        case "resumable":
            return Chain(lake.now_ms - DAY_MS, unfinished=False, succeeded=False), 1
        case "finished":
            return Chain(lake.now_ms - DAY_MS, unfinished=False, succeeded=True), 1
        case "dead":
            return Chain(lake.now_ms - 17 * DAY_MS, unfinished=False, succeeded=False), 17
        case "unknown":
            return None, 5
    return None, OLD


def _files_below(table: Daily) -> set[Path]:
    return {path for root in roots_of(table.table) for path in root.rglob("*") if path.is_file()}
