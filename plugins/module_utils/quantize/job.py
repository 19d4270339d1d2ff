# SPDX-License-Identifier: Apache-2.0
"""Run a planned quantization on the node, and make a local repository of its output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.disk_space import human_size
from ..common.files import make_private, read_text, sync_directory, write_atomic
from ..common.module_main import NodeError
from ..content.model_manifest import (
    MANIFEST,
    commit_of,
    hash_directory,
    hashes_file,
    remember_hashes,
    statement,
    statement_text,
)
from ..content.probe_output import REPORT
from ..disk.beneath import remove_tree
from ..disk.untrusted_tree import publish_tree
from ..disk.write_below import write_below
from ..docker.client import DockerClient, Json
from ..store.blob_files import link_or_copy
from . import paths
from .containers import ContainerRun, is_running, run_container, stop_and_remove
from .environment import EnvironmentRequest

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SNAPSHOT = re.compile(r"(.*)/snapshots/[0-9a-f]{40}/?$")
_SCRIPT = f"""
set -eu
{paths.FIND_PYTHON}
export PATH="{paths.ENV_MOUNT}/bin:$PATH"
program=$(mktemp -d)/quantize.py
printf %s "$1" > "$program"
exec $python "$program" {paths.JOB_MOUNT}/{paths.JOB}
"""


@dataclass(frozen=True)
class QuantizeJob:
    """A planned job, as plugin_utils/operations/quantize/plan.py made it.

    data: what programs/quantize.py reads, less its paths. record: what the output is made of. card: its README.md.
    """

    key: str
    name: str
    image: str
    source: str
    calibration: Mapping[str, Any] | None
    data: Mapping[str, Any]
    record: Mapping[str, Any]
    card: str
    render_nodes: tuple[str, ...]
    memory: int

    @property
    def container(self) -> str:
        """Return the container's name, the same in every run, so that a second run finds the first one's job."""
        return f"instinct-quantize-{self.key}"

    @property
    def work(self) -> str:
        """Return the directory of the job's files on the node."""
        return paths.work_dir(self.key)

    @property
    def shared(self) -> str:
        """Return the part of it in which the container writes."""
        return os.path.join(self.work, paths.SHARED)

    @property
    def texts(self) -> str:
        """Return the path of the calibration data on the node; "" without any.

        What came from the control node is the job's own, so that it is there as long as the job, and no longer.
        """
        if not self.calibration:
            return ""
        if os.path.dirname(self.calibration["path"]) == paths.CALIBRATION:
            return os.path.join(self.work, paths.TEXTS, self.calibration["inside"])
        return str(self.calibration["mount"])


def job_of(data: Mapping[str, Any]) -> QuantizeJob:
    """Return the job that the action plugin gave."""
    return QuantizeJob(**{**data, "render_nodes": tuple(data["render_nodes"])})


def program_job(job: QuantizeJob) -> Json:
    """Return the job as the program reads it: with its paths inside the container."""
    calibration = None
    if job.calibration:
        calibration = {**job.data["calibration"], "path": _calibration_inside(job.calibration)}
    snapshot = _SNAPSHOT.match(job.source)
    inside = job.source[len(snapshot.group(1)) :] if snapshot else ""
    return {
        **job.data,
        "source": (paths.SOURCE_MOUNT + inside).rstrip("/"),
        "output": f"{paths.JOB_MOUNT}/{paths.OUTPUT}",
        "calibration": calibration,
    }


def container_run(job: QuantizeJob, environment: str, program: str) -> ContainerRun:
    """Return the job's container: no network, the model and the packages read-only, the chosen GPUs and no others.

    A snapshot of the hub's cache is links into blobs/, so the repository's directory is mounted.
    """
    snapshot = _SNAPSHOT.match(job.source)
    readable = {
        paths.ENV_MOUNT: environment,
        paths.SOURCE_MOUNT: snapshot.group(1) if snapshot else job.source,
    }
    if job.calibration:
        readable[_calibration_inside(job.calibration)] = job.texts
    devices = ["/dev/kfd", *(f"/dev/dri/{node}" for node in job.render_nodes)] if job.render_nodes else []
    return ContainerRun(
        name=job.container,
        image=job.image,
        script=_SCRIPT,
        arguments=("quantize", program),
        readable=readable,
        writable={paths.JOB_MOUNT: job.shared},
        devices=devices,
        memory=job.memory,
        label=job.key,
        env={
            "HOME": "/tmp",
            "PYTHONPATH": paths.ENV_MOUNT,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "QUARK_DISABLE_VLLM_PLUGIN": "1",
            "VLLM_PLUGINS": "",
        },
    )


def _calibration_inside(calibration: Mapping[str, Any]) -> str:
    return os.path.join(paths.CALIBRATION_MOUNT, calibration["inside"]).rstrip("/")


def job_actions(job: QuantizeJob, client: DockerClient) -> list[str]:
    """Return the actions of the job."""
    run = container_run(job, "", "")
    if is_running(client, run):
        return [f"wait for container {run.name} (it quantizes {job.source})"]
    actions = [f"POST /containers/create?name={run.name} ({job.image}: {job.source} as {job.data['scheme']})"]
    return [*actions, f"write {paths.model_dir(job.name)}/<commit>"]


