# SPDX-License-Identifier: Apache-2.0
"""Build an image from a git ref, as AMD's documentation does: clone, check out, docker build."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..common.files import make_private
from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..common.processes import Program, ProgramEnd, run_program
from ..content.image_ref import parse_ref
from .build_plan import BuildInputs, BuildPlan
from .dockerfile import candidates, pin_bases, read_dockerfile, unknown_arguments

_LINES, _TAIL = 200, 40  # of a failed command's output: searched for the cause, and returned
_QUICK_SECONDS = 60  # for what only looks something up


_REPEATS = re.compile(
    r"did not complete successfully|returned a non-zero|executor failed running|exit code: \d+$"
)


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
    file = f"{source}.Dockerfile"  # next to the source: a file changed in there would make its version a dirty one
    _remove(source, file)  # left behind by an interrupted build
    make_private(os.path.dirname(source))  # the repository may be one that users of the host must not read
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
    found = [path for path in places if os.path.isfile(_inside(source, path, plan))]
    if not found:
        raise NodeError(
            f"{plan.repo} at {plan.ref} has no file {' or '.join(places)}. vLLM's is docker/Dockerfile.rocm "
            "since 0.8, and Dockerfile.rocm before: set build.dockerfile."
        )
    return found[0]


def _inside(source: str, path: str, plan: BuildPlan) -> str:
    """Return where a file of the repository is. Raise NodeError if a link of the repository leads out of it."""
    found = os.path.realpath(os.path.join(source, path))
    if not found.startswith(os.path.realpath(source) + "/"):
        raise NodeError(
            f"{path} of {plan.repo} at {plan.ref} leads out of the repository, to a file of this node. Nothing was "
            "built. Correct build.ref or build.dockerfile, and find out who put it there."
        )
    return found


def _prepare(plan: BuildPlan, source: str, commit: str, file: str, timeout: int) -> BuildInputs:
    """Write the Dockerfile with its base images by digest, and return what the image is made of."""
    original = _inside(source, plan.dockerfile, plan)
    with open(original, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    args = dict(plan.args)
    declared = read_dockerfile(text, args)
    bases = {name: _digest(name, plan, timeout) for name in declared.bases}
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(pin_bases(text, args, {name: digest for name, digest in bases.items() if digest}))
    ignored = _inside(source, f"{plan.dockerfile}.dockerignore", plan)
    if os.path.exists(ignored):
        shutil.copyfile(ignored, f"{file}.dockerignore")
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
    """Return a base image as repository@digest, pulled if the engine does not have it; "" for one that was never
    pulled."""
    if "@sha256:" in name:
        return name
    command = ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", name]
    found = _look_up(command)
    if found.code != 0:
        # The command line's accounts apply, as they do to docker build.
        _run(["docker", "pull", "--quiet", name], timeout, f"pull the base image {name}", plan.environment)
        found = _look_up(command)
    try:
        digests = [str(item) for item in json.loads(found.out) or ()]
    except ValueError:
        digests = []
    repository = parse_ref(name).repository
    return next((item for item in digests if item.partition("@")[0] == repository), "")


def _commit(source: str, plan: BuildPlan) -> str:
    """Return the commit that the ref names: a branch of the repository, a tag, or a commit. Raise NodeError if none."""
    for name in (f"refs/remotes/origin/{plan.ref}", plan.ref):
        words = ["git", "-C", source, "rev-parse", "--verify", "--quiet", "--end-of-options"]
        found = _look_up([*words, f"{name}^{{commit}}"])
        if found.code == 0:
            return found.out.strip()
    raise NodeError(
        f"{plan.repo} has no branch, tag or commit {plan.ref!r}. Correct build.ref of the deployment."
    )


def _buildkit() -> str:
    """Return "1" if this docker CLI can build with BuildKit, which vLLM's Dockerfiles require, else "0"."""
    if _look_up(["docker", "buildx", "version"]).code == 0:
        return "1"
    # Without the plugin, CLIs before 23 use their own BuildKit client; later ones fail with BuildKit.
    version = re.search(r"version (\d+)\.", _look_up(["docker", "--version"]).out)
    return "1" if version and 19 <= int(version.group(1)) < 23 else "0"


def _look_up(words: Sequence[str]) -> ProgramEnd:
    """Run a command that changes nothing. Raise NodeError if it does not answer."""
    done = run_program(Program(words), _QUICK_SECONDS)
    if done.code is None:
        raise NodeError(
            f"{' '.join(words)} gave no answer within {_QUICK_SECONDS} s, and was killed. Check Docker and the disk of "
            "this node (systemctl status docker, dmesg), and run again."
        )
    return done


def _run(words: Sequence[str], timeout: int, what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command to its end. Raise NodeError with its last lines if it fails.

    It ends when this process does, also by SIGKILL: otherwise a build would continue during that of the next run, and
    give its own image the tag in the end.
    """
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})}
    done = run_program(Program(["setpriv", "--pdeathsig", "TERM", *words], env, merged=True), timeout)
    lines = [line.rstrip() for line in done.out.splitlines()[-_LINES:]]
    if done.code is None:
        raise NodeError(
            f"Could not {what}: it did not finish within {timeout} s. Raise vllm_image's timeout.",
            log=lines[-_TAIL:],
        )
    if done.code:
        raise NodeError(f"Could not {what} (exit code {done.code}): {decisive(lines)}", log=lines[-_TAIL:])


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
