"""A Dockerfile read, and its context as .dockerignore leaves it: the instructions and flags this project's file uses.
Any other is an error, so that nothing is passed over. Running the instructions is image.py's."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Instruction → its flags. https://docs.docker.com/reference/dockerfile/
KNOWN = {
    "ARG": (),
    "CMD": (),
    "COPY": ("from",),
    "ENTRYPOINT": (),
    "ENV": (),
    "EXPOSE": (),
    "FROM": (),
    "RUN": ("mount",),
    "USER": (),
    "WORKDIR": (),
}


class DockerfileError(ValueError):
    """Something this reader does not know; the message names the line."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continuation lines joined. text: what follows keyword and flags."""

    line: int
    keyword: str
    flags: Mapping[str, str]
    text: str

    def assignments(self) -> dict[str, str]:
        """Of ENV and ARG: ``NAME=value …``. Raises DockerfileError for the old form without ``=``."""
        words = shlex.split(self.text)
        if bad := [word for word in words if "=" not in word]:
            raise DockerfileError(f"line {self.line}: {self.keyword} {bad[0]} without =")
        return dict(word.split("=", 1) for word in words)


@dataclass(frozen=True)
class Stage:
    """What lies between one FROM and the next. name: empty where it has none."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]


def parse(text: str) -> list[Stage]:
    """The stages in order. Raises DockerfileError."""
    stages: list[Stage] = []
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            match = re.fullmatch(r"(\S+)(?:\s+AS\s+(\S+))?", instruction.text, re.IGNORECASE)
            if match is None:
                raise DockerfileError(f"line {instruction.line}: FROM {instruction.text}")
            stages.append(Stage(match[1], match[2] or "", ()))
        elif not stages:
            raise DockerfileError(f"line {instruction.line}: {instruction.keyword} before the first FROM")
        else:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.name, (*last.instructions, instruction))
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    gathered, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():  # within a continuation too
            continue
        first = first if gathered else number
        gathered += line.strip()
        if gathered.endswith("\\"):
            gathered = gathered[:-1]
            continue
        yield _instruction(gathered, first)
        gathered = ""
    if gathered:
        raise DockerfileError(f"line {first}: ends in a continuation")


def _instruction(text: str, line: int) -> Instruction:
    keyword, _, rest = text.partition(" ")
    keyword = keyword.upper()
    if keyword not in KNOWN:
        raise DockerfileError(f"line {line}: {keyword} is not known here")
    flags = {}
    while match := re.match(r"\s*--([\w-]+)=(\S+)\s*", rest):
        if match[1] not in KNOWN[keyword] or match[1] in flags:
            raise DockerfileError(f"line {line}: {keyword} --{match[1]} is not known here")
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    if rest.lstrip().startswith("--"):
        raise DockerfileError(f"line {line}: {keyword} {rest.strip()} is not known here")
    return Instruction(line, keyword, flags, rest.strip())


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$NAME`` and ``${NAME}`` replaced, as Docker does outside of RUN. Raises DockerfileError for unknown names."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in variables:
            raise DockerfileError(f"${name} is not set")
        return variables[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


class Ignored:
    """Which paths of a context .dockerignore keeps out: the last pattern that matches a path or a parent of it decides.
    https://docs.docker.com/build/concepts/context/#dockerignore-files"""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._patterns = [
            (_pattern(line.removeprefix("!")), line.startswith("!")) for line in lines if line and line[0] != "#"
        ]

    def __call__(self, path: str) -> bool:
        parts = path.split("/")
        family = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        ignored = False
        for pattern, included in self._patterns:
            if any(pattern.fullmatch(each) for each in family):
                ignored = not included
        return ignored


def _pattern(glob: str) -> re.Pattern[str]:
    translated = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    return re.compile("".join(translated.get(part) or re.escape(part) for part in parts))


def copy_context(context: Path, ignored: Ignored, sources: Iterable[str], target: Path, into: bool) -> None:
    """COPY from the context: a directory's contents, or a file; times are kept. into: target is a directory."""
    for source in sources:
        path = context / source
        if not path.exists() or ignored(source):
            raise DockerfileError(f"COPY {source}: not in the context")
        if path.is_file():
            to = target / path.name if into else target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)
            continue

        def left_out(folder: str, names: list[str]) -> list[str]:
            relative = Path(folder).relative_to(context)
            return [name for name in names if ignored((relative / name).as_posix())]

        shutil.copytree(path, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)
