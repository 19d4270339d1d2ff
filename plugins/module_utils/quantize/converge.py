# SPDX-License-Identifier: Apache-2.0
"""Quantize as planned, if the output is not there: packages, job, local repository, signature."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..common.files import read_text, sync_directory, write_atomic
from ..common.module_main import NodeError
from ..content import proxies
from ..content.model_manifest import SIGNATURE
from ..content.urls import holds_account
from ..docker.client import DockerClient, Json
from ..docker.image_api import image
from ..leases.run_lock import run_lock
from . import environment, job, paths
from .environment import EnvironmentRequest


def quantize(client: DockerClient, params: Mapping[str, Any], check: bool) -> Json:
    """Return what there is afterwards: path, commit, statement, signature, and the report of a job that ran."""
    if holds_account(params["index"]):
        raise NodeError(
            "index (quantize_index) holds an account. Write the URL of a mirror that needs none, or give the packages "
            "as a directory (quantize_packages)."
        )
    wanted = job.job_of(params["job"])
    found = image(client, wanted.image)
    if found is None:
        raise NodeError(
            f"Image {wanted.image} is not on this node. Run site.yml, which pulls it, or name another one "
            "with quantize_image."
        )
    given = params["packages"]
    not_copied_yet = check and given == paths.PACKAGES  # nothing is, in check mode
    if given and not os.path.isdir(given) and not not_copied_yet:
        raise NodeError(
            f"{given} is not a directory of this node: put the packages there (docs/quantize.md)."
        )
    packages = EnvironmentRequest(
        requirements=params["requirements"],
        image=wanted.image,
        image_id=str(found["Id"]),
        packages=given,
        index=params["index"],
        proxy=proxies.environment(params["proxy"]),
        ca_file=proxies.check_ca_file(params["ca_file"]),
        timeout=params["timeout"],
    )
    actions = [*environment.install_actions(packages), *job.job_actions(wanted, client)]
    if check:
        return {"changed": True, "actions": actions, "path": None, "commit": "", "report": None}
    with run_lock("model_quantize", params["timeout"]):
        for directory in (paths.HOME, paths.MODELS):
            os.makedirs(directory, mode=0o755, exist_ok=True)
        environment.install(client, packages)
        report = job.run_job(client, wanted, packages, params["program"], params["timeout"])
        made = job.publish(wanted, report)
    return {"changed": True, "actions": actions, "report": report, "signature": "", **made}


def write_signature(path: str, text: str, check: bool) -> Json:
    """Put the signature next to the files that it signs."""
    file = os.path.join(path, SIGNATURE)
    if not os.path.isdir(path):
        raise NodeError(f"{path} is gone, so its signature was not written. Run again.")
    if read_text(file) == text:
        return {"changed": False, "actions": []}
    if not check:
        write_atomic(file, text, 0o644)
        sync_directory(path)
    return {"changed": True, "actions": [f"write {file}"]}
