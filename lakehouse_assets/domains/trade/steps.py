"""The steps of trade: for each table, a function from a Spark session and a window to the table's rows or changes.

DataFrame API only. Nothing here configures a catalog, writes a table or imports Dagster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets import BadPartitions, Window
from lakehouse_assets.domains.trade.shape import CORRECTION, KEY, LINE, MONTHS

CODES = {"exp_imp": 1, "ym": 6, "Country": 3, "Custom": 3, "hs2": 2, "hs4": 4, "hs6": 6, "hs9": 9}
"""The number of digits of each code; leading zeros matter."""
# Column → type, for columns that hold numbers.
FIGURES = {"Q1": "long", "Q2": "long", "Value": "long"}
QUANTITIES = ("Q1", "Q2")
"""The figures that a line may lack."""
NUMBERS = {"Year": "int", "month": "int", **FIGURES}
PARTITIONS = f"a month from {MONTHS[0]} to {MONTHS[-1]}"
MOST_REJECTED = 0.01
"""The share of a file's lines that may be unreadable."""
SHOWN = 5
"""The most wrong corrections that an error shows."""
BROKEN = "#broken"  # a name that no column has


class UnreadableLines(RuntimeError):
    """Too many lines of a file can't be read, so that it is perhaps of another kind; or any line of corrections."""


