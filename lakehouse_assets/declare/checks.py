"""Checks of single options of a declaration. Each raises a ValueError that says which option can't work and why.
The table's name is added in table.py; what several tables together can get wrong is in location.py."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pyiceberg.schema import Schema

from lakehouse_assets.declare.columns import find_column
from lakehouse_assets.protocol import step_code
from lakehouse_assets.protocol.module_source import read_module
from resources.secrets import public
from resources.settings import Compute
from resources.sizes import LEAST_MEMORY_GIB, Size

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


def check_identifier(identifier: str) -> None:
    if not IDENTIFIER.fullmatch(identifier):
        raise ValueError("the identifier is not of the form namespace.table in lower case, digits and _")


def check_lists(**options: Sequence[str]) -> None:
    """A string in place of a list would be read as a list of its letters."""
    for name, value in options.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is a string, it must be a list such as [{value!r}]")


def check_unique(unique: Sequence[str], schema: Schema) -> None:
    for name in unique:
        find_column(schema, name, "unique")


def check_partitions_per_worker(count: int | None) -> None:
    if count is not None and count < 1:
        raise ValueError(f"partitions_per_worker is {count}, it must be 1 or more")


def check_properties(properties: Mapping[str, str]) -> None:
    version = str(properties.get("format-version", "2"))
    if version != "2":
        raise ValueError(f"format-version {version}: PyIceberg 0.12 writes manifests of version 2 only")


def check_spark_conf(spark_conf: Mapping[str, str]) -> None:
    if secrets := spark_conf.keys() - public(spark_conf).keys():
        names = ", ".join(sorted(secrets))
        raise ValueError(f"spark_conf has {names}: secrets belong in the workers' environment, not in code")


def check_compute(compute: Compute | None) -> None:
    if compute is not None and compute not in list(Compute):
        raise ValueError(f"compute is {compute!r}, known are {', '.join(Compute)}")


def check_size(size: Size) -> None:
    if not isinstance(size, Size):
        raise ValueError(f"size is {size!r}, it must be a Size such as Size(vcpus=2, memory_gib=8)")
    for name, value in vars(size).items():
        types, number = ((int,), "whole number") if name == "disk_gib" else ((int, float), "number")
        if value is not None and not (type(value) in types and math.isfinite(value) and value > 0):
            raise ValueError(f"size has {name}={value!r}, it must be a {number} above 0")
    if size.memory_gib is not None and size.memory_gib < LEAST_MEMORY_GIB:
        raise ValueError(f"size has memory_gib={size.memory_gib:g}, a worker needs {LEAST_MEMORY_GIB} GiB")


def check_worker_timeout(timeout: timedelta | None) -> None:
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        raise ValueError(f"worker_timeout is {timeout!r}, it must be a timedelta above 0")


def check_step(step: str) -> None:
    """The module is read, not imported: steps import pyspark, but a code location must load without it."""
    module, _, function = step.partition(":")
    try:
        defined = {node.name for node in ast.parse(read_module(module)).body if isinstance(node, ast.FunctionDef)}
    except ImportError as error:
        raise ValueError(f"the step's module {module!r} can't be found: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"the step's module {module!r} can't be read: {error}") from error
    if function not in defined:
        raise ValueError(f"the step's module {module} has no function {function!r}; it has {sorted(defined)}")


def step_hash(step: str) -> str:
    """step_code.code_hash(). Raises ValueError, naming the step, if a module that it reaches can't be read."""
    try:
        return step_code.code_hash(step)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"a module that the step {step} imports can't be read: {error}") from error
