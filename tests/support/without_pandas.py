"""Runs a module as if pandas were not installed: ``python -m tests.support.without_pandas tests.support.tiny_worker``.
PyArrow's datasets import pandas where it is: a third of what a small process takes."""

from __future__ import annotations

import runpy
import sys

COMMAND = (sys.executable, "-m", "tests.support.without_pandas")


class NoPandas:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, NoPandas())
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
