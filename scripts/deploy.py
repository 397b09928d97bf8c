"""Creates or updates one of the stacks in deploy/stacks/, by a change set that a person has seen.
Behind ``make deploy STACK=…``. What the stacks hold is in the templates; `make deploy-check` judges them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.cli.terminal import table
from lakehouse_assets.environment.aws import client
from lakehouse_assets.errors import LakehouseError

STACKS = Path(__file__).parents[1] / "deploy" / "stacks"
ORDER = ("network", "queue", "lake", "compute", "roles", "database", "dagster", "alarms")
"""The stacks, each behind those whose outputs it takes."""
NAME = "lakehouse"
POLL_SECONDS = 2.0
# The first event of a change.
BEGUN = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS")
# What a stack is in whose first creation failed, and that could not be deleted again.
STUCK = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED")
# What CloudFormation says of a change set that would change nothing.
NOTHING = ("didn't contain changes", "No updates are to be performed")


class NotDeployed(LakehouseError):
    """The stack is not as its template says, for the reason that the message gives."""


class _Tags(yaml.SafeLoader):
    """Reads a template for what is written plainly in it; CloudFormation's own tags become None."""


_Tags.add_multi_constructor("!", lambda loader, suffix, node: None)


def read_template(stack: str) -> Mapping[str, Any]:
    """Reads a template as plain data."""
    content: Mapping[str, Any] = yaml.load((STACKS / f"{stack}.yaml").read_text(), _Tags)
    return content


