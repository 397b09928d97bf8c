"""Finds the problems of the catalog's configuration and of the places it names: all at once, a sentence each.

This reads PyIceberg's configuration and the EMR cluster's file, and calls no service. See read_settings for the
services' own variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches

from resources.aws import region_problems
from resources.catalog import configuration, with_defaults
from resources.catalog_translation import catalog_type, translate
from resources.computes import find_compute
from resources.env_reader import BUCKET
from resources.secrets import is_secret, shown
from resources.settings import Chosen, Settings, chosen_by, unknown_names
from resources.spark_names import ADVICE, GLUE, LAKE, PYTHON_ONLY, REST, REWORDED, S3, variable

# With a SQL catalog or Glue a warehouse is a place on S3; with a REST catalog it is a name.
WAREHOUSE = re.compile(rf"s3{BUCKET}|arn:aws:s3.*")
# What PyIceberg reads as a property of some catalog; it ignores any other name silently.
PROPERTY = re.compile("PYICEBERG_CATALOG__[^_].*?__.+")
PROPERTIES = sorted(PYTHON_ONLY | S3 | REST | GLUE | frozenset().union(*REWORDED.values(), *ADVICE.values()))
VARIABLES = [variable(name).partition(" ")[0] for name in PROPERTIES]
FILES = ("file:", "/")


def catalog_problems(settings: Settings, computes: Chosen) -> list[str]:
    """Returns a sentence for each problem of the catalog, of remote workers' places, and of the names of variables.

    Looked at are the catalog's configuration, secrets in the names of places, the places and the cluster's file that
    remote workers need, and AWS's region where they or the queue need it.

    computes: all that workers may run on: LAKEHOUSE_COMPUTE, and what tables choose for themselves.
    """
    configured, unreadable = configuration()
    properties = {} if unreadable else with_defaults(configured, settings)
    problems = [unreadable] if unreadable else translate(properties)[1] if configured else []
    for name, place in (
        (variable("warehouse"), properties.get("warehouse", "")),
        ("LAKEHOUSE_LANDING", settings.landing),
        ("LAKEHOUSE_STAGING", settings.staging),
    ):
        if is_secret("", place):
            problems.append(f"{name} has a secret in it, which files and logs would show; set it by other settings")
    if remote := [compute for compute in computes if find_compute(compute).remote]:
        on = [c if c == settings.compute else f"{c} (chosen by {chosen_by(c, computes)})" for c in remote]
        consequence = f": workers on {', '.join(on)} can't reach it"
        embedded = not configured and not unreadable
        problems += [f"{problem}{consequence}" for problem in _unreachable(settings, properties, embedded)]
    own = [problem for compute in settings.computes.values() for problem in compute.problems()]
    own += region_problems() if settings.queue else []
    return problems + list(dict.fromkeys(own)) + unknown_names(os.environ) + unknown_properties(os.environ)


def unknown_properties(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each variable that looks like a catalog's property but is none, with the most similar one.

    With a misspelt URI ``lake`` would be the embedded catalog. PyIceberg's own settings and other catalogs' are fine.
    """
    given = {name: name.upper() for name in sorted(env) if name.upper().startswith("PYICEBERG_")}
    unknown = [name for name, upper in given.items() if not PROPERTY.fullmatch(upper) and _of_a_catalog(upper)]
    nearest = {name: get_close_matches(given[name], VARIABLES, 1, cutoff=0)[0] for name in unknown}
    return [f"{name} is unknown; did you mean {near}?" for name, near in nearest.items()]


def _of_a_catalog(name: str) -> bool:
    """Says whether the variable, here in capitals, was probably meant as a catalog's property."""
    first = name.removeprefix("PYICEBERG_").lstrip("_").partition("_")[0]
    return first == LAKE.upper() or bool(get_close_matches(first, ["CATALOG"], cutoff=0.8))


def _unreachable(settings: Settings, properties: Mapping[str, str], embedded: bool) -> list[str]:
    """Returns a problem for each place that workers on other machines can't reach.

    The catalog, the warehouse and the drop zone must not be on this machine's file system, and the warehouse of a SQL
    catalog or of Glue must be on S3.
    The staging prefix is checked by read_settings. A loopback address is accepted: it may be a tunnel.
    """
    problems = []
    if embedded:
        problems.append(f"{variable('uri')} is not set, and the embedded catalog is a file of this machine")
    elif properties.get("uri", "").startswith("sqlite"):
        problems.append(f"{variable('uri')} is a SQLite file of this machine")
    warehouse = properties.get("warehouse", "")
    setting = f"{variable('warehouse')} is {shown(warehouse)}"
    if warehouse.startswith(FILES):
        problems.append(f"{setting}, a folder of this machine")
    elif warehouse and catalog_type(properties)[0] in ("sql", "glue") and not WAREHOUSE.fullmatch(warehouse):
        problems.append(f"{setting}, not of the form s3://bucket/prefix")
    if settings.landing.startswith(FILES):
        problems.append(f"LAKEHOUSE_LANDING is {shown(settings.landing)}, a folder of this machine")
    return problems
