# SPDX-License-Identifier: Apache-2.0
"""Build an image from a git ref, as AMD's documentation does: clone, check out, docker build."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..common.hashing import canonical, text_hash
from ..common.image_ref import BUILD_LABEL, parse_ref
from ..common.module_main import NodeError
from .dockerfile import candidates, pinned, read_dockerfile, unknown_arguments

COMMIT_LABEL = "instinct-fleet.build.commit"
BASES_LABEL = "instinct-fleet.build.bases"
"""Image label that holds the digests of the base images, as JSON by name."""

INPUTS_LABEL = "instinct-fleet.build.inputs"
"""Image label that holds the hash of what was really built: commit, Dockerfile, target, arguments, base images."""

ANY_DOCKERFILE = "docker/Dockerfile.rocm"

_TAIL = 200  # lines of output kept to explain a failure


_REPEATS = re.compile(
    r"did not complete successfully|returned a non-zero|executor failed running|exit code: \d+$"
)


@dataclass(frozen=True)
class BuildPlan:
    """A build: a repository at a ref, its Dockerfile and build arguments, and the tag of the result.

    proxy, ca_file: how the node reaches the repository, which makes no other image.
    """

    repo: str
    ref: str
    dockerfile: str
    args: tuple[tuple[str, str], ...]
    tag: str
    target: str = ""
    proxy: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that git and docker need to get out."""
        return {**self.proxy, **({"GIT_SSL_CAINFO": self.ca_file} if self.ca_file else {})}

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the inputs. A branch that moves does not change it: pin a commit."""
        inputs = [self.repo, self.ref, self.dockerfile, [list(pair) for pair in self.args]]
        return text_hash(canonical([*inputs, *([self.target] if self.target else [])]))

    def source_dir(self, data_dir: str) -> str:
        """Return the directory into which the repository is checked out for the build."""
        return f"{data_dir}/build/{self.hash[:12]}"

    def docker_command(
        self, source: str, commit: str, file: str = "", made: BuildInputs | None = None
    ) -> list[str]:
        """Return the docker build command. file: the Dockerfile; that of the source, if not given."""
        words = ["docker", "build", "-f", file or f"{source}/{self.dockerfile}", "-t", self.tag]
        words += ["--label", f"{BUILD_LABEL}={self.hash}", "--label", f"{COMMIT_LABEL}={commit}"]
        if made:
            words += [
                "--label",
                f"{INPUTS_LABEL}={made.inputs}",
                "--label",
                f"{BASES_LABEL}={canonical(dict(made.bases))}",
            ]
        words += ["--target", self.target] if self.target else []
        for name, value in self.args:
            words += ["--build-arg", f"{name}={value}"]
        for name in self.proxy:  # its value comes from the environment: arguments are in every process list
            words += ["--build-arg", name]
        return [*words, source]

    def commands(self, data_dir: str) -> list[str]:
        """Return all commands, for display."""
        source = self.source_dir(data_dir)
        return [
            f"git clone {self.repo} {source}",
            f"git -C {source} checkout --detach {self.ref}",
            " ".join(self.docker_command(source, f"<commit of {self.ref}>")),
        ]


@dataclass(frozen=True)
class BuildInputs:
    """What a build was made of. bases: the digests of base images by name, "" where it has none to be pulled by."""

    commit: str
    dockerfile: str
    bases: Mapping[str, str]
    inputs: str
    warnings: tuple[str, ...] = ()


def build_plan(build: Mapping[str, object], ref: str | None) -> BuildPlan:
    """Check the parameters of a build and return its plan. Raise NodeError if they are invalid."""
    repo = str(build["repo"])
    if re.match(r"[a-z+]+://[^/@]*:[^/@]*@", repo):
        raise NodeError(
            "build.repo contains a password. Remove it, and configure a git credential helper on the node instead."
        )
    args = build.get("args") or {}
    if not isinstance(args, Mapping):
        raise NodeError("build.args must be a map of build arguments.")
    pairs = tuple(sorted((str(name), str(value)) for name, value in args.items()))
    dockerfile = str(build.get("dockerfile") or ANY_DOCKERFILE)
    target = str(build.get("target") or "")
    plan = BuildPlan(repo, str(build["ref"]), dockerfile, pairs, str(build.get("tag") or ref or ""), target)
    return plan if plan.tag else replace(plan, tag=f"instinct-fleet/vllm:{plan.hash[:12]}")


def build_image(plan: BuildPlan, data_dir: str, timeout: int) -> BuildInputs:
    """Clone, check out and build; return what it was made of. `timeout`: seconds for each step."""
    tools = (("git", "git"), ("docker", "docker.io or docker-ce-cli"), ("setpriv", "util-linux"))
    for tool, package in tools:
        if shutil.which(tool) is None:
            raise NodeError(
                f"Building {plan.tag} needs the command {tool}, which is not installed on the node. Install "
                f"{package}, or use an image from a registry (image: instead of build:)."
            )
    source = plan.source_dir(data_dir)
    file = f"{source}.Dockerfile"  # beside the source: a file changed in there would make its version a dirty one
    _remove(source, file)  # left behind by an interrupted build
    os.makedirs(os.path.dirname(source), exist_ok=True)
    try:
        _run(["git", "clone", "--quiet", plan.repo, source], timeout, f"clone {plan.repo}", plan.environment)
        commit = _commit(source, plan)
        _run(["git", "-C", source, "checkout", "--quiet", "--detach", commit], timeout, f"check out {commit}")
        plan = replace(plan, dockerfile=_dockerfile(source, plan))
        buildkit = _buildkit()
        made = _prepare(plan, source, commit, file, timeout)
        command = plan.docker_command(source, commit, file, made)
        try:
            _run(command, timeout, f"build {plan.tag}", {**plan.environment, "DOCKER_BUILDKIT": buildkit})
        except NodeError as error:
            if buildkit == "1":
                raise
            raise NodeError(
                f"{error} It was built without BuildKit, which vLLM's Dockerfiles need: install docker-buildx "
                "(docker-buildx-plugin from Docker's own packages).",
                **error.result,
            ) from error
        return made
    finally:
        _remove(source, file)


def _remove(source: str, file: str) -> None:
    shutil.rmtree(source, ignore_errors=True)
    for path in (file, f"{file}.dockerignore"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _dockerfile(source: str, plan: BuildPlan) -> str:
    """Return where the checked out source has the Dockerfile. Raise NodeError if it has none."""
    places = candidates(plan.dockerfile)
    found = [path for path in places if os.path.isfile(os.path.join(source, path))]
    if not found:
        raise NodeError(
            f"{plan.repo} at {plan.ref} has no file {' or '.join(places)}. vLLM's is docker/Dockerfile.rocm "
            "since 0.8, and Dockerfile.rocm before: set build.dockerfile."
        )
    return found[0]


def _prepare(plan: BuildPlan, source: str, commit: str, file: str, timeout: int) -> BuildInputs:
    """Write the Dockerfile with its base images by digest, and return what the image is made of."""
    original = os.path.join(source, plan.dockerfile)
    with open(original, encoding="utf-8") as stream:
        text = stream.read()
    args = dict(plan.args)
    declared = read_dockerfile(text, args)
    bases = {name: _digest(name, plan, timeout) for name in declared.bases}
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(pinned(text, args, {name: digest for name, digest in bases.items() if digest}))
    if os.path.exists(f"{original}.dockerignore"):
        shutil.copyfile(f"{original}.dockerignore", f"{file}.dockerignore")
    inputs = [plan.repo, commit, plan.dockerfile, plan.target, [list(pair) for pair in plan.args], bases]
    warnings = (
        *unknown_arguments(tuple(args), declared.arguments, plan.dockerfile),
        *(
            f"The base image {name} is this node's own, so it is not pinned by digest: a later build of the same "
            "inputs may begin from another one."
            for name, digest in bases.items()
            if not digest
        ),
    )
    return BuildInputs(commit, plan.dockerfile, bases, text_hash(canonical(inputs)), warnings)


def _digest(name: str, plan: BuildPlan, timeout: int) -> str:
    """Return a base image as repository@digest, pulled if the engine lacks it; "" for one that was never pulled."""
    if "@sha256:" in name:
        return name
    command = ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", name]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        # The command line's accounts apply, as they do to docker build.
        _run(["docker", "pull", "--quiet", name], timeout, f"pull the base image {name}", plan.environment)
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        digests = [str(item) for item in json.loads(found.stdout) or ()]
    except ValueError:
        digests = []
    repository = parse_ref(name).repository
    return next((item for item in digests if item.partition("@")[0] == repository), "")


def _commit(source: str, plan: BuildPlan) -> str:
    """Return the commit that the ref names: a branch of the repository, a tag, or a commit. Raise NodeError if none."""
    for name in (f"refs/remotes/origin/{plan.ref}", plan.ref):
        found = subprocess.run(
            [
                "git",
                "-C",
                source,
                "rev-parse",
                "--verify",
                "--quiet",
                "--end-of-options",
                f"{name}^{{commit}}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode == 0:
            return found.stdout.strip()
    raise NodeError(
        f"{plan.repo} has no branch, tag or commit {plan.ref!r}. Correct build.ref of the deployment."
    )


def _buildkit() -> str:
    """Return "1" if this docker CLI can build with BuildKit, which vLLM's Dockerfiles require, else "0"."""
    if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode == 0:
        return "1"
    # Without the plugin, CLIs before 23 use their own BuildKit client; later ones fail with BuildKit.
    found = subprocess.run(["docker", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d+)\.", found)
    return "1" if version and 19 <= int(version.group(1)) < 23 else "0"


def _run(words: Sequence[str], timeout: int, what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command to its end. Raise NodeError with its last lines if it fails.

    It ends when this process does, also by SIGKILL: else a build goes on beside that of the next run, and gives its own
    image the tag in the end.
    """
    tail: deque[str] = deque(maxlen=_TAIL)
    late = threading.Event()
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})}
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    ) as process:

        def give_up() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGTERM)

        timer = threading.Timer(timeout, give_up)
        timer.start()
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
            code = process.wait()
        finally:
            timer.cancel()
    if late.is_set():
        raise NodeError(
            f"Could not {what}: not done after {timeout} s. Raise vllm_image's timeout.", log=list(tail)[-40:]
        )
    if code:
        raise NodeError(f"Could not {what} (exit code {code}): {decisive(list(tail))}", log=list(tail)[-40:])


def decisive(lines: Sequence[str]) -> str:
    """Return the most telling line of a failed command's output: the last one that mentions an error."""
    speaking = [
        line
        for line in lines
        if re.search(r"error|fatal|failed|denied|not found|no space", line, re.IGNORECASE)
    ]
    # docker's closing lines ("… did not complete successfully") only repeat that a step failed.
    own = [line for line in speaking if not _REPEATS.search(line)]
    last = [line for line in lines if line.strip()][-1:]
    return ((own or speaking or last or ["it printed nothing"])[-1]).strip()
