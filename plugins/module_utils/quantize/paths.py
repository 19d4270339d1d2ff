# SPDX-License-Identifier: Apache-2.0
"""Where quantization keeps its things on a node, and where a job sees them inside its container."""

from __future__ import annotations

from ..common.paths import DATA_DIR
from ..content import model_manifest

HOME = DATA_DIR + "/quantize"
MODELS = model_manifest.MODELS
HASHES = model_manifest.MODEL_HASHES
LOGS = HOME + "/logs"
CALIBRATION = (
    HOME + "/calibration"
)  # roles/quantize/tasks/copy.yml copies files there, and main.yml removes them
PACKAGES = HOME + "/packages"  # and there

ENV_MOUNT = "/quantize/env"
SOURCE_MOUNT = "/quantize/source"
CALIBRATION_MOUNT = "/quantize/calibration"
JOB_MOUNT = "/quantize/job"

RECORD = "quantization.json"  # in the output: what it was made of
OUTPUT, JOB = "output", "job.json"
# Below a work_dir: what the container writes, what it cannot, and calibration data that the control node has sent.
SHARED, REPORT_FILE, TEXTS = "shared", "report.json", "calibration"

# The Python that runs vLLM need not be the first in PATH.
FIND_PYTHON = """\
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${python#\\#!}
case $python in */python*) ;; *) python=python3;; esac
"""


def environment_dir(key: str) -> str:
    """Return the directory of an environment on the node."""
    return f"{HOME}/env-{key}"


def work_dir(key: str) -> str:
    """Return the directory of a job, for root only; on the file system of the outputs, so that they are renamed."""
    return f"{MODELS}/.work/{key}"


def model_dir(name: str, commit: str = "") -> str:
    """Return the directory of a local repository, or of one of its commits."""
    return f"{MODELS}/{name}/{commit}".rstrip("/")


def log_file(key: str) -> str:
    """Return the file with what a job printed."""
    return f"{LOGS}/{key}.log"
