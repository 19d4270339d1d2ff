# SPDX-License-Identifier: Apache-2.0
"""Start-up: vLLM's log lines in vLLM's order, the same search for weights, and failures on demand.

The line with the cause comes before the lines that report a failure, as in the real one: first a worker fails, then the
engine core, and last the API server, "See root cause above".
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .knobs import Knobs

GIB = 1 << 30
TOKEN_BYTES = 131072  # of KV cache: Llama-3.1-8B in bfloat16

_CAUSES = {
    "oom": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity"
        " of 191.98 GiB of which 1.10 GiB is free. Of the allocated memory 188.42 GiB is allocated by"
        " PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
        " large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    ),
    "missing_weights": "RuntimeError: Cannot find any model weights with `/nowhere`",
    "gpu_fault": "Exception: WorkerProc died unexpectedly with exit code -6",
    "rccl": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled system"
    " error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.6\nncclSystemError: System call (e.g."
    " socket, malloc) or external library call failed or device error.\nLast error:\n"
    "Bootstrap : no socket interface found",
}


class StartError(Exception):
    """The server does not start. `origin`: the process in which vLLM would have failed."""

    def __init__(self, message: str, origin: str = "APIServer") -> None:
        super().__init__(message)
        self.origin = origin


@dataclass(frozen=True)
class Model:
    """The model to serve, as found on disk; without a path if nothing was searched."""

    name: str
    path: Path | None
    max_positions: int
    weight_bytes: int


@dataclass(frozen=True)
class Server:
    """The arguments of `vllm serve` on which the stand-in depends."""

    model: str
    revision: str | None
    host: str | None
    port: int
    max_model_len: int | None
    tensor_parallel_size: int
    attention_backend: str | None
    others: Mapping[str, Any]  # non-default arguments, as the log shows them


def log(process: str, source: str, message: str, level: str = "INFO") -> None:
    """Print one line of vLLM's log."""
    when = time.strftime("%m-%d %H:%M:%S")
    for line in message.split("\n"):
        print(f"({process} pid={os.getpid()}) {level} {when} [{source}] {line}", flush=True)


def find_model(model: str, revision: str | None, environ: Mapping[str, str]) -> Model:
    """Find the weights in a directory, or in the hub's cache if there is no network.

    Raise StartError if they are missing or incomplete.
    """
    offline = environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if not model.startswith("/") and not offline:
        return Model(model, None, 131072, 0)
    path = Path(model) if model.startswith("/") else _snapshot(model, revision or "main", environ)
    if not (path / "config.json").exists():
        raise StartError(
            f"OSError: {path} does not appear to have a file named config.json. Checkout"
            f" 'https://huggingface.co/{model}/tree/main' for available files."
        )
    config = json.loads((path / "config.json").read_text())
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(file.name for file in path.glob("*.safetensors"))
    present = [path / name for name in names if (path / name).exists()]
    if not present or len(present) < len(names):
        raise StartError(f"RuntimeError: Cannot find any model weights with `{path}`", "Worker")
    size = sum(file.stat().st_size for file in present)
    return Model(model, path, int(config.get("max_position_embeddings", 131072)), size)