def run_job(
    client: DockerClient, job: QuantizeJob, environment: EnvironmentRequest, program: str, timeout: int
) -> Json:
    """Run the job, or wait for the one of an earlier call. Return the program's report. Raise NodeError."""
    report_file = os.path.join(job.work, paths.REPORT_FILE)
    earlier = json.loads(read_text(report_file) or "{}")
    if earlier.get("ok") and os.path.isdir(job.shared):
        return dict(earlier)
    run = container_run(job, environment.directory, program)
    if not is_running(client, run):
        stop_and_remove(client, run.name)
        remove_tree(job.work)  # of a job that was killed
        make_private(job.work)
        os.mkdir(job.shared, 0o755)
        if job.calibration and job.texts.startswith(f"{job.work}/"):
            os.mkdir(os.path.dirname(job.texts), 0o700)
            link_or_copy(job.calibration["path"], job.texts)
        write_atomic(os.path.join(job.shared, paths.JOB), json.dumps(program_job(job), indent=1), 0o644)
    code, lines, log = run_container(client, run, timeout)
    if code is None:
        raise NodeError(
            f"The quantization did not finish within {timeout} s. It continues in container {run.name} (docker logs "
            f"{run.name}): run again to wait for it, or raise quantize_timeout.",
            changed=True,
        )
    shutil.rmtree(os.path.join(job.work, paths.TEXTS), ignore_errors=True)
    log = _COLOURS.sub("", log)
    make_private(paths.LOGS)  # a backend may print the texts
    write_atomic(paths.log_file(job.key), log, 0o600)
    report = parse_report(log)
    if code != 0 or not report.get("ok"):
        with contextlib.suppress(NodeError):
            remove_tree(job.work)
        raise NodeError(failure(job, code, report, lines), log=lines[-20:], changed=True)
    write_atomic(report_file, json.dumps(report), 0o644)
    return report


def parse_report(log: str) -> Json:
    """Return the report that the program printed last; {} without one."""
    lines = [line for line in log.splitlines() if line.startswith(REPORT)]
    try:
        return dict(json.loads(lines[-1][len(REPORT) :])) if lines else {}
    except ValueError:
        return {}


def failure(job: QuantizeJob, code: int, report: Mapping[str, Any], lines: list[str]) -> str:
    """Return why a job failed, and what to do."""
    log = f"Its log is {paths.log_file(job.key)}."
    what = f"Quantizing {job.source} as {job.data['scheme']} failed"
    if report.get("kind") == "check":
        return f"{what}: {report['error']} Nothing was kept. {log}"
    if report.get("kind") == "memory" or code == 137:
        limit = f" of its {human_size(job.memory)}" if job.memory else ""
        return (
            f"{what}: it ran out of memory{limit}. Choose a scheme that works file by file (ptpc_fp8, mxfp4), give "
            f"it more GPUs by stopping instances (playbooks/stop.yml), or use a larger host. {log}"
        )
    last = report.get("error") or " ".join(lines[-1:]) or "it printed nothing"
    return f"{what} with exit code {code}: {last} {log}"


def publish(job: QuantizeJob, report: Mapping[str, Any]) -> Json:
    """Make a local repository of the output: card, record, manifest; in a staging directory, renamed when complete.

    Raise NodeError for an output that is more than directories and files of its own: the container may have left links.
    """
    output = os.path.join(job.shared, paths.OUTPUT)
    try:
        publish_tree(job.shared, paths.OUTPUT)  # the backends write weights for their owner alone
    except FileNotFoundError as error:
        remove_tree(job.work)
        raise NodeError(
            f"{output} is not there although the job succeeded. Run again.", changed=True
        ) from error
    kept = {
        key: report[key] for key in ("versions", "quantized", "excluded", "left", "unmatched", "kv_scales")
    }
    off = {"worst": report["worst"], "mean": report["mean_relative_error"], "matrices": report["compared"]}
    record = {**job.record, "key": job.key, "result": {**kept, "relative_error": off}}
    record_text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    for name, content in (("README.md", job.card), (paths.RECORD, record_text)):
        write_below(job.shared, f"{paths.OUTPUT}/{name}", content, 0o644)
    files = hash_directory(output, links=False)
    commit = commit_of(files)
    target = paths.model_dir(job.name, commit)
    text = statement_text(statement(job.name, files))
    write_below(job.shared, f"{paths.OUTPUT}/{MANIFEST}", text, 0o644)
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    renamed = False
    with contextlib.suppress(FileExistsError, OSError):  # the same output of other inputs
        os.rename(output, target)
        renamed = True
    if not os.path.exists(os.path.join(target, MANIFEST)):
        raise NodeError(
            f"{output} could not be renamed to {target}. Check the disk, and run again.", changed=True
        )
    sync_directory(os.path.dirname(target))
    if renamed:
        remember_hashes(hashes_file(target, text, paths.HASHES), target, files)
    with contextlib.suppress(NodeError):  # the model is there
        remove_tree(job.work)
    size = sum(os.stat(os.path.join(target, name)).st_size for name in files)
    return {"path": target, "commit": commit, "statement": text, "bytes": size, "files": len(files)}
