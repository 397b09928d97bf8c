"""Rewrites manifests of a table without a JVM, end to end: reads, groups, writes, proves and lands.

Which manifests go together is decided in manifest_groups.py; when is the policy's question. No data file is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile

from lakehouse_assets.commit.compaction import NothingLeft
from lakehouse_assets.commit.manifest_plan import live_manifests
from lakehouse_assets.commit.manifest_rewrite import ManifestRewrite
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken, find_published
from lakehouse_assets.rewrite.clock import Clock
from lakehouse_assets.rewrite.manifest_groups import worth_rewriting
from lakehouse_assets.rewrite.manifest_sources import read_sources
from lakehouse_assets.rewrite.manifest_writing import prove, write_group


@dataclass(frozen=True)
class ManifestsSize:
    """The number and the size of manifests with live files of one snapshot."""

    manifests: int = 0
    """The number of manifests."""
    size: int = 0
    """The bytes in storage."""

    @classmethod
    def of(cls, manifests: Sequence[ManifestFile]) -> ManifestsSize:
        """Counts these manifests and adds up their lengths."""
        return cls(len(manifests), sum(manifest.manifest_length for manifest in manifests))


@dataclass(frozen=True)
class ManifestsReport:
    """The result of a rewrite of a table's manifests."""

    snapshot_id: int | None
    """The snapshot of the commit; None if nothing was worth it or left to land."""
    before: ManifestsSize = ManifestsSize()
    """The manifests that the commit found; without a commit, those that are there."""
    replaced: ManifestsSize = ManifestsSize()
    """The manifests that the commit replaced."""
    created: ManifestsSize = ManifestsSize()
    """The manifests that are there instead."""
    entries: int = 0
    """The number of live entries in the created manifests."""
    dropped: int = 0
    """The number of manifests that were to be replaced, but writers changed them, or others of their group,
    meanwhile."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The duration of each phase, in their order; empty if an earlier call with the same token landed, of which only
    snapshot_id is known."""

    @property
    def after(self) -> ManifestsSize:
        """The manifests that are there after the commit; without a commit, the same as ``before``."""
        return ManifestsSize(
            self.before.manifests - self.replaced.manifests + self.created.manifests,
            self.before.size - self.replaced.size + self.created.size,
        )


def rewrite_manifests(
    catalog: Catalog, identifier: str, token: RunToken, summary: Mapping[str, str] | None = None
) -> ManifestsReport:
    """Lists the live files of a table in fewer manifests, each of few partitions, where that is worth it.

    Each entry stays as it is but for its status. Manifests that are good enough, or that writers add meanwhile, are
    carried over; a group of which a writer replaces one is dropped. No writer waits: all but the manifest list is
    written before the table is loaded to commit. token: a second call with it changes nothing. No file is deleted.

    Raises as publish() does, MaintenanceRefused if the rewritten entries are not those that were read,
    UnreadableMetadata for a torn manifest, OSError where the storage can't be read or written.
    """
    clock = Clock()
    table = catalog.load_table(identifier)
    earlier = find_published(identifier, table.metadata, token.text)
    if earlier is not None:
        return ManifestsReport(earlier)
    listed = live_manifests(table)
    groups = worth_rewriting(read_sources(table, listed))
    clock.lap("read")
    written = [write_group(table, group) for group in groups]
    clock.lap("write")
    for group, ready in zip(groups, written, strict=True):
        prove(table, group, ready)
    clock.lap("prove")
    rewrite = ManifestRewrite(written, table.metadata.table_uuid, listed)
    published = _land(catalog, identifier, rewrite, token, summary or {}) if written else None
    clock.lap("land")
    return _report(rewrite, published, clock.seconds)


def _report(rewrite: ManifestRewrite, published: Published | None, seconds: Mapping[str, float]) -> ManifestsReport:
    """Reports what the latest attempt planned: what is read after a commit could fail."""
    landed = rewrite.landed if published else []
    planned = [m for group in rewrite.groups for m in group.replaced]
    replaced = [m for group in landed for m in group.replaced]
    return ManifestsReport(
        published.snapshot_id if published else None,
        before=ManifestsSize.of(rewrite.listed),
        replaced=ManifestsSize.of(replaced),
        created=ManifestsSize.of([m for group in landed for m in group.written]),
        entries=sum(group.entries for group in landed),
        dropped=len(planned) - len(replaced),
        seconds=seconds,
    )


def _land(
    catalog: Catalog, identifier: str, rewrite: ManifestRewrite, token: RunToken, summary: Mapping[str, str]
) -> Published | None:
    try:
        return publish(catalog, identifier, rewrite, token, summary)
    except NothingLeft:
        return None
