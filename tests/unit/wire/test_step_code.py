"""What of a project's code a step reaches: edits that count, edits that don't, and code that hides."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from lakehouse_assets.environment.machine import installed_with
from lakehouse_assets.wire import code
from lakehouse_assets.wire.code import function_doc, reached_code, reached_packages, worker_code

STEP = "shop.steps:orders"
ODD = "shop.odd:step"
HIDDEN = "def hidden():\n    return 1\n"
TWIN = "def sub():\n    return 1\n"
OWN = "class Own{}:\n    {}\n    def f(self):\n        return 1\n"
LOAD = "from importlib import import_module\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
KEPT = "KEPT = []\ndef keep(f):\n    KEPT.append(f)\n    return f\nclass Base:\n    pass\n"
PROJECT = {
    "shop/__init__.py": "from shop.exported import given\n",
    "shop/exported.py": "def given():\n    return 1\n",
    "shop/steps.py": """
from __future__ import annotations
from functools import cache
import decimal
from shop.helpers import cleaned, priced
from shop import rates, names as spelling
from shop.others import listed
from shop.worker import Window

ORDERS = {"id": "int"}
CUSTOMERS = {"name": "string"}

def orders(spark, window: Window):
    \"\"\"Orders.\"\"\"
    import shop.late
    from .later import last
    return last(cleaned(spark, ORDERS), rates.EURO)

def customers(spark, window):
    return priced(spark, CUSTOMERS)

def lists(spark, window):
    from shop.unseen import X
    from shop import rates
    return listed()

@cache
def cached():
    return 1
""",
    "shop/helpers.py": """
import vendored
from shop.deep import depth

LIMIT = 5

def cleaned(rows, columns):
    return _inner(rows)[:depth()]

def _inner(rows):
    return vendored.shorten(rows, LIMIT)

def priced(rows, columns):
    return rows
""",
    "shop/deep.py": "def depth():\n    return 1\n\ndef other():\n    return 2\n",
    "shop/rates.py": "EURO = 1\nDOLLAR = 2\n",
    "shop/others.py": "SEEN = 1\ndef listed():\n    return 1\n",
    "shop/unseen.py": "print()\nX = 1\n",
    "shop/names.py": "def spelled():\n    return 1\n",
    "shop/worker.py": """
class Window:
    days = 1
    def first(self):
        return bound()

def bound():
    return 1
