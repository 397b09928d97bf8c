"""The policies of deploy/stacks/roles.yaml against what the roles call: all of it is allowed, nothing else is, and no
action, resource or condition could be left out. The calls were recorded by test_stacks.py,
test_table_bucket.py and test_hand_off_rights.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.hand_offs import PLACE, REPLICA
from tests.support.iam import Question, allowed
from tests.support.recorded_calls import TABLE_BUCKET, Call, read_calls
from tests.support.servers import REGION
from tests.support.stacks import EMR, GIVEN, stacks

pytestmark = pytest.mark.server
ROLES = ("worker", "run", "maintenance", "code", "webserver", "execution", "job")
HERE = f"{REGION}:123456789012"
SECRET = f"arn:aws:secretsmanager:{HERE}:secret:lakehouse/0"

AGENT = "dagster-plus-agent"

HAND_OFFS = {
    "HandOffPlace": PLACE.removeprefix("s3://").rpartition("/")[0],
    "HandOffReplica": REPLICA.removeprefix("s3://").rpartition("/")[0],
    "HandOffDatabase": "partners",
}

# Of a role's own policies together: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
LARGEST = 10_240
# Words of ARNs that are the same in each of their kind.
WORDS = {"", "/", ":", "task", "task-definition", "database", "table", "catalog", "role", "log-group", "log-stream"}
WORDS |= {"bucket", "applications", "virtualclusters", "cluster", "jobruns", "repository", "secret", "0", "1"}


def implied(catalog: str) -> Iterator[Call]:
    """What AWS calls in a role's name, of which nothing is seen on the wire."""
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task_execution_IAM_role.html
    repository = f"arn:aws:ecr:{HERE}:repository/lakehouse-assets"
    for action in ("BatchCheckLayerAvailability", "GetDownloadUrlForLayer", "BatchGetImage"):
        yield Call("execution", f"ecr:{action}", repository)
    yield Call("execution", "ecr:GetAuthorizationToken", "*")
    group = f"arn:aws:logs:{HERE}:log-group:/lakehouse"
    for kind in ("worker", "run", "code", "daemon", "webserver"):
        for action in ("CreateLogStream", "PutLogEvents"):
            yield Call("execution", f"logs:{action}", f"{group}:log-stream:{kind}/{kind}/0")
    yield Call("execution", "secretsmanager:GetSecretValue", SECRET)
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html
    for role in ("code", "webserver"):
        for channel in ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel"):
            yield Call(role, f"ssmmessages:{channel}", "*")
    if catalog == "s3tables":  # with Dagster+, whose agent names the streams of its tasks
        for action in ("CreateLogStream", "PutLogEvents"):
            yield Call("execution", f"logs:{action}", f"arn:aws:logs:{HERE}:log-group:{AGENT}:log-stream:0/0/0")


def recorded(catalog: str) -> set[Call]:
    """What was recorded and what is implied. A job of EMR Serverless runs the same worker as a task of ECS."""
    read = set(read_calls("calls.json"))
    if catalog == "s3tables":
        read = {call for call in read if not call.action.startswith("glue:")}
        read.update(read_calls("s3tables.json"))
        read |= {replace(call, role="run") for call in read if call.role == "code" and call.action.startswith("sqs:")}
    jobs = {replace(call, role="job") for call in read if call.role == "worker"}
    (bucket,) = {call.resource for call in read if call.action == "s3:ListBucket"}
    own_code = Call("job", "s3:GetObject", f"{bucket}/code/0")
    return read | jobs | {*read_calls("hand_off.json"), *implied(catalog), own_code}


def others(call: Call) -> Iterator[Call]:
    """The same call on what is not the lake's, or with another value of a condition's key."""
    head, last = _parted(call.resource)
    for n, part in enumerate(last):
        if part not in WORDS:
            yield replace(call, resource=head + "".join([*last[:n], "other", *last[n + 1 :]]))
    for n, (key, value) in enumerate(call.keys):
        changed_key = (key, re.sub(r"[^/]+$", "other", value))
        yield replace(call, keys=(*call.keys[:n], changed_key, *call.keys[n + 1 :]))


def told(calls: Iterable[Call]) -> str:
    """A line for each, so that all of them are in the message of an assertion."""
    return "\n".join(f"{call.role}: {call.action} on {call.resource} {dict(call.keys)}" for call in calls)


@dataclass(frozen=True)
class Policies:
    """The policies of all roles. documents: each once. of: the numbers of a role's documents."""

    documents: list[dict[str, Any]]
    of: Mapping[str, tuple[int, ...]]

    def allow(self, calls: list[Call]) -> dict[Call, bool]:
        questions = [Question(self.of[call.role], call.action, call.resource, dict(call.keys)) for call in calls]
        return dict(zip(calls, allowed(self.documents, questions), strict=True))


S3_TABLES = pytest.param("s3tables", marks=pytest.mark.long("For `make deploy-check`; proved as with Glue."))


