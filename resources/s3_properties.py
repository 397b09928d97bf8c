"""PyIceberg's FileIO properties for S3, as Iceberg's Java has them.
The catalogs' own properties are translated in catalog_translation.py."""

from __future__ import annotations

import math
from collections.abc import Mapping

from resources.spark_names import KEYS, S3_RETRIES, TIMEOUTS, variable


def s3_file_io(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that Java's S3FileIO spells otherwise. s3.* wins over client.*, as in PyIceberg."""
    keys = {f"s3.{key}": properties.get(f"s3.{key}") or properties.get(f"client.{key}") for key in KEYS}
    found = {name: value for name, value in keys.items() if value}
    if region := properties.get("s3.region") or properties.get("client.region"):
        found["client.region"] = region
    if "s3.endpoint" in properties or "s3.force-virtual-addressing" in properties:
        found["s3.path-style-access"] = properties.get("s3.path-style-access") or path_style(properties)
    for seconds, milliseconds in TIMEOUTS.items():
        if timeout := _milliseconds(properties.get(seconds, "")):
            found[milliseconds] = str(timeout)
    return found


def s3_problems(properties: Mapping[str, str]) -> list[str]:
    """The values for S3 that neither PyIceberg nor Java can work with."""
    problems = [
        f"{variable(name)}={properties[name]!r} is not a number of seconds above 0"
        for name in TIMEOUTS
        if properties.get(name) and not _milliseconds(properties[name])
    ]
    missing = [f"s3.{key}" for key in KEYS[:2] if f"s3.{key}" not in s3_file_io(properties)]
    if len(missing) == 1:
        problems.append(f"{variable(missing[0])} is missing: the other half of the key is given")
    return problems


def _milliseconds(seconds: str) -> int | None:
    """None where ``seconds`` is not a finite number above 0."""
    try:
        value = float(seconds)
    except ValueError:
        return None
    return int(value * 1000) if math.isfinite(value) and value > 0 else None


def path_style(properties: Mapping[str, str]) -> str:
    """``true`` where the bucket is in a URL's path, which is PyIceberg's default, ``false`` where it is in the host."""
    return str(not is_true(properties.get("s3.force-virtual-addressing", ""))).lower()


def on_s3(kind: str, properties: Mapping[str, str]) -> bool:
    """Whether the tables of a catalog of this type are surely on S3."""
    warehouse = properties.get("warehouse", "")
    return kind == "glue" or warehouse.startswith(("s3:", "arn:aws:s3")) or "s3.endpoint" in properties


def s3_retries(kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """How often Java retries calls to S3, for a catalog that may have tables there, as any REST catalog."""
    return S3_RETRIES if kind == "rest" or on_s3(kind, properties) else {}


def is_true(text: str) -> bool:
    """Whether PyIceberg reads the property's value as true."""
    return text.lower() in ("y", "yes", "t", "true", "on", "1")  # as pyiceberg.types.strtobool