""",
    "shop/late.py": "def any():\n    return 1\n",
    "shop/later.py": "def last(*rows):\n    return rows\n",
    "vendored.py": "def shorten(rows, limit):\n    return rows[:limit]\n",
    "unused.py": "X = 1\n",
}


class Project:
    """The files of a made-up project, on Python's path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in PROJECT.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new, 1))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "cache"))
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("shop/steps.py", "rates.EURO", "rates.DOLLAR", id="the step"),
        pytest.param("shop/steps.py", '"id": "int"', '"id": "long"', id="a constant it reads"),
        pytest.param("shop/helpers.py", "return _inner(rows)", "return _inner(rows)[1:]", id="a helper"),
        pytest.param("shop/helpers.py", "LIMIT = 5", "LIMIT = 6", id="a constant the helper's helper reads"),
        pytest.param("shop/deep.py", "return 1", "return 3", id="a helper of the helper, in another module"),
        pytest.param("shop/rates.py", "DOLLAR = 2", "DOLLAR = 3", id="a module used by its name, whatever of it"),
        pytest.param("shop/worker.py", "return 1", "return 2", id="what a method of an argument's class calls"),
        pytest.param("shop/late.py", "return 1", "return 2", id="a module imported inside of the step"),
        pytest.param("shop/later.py", "return rows", "return rows[0]", id="a relative import inside of the step"),
        pytest.param("vendored.py", "rows[:limit]", "rows[limit:]", id="another top-level module beside the package"),
        pytest.param("shop/__init__.py", "", "import decimal\ndecimal.getcontext().prec = 3\n", id="what import runs"),
        pytest.param("shop/names.py", "return 1", "return 2", id="an import that nothing uses"),
        pytest.param("shop/others.py", "SEEN", "print()\nSEEN", id="what the import of a neighbour's module runs"),
        pytest.param("shop/deep.py", "return 2", "return 3", id="a neighbour of a helper, as modules count as a whole"),
        pytest.param("shop/steps.py", "    return 1", "    return 2", id="a decorated neighbour, which may be kept"),
        pytest.param("shop/deep.py", "def depth", "from unused import X as depth\ndef _", id="a name from elsewhere"),
    ],
)
def test_what_the_step_reaches_counts(project: Project, file: str, old: str, new: str) -> None:
    before = reached_code(STEP)
    project.edit(file, old, new)
    assert reached_code(STEP) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("shop/steps.py", "return priced(spark, CUSTOMERS)", "return 5", id="another step"),
        pytest.param("shop/steps.py", '"name": "string"', '"name": "int"', id="another step's constant"),
        pytest.param("shop/helpers.py", "\nimport vendored", '"""Helpers."""\nimport vendored', id="a docstring"),
        pytest.param("shop/others.py", "return 1", "return 2", id="a function of a module that a neighbour uses"),
        pytest.param("shop/unseen.py", "X = 1", "X = 2", id="a module imported inside of another step"),
        pytest.param("unused.py", "X = 1", "X = 2", id="a module nobody imports"),
        pytest.param("shop/steps.py", '"""Orders."""', '"""All\n\n    orders."""', id="the step's docstring"),
        pytest.param("shop/steps.py", "    return last", "    # The last.\n\n    return last", id="a comment"),
        pytest.param("shop/worker.py", "Window:", "Window:\n    # Days.\n    'Of days.'\n", id="a class's docstring"),
        pytest.param("shop/worker.py", "days = 1\n", "days = 1\n    'Of a\\\n    window.'\n", id="a field's doc"),
        pytest.param("shop/steps.py", "import decimal", f"{TYPES}    import unused", id="what type checkers import"),
        pytest.param(
            "shop/steps.py",
            "import decimal",
            "import typing\nif typing.TYPE_CHECKING:\n    import unused",
            id="what type checkers import, asked of the module",
        ),
    ],
)
def test_what_it_does_not_reach_does_not_count(project: Project, file: str, old: str, new: str) -> None:
    before = reached_code(STEP)
    project.edit(file, old, new)
    assert reached_code(STEP) == before


@pytest.mark.parametrize("step", ["shop.steps:customers", "shop.steps:lists"])
def test_what_a_package_exports_does_not_count_for_all_of_its_steps(project: Project, step: str) -> None:
    before = reached_code(step)
    project.edit("shop/exported.py", "return 1", "return 2")
    assert reached_code(step) == before


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("def cleaned(*_):\n    return globals()['hidden']()", id="globals"),
        pytest.param("def cleaned(*_):\n    return eval('hidden()')", id="eval"),
        pytest.param("def __getattr__(name):\n    return globals()['hidden']", id="a module's __getattr__"),
        pytest.param("KEPT = []\ndef cleaned(*_):\n    return KEPT[0]()\n@KEPT.append", id="an own decorator"),
        pytest.param("KEPT = []\ndef cleaned(*_):\n    return KEPT[0]()\nKEPT.append(lambda: hidden())", id="a call"),
        pytest.param("try:\n    from shop.deep import depth as cleaned\nexcept ImportError:\n    pass", id="try"),
        pytest.param("cleaned = None\nfrom shop.hiding import *", id="star"),
    ],
)
def test_code_that_hides_counts(project: Project, code: str) -> None:
    hidden = "def hidden(*rows):\n    return 1\n"
    project.write("shop/hiding.py", hidden)
    project.write("shop/helpers.py", f"{code}\n{hidden}\ndef priced(rows, columns): ...\n")
    before = reached_code(STEP)
    for file in ("shop/hiding.py", "shop/helpers.py", "shop/deep.py"):
        project.edit(file, "return 1", "return 7")
    assert reached_code(STEP) != before


