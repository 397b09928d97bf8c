"""A Dockerfile's own steps run without Docker: in roots that mmdebstrap makes of Debian's packages, one for each stage.
The real part is everything inside; layers, their cache and the registry are not. Needs root, mmdebstrap, iproute2."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.dockerfile import DockerfileError, Ignored, Instruction, Stage, copy_context, expand, parse

DEBIAN_SLIM = re.compile(r"debian:(\w+)-slim")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# What Debian's slim images leave out of every package (dpkg.cfg.d/docker).
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
# A namespace of mounts and processes, as a container's. $1: the root. Then: read-only or not, offline or not, mounts as
# from=to, "--", and the command as chroot takes it.
ENTER = """
root=$1 read_only=$2 offline=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for file in resolv.conf hosts; do touch "$root/etc/$file"; mount --bind "/etc/$file" "$root/etc/$file"; done
if [ "$read_only" = yes ]; then mount -o remount,bind,ro "$root"; mount -t tmpfs tmpfs "$root/tmp"; fi
if [ "$offline" = yes ]; then ip link set lo up; fi
while [ "$1" != -- ]; do mkdir -p "$root/${1#*=}"; mount --bind "${1%%=*}" "$root/${1#*=}"; shift; done
shift
exec chroot "$@"
"""


@dataclass(frozen=True)
class Image:
    """A root with what a container of it gets. user: ``uid:gid``."""

    root: Path
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})
    user: str = "0:0"
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)

    def command(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        read_only: bool = False,
        offline: bool = False,
    ) -> list[str]:
        """The command line, for this machine, that runs ``command`` in the root as its first process.

        mounts: directories of this machine by their place in the root. read_only: the root, but for /tmp and mounts.
        offline: with a loopback interface and no other.
        """
        variables = {**self.env, "HOME": self._home(), **(env or {})}
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] if offline else [])]
        switches = [{True: "yes", False: "no"}[on] for on in (read_only, offline)]
        bound = [f"{source}={target}" for source, target in (mounts or {}).items()]
        enter = ["sh", "-euc", ENTER, "enter", str(self.root), *switches, *bound, "--"]
        settings = [f"{name}={value}" for name, value in variables.items()]
        chroot = [f"--userspec={self.user}", "--groups=", str(self.root), "/usr/bin/env", "-i", "-C", self.workdir]
        return [*unshare, *enter, *chroot, *settings, *command]

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command as command() has it, its two outputs in one. Never raises: look at ``returncode``."""
        return subprocess.run(
            self.command(*command, **options),  # type: ignore[arg-type]
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _home(self) -> str:
        """As Docker sets it: from the root's own passwd."""
        entries = [line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines()]
        return next((e[5] for e in entries if e[2] == self.user.partition(":")[0]), "/")


class Builder:
    """Builds a context's Dockerfile. folder: for the roots. cache: for the base and for RUN's cache mounts."""

    def __init__(self, context: Path, folder: Path, cache: Path) -> None:
        self._context, self._folder, self._cache = context, folder, cache
        self._ignored = Ignored((context / ".dockerignore").read_text())
        self._built: dict[str, Image] = {}

    def build(self) -> Image:
        """The last stage's image, with its files' times in whole seconds, as a registry returns them
        (https://github.com/moby/moby/issues/48447)."""
        for number, stage in enumerate(parse((self._context / "Dockerfile").read_text())):
            image = self._begin(stage, self._folder / str(number))
            for instruction in stage.instructions:
                started = time.monotonic()
                image = getattr(self, f"_{instruction.keyword.lower()}")(image, instruction)
                print(f"{time.monotonic() - started:6.1f} s  {instruction.keyword} {instruction.text}", flush=True)
            self._built[stage.name or str(number)] = image
        _whole_seconds(image.root)
        return image

    def _begin(self, stage: Stage, root: Path) -> Image:
        if stage.base in self._built:
            base = self._built[stage.base]
            subprocess.run(["cp", "--archive", "--reflink=auto", base.root, root], check=True)
            return replace(base, root=root, args={})
        if match := DEBIAN_SLIM.fullmatch(stage.base):
            root.mkdir(parents=True)
            subprocess.run(["tar", "--extract", "--file", self._debian(match[1]), "--directory", root], check=True)
            return Image(root)
        raise DockerfileError(f"FROM {stage.base}: neither a stage nor Debian's slim image")

    def _debian(self, suite: str) -> Path:
        """Debian's slim image in the making, with this machine's certificates: its network may need them."""
        archive = self._cache / f"debian-{suite}-slim.tar"
        if not archive.exists():
            self._cache.mkdir(parents=True, exist_ok=True)
            excluded = [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED]
            partial = archive.with_suffix(".partial.tar")
            made = ["mmdebstrap", "--mode=root", "--variant=minbase", *excluded]
            bring = f"mkdir -p $1{CERTIFICATES} $1{Path(BUNDLE).parent}; cp {BUNDLE} $1{BUNDLE}"
            hooks = [f"{bring}; cp {CERTIFICATES}/*.crt $1{CERTIFICATES} || true"]
            sources = ["deb http://deb.debian.org/debian {} main", "deb http://deb.debian.org/debian {}-updates main"]
            sources.append("deb http://deb.debian.org/debian-security {}-security main")
            commands = [*made, *(f"--customize-hook={h}" for h in hooks), suite, str(partial)]
            subprocess.run([*commands, *(s.format(suite) for s in sources)], check=True)
            partial.rename(archive)
        return archive

    def _run(self, image: Image, instruction: Instruction) -> Image:
        mounts = {}
        if mount := instruction.flags.get("mount"):
            options = dict(part.split("=", 1) for part in mount.split(","))
            if options.pop("type") != "cache" or options.keys() != {"target"}:
                raise DockerfileError(f"line {instruction.line}: --mount={mount} is not known here")
            place = self._cache / options["target"].strip("/").replace("/", "-")
            place.mkdir(parents=True, exist_ok=True)
            mounts[place] = options["target"]
        # Docker's own build arguments for a network that is not the open internet; certificates come with the base.
        network = {n: v for n, v in os.environ.items() if n.lower() in ("http_proxy", "https_proxy", "no_proxy")}
        network |= {"SSL_CERT_FILE": BUNDLE, "PIP_CERT": BUNDLE}
        done = image.run("/bin/sh", "-c", instruction.text, env={**network, **image.args}, mounts=mounts)
        assert done.returncode == 0, f"line {instruction.line}: {instruction.text}\n{done.stdout[-8000:]}"
        return image

    def _copy(self, image: Image, instruction: Instruction) -> Image:
        *sources, target = expand(instruction.text, {**image.env, **image.args}).split()
        into = target.endswith("/") or len(sources) > 1
        to = image.root / os.path.join(image.workdir, target).lstrip("/")
        if stage := instruction.flags.get("from"):
            for source in sources:
                to.parent.mkdir(parents=True, exist_ok=True)
                from_ = self._built[stage].root / source.lstrip("/")
                subprocess.run(["cp", "--archive", "--no-target-directory", from_, to], check=True)
        else:
            copy_context(self._context, self._ignored, sources, to, into)
        return image

    def _env(self, image: Image, instruction: Instruction) -> Image:
        expanded = {n: expand(v, {**image.env, **image.args}) for n, v in instruction.assignments().items()}
        return replace(image, env={**image.env, **expanded})

    def _arg(self, image: Image, instruction: Instruction) -> Image:
        return replace(image, args={**image.args, **instruction.assignments()})

    def _user(self, image: Image, instruction: Instruction) -> Image:
        if not re.fullmatch(r"\d+:\d+", instruction.text):
            raise DockerfileError(f"line {instruction.line}: USER {instruction.text} is no uid:gid")
        return replace(image, user=instruction.text)

    def _workdir(self, image: Image, instruction: Instruction) -> Image:
        workdir = os.path.join(image.workdir, expand(instruction.text, image.env))
        (image.root / workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return replace(image, workdir=workdir)

    def _entrypoint(self, image: Image, instruction: Instruction) -> Image:
        return replace(image, entrypoint=tuple(json.loads(instruction.text)))

    def _cmd(self, image: Image, instruction: Instruction) -> Image:
        return replace(image, cmd=tuple(json.loads(instruction.text)))

    def _expose(self, image: Image, instruction: Instruction) -> Image:
        return image  # says something, does nothing


def _whole_seconds(root: Path) -> None:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            times = (status.st_atime_ns, status.st_mtime_ns // 10**9 * 10**9)
            os.utime(path, ns=times, follow_symlinks=False)


def first_process(unshare: subprocess.Popen[bytes]) -> list[int]:
    """The pid of a container's first process, whose end is that of all others in it; none when it ended."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def end(unshare: subprocess.Popen[bytes]) -> None:
    """End a container. Killing ``unshare`` alone ends nothing: its --kill-child is lost where the user changes."""
    for pid in first_process(unshare):
        os.kill(pid, signal.SIGKILL)
    unshare.wait()


def missing_tools() -> list[str]:
    """What this machine lacks for building: ``root`` and programs."""
    programs = [name for name in ("mmdebstrap", "unshare", "ip") if shutil.which(name) is None]
    return programs + (["root"] if os.geteuid() else [])
