"""Carries out the actions that rewrite data files: here or by Spark workers, and dangling deletes after them.

How files are rewritten, proved and landed is in the room rewrite; the other actions are in actions.py.
"""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.typedef import Record

from lakehouse_assets.commit.dangling import remove_dangling_deletes
from lakehouse_assets.commit.entries import Partition
from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain, PartitionWork
from lakehouse_assets.health.text import error_text
from lakehouse_assets.maintenance.compaction_result import compacted
from lakehouse_assets.maintenance.means import Means
from lakehouse_assets.maintenance.planned import Action, Engine
from lakehouse_assets.maintenance.result import Result
from lakehouse_assets.rewrite.compact import CompactionReport, Outcome, compact
from lakehouse_assets.rewrite.spark_rewrite import SparkRewrite


def rewrite_here(means: Means, action: Action) -> Result:
    """Rewrites files in this process, without a JVM; what turns out to need Spark is left to workers."""
    report = compact(
        means.catalog,
        action.table,
        means.token(action),
        _partitions(action),
        summary=means.properties,
        min_input_files=means.min_input_files,
    )
    here = [of for of in report.partitions if of.outcome is not Outcome.NEEDS_SPARK]
    others = {at for of in report.partitions if of.outcome is Outcome.NEEDS_SPARK for at in of.partitions}
    if not others:
        return _landed(means, action, report)
    # What only their files say, as of files in other formats, is known when they are read.
    parts = (tuple(w for w in action.work if (_partition(w) in others) is there) for there in (False, True))
    mine, sparks = (replace(action, work=work) for work in parts)
    done = _landed(means, mine, replace(report, partitions=tuple(here)))
    return done + rewrite_by_spark(means, replace(sparks, engine=Engine.SPARK))


def rewrite_by_spark(means: Means, action: Action) -> Result:
    """Rewrites files by workers of the table's launcher."""
    table, sorts = means.tables[action.table], action.level is Level.SORT
    rewrite = SparkRewrite(
        means.context,
        means.lakehouse,
        table,
        means.token(action),
        _partitions(action),
        everything=sorts,
        zorder=tuple(table.maintenance.zorder) if sorts else (),
        min_input_files=means.min_input_files,
    )
    report = rewrite.run(means.properties)
    return _landed(means, action, report)


def _landed(means: Means, action: Action, report: CompactionReport) -> Result:
    """Returns the result of any engine's rewrite: what its snapshot says that it removed and added.

    After the level ``deletes``, removes the delete files that apply to nothing any more, in a commit of their own: the
    files that were rewritten may have been the last that needed them.
    """
    result = compacted(means.catalog.load_table(action.table).metadata, action, report)
    if action.level is not Level.DELETES:
        return result
    try:
        return _without_dangling(means, action, result)
    except Exception as error:  # the rewrite has landed
        return replace(result, faults=(*result.faults, f"delete files that apply to nothing: {error_text(error)}"))


def _without_dangling(means: Means, action: Action, result: Result) -> Result:
    token = replace(means.token(action), text=f"{means.token(action).text}.dangling")
    _, dangling = remove_dangling_deletes(means.catalog, action.table, token, means.properties)
    also = f"; removed delete files that applied to nothing: {dangling:,}" if dangling else ""
    return replace(result, gain=result.gain + Gain(delete_files=dangling), summary=result.summary + also)


def _partitions(action: Action) -> set[Partition]:
    return set(map(_partition, action.work))


def _partition(work: PartitionWork) -> Partition:
    return work.partition.spec_id, Record(*work.partition.values)
