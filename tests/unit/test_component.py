"""Tables in YAML: the same definitions as in Python, what Dagster's `dg` makes of them, and a schema that is reviewed.
`make snapshot` rewrites the schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from lakehouse_assets import (
    Append,
    Arrivals,
    Avro,
    Compression,
    Domain,
    FullRefresh,
    Json,
    KafkaTopic,
    LakehouseTables,
    Level,
    Maintenance,
    Merge,
    Overwrite,
    Pace,
    Rewrites,
    Size,
    Table,
    Tuning,
    code_location,
    column,
    when_updated,
)
from lakehouse_assets.errors import DeclarationError
from tests.conftest import ROOT
from tests.support.pages import section
from tests.unit.test_definitions import location_lines

SCHEMA = Path(__file__).with_name("component.json")
STEP = "lakehouse_assets.domains.nyc.steps:flights"
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
PYPROJECT = '[tool.dg]\ndirectory_type = "project"\n\n[tool.dg.project]\nroot_module = "{name}"\n'
DG = str(Path(sys.executable).with_name("dg"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as `create-dagster` makes it, with a package of a name that no other test has imported."""
    name = f"made_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / "src" / name
    (package / "defs").mkdir(parents=True)
    for file, text in (("__init__", ""), ("defs/__init__", ""), ("definitions", DEFINITIONS)):
        (package / f"{file}.py").write_text(text)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "src"), str(ROOT)]))
    return package


def dg_command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DG, *arguments], cwd=project.parents[1], capture_output=True, text=True)


def declare(project: Path, domain: str, attributes: str) -> Path:
    file = project / "defs" / domain / "defs.yaml"
    file.parent.mkdir()
    declared = {"domain": domain, "tables": yaml.safe_load(attributes)}
    file.write_text(yaml.dump({"type": "lakehouse_assets.LakehouseTables", "attributes": declared}, sort_keys=False))
    return file


def loaded(project: Path) -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=project)


IN_YAML = """
- identifier: shop.orders
  columns: [{name: day, type: date, required: true}, {name: n, type: int, doc: Number}]
  step: STEP
  partitions: {type: daily, start_date: "2026-01-01", end_date: "2026-01-08"}
  partitioned_by: [day]
  sorted_by: [n]
  partitions_per_worker: 2
  write_mode: {type: overwrite}
  on_schema_change: append_new_columns
  unique: [n]
  checks: {positive: n > 0}
  tuning: {compression: snappy, metrics: {n: counts}}
  owners: ["team:shop"]
  kinds: [bronze]
  size: {vcpus: 4, memory_gib: 16}
  retry_policy: {max_retries: 2, delay: 60}
  worker_timeout: PT2H
  maintenance: {without: [expire], quiet_period: PT1H, weight: 2}
  arrivals: {pattern: "orders/{day}.csv", pace: {floor: 3}}
- identifier: shop.latest
  columns: [{name: n, type: int, required: true}]
  step: STEP
  write_mode: {type: merge, keys: [n], rewrites: merge-on-read}
  deps: [{asset: shop/orders, partition_mapping: last}]
  automation: {when_updated: [shop/orders]}
- identifier: shop.rates
  columns: [{name: n, type: int}]
  step: STEP
  write_mode: {type: full_refresh}
  deps: [shop/latest]
- identifier: shop.log
  columns: [{name: n, type: int}]
  step: STEP
  write_mode: {type: append, dedup_on: [n], within: P14D}
""".replace("STEP", STEP)
orders = Table(
    identifier="shop.orders",
    columns=[column("day", "date", required=True), column("n", "int", "Number")],
    step=STEP,
    partitions=dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08"),
    partitioned_by=["day"],
    sorted_by=["n"],
    partitions_per_worker=2,
    write_mode=Overwrite(),
    on_schema_change="append_new_columns",
    unique=["n"],
    checks={"positive": "n > 0"},
    tuning=Tuning(compression=Compression.SNAPPY, metrics={"n": "counts"}),
    owners=["team:shop"],
    kinds=["bronze"],
    size=Size(vcpus=4, memory_gib=16),
    retry_policy=dg.RetryPolicy(max_retries=2, delay=60),
    worker_timeout=timedelta(hours=2),
    maintenance=Maintenance(without=[Level.EXPIRE], quiet_period=timedelta(hours=1), weight=2),
    arrivals=Arrivals("orders/{day}.csv", Pace(floor=3)),
)
latest = Table(
    identifier="shop.latest",
    columns=[column("n", "int", required=True)],
    step=STEP,
    write_mode=Merge(["n"], rewrites=Rewrites.MERGE_ON_READ),
    deps=[dg.AssetDep(orders.key, partition_mapping=dg.LastPartitionMapping())],
    automation=when_updated(orders.key),
)
rates = Table("shop.rates", [column("n", "int")], STEP, write_mode=FullRefresh(), deps=[latest.key])
log = Table("shop.log", [column("n", "int")], STEP, write_mode=Append(dedup_on=["n"], within=timedelta(days=14)))


