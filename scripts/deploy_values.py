"""Writes what the deployed stacks give: variables for a shell, or dagster_cloud.yaml for the agent of Dagster+.
Behind ``make deploy-values``. Which variable an output is for, each template says itself, in its Metadata."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import client
from lakehouse_assets.errors import LakehouseError
from scripts.deploy import NAME, ORDER, NotDeployed, environment, outputs, read_template

CLOUD = Path(__file__).parents[1] / "dagster_cloud.yaml"
CATALOG = "PYICEBERG_CATALOG__LAKE__"
# Of the code location and its runs alone: Dagster+ has an instance of its own.
OF_DAGSTER = ("DAGSTER_", "LAKEHOUSE_CODE_SERVER_HOST")


def exports(variables: Mapping[str, str]) -> str:
    """Returns the variables as lines that a shell reads."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def cloud(content: str, made: Mapping[str, str], region: str) -> str:
    """Returns dagster_cloud.yaml with the stacks' values in place of its own, all else as it was.

    The image is that of the workers, who refuse runs of other code, in place of one that the agent would build.

    content: the file's. made: the stacks' outputs. region: theirs. Raises NotDeployed where there are no roles yet.
    """
    if not {"RunRole", "ExecutionRole"} <= made.keys():
        raise NotDeployed("the stack roles is not deployed, whose roles dagster_cloud.yaml names")
    given = {n: value for n, value in environment(made).items() if not n.startswith(OF_DAGSTER)}
    read = yaml.safe_load(content)
    for location in read["locations"]:
        ecs = location["container_context"]["ecs"]
        before = dict(variable.partition("=")[::2] for variable in ecs["env_vars"])
        kept = {n: v for n, v in before.items() if not (n.startswith(CATALOG) and f"{CATALOG}TYPE" in given)}
        here = {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        ecs["env_vars"] = [f"{name}={value}" for name, value in (kept | given | here).items()]
        ecs["task_role_arn"], ecs["execution_role_arn"] = made["RunRole"], made["ExecutionRole"]
        if f"{CATALOG}TYPE" in given:  # the stacks' catalogs ask for roles, and for no secret
            ecs["secrets"] = [secret for secret in ecs.get("secrets", ()) if not secret["name"].startswith(CATALOG)]
        if "Image" in made:
            location.pop("build", None)
            location["image"] = made["Image"]
    header = "".join(line for line in content.splitlines(keepends=True) if line.startswith("#"))
    return header + yaml.safe_dump(read, sort_keys=False, width=120)


def kept(content: str, made: Mapping[str, str]) -> list[str]:
    """Returns the variables of dagster_cloud.yaml that name a network or a bucket, and that no stack gives."""
    given = environment(made)
    contexts = [location["container_context"] for location in yaml.safe_load(content)["locations"]]
    of_file = [variable.partition("=")[0] for context in contexts for variable in context["ecs"]["env_vars"]]
    of_stacks = {v for stack in ORDER for v in read_template(stack).get("Metadata", {}).get("Environment", {})}
    return [name for name in of_file if name in of_stacks and name not in given]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.deploy_values", description=__doc__)
    parser.add_argument("kind", choices=["env", "cloud"], help="env: print variables; cloud: write dagster_cloud.yaml")
    parser.add_argument("--name", default=NAME, help="that the stacks were made with")
    chosen = parser.parse_args(arguments)
    try:
        cloudformation = client("cloudformation")
        made = outputs(cloudformation, chosen.name)
        if not made:
            raise NotDeployed(f"no stack {chosen.name}-… is deployed in this account and region")
        if chosen.kind == "env":
            print(exports({"LAKEHOUSE_COMPUTE": "ecs", **environment(made)}))
        else:
            before = CLOUD.read_text()
            CLOUD.write_text(cloud(before, made, cloudformation.meta.region_name))
            print(f"wrote {CLOUD.name}")
            if own := kept(before, made):
                print(f"no stack gives these, which are as they were: {', '.join(own)}")
    except (LakehouseError, ClientError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
