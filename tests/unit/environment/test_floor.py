"""Nothing below the other rooms: environment/ knows no other module of this package, neither by import nor by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADED = """
names = {name.split(".")[1] for name in sys.modules if name.startswith("lakehouse_assets.")}
print(sorted(names))
"""


@pytest.mark.parametrize("module", ["settings", "catalog", "spark_setup", "launchers.local", "launchers.job_runs"])
def test_importing_it_loads_nothing_of_the_rooms_above(module: str) -> None:
    code = f"import sys, lakehouse_assets.environment.{module}; {LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['environment']\n"


def test_it_names_no_module_of_another_room() -> None:
    paths = (ROOT / "lakehouse_assets/environment").rglob("*.py")
    assert not [path for path in paths if re.search(r"""["']lakehouse_assets\.(?!environment)""", path.read_text())]
