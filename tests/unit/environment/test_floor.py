"""Nothing below the other rooms: environment/ knows no other module of this package, neither by import nor by name, but
for the list of this library's computes: it finds a worker's by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse_assets.environment.computes import BUILT_IN

ROOT = Path(__file__).parents[3]
LOADED = """
names = {name.split(".")[1] for name in sys.modules if name.startswith("lakehouse_assets.")}
print(sorted(names))
"""


@pytest.mark.parametrize("module", ["settings", "catalog", "spark_setup", "launchers.local", "launchers.base"])
def test_importing_it_loads_nothing_of_the_rooms_above(module: str) -> None:
    code = f"import sys, lakehouse_assets.environment.{module}; {LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['environment']\n"


def test_it_names_no_module_of_another_room() -> None:
    paths = sorted((ROOT / "lakehouse_assets/environment").rglob("*.py"))
    named = {
        path.name: re.findall(r"""["'](lakehouse_assets\.(?!environment)[^"']*)["']""", path.read_text())
        for path in paths
    }
    computes = [name for name in BUILT_IN.values() if ".environment." not in name]
    assert {name: found for name, found in named.items() if found} == {"computes.py": computes}
