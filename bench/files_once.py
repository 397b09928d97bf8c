"""One process with a Spark session that fills real files as `lakehouse columns` printed, or reads the flights in turns.
Prints a line of JSON for each file or turn. What is fetched and wanted is in files.py."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import lakehouse_assets
from bench.files_expected import problem
from lakehouse_assets.cli.column_lines import look_at
from lakehouse_assets.declare.columns import column, schema_of
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import environment, spark_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READERS = ("read_csv", "read_json", "read_parquet")
KEY = "2013"


def fill(folder: str, chosen: str) -> None:
    spark = _session()
    for name in json.loads(Path(chosen).read_text()):
        with tempfile.TemporaryDirectory() as scratch:
            print(json.dumps({"file": name, **_outcome(spark, Path(folder, name), Path(scratch))}), flush=True)


def _outcome(spark: SparkSession, path: Path, scratch: Path) -> dict[str, str]:
    """What became of a file: filled, refused or wrong, and why."""
    delivered = scratch / "orders" / f"{KEY}.{'csv.gz' if path.suffix == '.gz' else path.suffix[1:]}"
    delivered.parent.mkdir()
    shutil.copy(path, delivered)
    try:
        call = _printed(delivered)
        rows = call.read(spark).toArrow().to_pylist()
    except Exception as error:  # whatever the reason: it is in the report
        reason = str(error).strip() or type(error).__name__
        return {"outcome": "refused", "why": reason.splitlines()[0].replace(str(scratch), "…").replace("|", "¦")}
    why = problem(path, rows, call.options.get("rename", {}))
    return {"outcome": "wrong" if why else "filled", "why": (why or "")[:300].replace("|", "¦").replace("\n", " ")}


@dataclass(frozen=True)
class _Call:
    """Of a reader, as it was printed."""

    reader: str
    folder: str
    names: Sequence[str]
    schema: Mapping[str, str]
    options: Mapping[str, Any]

    def read(self, spark: SparkSession) -> DataFrame:
        reader = getattr(lakehouse_assets, self.reader)
        return reader(spark, self.folder, self.names, self.schema, **self.options)  # type: ignore[no-any-return]


def _printed(file: Path) -> _Call:
    """Evaluates what is printed for a file as its author would. Raises what printing and the declaration raise."""
    lines, _, call = look_at(file).text.partition("\n\n")
    schema_of(eval(f"[{lines}]", {"column": column}))

    def said(reader: str) -> Callable[..., _Call]:
        return lambda spark, folder, names, schema, **options: _Call(reader, folder, names, schema, options)

    window = SimpleNamespace(landing=str(file.parent.parent), keys=[KEY])
    names = {"spark": None, "window": window, **{reader: said(reader) for reader in READERS}}
    return eval(call, names)  # type: ignore[no-any-return]


def speed(flights: str, turns: str) -> None:
    spark = _session()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "orders", f"{KEY}.csv.gz")
        file.parent.mkdir()
        file.write_bytes(gzip.compress(Path(flights).read_bytes(), 6))
        call = _printed(file)
        ways: dict[str, Callable[[], DataFrame]] = {
            "ours": lambda: call.read(spark),
            "before": lambda: _before(spark, call.folder, call.schema),
        }
        for turn in range(int(turns) + 1):
            seconds = {}
            for way in ways if turn % 2 else reversed(ways):
                started = time.perf_counter()
                ways[way]().write.format("noop").mode("overwrite").save()
                seconds[way] = time.perf_counter() - started
            if turn:  # the first one warms the JVM
                print(json.dumps(seconds), flush=True)


def _before(spark: SparkSession, folder: str, schema: Mapping[str, str]) -> DataFrame:
    """The flights as read_csv() read them before it had a grammar: Spark's reader, a job for the headers, try_cast."""
    from pyspark.sql import functions as F

    files = spark.read.format("binaryFile").options(pathGlobFilter=f"{{{KEY}}}.csv.gz").load(folder)
    files.selectExpr(
        "path", "length", "unix_millis(modificationTime) AS modified", "substring(content, 1, 4096) AS head"
    ).collect()
    raw = (
        spark.read.schema(", ".join(f"`{name}` string" for name in schema))
        .options(header=True, mode="FAILFAST", nullValue="NA", escape='"', pathGlobFilter=f"{{{KEY}}}.csv.gz")
        .csv(folder)
    )
    columns = []
    for name, iceberg in schema.items():
        type_ = {"timestamptz": "timestamp", "timestamp": "timestamp_ntz"}.get(iceberg, iceberg)
        text = raw[name]
        cast = F.try_to_timestamp(text, F.lit("yyyy-MM-dd'T'HH:mm:ssX"))
        value = cast if type_ == "timestamp" else F.expr(f"try_cast(`{name}` AS {type_})")
        complaint = F.concat(F.lit(f"column {name}: '"), text, F.lit("' is none, in "), F.col("_metadata.file_path"))
        checked = F.when(text.isNotNull() & value.isNull(), F.raise_error(complaint).cast(type_)).otherwise(value)
        columns.append((text if type_ == "string" else checked).alias(name))
    return raw.select(*columns)


def _session() -> SparkSession:
    os.environ.update(environment())
    from lakehouse_assets.worker.session import build_session

    return build_session(spark_conf(read_settings(), {}))


if __name__ == "__main__":
    {"fill": fill, "speed": speed}[sys.argv[1]](*sys.argv[2:])