def customs(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the figures of the window's months; rejected() has the unreadable lines. Raises UnreadableLines."""
    lines = _lines(spark, window, sorted({key[:4] for key in window.keys}))
    good = lines.where(F.col("reason").isNull()).where(F.col("ym").isin(list(window.keys)))
    return good.select(*(F.col(name).cast(NUMBERS.get(name, "string")).alias(name) for name in LINE))


def rejected(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the lines of the window's years that can't be read. Raises UnreadableLines."""
    lines = _lines(spark, window, window.keys)
    line = F.coalesce(F.col(f"`{BROKEN}`"), F.concat_ws(",", *(F.coalesce(F.col(c), F.lit("")) for c in LINE)))
    return lines.where(F.col("reason").isNotNull()).select("file", line.alias("line"), "reason")


def revisions(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the figures of the window's months as first published, revision 0, and every correction of them.

    A key that the table has, but that is in neither of the two any more, is returned as deleted. Raises
    UnreadableLines, and BadPartitions for months without figures.
    """
    lines = _read(spark, [f"{window.landing}/revisions"], CORRECTION)
    numbers = {**FIGURES, "revision": "int"}
    problem = _first_problem([*_wrong_codes(KEY), *_wrong_numbers(numbers, FIGURES), _wrong_change()])
    if wrong := lines.select("file", problem.alias("reason")).where("reason IS NOT NULL").limit(SHOWN).collect():
        found = "; ".join(f"{row.file}: {row.reason}" for row in wrong)
        raise UnreadableLines(f"lines of {window.landing}/revisions can't be read, such as: {found}. Mend the files")
    corrections = lines.select(*(F.col(name).cast(numbers.get(name, "string")).alias(name) for name in CORRECTION))
    derived = {name: F.substring("hs9", 1, CODES[name]) for name in ("hs2", "hs4", "hs6")}
    dated = {"Year": F.substring("ym", 1, 4).cast("int"), "month": F.substring("ym", 5, 2).cast("int")}
    of_window = F.col("ym").isin(list(window.keys))
    published, there = (
        spark.table(f"lake.trade.{name}").where(of_window).select(*LINE) for name in ("customs", "revisions")
    )
    if absent := sorted({*window.keys} - {row.ym for row in published.select("ym").distinct().collect()}):
        raise BadPartitions(
            f"trade.customs has no figures of {', '.join(absent)}, and their corrections alone would look like all of "
            "them: materialize trade.customs first",
            absent,
        )
    first = published.withColumns({"revision": F.lit(0), "op": F.lit("U")})
    changes = first.unionByName(corrections.withColumns({**derived, **dated}).where(of_window))
    # Keys of the table that no input has any more. Revision 0 suffices, as no change competes with it.
    gone = there.join(changes, list(KEY), "left_anti").withColumns({"revision": F.lit(0), "op": F.lit("D")})
    return changes.unionByName(gone)


def countries(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the code and name of each country."""
    read = spark.read.options(header=True, enforceSchema=False, mode="FAILFAST").schema("Country string, name string")
    return read.csv(f"{window.landing}/countries.csv")


def _lines(spark: SparkSession, window: Window, years: Sequence[str]) -> DataFrame:
    """Returns the lines of the years' files as text, and the reason why a line can't be read.

    Raises UnreadableLines for files of which a larger share than MOST_REJECTED can't be read: what customs() left out
    then would look like months in which little was traded.
    """
    lines = _read(spark, [f"{window.landing}/customs/{year}.csv" for year in years], LINE)
    lines = lines.withColumn(
        "reason", _first_problem([*_wrong_codes(CODES), *_wrong_numbers(NUMBERS, QUANTITIES), _wrong_month()])
    )
    counts = lines.groupBy("file").agg(
        F.count("*").alias("lines"), F.count("reason").alias("rejected"), F.max("reason").alias("such_as")
    )
    if files := counts.where(F.col("rejected") > MOST_REJECTED * F.col("lines")).orderBy("file").collect():
        found = "; ".join(f"{row.file}: {row.rejected} of {row.lines}, such as: {row.such_as}" for row in files)
        raise UnreadableLines(
            f"too many lines of {window.landing}/customs can't be read, at most {MOST_REJECTED:.0%} of a file may be "
            f"bad; found {found}. Look at the files, then run again"
        )
    return lines


def _read(spark: SparkSession, paths: list[str], names: Sequence[str]) -> DataFrame:
    """Reads the files' lines as text, with the file's name; a line of another length is in the column BROKEN.

    Another header fails as the lines are read, with an error that names the file.
    """
    schema = ", ".join(f"{name} string" for name in (*names, f"`{BROKEN}`"))
    read = spark.read.options(header=True, enforceSchema=False, mode="PERMISSIVE", columnNameOfCorruptRecord=BROKEN)
    return read.schema(schema).csv(paths).withColumn("file", F.col("_metadata.file_name"))


def _first_problem(wrong: Iterable[Column]) -> Column:
    """Says what is wrong with a line; null if nothing is."""
    broken = F.when(F.col(f"`{BROKEN}`").isNotNull(), F.lit("it has another number of fields"))
    return F.coalesce(broken, *wrong)


def _wrong_codes(names: Iterable[str]) -> Iterator[Column]:
    """Yields, for each code, what is wrong with it; null if nothing is."""
    # coalesce(): a missing code makes the condition null, but is wrong.
    for name in names:
        text = F.concat(F.lit(f"{name} is not of {CODES[name]} digits: "), F.coalesce(F.col(name), F.lit("none")))
        right = F.col(name).rlike(f"^[0-9]{{{CODES[name]}}}$")
        yield F.when(~F.coalesce(right, F.lit(False)), text)
    yield F.when(~F.col("exp_imp").isin("1", "2"), F.concat(F.lit("exp_imp is neither 1 nor 2: "), F.col("exp_imp")))


def _wrong_numbers(numbers: Mapping[str, str], optional: Collection[str]) -> Iterator[Column]:
    """Yields, for each number, what is wrong with it; null if nothing is. numbers: column → type."""
    for name, of in numbers.items():
        given = F.col(name).isNotNull() if name in optional else F.lit(True)
        text = F.concat(F.lit(f"{name} is no number: "), F.coalesce(F.col(name), F.lit("none")))
        yield F.when(given & F.expr(f"try_cast({name} AS {of}) IS NULL"), text)


def _wrong_month() -> Column:
    """Finds a line whose figures would be looked for elsewhere: customs() reads a month from its year's file."""
    dated = F.expr("try_cast(ym AS int) = try_cast(Year AS int) * 100 + try_cast(month AS int)")
    right = dated & F.col("file").startswith(F.substring("ym", 1, 4)) & F.col("ym").isin(*MONTHS)
    given = F.concat_ws(", ", *map(F.col, ("ym", "Year", "month")))
    return F.when(
        ~F.coalesce(right, F.lit(False)),
        F.concat(F.lit(f"ym is not its Year and month, not of the file or not {PARTITIONS}: "), given),
    )


def _wrong_change() -> Column:
    """Finds a correction that would change nothing, or be taken for what was published first."""
    known = (F.col("op") == "D") | (F.col("op") == "U") & F.col("Value").isNotNull()
    right = known & (F.col("revision") > 0) & F.col("ym").isin(*MONTHS)
    return F.when(
        ~F.coalesce(right, F.lit(False)),
        F.lit(f"its op is neither D nor U with a Value, its revision is not above 0, or its ym is not {PARTITIONS}"),
    )
