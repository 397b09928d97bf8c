"""What can't work of the catalog's configuration and of the places it names: all of it at once, a sentence each.
Nothing is opened; settings of the workers' services alone are read_settings' to judge."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from resources.aws import region_problems
from resources.catalog import configuration, with_defaults
from resources.computes import Emr
from resources.env_reader import BUCKET
from resources.secrets import is_secret, shown
from resources.settings import Chosen, Compute, Settings, chosen_by, unknown_names
from resources.spark_catalog import LAKE, catalog_type, translate, variable
from resources.spark_names import ADVICE, GLUE, PYTHONS_OWN, REST, REWORDED, S3

# Of catalogs that hand it to their clients; a REST catalog has a name for it.
WAREHOUSE = re.compile(rf"s3{BUCKET}|arn:aws:s3.*")
# What PyIceberg takes for a catalog's property, whoever's; it passes over any other name without a word.
PROPERTY = re.compile("PYICEBERG_CATALOG__[^_].*?__.+")
PROPERTIES = sorted(PYTHONS_OWN | S3 | REST | GLUE | frozenset().union(*REWORDED.values(), *ADVICE.values()))
VARIABLES = [variable(name).partition(" ")[0] for name in PROPERTIES]
REMOTE = (Compute.ECS, Compute.EMR, Compute.EMR_SERVERLESS)


def catalog_problems(settings: Settings, computes: Chosen) -> list[str]:
    """What is wrong with the catalog's configuration, with what workers elsewhere need, and with the names in the
    environment, a sentence each, with its variables' names.

    computes: all that workers may run on: LAKEHOUSE_COMPUTE, and what tables choose for themselves.
    """
    configured, unreadable = configuration()
    properties = {} if unreadable else with_defaults(configured, settings)
    problems = [unreadable] if unreadable else translate(properties)[1] if configured else []
    for name, place in (
        (variable("warehouse"), properties.get("warehouse", "")),
        ("LAKEHOUSE_LANDING", settings.landing),
        ("LAKEHOUSE_STAGING", settings.staging),
        ("LAKEHOUSE_CODE", shipping.code if (shipping := settings.emr or settings.emr_serverless) else ""),
    ):
        if is_secret("", place):
            problems.append(f"{name} has a secret in it, which files and logs would show; give it by other settings")
    if remote := [compute for compute in REMOTE if compute in computes]:
        on = [c if c is settings.compute else f"{c} (chosen by {chosen_by(c, computes)})" for c in remote]
        elsewhere = f": workers on {', '.join(on)} can't reach it"
        embedded = not configured and not unreadable
        problems += [f"{told}{elsewhere}" for told in _out_of_reach(settings, properties, embedded)]
        problems += _cluster_problems(settings.emr) + region_problems()
    return problems + unknown_names(os.environ) + unknown_properties(os.environ)


def unknown_properties(env: Mapping[str, str]) -> list[str]:
    """The variables that look like a catalog's property and are none to PyIceberg, each with the nearest that is.

    Without its URI ``lake`` would be the embedded catalog. PyIceberg's own settings and other catalogs' are fine.
    """
    given = {name: name.upper() for name in sorted(env) if name.upper().startswith("PYICEBERG_")}
    strange = [name for name, upper in given.items() if not PROPERTY.fullmatch(upper) and _of_a_catalog(upper)]
    nearest = {name: get_close_matches(given[name], VARIABLES, 1, cutoff=0)[0] for name in strange}
    return [f"{name} is unknown; did you mean {near}?" for name, near in nearest.items()]


def _of_a_catalog(name: str) -> bool:
    """Whether somebody who wrote that variable, in capitals, meant a catalog's property."""
    first = name.removeprefix("PYICEBERG_").lstrip("_").partition("_")[0]
    return first == LAKE.upper() or bool(get_close_matches(first, ["CATALOG"], cutoff=0.8))


def _out_of_reach(settings: Settings, properties: Mapping[str, str], embedded: bool) -> list[str]:
    """The catalog, the warehouse and the drop zone where they are files of this machine.

    The staging prefix is read_settings' to judge. A loopback address passes: it may be a tunnel.
    """
    problems = []
    if embedded:
        problems.append(f"{variable('uri')} is not set, and the embedded catalog is a file of this machine")
    elif properties.get("uri", "").startswith("sqlite"):
        problems.append(f"{variable('uri')} is a SQLite file of this machine")
    warehouse = properties.get("warehouse", "")
    told = f"{variable('warehouse')} is {shown(warehouse)}"
    if _is_file(warehouse):
        problems.append(f"{told}, a folder of this machine")
    elif warehouse and catalog_type(properties)[0] in ("sql", "glue") and not WAREHOUSE.fullmatch(warehouse):
        problems.append(f"{told}, no s3://bucket/prefix")
    if _is_file(settings.landing):
        problems.append(f"LAKEHOUSE_LANDING is {shown(settings.landing)}, a folder of this machine")
    return problems


def _cluster_problems(emr: Emr | None) -> list[str]:
    """Why the cluster of a run's own could not be asked for."""
    if emr is None or emr.by != "transient":
        return []
    from resources.launchers.base import NotStarted
    from resources.launchers.emr_clusters import transient_cluster  # imports botocore

    try:
        transient_cluster(Path(emr.cluster), "")
    except NotStarted as error:
        return [str(error)]
    return []


def _is_file(place: str) -> bool:
    return place.startswith(("file:", "/"))
