"""Every private name of a library that this project uses, of Dagster above all, with the test that notices its change.
An upgrade of one of them starts with these tests; what they check is in the tests themselves."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("lakehouse_assets", "bench")
LIBRARIES = ("dagster", "pyiceberg", "pyspark", "py4j")

GUARDS = {
    "ManifestWriterV2._output_file": "test_what_a_publish_keeps_is_written_in_blocks",
    "ManifestWriterV2._meta": "test_a_delete_manifest_that_must_be_written_can_be_read_by_java",
    "ManifestWriterV2._with_partition": "test_a_delete_manifest_that_must_be_written_can_be_read_by_java",
    "SparkContext._gateway": "test_pyspark_holds_the_process_of_its_jvm",
    "SqliteEventLogStorage._base_dir": "test_runs_that_claim_at_once_never_hold_more_slots_than_there_are",
    "SqliteEventLogStorage._store_asset_event": "test_it_tells_what_dagsters_own_log_tells",
    "SqliteEventLogStorage._store_asset_event_tags": "test_it_tells_what_dagsters_own_log_tells",
    "Transaction._updates": "test_a_lean_transaction_has_pyicebergs_metadata_after_every_step",
    "UpdateTableMetadata._commit": "test_partitions_and_order_change_and_change_back",
    "UpdateTableMetadata._transaction": "test_partitions_and_order_change_and_change_back",
    "_SnapshotProducer._commit": "test_what_evolves_between_the_checks_and_the_commit_is_seen",
    "_SnapshotProducer._deleted_entries": "test_one_overwrite_snapshot_replaces_exactly_the_runs_partitions",
    "_SnapshotProducer._existing_manifests": "test_staged_files_that_are_on_the_table_already_stay_as_they_are",
    "_SnapshotProducer._operation": "test_a_rewrite_lands_as_one_replace_snapshot",
    "_SnapshotProducer._parent_snapshot_id": "test_a_rewrite_lands_as_one_replace_snapshot",
    "_SnapshotProducer._summary": "test_a_rewrite_lands_as_one_replace_snapshot",
    "_SnapshotProducer._snapshot_id": "test_one_overwrite_snapshot_replaces_exactly_the_runs_partitions",
    "_SnapshotProducer._transaction": "test_a_clock_behind_the_last_commit_never_turns_the_history_back",
    "_SnapshotProducer._clean_all_uncommitted": (
        "test_attempts_that_run_out_leave_the_table_and_its_folder_as_they_were"
    ),
    "_engine": "test_a_run_outlasts_it",
    "_AUTO_OFFSET_RESET": "test_offsets_that_are_gone_are_an_error_and_are_not_passed_over",
    "_PARTITION_EOF": "test_a_range_of_aborted_records_moves_the_position_alone",
    "_gateway": "test_pyspark_holds_the_process_of_its_jvm",
    "_gateway_client": "test_objects_that_python_lets_go_of_while_the_jvm_ends_are_no_traceback",
    "_jsparkSession": "test_nothing_but_a_query_can_run",
    "_metadata_accumulator": "test_a_result_reports_of_each_partition_what_dagsters_own_calls_report",
    "_temp_dir": "test_a_jvm_does_not_grow_with_its_chunks",
    "_resolve_table_location": "test_no_table_is_created_over_the_rows_of_one_that_a_lost_catalog_had",
    "Transaction._snapshot_producers": "test_an_outsiders_append_to_our_partitions_is_replaced",
    "dagster._core.asset_graph_view.entity_subset.EntitySubset": "test_a_month_waits_for_its_last_week",
    "dagster._core.asset_graph_view.asset_graph_view.AssetGraphView": (
        "test_what_is_looked_up_together_is_what_each_alone_would_be"
    ),
    "dagster._core.storage.asset_check_execution_record.AssetCheckExecutionRecord": (
        "test_what_a_run_is_about_to_say_is_left_to_it_until_it_is_over"
    ),
    "dagster._core.storage.asset_check_execution_record.COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES": (
        "test_checks_that_a_failed_run_did_not_come_to_keep_their_verdicts"
    ),
    "dagster._core.storage.asset_check_execution_record.AssetCheckExecutionRecordStatus": (
        "test_what_a_run_is_about_to_say_is_left_to_it_until_it_is_over"
    ),
    "dagster._core.definitions.assets.graph.base_asset_graph.BaseAssetGraph": (
        "test_a_member_made_anew_without_those_made_from_it_is_refused"
    ),
    "dagster._core.definitions.assets.job.asset_job.JobScopedAssetGraph": (
        "test_so_it_is_through_a_table_that_is_no_member"
    ),
    "dagster._core.definitions.assets.graph.asset_graph.AssetGraph": (
        "test_run_materializes_everything_in_order_and_sums_up"
    ),
    "dagster._core.definitions.assets.job.asset_job.IMPLICIT_ASSET_JOB_NAME": (
        "test_run_materializes_everything_in_order_and_sums_up"
    ),
    "dagster._core.definitions.data_version.NULL_EVENT_POINTER": (
        "test_it_leads_from_a_partition_to_the_files_it_was_made_from"
    ),
    "dagster._core.definitions.data_version.get_input_event_pointer_tag": (
        "test_it_leads_from_a_partition_to_the_files_it_was_made_from"
    ),
    "dagster._core.definitions.data_version.CODE_VERSION_TAG": "test_partitions_that_other_code_made_are_shown",
    "dagster._core.definitions.data_version.DATA_VERSION_TAG": (
        "test_the_others_are_published_and_a_resumed_run_adds_what_failed"
    ),
    "dagster._core.definitions.data_version.INPUT_DATA_VERSION_TAG_PREFIX": (
        "test_the_ui_says_that_an_input_changed_as_long_as_the_rows_are_made_of_an_older_version"
    ),
    "dagster._core.definitions.data_version.INPUT_EVENT_POINTER_TAG_PREFIX": (
        "test_the_ui_says_that_an_input_changed_as_long_as_the_rows_are_made_of_an_older_version"
    ),
    "dagster._core.execution.plan.execute_step._build_data_version_tags": (
        "test_the_ui_says_that_an_input_changed_as_long_as_the_rows_are_made_of_an_older_version"
    ),
    "dagster._core.execution.plan.execute_step._get_input_provenance_data": (
        "test_the_ui_says_that_an_input_changed_as_long_as_the_rows_are_made_of_an_older_version"
    ),
    "dagster._core.definitions.events.AssetKeyPartitionKey": (
        "test_an_update_between_the_request_and_the_next_tick_is_acted_on"
    ),
    "dagster._core.definitions.reconstruct.ReconstructableJob": (
        "test_run_materializes_everything_in_order_and_sums_up"
    ),
    "dagster._core.definitions.reconstruct.ReconstructableRepository": ("test_every_part_of_the_bench_works"),
    "dagster._core.events.ASSET_EVENTS": "test_it_tells_what_dagsters_own_log_tells",
    "dagster._core.execution.api.execute_run": "test_run_materializes_everything_in_order_and_sums_up",
    "dagster._core.execution.backfill.BulkActionStatus": (
        "test_the_keys_of_a_backfill_count_before_its_runs_are_there"
    ),
    "dagster._core.execution.backfill.BulkActionsFilter": (
        "test_the_keys_of_a_backfill_count_before_its_runs_are_there"
    ),
    "dagster._core.execution.backfill.PartitionBackfill": (
        "test_the_keys_of_a_backfill_count_before_its_runs_are_there"
    ),
    "dagster._core.execution.context.metadata_logging.AssetMetadataHandle": (
        "test_a_result_reports_of_each_partition_what_dagsters_own_calls_report"
    ),
    "dagster._core.execution.context.metadata_logging.OutputMetadataAccumulator": (
        "test_metadata_that_was_added_before_is_kept"
    ),
    "dagster._core.instance.utils.RUNLESS_RUN_ID": (
        "test_no_update_is_lost_to_a_request_a_run_a_persons_run_or_a_failure"
    ),
    "dagster._core.origin.DEFAULT_DAGSTER_ENTRY_POINT": "test_what_make_run_ran_is_re_executed_from_failure_in_the_ui",
    "dagster._core.remote_origin.RemoteRepositoryOrigin": (
        "test_what_make_run_ran_is_re_executed_from_failure_in_the_ui"
    ),
    "dagster._core.storage.event_log.EventLogStorage": "test_two_claims_at_once_take_two_slots",
    "dagster._core.storage.event_log.SqliteEventLogStorage": "test_a_home_written_by_dagsters_own_log_is_read_on",
    "dagster._core.storage.event_log.base.AssetEventSummaryRecord": (
        "test_what_is_looked_up_together_is_what_each_alone_would_be"
    ),
    "dagster._daemon.types.DaemonHeartbeat": "test_a_home_that_a_daemon_works_on_gets_no_second_one",
    "dagster._core.storage.runs.SqliteRunStorage": "test_a_run_that_is_killed_at_any_step_is_found_and_holds_nothing",
    "dagster._core.storage.tags.BACKFILL_ID_TAG": (
        "test_rows_that_a_backfill_has_added_are_not_added_again_by_its_re_execution"
    ),
    "dagster._core.storage.tags.PARENT_BACKFILL_ID_TAG": (
        "test_rows_that_a_backfill_has_added_are_not_added_again_by_its_re_execution"
    ),
    "dagster._core.storage.tags.HIDDEN_TAG_PREFIX": (
        "test_a_run_whose_process_was_killed_fails_and_gives_its_slots_back"
    ),
    "dagster._core.storage.tags.PARENT_RUN_ID_TAG": (
        "test_slots_of_a_killed_run_come_back_and_its_re_execution_goes_on_from_its_receipts"
    ),
    "dagster._core.storage.tags.RESUME_RETRY_TAG": (
        "test_slots_of_a_killed_run_come_back_and_its_re_execution_goes_on_from_its_receipts"
    ),
    "dagster._core.workspace.load_target.PyProjectFileTarget": (
        "test_what_make_run_ran_is_re_executed_from_failure_in_the_ui"
    ),
    "dagster._grpc.server.LoadedRepositories": "test_run_materializes_everything_in_order_and_sums_up",
    "dagster._serdes.ConfigurableClassData": "test_it_tells_what_dagsters_own_log_tells",
    "dagster._utils.concurrency.ConcurrencyClaimStatus": (
        "test_runs_that_claim_at_once_never_hold_more_slots_than_there_are"
    ),
    "dagster._utils.interrupts.capture_interrupts": (
        "test_a_signal_that_comes_while_workers_are_ended_leaves_none_of_them_running"
    ),
    "pyiceberg.expressions.visitors._InclusiveMetricsEvaluator": "test_a_file_counts_only_if_its_bounds_may_hold_a_key",
    "pyiceberg.io.pyarrow._read_deletes": "test_it_counts_what_a_reader_counts",
    "pyiceberg.table.update._apply_table_update": "test_a_snapshot_that_got_a_tag_meanwhile_is_kept_with_it",
    "pyiceberg.table.update.snapshot._SnapshotProducer": (
        "test_one_overwrite_snapshot_replaces_exactly_the_runs_partitions"
    ),
}


def test_every_private_name_that_is_used_is_listed_and_no_other() -> None:
    files = {path: path.read_text() for path in _files(*OURS)}
    own = {name for text in files.values() for name in _defined(ast.parse(text))}
    used: dict[str, list[str]] = {}
    for path, text in files.items():
        for name, line in private_names(text, own):
            used.setdefault(name, []).append(f"{path.relative_to(ROOT)}:{line}")
    assert not {name: places for name, places in used.items() if name not in GUARDS}, "list them, each with its test"
    assert not sorted(GUARDS.keys() - used.keys()), "no longer used: remove them"


def test_the_tests_that_are_named_exist() -> None:
    trees = [ast.parse(path.read_text()) for path in _files("tests")]
    tests = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not sorted(set(GUARDS.values()) - tests)


def test_all_ways_to_use_a_private_name_are_found() -> None:
    code = """
