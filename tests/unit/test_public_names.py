"""What a user imports: each name is loaded when asked for, documented with an example that runs, shown in docs/."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lakehouse_assets
from tests.conftest import ROOT

FACADE = Path(lakehouse_assets.__file__)
NEED_SPARK = {"read_csv", "read_json", "read_parquet"}


def imported(path: Path) -> list[tuple[str, str]]:
    """Module and name of each import of a file, those inside functions too."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    of_names = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    whole = [(alias.name, "") for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [
        *whole,
        *((f"{'.' * node.level}{node.module or ''}", name.name) for node in of_names for name in node.names),
    ]


def test_type_checkers_and_python_are_told_the_same() -> None:
    told = {name: module for module, name in imported(FACADE) if name in lakehouse_assets.HOMES}
    assert told == {name: f"lakehouse_assets.{module}" for name, module in lakehouse_assets.HOMES.items()}


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys; before = {*sys.modules}; import lakehouse_assets; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} <= {"lakehouse_assets", *sys.stdlib_module_names}


def test_a_worker_gets_its_names_without_dagster() -> None:
    code = "import sys; from lakehouse_assets import Window, read_csv; print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Tabel"):
        lakehouse_assets.Tabel  # noqa: B018


@pytest.mark.parametrize("path", sorted((ROOT / "lakehouse_assets/domains").rglob("*.py")), ids=lambda p: p.stem)
def test_domains_import_from_nothing_else(path: Path) -> None:
    ours = [(module, name) for module, name in imported(path) if module.partition(".")[0] in ("lakehouse_assets", "")]
    others = [found for found in ours if not found[0].startswith("lakehouse_assets.domains.")]
    assert {module for module, _ in others} <= {"lakehouse_assets"}
    assert {name for _, name in others} <= {*lakehouse_assets.HOMES}


def test_the_pages_show_every_name_and_no_other_import() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    unseen = [name for name in lakehouse_assets.HOMES if not re.search(rf"\b{name}\b", text)]
    assert unseen == []
    deeper = re.findall(r"from (lakehouse_assets\.(?!domains)[\w.]+) import", text)
    assert {*deeper} == {"lakehouse_assets.testing"}, "apart, as only tests import it"


def run_examples(name: str, **names: object) -> None:
    found = getattr(lakehouse_assets, name)
    module = import_module(f"lakehouse_assets.{lakehouse_assets.HOMES[name]}")
    test = doctest.DocTestParser().get_doctest(found.__doc__, dict(names), name, module.__file__, 0)
    assert test.examples, "no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test).failed == 0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that the examples name."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    steps = "".join(f"def {name}(spark, window): ...\n" for name in ("orders", "days", "rates"))
    (tmp_path / "shop" / "steps.py").write_text(steps)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)


@pytest.mark.parametrize("name", sorted(lakehouse_assets.HOMES.keys() - NEED_SPARK))
def test_its_example_runs(name: str, shop: None, tmp_path: Path) -> None:
    run_examples(name, folder=str(tmp_path))