def test_each_attribute_is_what_it_is_in_python() -> None:
    made = LakehouseTables.resolve_from_yaml(yaml.dump({"domain": "shop", "tables": yaml.safe_load(IN_YAML)}))
    for found, expected in zip(made.declared_domain.tables, [orders, latest, rates, log], strict=True):
        for name, value in vars(expected).items():
            if name not in ("automation", "partitions"):
                assert getattr(found, name) == value, f"{expected.identifier}: {name}"


def test_the_values_of_a_topic_are_told_by_their_type() -> None:
    made = """
domain: shop
tables:
- {identifier: shop.clicks, columns: [{name: n, type: int}], write_mode: {type: append},
   source: {topic: clicks, value: {type: avro}}}
- {identifier: shop.views, columns: [{name: n, type: int}], write_mode: {type: append}, source: {topic: views}}
"""
    tables = LakehouseTables.resolve_from_yaml(made).declared_domain.tables
    assert [table.source for table in tables] == [KafkaTopic("clicks", Avro()), KafkaTopic("views", Json())]


def test_the_definitions_are_those_of_python(project: Path) -> None:
    declare(project, "shop", IN_YAML)
    in_python = code_location(Domain("shop", tables=[orders, latest, rates, log]))
    by_component = "dagster/code_references, ", "dagster/component_origin, "  # where Dagster found it
    lines = "\n".join(location_lines(loaded(project)))
    for text in by_component:
        lines = lines.replace(text, "")
    assert lines.splitlines() == "\n".join(location_lines(in_python)).splitlines()


def test_several_components_are_one_code_location(project: Path) -> None:
    table = "- {identifier: NAME.t, columns: [{name: n, type: int}], step: STEP, deps: DEPS}".replace("STEP", STEP)
    declare(project, "shop", table.replace("NAME", "shop").replace("DEPS", "[web/t]"))
    declare(project, "web", table.replace("NAME", "web").replace("DEPS", "[]"))
    defs = loaded(project)
    assert {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()} == {"shop/t", "web/t"}
    assert len([job for job in defs.get_repository_def().get_all_jobs() if job.name == "lakehouse_maintenance"]) == 1


def test_a_table_depends_on_what_else_the_project_has_and_is_post_processed_alone(project: Path) -> None:
    (project / "defs" / "raw.py").write_text("import dagster as dg\n\n\n@dg.asset\ndef raw(): ...\n")
    table = "- {identifier: NAME.t, columns: [{name: n, type: int}], step: STEP, deps: [raw]}".replace("STEP", STEP)
    declare(project, "shop", table.replace("NAME", "shop"))
    file = declare(project, "web", table.replace("NAME", "web"))
    with file.open("a") as end:
        end.write('post_processing:\n  assets:\n    - {target: "*", attributes: {tags: {of: web}}}\n')
    graph = loaded(project).resolve_asset_graph()
    for name, tags in (("shop", {}), ("web", {"of": "web"})):
        node = graph.get(dg.AssetKey([name, "t"]))
        assert node.parent_keys == {dg.AssetKey("raw")}
        assert {key: value for key, value in node.tags.items() if key == "of"} == tags


