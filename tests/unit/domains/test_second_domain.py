"""A second domain beside nyc, on a copy of the code location: a folder, and its name in definitions.py.
tests/integration/test_readme.py runs a table of the domain that the README shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lakehouse_assets.domains.nyc.domain import DOMAIN
from lakehouse_assets.environment.settings import Settings
from tests.conftest import ROOT

FILES = {
    "__init__.py": "",
    "domain.py": """
from lakehouse_assets import Domain, tables_of
from lakehouse_assets.domains.shop import tables

DOMAIN = Domain(name="shop", tables=tables_of(tables))
""",
    "tables.py": """
from lakehouse_assets import Table, column, when_updated

COLUMNS = [column("number", "int", "Order number", required=True)]
STEP = "lakehouse_assets.domains.shop.steps:orders"

orders = Table(identifier="shop.orders", columns=COLUMNS, step=STEP)
latest = Table(
    identifier="shop.latest", columns=COLUMNS, step=STEP, deps=[orders.key], automation=when_updated(orders.key)
)
""",
    "steps.py": "def orders(spark, window): ...\n",
}
DESCRIBE = """
import json
import dagster as dg
from lakehouse_assets.cli.pipeline import Pipeline
from lakehouse_assets.definitions import defs

graph, sensors = defs.resolve_asset_graph(), defs.get_repository_def().sensor_defs
texts = lambda keys: sorted(key.to_user_string() for key in keys)
with dg.DagsterInstance.ephemeral() as instance:
    selections = (pipeline := Pipeline()).selections(pipeline.keys_of("shop"), instance)
print(json.dumps({
    "assets": texts(graph.get_all_asset_keys()),
    "sensors": {s.name: texts(s.asset_selection.resolve(graph)) for s in sensors if s.asset_selection},
    "checks": sorted(key.name for key in graph.get_check_keys_for_assets({dg.AssetKey(["shop", "orders"])})),
    "landing": defs.resources["lakehouse"].landing("shop"),
    "lakehouse run": [stage.name for stage in selections],
}))
"""


def test_a_domain_beside_nyc_has_everything_of_its_own(settings: Settings, tmp_path: Path) -> None:
    package = tmp_path / "lakehouse_assets"
    shutil.copytree(ROOT / "lakehouse_assets", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "domains" / "shop").mkdir()
    for name, text in FILES.items():
        (package / "domains" / "shop" / name).write_text(text)
    definitions = (package / "definitions.py").read_text()
    (package / "definitions.py").write_text(definitions.replace("trade", "shop"))

    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    described = subprocess.run(
        [sys.executable, "-c", DESCRIBE], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert described.returncode == 0, described.stderr[-3000:]
    nyc = sorted(key.to_user_string() for key in DOMAIN.keys)
    shop = ["shop/latest", "shop/orders"]
    assert json.loads(described.stdout) == {
        "assets": [*nyc, *shop],
        "sensors": {"nyc_automation": nyc, "shop_automation": shop},
        "checks": ["audit", "files", "history", "storage"],
        "landing": f"{settings.landing}/shop",
        "lakehouse run": ["shop.orders", "shop.latest"],
    }