@pytest.mark.parametrize(
    ("files", "helper"),
    [
        pytest.param({"shop/lib/__init__.py": HIDDEN}, "import shop.lib.sub\nC = shop.lib.hidden()", id="a package"),
        pytest.param({"shop/lib/__init__.py": TWIN}, "from shop.lib import sub\nC = sub()", id="a submodule's twin"),
        pytest.param({"shop/parts/part.py": HIDDEN}, "from shop.parts.part import hidden as C", id="a namespace"),
        pytest.param({"kept.py": KEPT}, f"C = 1\nfrom kept import *\n@keep\n{HIDDEN}", id="a star's decorator"),
        pytest.param({}, f"C = 1\nimport numpy\n@numpy.vectorize\n{HIDDEN}", id="an installed decorator"),
        pytest.param({"kept.py": KEPT}, f"C = 1\nimport kept\n{OWN.format('(kept.Base)', '')}", id="a base"),
        pytest.param({"kept.py": KEPT}, f"C = 1\nimport kept\n{OWN.format('', '@kept.keep')}", id="a method's"),
        pytest.param({}, f"C = 1\nK = {{}}\n{OWN.format('', 'K[1] = 2')}", id="a class body"),
        pytest.param({"kept.py": HIDDEN}, f"{LOAD}C = import_module('kept').hidden()", id="by name"),
        pytest.param({"kept.py": HIDDEN}, f"{LOAD}C = import_module(name='kept').hidden()", id="by keyword"),
        pytest.param({"kept.py": HIDDEN}, f"{LOAD}f = import_module\nC = f('kept')", id="by an alias"),
        pytest.param({"kept.py": HIDDEN}, "import pkgutil\nC = pkgutil.resolve_name('kept:hidden')()", id="resolved"),
        pytest.param({}, f"import builtins\nC = builtins.globals()['hid' + 'den']\n{HIDDEN}", id="builtins' globals"),
        pytest.param(
            {"shop/lib/__init__.py": "from .low import other\n", "shop/lib/low.py": f"other = 1\n{HIDDEN}"},
            "import shop.lib\nC = shop.lib.low.hidden()",
            id="what a package's import has bound",
        ),
        pytest.param(
            {"shop/lib/low.py": HIDDEN, "kept.py": "import shop.lib.low\n"},
            "import shop.lib.sub\nimport kept\nC = shop.lib.low.hidden()",
            id="what somebody else's import has bound",
        ),
        pytest.param({"shop/kept.py": HIDDEN}, f"{LOAD}C = import_module('.kept', __package__)", id="relative"),
        pytest.param({}, f"import sys\nC = getattr(sys.modules[__name__], 'hid' + 'den')\n{HIDDEN}", id="sys.modules"),
        pytest.param({}, f"\f\n\f\nTEXT = '\u2028\u0085'\nN = 1\n{HIDDEN}C = hidden()", id="lines that are none"),
    ],
)
def test_what_is_reached_in_an_odd_way_counts(project: Project, files: dict[str, str], helper: str) -> None:
    project.write("shop/lib/__init__.py", "")
    project.write("shop/lib/sub.py", "")
    for name, text in files.items():
        project.write(name, text)
    project.write("shop/odd.py", f"{helper}\ndef step():\n    return C\n")
    project.edit("shop/deep.py", "return 1", "from shop.odd import C; return C")
    before, own = reached_code(STEP), reached_code(ODD)
    for name in (*files, "shop/odd.py"):
        project.write(name, (project.root / name).read_text().replace("return 1", "return 7"))
    assert reached_code(STEP) != before
    assert reached_code(ODD) != own


