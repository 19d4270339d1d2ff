# SPDX-License-Identifier: Apache-2.0
"""What to build: a git ref, its Dockerfile and build arguments, and the commands for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..content.image_ref import BUILD_LABEL
from ..content.urls import holds_account

COMMIT_LABEL = "instinct-fleet.build.commit"
BASES_LABEL = "instinct-fleet.build.bases"
"""Image label that holds the digests of the base images, as JSON by name."""

INPUTS_LABEL = "instinct-fleet.build.inputs"
"""Image label that holds the hash of what was really built: commit, Dockerfile, target, arguments, base images."""

ANY_DOCKERFILE = "docker/Dockerfile.rocm"


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
    if holds_account(repo) or repo.startswith("-"):
        raise NodeError(
            "build.repo holds an account, or begins with a dash. Write the URL without user, password and token, and "
            "configure a git credential helper on the node instead."
        )
    args = build.get("args") or {}
    if not isinstance(args, Mapping):
        raise NodeError("build.args must be a map of build arguments.")
    pairs = tuple(sorted((str(name), str(value)) for name, value in args.items()))
    dockerfile = str(build.get("dockerfile") or ANY_DOCKERFILE)
    target = str(build.get("target") or "")
    plan = BuildPlan(repo, str(build["ref"]), dockerfile, pairs, str(build.get("tag") or ref or ""), target)
    return plan if plan.tag else replace(plan, tag=f"instinct-fleet/vllm:{plan.hash[:12]}")
