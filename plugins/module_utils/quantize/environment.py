# SPDX-License-Identifier: Apache-2.0
"""A backend's packages in a directory of their own, installed once by pip in a container of the vLLM image.

The directory comes first in PYTHONPATH of the job's container, so that PyTorch is the image's, and the serving image
itself never gets the packages: AMD Quark would register a plugin with every vLLM that finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..common.files import make_private, sync_directory, write_atomic
from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..disk.beneath import remove_tree
from ..disk.untrusted_tree import publish_tree
from ..docker.client import DockerClient
from . import paths
from .containers import ContainerRun, run_container

CONTAINER = "instinct-quantize-env"
COMPLETE = "complete.json"
SECRETS = "/run/instinct-fleet"
PIP_CONF = SECRETS + "/quantize-pip.conf"
_CA = "/quantize/ca.pem"
_REQUIREMENTS = "/quantize/requirements.txt"
_PACKAGES = "/quantize/packages"
_SCRIPT = f"""
set -eu
{paths.FIND_PYTHON}
if $python -m pip --version >/dev/null 2>&1; then pip="$python -m pip"
else
    wheel=$(ls {_PACKAGES}/pip-*.whl 2>/dev/null | tail -1)
    if [ -z "$wheel" ]; then echo "this image has no pip"; exit 3; fi
    pip="$python $wheel/pip"
fi
exec $pip install --no-cache-dir --disable-pip-version-check --no-input --root-user-action ignore --no-deps \\
    --require-hashes --only-binary :all: --target {paths.ENV_MOUNT} "$@" -r {_REQUIREMENTS}
"""


@dataclass(frozen=True)
class EnvironmentRequest:
    """The packages of a backend, and the way to them.

    requirements: versions with hashes. image_id: its Python and PyTorch decide which packages fit. packages: directory
    on the node with downloaded ones; "" for an index. proxy: variables, whose URLs may hold accounts.
    """

    requirements: str
    image: str
    image_id: str
    packages: str = ""
    index: str = ""
    proxy: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    timeout: int = 3600

    @property
    def key(self) -> str:
        """Return the hash that names the environment."""
        return text_hash(canonical([self.requirements, self.image_id]))[:12]

    @property
    def directory(self) -> str:
        """Return the environment's directory on the node."""
        return paths.environment_dir(self.key)

    @property
    def complete(self) -> bool:
        """Return whether everything is installed."""
        return os.path.exists(os.path.join(self.directory, COMPLETE))


def install(client: DockerClient, wanted: EnvironmentRequest) -> None:
    """Install the packages unless they are there, into a temporary directory that gets the name when it is complete."""
    if wanted.complete:
        return
    part, requirements = f"{wanted.directory}.part", f"{wanted.directory}.txt"
    remove_tree(part)
    os.makedirs(part, mode=0o755)
    write_atomic(requirements, wanted.requirements, 0o644)
    make_private(SECRETS)
    write_atomic(PIP_CONF, _pip_conf(wanted), 0o600)
    try:
        code, log, _unused = run_container(client, container_run(wanted, part, requirements), wanted.timeout)
    finally:
        os.unlink(PIP_CONF)
    if code != 0:
        with contextlib.suppress(NodeError):
            remove_tree(part)
        raise NodeError(_failure(wanted, code, log), log=log[-20:], changed=True)
    publish_tree(part, programs=True)
    write_atomic(
        os.path.join(part, COMPLETE), json.dumps({"image": wanted.image, "id": wanted.image_id}), 0o644
    )
    remove_tree(wanted.directory)
    os.rename(part, wanted.directory)
    sync_directory(paths.HOME)


def _pip_conf(wanted: EnvironmentRequest) -> str:
    lines = ["[global]"]
    if wanted.proxy.get("https_proxy"):
        lines.append(f"proxy = {wanted.proxy['https_proxy']}")
    if wanted.ca_file:
        lines.append(f"cert = {_CA}")
    if wanted.index:
        lines.append(f"index-url = {wanted.index}")
    return "\n".join(lines) + "\n"


def container_run(wanted: EnvironmentRequest, part: str, requirements: str) -> ContainerRun:
    """Return the container that installs: it has the network and the new directory, no GPU and no model."""
    readable = {_REQUIREMENTS: requirements, "/etc/pip.conf": PIP_CONF}
    if wanted.packages:
        readable[_PACKAGES] = wanted.packages
    if wanted.ca_file:
        readable[_CA] = wanted.ca_file
    options = ["--no-index", "--find-links", _PACKAGES] if wanted.packages else []
    return ContainerRun(
        name=CONTAINER,
        image=wanted.image,
        script=_SCRIPT,
        arguments=("quantize-env", *options),
        readable=readable,
        writable={paths.ENV_MOUNT: part},
        network="none" if wanted.packages else "host",
        env={"HOME": "/tmp", "PIP_CONFIG_FILE": "/etc/pip.conf"},
        label=wanted.key,
    )


def _failure(wanted: EnvironmentRequest, code: int | None, log: list[str]) -> str:
    text = "\n".join(log)
    if code is None:
        return (
            f"The packages were not installed within {wanted.timeout} s. "
            "Check the network, or raise quantize_timeout."
        )
    if "has no pip" in text:
        return (
            f"The image {wanted.image} has no pip. Give the packages as a directory (quantize_packages) "
            "that also contains "
            "pip's own wheel."
        )
    if "No matching distribution" in text or "Could not find a version" in text:
        where = wanted.packages or wanted.index or "the package index"
        return (
            f"{where} does not have a package in the right version, or none fits the image's Python: {_last(log)}. "
            "docs/quantize.md says how to download all of them (pip download)."
        )
    if "HASHES" in text or "do not match" in text:
        return f"A package is not the one that was pinned: {_last(log)}. Check the index or the directory of packages."
    return (
        f"pip ended with exit code {code}: {_last(log)}. If this node cannot reach the index, set instinct_proxy and "
        "instinct_ca_file, or give the packages as a directory (quantize_packages)."
    )


def _last(log: list[str]) -> str:
    errors = [line for line in log if line.startswith("ERROR")]
    return " ".join((errors or log or ["it printed nothing"])[-1].split())[:400]


def install_actions(wanted: EnvironmentRequest) -> list[str]:
    """Return the actions of an installation."""
    if wanted.complete:
        return []
    source = wanted.packages or wanted.index or "the package index"
    return [f"POST /containers/create?name={CONTAINER} (pip install into {wanted.directory}, from {source})"]