def _snapshot(model: str, revision: str, environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME") or Path(environ.get("HOME", "/root"), ".cache", "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    folder = cache / f"models--{model.replace('/', '--')}"
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    if not (folder / "snapshots" / commit).is_dir():
        raise StartError(
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot"
            " folder for the specified revision on the local disk and outgoing traffic has been disabled. To"
            " enable repo look-ups and downloads online, pass 'local_files_only=False' as input."
        )
    return folder / "snapshots" / commit


def start(server: Server, knobs: Knobs, environ: Mapping[str, str]) -> tuple[Model, int, socket.socket]:
    """Start up; return the model, the maximum length, and a socket that is bound but not yet listening.

    This takes knobs.startup_seconds. Raise StartError if it should fail; never return if it should hang.
    """
    _banner(server, knobs)
    listener = _bind(server, knobs)
    model = find_model(server.model, server.revision, environ)
    max_len = server.max_model_len or model.max_positions
    if max_len > model.max_positions and environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise StartError(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({max_len}) is greater than the derived"
            f" max_model_len (max_position_embeddings={model.max_positions}.0 or model_max_length=None in"
            " model's config.json). To allow overriding this maximum, set the env var"
            " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    log("APIServer", "model.py:733", "Resolved architecture: LlamaForCausalLM")
    log("APIServer", "model.py:2152", f"Using max model len {max_len}")
    time.sleep(0.3 * knobs.startup_seconds)
    worker = "Worker" if server.tensor_parallel_size > 1 else "EngineCore"
    log(
        "EngineCore",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{knobs.version}) with config: model={server.model!r},"
        f" speculative_config=None, tokenizer={server.model!r}, revision={server.revision},"
        f" max_seq_len={max_len}, tensor_parallel_size={server.tensor_parallel_size}",
    )
    if knobs.fail == "hang":
        while True:
            time.sleep(3600)
    if knobs.fail == "rccl":
        time.sleep(0.7 * knobs.startup_seconds)
        fail_if_asked(knobs, worker, max_len)
    log(worker, "gpu_model_runner.py:5031", f"Starting to load model {server.model}...")
    if knobs.fail in ("oom", "missing_weights"):
        fail_if_asked(knobs, worker, max_len)
    log(worker, "rocm.py", _attention(server, knobs))
    weights = model.weight_bytes / GIB
    log(worker, "default_loader.py:501", f"Loading weights took {0.3 * knobs.startup_seconds:.2f} seconds")
    log(
        worker,
        "gpu_model_runner.py:5149",
        f"Model loading took {weights:.2f} GiB memory and {0.3 * knobs.startup_seconds:f} seconds",
    )
    time.sleep(0.4 * knobs.startup_seconds)
    fail_if_asked(knobs, worker, max_len)
    _plan_cache(knobs, max_len, worker)
    time.sleep(0.3 * knobs.startup_seconds)
    log(worker, "gpu_model_runner.py:6581", "Graph capturing finished in 1 secs, took 0.01 GiB")
    log(
        "EngineCore",
        "core.py:402",
        f"init engine (profile, create kv cache, warmup model) took {0.7 * knobs.startup_seconds:.2f} s",
    )
    log("APIServer", "entry.py:136", "Supported tasks: ['generate']")
    log(
        "APIServer",
        "entry.py:140",
        f"Starting vLLM server on http://{server.host or '0.0.0.0'}:{server.port}",
    )
    return model, max_len, listener


def _attention(server: Server, knobs: Knobs) -> str:
    """Which attention backend is taken, in the words of vllm/platforms/rocm.py since 0.19.0."""
    if knobs.attention:
        return f"Using {knobs.attention} backend out of potential backends: ['{knobs.attention}']."
    if server.attention_backend and server.attention_backend.upper() != "AUTO":
        return f"Using {server.attention_backend.upper()} backend (selected via --attention-backend)."
    return (
        "Found incompatible backend(s) [TURBOQUANT] with AttentionType.DECODER. Overriding with ROCM_ATTN out of"
        " potential backends: ['ROCM_ATTN', 'ROCM_AITER_FA', 'ROCM_AITER_UNIFIED_ATTN', 'TRITON_ATTN']."
    )


def _banner(server: Server, knobs: Knobs) -> None:
    art = (
        "",
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {knobs.version}",
        f"  █▄█▀ █     █     █     █  model   {server.model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        "",
    )
    log("APIServer", "api_utils.py:347", "\n".join(art))
    log("APIServer", "api_utils.py:286", f"non-default args: {dict(server.others)}")


def _bind(server: Server, knobs: Knobs) -> socket.socket:
    """Take the port before the engine starts, and listen only after that, as vLLM does."""
    family = socket.AF_INET6 if ":" in (server.host or "") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if knobs.fail == "port_in_use":
            raise OSError(98, "Address already in use")
        listener.bind((server.host or "", server.port))
    except OSError as error:
        raise StartError(f"OSError: {error}") from error
    return listener


def fail_if_asked(knobs: Knobs, worker: str, max_len: int) -> None:
    """Raise StartError with the text of the real failure that STANDIN_FAIL names, from the process that fails."""
    if knobs.fail == "gpu_fault":
        print(
            "Memory access fault by GPU node-2 (Agent handle: 0x55d1c8a7b3f0) on address 0x7f2d3c000000."
            " Reason: Unknown.",
            file=sys.stderr,
            flush=True,
        )
    if knobs.fail == "kv_cache":
        raise _cache_too_small(max_len // 2, max_len)
    if knobs.fail in _CAUSES:
        raise StartError(_CAUSES[knobs.fail], worker)


def _plan_cache(knobs: Knobs, max_len: int, worker: str) -> None:
    if knobs.kv_tokens < max_len:
        raise _cache_too_small(knobs.kv_tokens, max_len)
    if knobs.kv_tokens == Knobs.kv_tokens:
        return  # nothing was measured: the toolkit takes a logged size for the truth about that engine
    available = knobs.kv_tokens * TOKEN_BYTES / GIB
    log(worker, "gpu_worker.py:759", f"Available KV cache memory: {available:.2f} GiB")
    log(
        "EngineCore",
        "kv_cache_utils.py:2327",
        f"GPU KV cache size: {knobs.kv_tokens:,} tokens, Maximum concurrency for {max_len:,} tokens per"
        f" request: {knobs.kv_tokens / max_len:.2f}x",
    )


def _cache_too_small(tokens: int, max_len: int) -> StartError:
    return StartError(
        f"ValueError: To serve at least one request with the model's max seq len ({max_len}),"
        f" ({max_len * TOKEN_BYTES / GIB:.2f} GiB KV cache is needed, which is larger than the available KV"
        f" cache memory ({tokens * TOKEN_BYTES / GIB:.2f} GiB). Based on the available memory, the estimated"
        f" maximum model length is {tokens}. Try increasing `gpu_memory_utilization` (which also controls CPU"
        " memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. See"
        " https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        "EngineCore",
    )


def report(error: StartError) -> None:
    """Print a failed start as vLLM does: the cause first, then every process that failed with it."""
    if error.origin == "Worker":
        source = "multiproc_executor.py:953"
        log("Worker", source, "WorkerProc failed to start.\nTraceback (most recent call last):", "ERROR")
        log("Worker", source, str(error), "ERROR")
    if error.origin != "APIServer":
        source = "core.py:1510"
        log("EngineCore", source, "EngineCore failed to start.\nTraceback (most recent call last):", "ERROR")
        cause = str(error)
        if error.origin == "Worker":
            cause = (
                "Exception: WorkerProc initialization failed due to an exception in a background process. See"
                " stack trace for root cause."
            )
        log("EngineCore", source, cause, "ERROR")
    last = str(error)
    if error.origin != "APIServer":
        last = (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        )
    print(f"Traceback (most recent call last):\n{last}", file=sys.stderr, flush=True)