import os
import dagster._core.events as events
from dagster._utils import error
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyspark import SparkContext

class Ours(Transaction):
    def __init__(self, table):
        self._own = table
        self._updates = ()

    def _apply(self):
        return self._own, self._stage

class Others:
    def _mine(self):
        return self._inherited, other._mine, table._theirs, os._exit, table.__class__

def _load():
    from dagster_aws._private import name
    return SparkContext._gateway, Others()._mine
"""
    assert sorted(name for name, _ in private_names(code, {"_own", "_mine", "_load"})) == [
        "SparkContext._gateway",
        "Transaction._apply",
        "Transaction._stage",
        "Transaction._updates",
        "_theirs",
        "dagster._core.events",
        "dagster._utils.error",
        "dagster_aws._private.name",
        "pyiceberg.table.update.snapshot._SnapshotProducer",
    ]


def private_names(code: str, own: Set[str]) -> Iterator[tuple[str, int]]:
    """The private names of the libraries in a module, each with its line. own: what this project itself defines.

    ``<module>.<name>`` is an import. ``<class>.<name>`` is an attribute of an imported class, or one that a class of
    ours takes from it or overrides. Any other attribute stands for itself: its object's class is not known here.
    """
    tree = ast.parse(code)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and _is_library(node.module)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name, node.lineno) for name in _imports(node) if _is_library(name) and "._" in name)
    inherited: set[ast.AST] = set()
    for class_ in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        for base in filter(None, (imported.get(_name(expression)) for expression in class_.bases)):
            for node, name in _members(class_):
                if name in _private_members(base):
                    inherited.add(node)
                    yield f"{base.rpartition('.')[2]}.{name}", node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inherited and _is_private(node.attr):
            owner = _name(node.value)
            if owner in imported:
                yield f"{owner}.{node.attr}", node.lineno
            elif owner != "self" and node.attr not in own and owner not in sys.stdlib_module_names:
                yield node.attr, node.lineno


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [prefix + alias.name for alias in node.names]


def _is_library(module: str | None) -> bool:
    package = (module or "").partition(".")[0]
    return package in LIBRARIES or package.startswith("dagster_")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _name(expression: ast.expr) -> str:
    """The name of a class or module; of ``Producer["Ours"]`` too, and of ``super()`` that of nothing."""
    if isinstance(expression, ast.Subscript):
        return _name(expression.value)
    return expression.id if isinstance(expression, ast.Name) else ""


def _members(class_: ast.ClassDef) -> Iterator[tuple[ast.Attribute | ast.FunctionDef, str]]:
    """Methods and attributes of ``self`` and ``super()``, with their names."""
    for node in ast.walk(class_):
        if isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()"):
            yield node, node.attr


def _defined(tree: ast.AST) -> Iterator[str]:
    """What a class or a module defines, or sets on ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@cache
def _private_members(path: str) -> frozenset[str]:
    """Of a library's class, and of those of the libraries that it inherits from."""
    module, _, name = path.rpartition(".")
    classes = [c for c in getattr(importlib.import_module(module), name).__mro__ if _is_library(c.__module__)]
    sources = [ast.parse(inspect.getsource(c)) for c in classes]
    return frozenset(name for source in sources for name in _defined(source) if _is_private(name))
