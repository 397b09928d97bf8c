"""The environment is read once and refused as a whole when it can't work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse_assets.environment.computes import BUILT_IN, compute_variables
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import NAMES, RENAMED, read_settings, unknown_names
from tests.conftest import ROOT


def test_defaults_lie_below_the_working_directory_and_the_user_cache() -> None:
    settings = read_settings({})
    assert settings.home == Path(".lakehouse").absolute()
    assert settings.cache == Path("~/.cache/lakehouse-assets").expanduser()
    assert settings.compute == "local"
    assert settings.landing == str(settings.home / "landing")
    assert settings.max_workers >= 1


def test_two_homes_share_nothing_but_the_cache() -> None:
    one, other = (read_settings({"LAKEHOUSE_HOME": home}) for home in ("/one", "/other"))
    assert {one.home, one.landing, one.staging}.isdisjoint({other.home, other.landing, other.staging})
    assert one.cache == other.cache


def test_all_problems_are_told_at_once_with_the_known_values() -> None:
    with pytest.raises(SettingsError) as error:
        read_settings({"LAKEHOUSE_COMPUTE": "mainframe", "LAKEHOUSE_MAX_WORKERS": "many"})
    message = str(error.value)
    assert "LAKEHOUSE_COMPUTE='mainframe'" in message
    assert all(compute in message for compute in BUILT_IN)
    assert "LAKEHOUSE_MAX_WORKERS='many'" in message


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1001"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a whole number from 1 to 1000"):
        read_settings({"LAKEHOUSE_MAX_WORKERS": text})


def test_spark_settings_are_spelled_with_two_underscores_for_a_dot() -> None:
    env = {
        "LAKEHOUSE_SPARK__spark__sql__shuffle__partitions": "7",
        "LAKEHOUSE_SPARK__spark__driver__extraJavaOptions": "-Da=b",
    }
    assert read_settings(env).spark_conf == {
        "spark.sql.shuffle.partitions": "7",
        "spark.driver.extraJavaOptions": "-Da=b",
    }


def test_a_landing_prefix_may_be_a_url_and_loses_its_last_slash() -> None:
    assert read_settings({"LAKEHOUSE_LANDING": "s3://bucket/landing/"}).landing == "s3://bucket/landing"


@pytest.mark.parametrize("name", ["COMPUTE", "MAX_WORKERS"])
def test_a_refusal_quotes_no_password(name: str) -> None:
    with pytest.raises(SettingsError, match=f"LAKEHOUSE_{name}='…'") as refused:
        read_settings({f"LAKEHOUSE_{name}": "https://me:hunter2@host/x"})
    assert "hunter2" not in str(refused.value)


def test_a_printed_settings_shows_none_of_spark_s() -> None:
    settings = read_settings({"LAKEHOUSE_SPARK__spark__hadoop__fs__s3a__secret__key": "hunter2"})
    assert "hunter2" in settings.spark_conf.values()
    assert "hunter2" not in repr(settings)


def test_a_staging_prefix_is_absolute_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    asked = ("receipts/", "~/receipts", "/mnt/receipts", "file:///mnt/receipts/", "s3://lake/staging/")
    assert [read_settings({"LAKEHOUSE_STAGING": place}).staging for place in asked] == [
        f"{tmp_path}/receipts",
        "/home/me/receipts",
        "/mnt/receipts",
        "file:///mnt/receipts",
        "s3://lake/staging",
    ]


@pytest.mark.parametrize("compute", ["local", "ecs"])
@pytest.mark.parametrize("name", ["LAKEHOUSE_LANDING", "LAKEHOUSE_STAGING"])
@pytest.mark.parametrize("place", ["s3://", "s3:///x", "s3:/lake/x", "s3a://", "s3:lake"])
def test_a_place_on_s3_without_a_bucket_is_refused(compute: str, name: str, place: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({name: place}, also={compute: ["shop.orders"]})
    assert str(refused.value).count(f"{name}='{place}' is not of the form s3://bucket/prefix") == 1


def test_values_are_stripped_and_computes_are_known_in_capitals_too() -> None:
    settings = read_settings(
        {"LAKEHOUSE_COMPUTE": " Inline ", "LAKEHOUSE_MAX_WORKERS": " 4 ", "LAKEHOUSE_HOME": " /h "}
    )
    assert (settings.compute, settings.max_workers, settings.home) == ("inline", 4, Path("/h"))
    assert read_settings({"LAKEHOUSE_LANDING": " s3://lake/landing "}).landing == "s3://lake/landing"


def test_several_problems_have_a_line_each() -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({"LAKEHOUSE_COMPUTE": "mainframe", "LAKEHOUSE_MAX_WORKERS": "many"})
    title, *problems = str(refused.value).splitlines()
    assert title == "the settings are not valid:"
    assert [problem.partition("=")[0] for problem in problems] == ["LAKEHOUSE_COMPUTE", "LAKEHOUSE_MAX_WORKERS"]


def test_a_setting_of_sparks_needs_its_dots() -> None:
    (problem,) = unknown_names({"LAKEHOUSE_SPARK__spark_executor_memory": "1g"})
    assert "LAKEHOUSE_SPARK__spark_executor_memory" in problem
    assert "two underscores" in problem


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ECS_MEMORY", "ECS_MEMORY_GIB"),
        ("ECS_SECURITY_GROUP", "ECS_SECURITY_GROUPS"),
        ("HOEM", "HOME"),
        ("home", "HOME"),
    ],
)
def test_a_mistyped_name_is_told_with_the_one_meant(name: str, meant: str) -> None:
    spark = {"LAKEHOUSE_SPARK__spark__ui__enabled": "true", "LAKE": "1"}
    assert unknown_names({f"LAKEHOUSE_{name}": "x", **spark}) == [
        f"LAKEHOUSE_{name} is unknown; did you mean LAKEHOUSE_{meant}?"
    ]


def test_a_variable_by_its_old_name_is_refused_and_the_new_one_named() -> None:
    (problem,) = unknown_names({"LAKEHOUSE_UNSHARED": "s3://lake/warehouse"})
    assert problem == "LAKEHOUSE_UNSHARED is now called LAKEHOUSE_EXCLUSIVE_PREFIX: set that instead"


def test_every_name_the_project_uses_is_known() -> None:
    files = [path for path in ROOT.glob("[!.]*") if path.is_file()]
    for folder in ("lakehouse_assets", "deploy", "scripts", "bench", "tests/support", "tests/integration"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = [path for path in files if "second" not in str(path)]  # a package of somebody else's, and its test
    texts = [path.read_text(errors="ignore") for path in [*files, *ROOT.glob("tests/*.py")]]
    used = {name for text in texts for name in re.findall(r"LAKEHOUSE_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_{*])", text)}
    used -= {f"LAKEHOUSE_{name}" for name in RENAMED}  # the changelog has them
    assert unknown_names(dict.fromkeys(used, "")) == []
    assert {f"LAKEHOUSE_{name}" for name in NAMES} | compute_variables() <= used


def test_an_empty_variable_counts_as_not_set() -> None:
    empty = dict.fromkeys(["LAKEHOUSE_HOME", "LAKEHOUSE_CACHE", "LAKEHOUSE_COMPUTE", "LAKEHOUSE_MAX_WORKERS"], "")
    assert read_settings(empty) == read_settings({})