@pytest.fixture(scope="module", params=["glue", S3_TABLES])
def catalog(request: pytest.FixtureRequest) -> str:
    """Where the lake's tables are known; of the second with Dagster+, whose code location has the role of runs."""
    return str(request.param)


@pytest.fixture(scope="module")
def policies(catalog: str) -> Policies:
    """As CloudFormation makes them of the template."""
    documents: list[dict[str, Any]] = []
    of: dict[str, tuple[int, ...]] = {}
    of_roles = {**EMR, "Domains": "nyc", "Exec": "true", **HAND_OFFS}
    if catalog == "s3tables":  # MiniStack does not know the bucket itself
        of_roles |= {"TableBucket": TABLE_BUCKET, "DagsterPlus": "true", "AgentLogGroup": AGENT}
    given = {**GIVEN, "roles": of_roles}
    with stacks("queue", "lake", "compute", "roles", given=given) as made:
        iam = made.client("iam")
        for role in ROLES:
            name = f"lakehouse-{role}"
            names = iam.list_role_policies(RoleName=name)["PolicyNames"]
            found = [iam.get_role_policy(RoleName=name, PolicyName=p)["PolicyDocument"] for p in names]
            of[role] = tuple(range(len(documents), len(documents) + len(found)))
            documents += found
    return Policies(documents, of)


@pytest.fixture(scope="module")
def calls(catalog: str) -> set[Call]:
    return recorded(catalog)


def test_each_call_is_allowed_for_its_role(policies: Policies, calls: set[Call]) -> None:
    assert told(call for call, is_allowed in policies.allow(sorted(calls)).items() if not is_allowed) == ""


def test_no_other_call_is_allowed(policies: Policies, calls: set[Call]) -> None:
    """Neither those of other roles nor those on what is not the lake's."""
    of_others = {replace(call, role=role) for call in calls for role in ROLES} - calls
    beside = {other for call in calls for other in others(call)} - calls
    assert told(c for c, is_allowed in policies.allow(sorted(of_others | beside)).items() if is_allowed) == ""


def test_nothing_of_the_policies_could_be_left_out(policies: Policies, calls: set[Call]) -> None:
    """Without any one action or resource a call is refused; without any one condition, or with any one part of a
    resource's name left open, a call is allowed that should not be."""
    wrong = {other for call in calls for other in others(call)} - calls
    wrong |= {replace(call, role=role) for call in calls for role in ROLES} - calls
    documents, questions, whose = list(policies.documents), list[Question](), list[tuple[str, bool]]()
    for role, numbers in policies.of.items():
        for number in numbers:
            for what, changed, should_allow, actions in mutants(policies.documents[number]):
                documents.append(changed)
                of = tuple(len(documents) - 1 if n == number else n for n in numbers)
                for call in calls if should_allow else wrong:
                    if call.role == role and call.action in actions:
                        questions.append(Question(of, call.action, call.resource, dict(call.keys)))
                        whose.append((f"{role}: {what}", should_allow))
    noticed = {of for of, answer in zip(whose, allowed(documents, questions), strict=True) if answer is not of[1]}
    assert "\n".join(sorted({what for what, _ in set(whose) - noticed})) == ""


def mutants(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool, list[str]]]:
    """What was changed, the changed document, whether it is one that allows less (then it must refuse a call), and the
    actions of the changed statement: no other call can be answered otherwise."""
    for n, statement in enumerate(document["Statement"]):
        actions = _listed(statement["Action"])
        for field in ("Action", "Resource"):
            values = _listed(statement[field])
            for value in values:
                less = deepcopy(document)
                less["Statement"][n][field] = [v for v in values if v != value]
                if len(values) == 1:
                    del less["Statement"][n]
                yield f"{statement['Sid']} without {value}", less, True, actions
        for resource in _listed(statement["Resource"]):
            for wider in _wider(resource):
                more = deepcopy(document)
                more["Statement"][n]["Resource"] = [*_listed(statement["Resource"]), wider]
                yield f"{statement['Sid']} on {wider}", more, False, actions
        if "Condition" in statement:
            more = deepcopy(document)
            del more["Statement"][n]["Condition"]
            yield f"{statement['Sid']} without its condition", more, False, actions


def _wider(resource: str) -> Iterator[str]:
    head, last = _parted(resource)
    for n, part in enumerate(last):
        if part not in WORDS | {"*"}:
            yield head + "".join([*last[:n], "*", *last[n + 1 :]])


def _parted(resource: str) -> tuple[str, list[str]]:
    """An ARN up to its account, and the parts of the rest with what is between them. Of ``*``: nothing to be named."""
    head, last = re.fullmatch(r"(arn:(?:[^:]*:){4}|)(.*)", resource).groups()
    return head, re.split("([/:])", last) if head else []


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_no_role_s_policies_are_too_large_for_iam(policies: Policies) -> None:
    for role, numbers in policies.of.items():
        written = sum(len(json.dumps(policies.documents[n], separators=(",", ":"))) for n in numbers)
        assert written <= LARGEST, role
