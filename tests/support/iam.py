"""What IAM would say of calls, offline, by deploy/proof/simulate.mjs. Whose policies and which calls is the tests'."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.conftest import missing
from tests.support.fakes.ecs_rules import ACCOUNT

PROOF = Path(__file__).parents[2] / "deploy" / "proof"


@dataclass(frozen=True)
class Question:
    """Whether the documents with these numbers allow a call. keys: of conditions, with their values."""

    of: tuple[int, ...]
    action: str
    resource: str
    keys: Mapping[str, str]


def allowed(documents: Sequence[Mapping[str, Any]], questions: Sequence[Question]) -> list[bool]:
    """The answers, in the questions' order. Skips where Node is not installed; what it needs is installed once."""
    if shutil.which("npm") is None:
        missing("Node and npm are not installed")
    if not (PROOF / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=PROOF, check=True)
    asked = {"account": ACCOUNT, "documents": documents, "questions": [asdict(question) for question in questions]}
    answer = subprocess.run(
        ["node", "simulate.mjs"], cwd=PROOF, input=json.dumps(asked), capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    answers: list[bool] = json.loads(answer.stdout)
    return answers