def test_nothing_is_imported(project: Project) -> None:
    project.write("shop/__init__.py", "raise SystemExit('imported')\n")
    reached_code(STEP)
    assert "shop" not in sys.modules


def test_a_package_that_another_finder_finds_is_read_where_it_lies(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As editable installs do, whose folders may have other names."""
    project.write("lib/__init__.py", "")
    project.write("lib/steps.py", "from renamed.helpers import C\ndef step():\n    return C\n")
    project.write("lib/helpers.py", "C = 1\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            file = project.root / "lib" / "__init__.py"
            found = spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
            return found if name == "renamed" else None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    before = reached_code("renamed.steps:step")
    project.edit("lib/helpers.py", "1", "2")
    assert reached_code("renamed.steps:step") != before


def test_what_pip_installed_with_the_package_is_read_and_what_it_installed_beside_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    step = "from common import C\nfrom other import D\ndef step():\n    return C + D\n"
    for name, text in (("web/__init__", ""), ("web/steps", step), ("common", "C = 1\n"), ("other", "D = 1\n")):
        (site / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (site / f"{name}.py").write_text(text)
    for distribution, files in (("web", ["web/__init__.py", "web/steps.py", "common.py"]), ("others", ["other.py"])):
        (info := site / f"{distribution}-1.dist-info").mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.syspath_prepend(site)
    installed_with.cache_clear()
    assert "C = 1" in reached_code("web.steps:step")
    assert "D = 1" not in reached_code("web.steps:step")
    assert reached_packages("web.steps:step") == {"web", "common"}


def test_every_statement_is_followed_however_long_the_chain(project: Project) -> None:
    functions = [f"def f{n}():\n    return f{n + 1}()\n" for n in range(3000)]
    project.write("shop/deep.py", f"{''.join(functions)}def f3000():\n    return 1\ndepth = f0\n")
    before = reached_code(STEP)
    project.edit("shop/deep.py", "return 1\n", "return 2\n")
    assert reached_code(STEP) != before


def test_another_interpreter_and_a_zip_of_the_code_give_the_same_hash(project: Project, tmp_path: Path) -> None:
    archive = tmp_path / "elsewhere" / "code.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for name in PROJECT:
            file.write(project.root / name, name)
    command = f"import sys; sys.path.insert(0, {str(archive)!r}); from lakehouse_assets.wire.code import *"
    python = [sys.executable, "-c", f"{command}; print(worker_code({STEP!r}))"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    for folder in (Path(__file__).parents[3], tmp_path, archive.parent):  # the folder it runs in is no part of it
        done = subprocess.run(python, cwd=folder, env=env, capture_output=True, text=True)
        assert done.stdout.strip() == worker_code(STEP), done.stderr


def test_a_module_that_is_not_there_is_named(project: Project) -> None:
    with pytest.raises(ImportError, match=r"no module shop\.missing with source code"):
        reached_code("shop.missing:step")


def test_a_line_of_text_is_no_comment(project: Project) -> None:
    project.edit("shop/deep.py", "return 1", "return '''\n# 1\n'''")
    before = reached_code(STEP)
    project.edit("shop/deep.py", "# 1", "# 2")
    assert reached_code(STEP) != before


def test_the_docstring_of_a_step_is_read_without_importing_it(project: Path) -> None:
    assert function_doc(STEP) == "Orders."
    assert function_doc("shop.steps:customers") == ""
    assert "shop.steps" not in sys.modules


def test_what_was_parsed_once_is_not_parsed_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    code._statements.cache_clear()
    before = reached_code(STEP)
    code._statements.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(code, "_parsed", None)
        assert reached_code(STEP) == before
    for number, file in enumerate((project.root / "cache" / "code").iterdir()):
        file.write_text(("", "[", "[{}]", '[{"text": 1}]', "[1]")[number % 5])
    code._statements.cache_clear()
    assert reached_code(STEP) == before