def test_the_pages_example_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", section(ROOT / "docs" / "start.md", "Or in YAML, with `dg`"), re.DOTALL)
    steps = tmp_path / "shop" / "defs" / "web" / "steps.py"
    steps.parent.mkdir(parents=True)
    steps.write_text("def customers(spark, window):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    (table,) = LakehouseTables.resolve_from_yaml(yaml.dump(yaml.safe_load(text)["attributes"])).declared_domain.tables
    assert table.write_mode == Merge(keys=["customer_id"], order_by="at")
    assert table.worker_timeout == timedelta(hours=2)


def test_templates_in_texts_are_filled_in(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_HEAP", "3g")
    table = (
        "- {identifier: shop.t, columns: [{name: n, type: int}], step: STEP, spark_conf: {a.b: '{{ env.SHOP_HEAP }}'}}"
    )
    declare(project, "shop", table.replace("STEP", STEP))
    tree = dg.ComponentTree.for_project(project.parents[1])
    (component,) = tree.get_all_components(of_type=LakehouseTables)
    assert component.declared_domain.tables[0].spark_conf == {"a.b": "3g"}


def test_mistakes_are_told_with_file_and_line(project: Path) -> None:
    wrong = IN_YAML.replace("  sorted_by: [n]", "  sortd_by: [n]").replace("{type: daily", "{type: yearly")
    wrong = wrong.replace("{type: append, dedup_on", "{type: append, dedupe_on")
    file = declare(project, "shop", wrong)
    refused = dg_command(project, "check", "yaml")
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    for key, problem in (
        ("sortd_by", "'sortd_by' was unexpected"),
        ("yearly", "'yearly' is not one of ['daily', 'hourly', 'monthly', "),
        ("dedupe_on", "'dedupe_on' was unexpected"),
    ):
        line = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if key in text)
        assert f"{file}:{line}" in said
        assert problem in said


@pytest.mark.parametrize(
    ("in_yaml", "partitions"),
    [
        ("{type: monthly, start_date: '2026-01-01'}", dg.MonthlyPartitionsDefinition("2026-01-01")),
        (
            "{type: monthly, start_date: '2026-01-01', timezone: Europe/Berlin, day_offset: 2}",
            dg.MonthlyPartitionsDefinition("2026-01-01", timezone="Europe/Berlin", day_offset=2),
        ),
        ("{type: dynamic, name: shops}", dg.DynamicPartitionsDefinition(name="shops")),
        (
            "{type: multi, partitions: {day: {type: daily, start_date: '2026-01-01'}, shop: {type: dynamic, name: s}}}",
            dg.MultiPartitionsDefinition(
                {"day": dg.DailyPartitionsDefinition("2026-01-01"), "shop": dg.DynamicPartitionsDefinition(name="s")}
            ),
        ),
    ],
)
def test_all_partitions_of_dagster_can_be_declared(in_yaml: str, partitions: dg.PartitionsDefinition) -> None:
    of_column = {"monthly": "month(day)", "dynamic": "shop", "multi": "day, shop"}[yaml.safe_load(in_yaml)["type"]]
    table = (
        f"{{identifier: shop.t, columns: [{{name: day, type: date}}, {{name: shop, type: string}}], step: '{STEP}', "
        f"partitions: {in_yaml}, partitioned_by: [{of_column}]}}"
    )
    if "day_offset" in in_yaml or "timezone" in in_yaml:
        table = table.replace("month(day)", "day")
    (made,) = LakehouseTables.resolve_from_yaml(f"{{domain: shop, tables: [{table}]}}").declared_domain.tables
    assert made.partitions == partitions


def test_a_table_that_can_not_work_is_told_by_name() -> None:
    declared = {"identifier": "shop.t", "columns": [{"name": "n", "type": "integer"}], "step": STEP}
    component = LakehouseTables.resolve_from_yaml(yaml.dump({"domain": "shop", "tables": [declared]}))
    with pytest.raises(DeclarationError, match=r"table 'shop\.t'.*integer"):
        _ = component.declared_domain


@pytest.mark.long("The command dg, four times; the tests before hold what a component is given.")
def test_scaffolded_files_are_valid_and_no_code_of_python_is(project: Path) -> None:
    made = dg_command(project, "scaffold", "defs", "lakehouse_assets.LakehouseTables", "web")
    assert made.returncode == 0, made.stdout + made.stderr
    assert {path.name for path in (project / "defs" / "web").iterdir()} == {"defs.yaml", "steps.py"}
    for command in (("check", "yaml"), ("check", "defs")):
        checked = dg_command(project, *command)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = dg_command(project, "list", "defs", "--json")
    assert '"web/orders"' in listed.stdout
    refused = dg_command(project, "scaffold", "defs", "lakehouse_assets.LakehouseTables", "api", "--format", "python")
    assert refused.returncode != 0
    assert "code_location()" in refused.stdout + refused.stderr


def test_the_schema_is_what_was_reviewed() -> None:
    found = json.dumps(LakehouseTables.model().model_json_schema(), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOT"):
        SCHEMA.write_text(found)
    assert found == SCHEMA.read_text(), "if the change is intended: make snapshot"


def test_each_attribute_is_documented() -> None:
    schema = LakehouseTables.model().model_json_schema()
    of_models = {name: of["properties"] for name, of in schema["$defs"].items() if "properties" in of}
    properties = {f"{name}.{one}": told for name, of in of_models.items() for one, told in of.items()}
    ours = {name: told for name, told in properties.items() if not name.endswith(".type") and "Partitions" not in name}
    assert [name for name, told in ours.items() if "description" not in told] == []
