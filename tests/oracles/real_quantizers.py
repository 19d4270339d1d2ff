# SPDX-License-Identifier: Apache-2.0
"""Quantize the lab's Llama with the real AMD Quark, outside Docker; then sign it, verify it, and tamper with a copy.

    python -m tests.oracles.real_quantizers --python VENV/bin/python [--vllm VENV/bin/python] [--schemes ptpc_fp8 …]

`make quantizers` makes the environment. With --vllm, the real vLLM generates tokens with what a CPU can serve: it has
kernels for ptpc_fp8, and none for FP8 with measured scales or MXFP4, which its loader reads into its model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.quantize import facts, job, paths, verify
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.plan import (
    QuantizeRequest,
    plan_quantization,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab import models
from tests import ROOT
from tests.worlds.quantize_world import DATA, GIB, REQUIREMENTS

WORDS = "the server model token request prompt answer memory kernel fleet driver queue"
SERVED = ("ptpc_fp8", "fp8_dynamic")  # on a CPU, by vLLM 0.32
# The type of matrices in vLLM's model, and the ends of the names of what the files do not fill: vLLM takes 1 for scales
# of queries and probabilities, which AMD's models lack too, and without an FP8 KV cache for those of keys and values.
LOADED = {
    "fp8-kv": ("torch.float8_e4m3fn", ["prob_scale", "q_scale"]),
    "mxfp4": ("torch.uint8", ["k_scale", "prob_scale", "q_scale", "v_scale"]),
}
REQUESTS = {
    "ptpc_fp8": QuantizeRequest("ptpc_fp8", device="cpu"),
    "mxfp4": QuantizeRequest("mxfp4", device="cpu"),
    "fp8-kv": QuantizeRequest("w_fp8_a_fp8", kv_cache="fp8", device="cpu", samples=16, length=64),
    "fp8_dynamic": QuantizeRequest("fp8_dynamic", device="cpu"),
}
GENERATE = """
import os, sys
if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    engine = LLM(sys.argv[1], enforce_eager=True, max_model_len=256)
    prompts = ["the server", "token memory kernel", "a request"]
    found = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=24))
    print("TOKENS", [list(item.outputs[0].token_ids) for item in found])
"""


def quantized(root: Path, python: str, request: QuantizeRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what publish() returns, and the program's report."""
    source = facts.read_source(str(root / "llama"))
    calibration = facts.read_calibration(str(root / "calibration.txt"))
    seen = {
        "source": source, "calibration": calibration, "outputs": facts.read_outputs(), "gpus": [],
        "disk_free": 100 * GIB, "memory_available": 16 * GIB, "image": "",
    }  # fmt: skip
    plan = plan_quantization(request, DATA, REQUIREMENTS, seen, "none")
    wanted = job.job_of(plan.job)
    work = Path(wanted.shared)
    work.mkdir(parents=True)
    data = {**job.program_job(wanted), "source": str(root / "llama"), "output": str(work / paths.OUTPUT)}
    if data["calibration"]:
        data["calibration"]["path"] = str(root / "calibration.txt")
    (work / paths.JOB).write_text(json.dumps(data))
    (root / "quantize.py").write_text(script("quantize"))
    command = [python, str(root / "quantize.py"), str(work / paths.JOB)]
    with (root / "log").open("w+") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        text = log.read()
    report = job.parse_report(text)
    if code or not report.get("ok"):
        raise SystemExit(
            f"{request.scheme}: {job.failure(wanted, code, report, text.splitlines()[-20:])}\n{text[-3000:]}"
        )
    return job.publish(wanted, report), report


def signed_and_tampered(path: Path, statement: str) -> None:
    """Sign a model and verify it; then alter a copy, and see it refused by the name of the file."""
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (path / "model.sig").write_text(signature.sign(statement, key))
    given = {"paths": [str(path)], "targets": [], "required": True, "reread": False}
    (found,) = verify.verify_models(given)["models"]
    signature.verify(found["signature"], found["statement"], signature.public_key_of(key))
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    weights = sorted(copy.glob("*.safetensors"))[0]
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    try:
        verify.verify_models({**given, "paths": [str(copy)]})
    except NodeError as error:
        said = str(error)
    else:
        said = ""
    if f"{weights.name} is changed" not in said:
        raise SystemExit(f"a flipped bit of {weights} was not found: {said}")
    shutil.rmtree(copy)


def loaded(python: str, model: Path, name: str) -> str:
    """Return what vLLM's loader made of a checkpoint that a CPU cannot compute with (vllm_loader.py)."""
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "HOME": "/tmp",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    command = [python, str(ROOT / "tests/oracles/vllm_loader.py"), str(model)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"vLLM does not load {model}:\n{done.stderr[-3000:]}")
    line = done.stdout.splitlines()[-1]
    found = json.loads(line)
    weight, unfilled = LOADED[name]
    if found["unfilled"] != unfilled or f"weight {weight}" not in found["types"]:
        raise SystemExit(f"{name}: vLLM's loader left other parameters, or made others: {line}")
    return f"vLLM's loader: {line}"


def generated(python: str, model: Path) -> str:
    """Return the tokens that the real vLLM generates."""
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "HOME": "/tmp",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PATH": "/usr/local/bin:/usr/bin:/bin",
    }  # fmt: skip
    program = model.parent / "generate.py"
    program.write_text(GENERATE)
    done = subprocess.run(
        [python, str(program), str(model)], env=env, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    if not lines:
        raise SystemExit(f"vLLM does not serve {model}:\n{done.stderr[-3000:]}")
    return lines[0]


def main() -> int:
    """Run all schemes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--vllm", default="")
    parser.add_argument("--schemes", nargs="+", default=["ptpc_fp8", "mxfp4", "fp8-kv"], choices=REQUESTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quantizers-") as directory:
        root = Path(directory)
        for name in ("HOME", "MODELS", "HASHES", "LOGS"):
            setattr(paths, name, str(root / name.lower()))
        verify.HASHES = paths.HASHES  # type: ignore[attr-defined]
        models.write(root / "llama")
        (root / "calibration.txt").write_text(f"{WORDS} " * 3000)
        for name in options.schemes:
            begun = time.monotonic()
            made, report = quantized(root, options.python, REQUESTS[name])
            path = Path(made["path"])
            signed_and_tampered(path, made["statement"])
            sys.stdout.write(
                f"{name}: {report['quantized']} matrices, {report['kv_scales']} KV scales, error "
                f"{report['mean_relative_error']:.3%} (at most {report['worst']['relative_error']:.3%}), "
                f"{made['bytes']:,} bytes, {report['peak_bytes'] / 1e6:.0f} MB RSS, {time.monotonic() - begun:.0f} s; "
                "signed, verified, a flipped bit refused\n"
            )
            if options.vllm:
                did = generated(options.vllm, path) if name in SERVED else loaded(options.vllm, path, name)
                sys.stdout.write(f"{name}: {did}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