def outputs(cloudformation: Any, name: str, stacks: Sequence[str] = ORDER) -> dict[str, str]:
    """Returns what the deployed stacks give to others, by output. cloudformation: a boto3 client. name: of the lake."""
    found: dict[str, str] = {}
    for stack in stacks:
        described = _described(cloudformation, f"{name}-{stack}") or {}
        found |= {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", ())}
    return found


def environment(outputs: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of code location and runs that follow from the stacks, as the templates' Metadata say."""
    of_templates = [read_template(stack).get("Metadata", {}).get("Environment", {}) for stack in ORDER]
    return {v: outputs[output] for variables in of_templates for v, output in variables.items() if output in outputs}


def deploy(
    cloudformation: Any, stack: str, name: str, given: Mapping[str, str], agrees: Callable[[str], bool]
) -> dict[str, str]:
    """Brings the stack to what its template says, if ``agrees`` to the changes. Returns its outputs.

    given: parameters that a person chose; others come from the outputs of the stacks before, stay as they were, or are
    the template's defaults. agrees: is given the changes as text. Raises NotDeployed.
    """
    full = f"{name}-{stack}"
    change_set = _propose(cloudformation, stack, name, given)
    if change_set is not None:
        changes, stack_id = change_set.pop("Changes"), change_set.pop("StackId")
        if not agrees(shown(changes)):
            cloudformation.delete_change_set(**change_set)
            if _is_new(_described(cloudformation, full)):  # the change set alone had made it
                cloudformation.delete_stack(StackName=full)
            raise NotDeployed(f"{full} is left as it was")
        cloudformation.execute_change_set(**change_set)
        _wait_for_stack(cloudformation, full, stack_id)
    return outputs(cloudformation, name, [stack])


def shown(changes: Sequence[Mapping[str, Any]]) -> str:
    """Returns a change set's changes as a table; what would be replaced says so."""
    rows = []
    for change in (c["ResourceChange"] for c in changes):
        replaced = {"True": "REPLACED", "Conditional": "may be REPLACED"}.get(change.get("Replacement", ""), "")
        rows.append((change["Action"], change["ResourceType"], change["LogicalResourceId"], replaced))
    return table(("", "type", "resource", ""), rows)


def parameters(
    stack: str, name: str, given: Mapping[str, str], before: Sequence[str], outputs: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Returns a change set's parameters. name: of the lake. before: those that the stack has already.

    Raises NotDeployed for parameters that the template does not have, or that nobody gives.
    """
    declared = read_template(stack)["Parameters"]
    if "Name" in given:
        raise NotDeployed("the name is given by NAME=…, which names the stacks as well")
    if strange := given.keys() - declared.keys():
        raise NotDeployed(f"{stack}.yaml has no parameter {', '.join(sorted(strange))}; it has {', '.join(declared)}")
    chosen: list[dict[str, Any]] = [{"ParameterKey": "Name", "ParameterValue": name}]
    missing = []
    for parameter, about in declared.items():
        if parameter == "Name":
            continue
        if (value := given.get(parameter, outputs.get(parameter))) is not None:
            chosen.append({"ParameterKey": parameter, "ParameterValue": value})
        elif parameter in before:
            chosen.append({"ParameterKey": parameter, "UsePreviousValue": True})
        elif "Default" not in about:
            missing.append(f"{parameter} ({about['Description']})")
    if missing:
        raise NotDeployed(f"{stack}.yaml needs {'; '.join(missing)}")
    return chosen


def _propose(cloudformation: Any, stack: str, name: str, given: Mapping[str, str]) -> dict[str, Any] | None:
    """Makes a change set. Returns its name, its stack and its changes; None if it would change nothing."""
    full = f"{name}-{stack}"
    described = _described(cloudformation, full)
    is_new = _is_new(described)
    if described and described["StackStatus"] in STUCK:
        raise NotDeployed(
            f"{full} is in {described['StackStatus']}, since its first creation failed, and can't be changed. Delete "
            f"it, `aws cloudformation delete-stack --stack-name {full}`, and deploy it again"
        )
    before = [] if is_new else [p["ParameterKey"] for p in (described or {}).get("Parameters", ())]
    others = outputs(cloudformation, name, ORDER[: ORDER.index(stack)])
    chosen = parameters(stack, name, given, before, others)
    which = {"StackName": full, "ChangeSetName": f"change-{time.time_ns()}"}
    made = cloudformation.create_change_set(
        **which,
        ChangeSetType="CREATE" if is_new else "UPDATE",
        TemplateBody=(STACKS / f"{stack}.yaml").read_text(),
        Parameters=chosen,
        Tags=[{"Key": "lakehouse", "Value": name}],  # by which the budget of the stack alarms counts
        Capabilities=["CAPABILITY_NAMED_IAM"],
        # What a failed first creation has made goes again, what holds state too (RetainExceptOnCreate).
        OnStackFailure="DELETE" if is_new else "ROLLBACK",
    )
    while (answer := cloudformation.describe_change_set(**which))["Status"].endswith(("PENDING", "IN_PROGRESS")):
        time.sleep(POLL_SECONDS)
    if answer["Status"] == "FAILED":
        reason = answer.get("StatusReason", "no reason given")
        cloudformation.delete_change_set(**which)
        if any(text in reason for text in NOTHING):
            return None
        raise NotDeployed(f"{full}: CloudFormation refuses the change: {reason}")
    return {**which, "Changes": answer["Changes"], "StackId": made["StackId"]}


def _is_new(described: Mapping[str, Any] | None) -> bool:
    return described is None or described["StackStatus"] == "REVIEW_IN_PROGRESS"


def _wait_for_stack(cloudformation: Any, full: str, stack_id: str) -> None:
    while (described := _described(cloudformation, stack_id)) and described["StackStatus"].endswith("IN_PROGRESS"):
        time.sleep(POLL_SECONDS)
    if described is None or re.search("ROLLBACK|FAILED|DELETE", described["StackStatus"]):
        raise NotDeployed(f"{full} failed: {_reason(cloudformation, full, stack_id)}")


def _reason(cloudformation: Any, full: str, stack_id: str) -> str:
    """Returns why the first of the stack's resources failed in the change that was made last, as its events say.

    stack_id: by its name a stack that was deleted again is not found.
    """
    first: Mapping[str, Any] = {}
    pages = cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack_id)
    for event in pages.search("StackEvents[]"):  # the newest first
        if event["ResourceStatus"].endswith("FAILED"):
            first = event
        if event["LogicalResourceId"] == full and event["ResourceStatus"] in BEGUN:
            break
    return f"{first.get('LogicalResourceId', 'the stack')}: {first.get('ResourceStatusReason', 'no reason given')}"


def _described(cloudformation: Any, full: str) -> dict[str, Any] | None:
    try:
        (stack,) = cloudformation.describe_stacks(StackName=full)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise
    found: dict[str, Any] = stack
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.deploy", description=__doc__)
    parser.add_argument("stack", choices=ORDER)
    parser.add_argument("parameters", nargs="*", metavar="Parameter=value", help="of the template; others stay")
    parser.add_argument("--name", default=NAME, help="begins the names of all that the stacks make")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    chosen = parser.parse_args(arguments)
    given = dict(item.partition("=")[::2] for item in chosen.parameters)

    def agrees(changes: str) -> bool:
        print(changes)
        return chosen.yes or input("Change it so? [y/N] ").strip().lower() in ("y", "yes")

    try:
        made = deploy(client("cloudformation"), chosen.stack, chosen.name, given, agrees)
    except (LakehouseError, ClientError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"{output}={value}" for output, value in made.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
