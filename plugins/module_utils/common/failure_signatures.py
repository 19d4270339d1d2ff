# SPDX-License-Identifier: Apache-2.0
"""Reads the log of a vLLM that did not start: the line that decides, the kind of failure, what to do next.

Pure. The texts are those of vLLM 0.6 to 0.33, torch, RCCL, the HIP/HSA runtime, huggingface_hub and argparse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_LIMIT = 600  # characters of the decisive line that are told


@dataclass(frozen=True)
class Finding:
    """Why a server failed: the kind (a short name for machines), the deciding log line, and the next step."""

    kind: str
    line: str
    next_step: str


UNSPECIFIC = ("unknown", "python_exception")
"""Kinds that name no cause."""


@dataclass(frozen=True)
class Signature:
    """A text that proves a kind of failure."""

    kind: str
    pattern: re.Pattern[str]
    next_step: str


def _signature(kind: str, patterns: tuple[str, ...], next_step: str) -> Signature:
    return Signature(kind, re.compile("|".join(f"(?:{pattern})" for pattern in patterns)), next_step)


# In order of weight: what stands higher is a cause, and may bring about what stands lower.
SIGNATURES: tuple[Signature, ...] = (
    _signature(
        "unknown_flag",
        (
            r"error: unrecognized arguments?:",
            r"error: argument \S+.*: (?:invalid|expected|not allowed|ignored)",
            r"error: the following arguments are required",
            r"error: ambiguous option",
        ),
        "This image's vLLM does not accept that flag or value. Correct engine_args of the deployment, or "
        "use an image whose vLLM has the flag (vllm serve --help=all in the image lists them).",
    ),
    _signature(
        "kv_cache_too_small",
        (
            r"To serve at least one request with the models?'s max seq len",
            r"No available memory for the cache blocks",
            r"is larger than the maximum number of tokens that can be stored in KV cache",
        ),
        "The weights leave too little GPU memory for the KV cache. Lower max_model_len (the line may name "
        "the largest that fits), raise gpu_memory_utilization, use kv_cache_dtype fp8, or more GPUs "
        "(tensor_parallel_size).",
    ),
    _signature(
        "gpu_memory_in_use",
        (r"Free memory on device.* is less than desired GPU memory utilization",),
        "Something else holds memory of this GPU. amd-smi process names it; stop it, or give this "
        "deployment another GPU or a lower gpu_memory_utilization. With no process there, a killed one has "
        "left the memory stranded: reload the amdgpu driver or reboot the node.",
    ),
    _signature(
        "out_of_memory",
        (
            r"(?:HIP|CUDA) out of memory",
            r"torch\.(?:cuda\.)?OutOfMemoryError",
            r"hipErrorOutOfMemory",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        ),
        "The GPU's memory does not suffice. Lower gpu_memory_utilization (room for what vLLM does not "
        "plan), max_num_seqs or max_num_batched_tokens, or use more GPUs (tensor_parallel_size).",
    ),
    _signature(
        "port_in_use",
        (r"\[Errno 98\]", r"EADDRINUSE", r"[Aa]ddress already in use"),
        "Another process listens on that port: ss -ltnp shows which. Stop it, or give the deployment "
        "another port.",
    ),
    _signature(
        "gated_model",
        (
            r"GatedRepoError",
            r"trying to access a gated repo",
            r"Access to model \S+ is restricted",
            r"401 Client Error",
        ),
        "The model is gated. Accept its licence on the hub, set hf_model_token, and run the hf_model role "
        "first: instances themselves have no access to the hub.",
    ),
    _signature(
        "missing_weights",
        (
            r"LocalEntryNotFoundError",
            r"OfflineModeIsEnabled",
            r"outgoing traffic has been disabled",
            r"Cannot find an appropriate cached snapshot folder",
            r"couldn't connect to 'https?://[^']*' to load th",
            r"does not appear to have a file named",
            r"Cannot find any model weights with",
            r"is not a local folder and is not a valid model identifier",
            r"Invalid repository ID or local directory specified",
            r"No such file or directory: '[^']*(?:\.safetensors|\.json|\.bin|\.model)'",
            r"SafetensorError",
            r"(?:Repository|Revision)NotFoundError",
        ),
        "The weights are missing or incomplete in the cache that the container sees. Run the hf_model role "
        "again (it checks every file), and check the exclude patterns of the deployment.",
    ),
    _signature(
        "no_gpu_access",
        (
            r"No HIP GPUs are available",
            r"Failed to infer device type",
            r"Device string must not be empty",
            r"(?:Permission denied|[Uu]nable to open|[Cc]annot open|[Ff]ailed to open).*/dev/(?:kfd|dri)",
            r"/dev/(?:kfd|dri)\S*.*(?:Permission denied|[Oo]peration not permitted|No such file)",
            r"hipErrorNoDevice",
            r"no ROCm-capable device is detected",
        ),
        "The container reaches no GPU. Check that the amdgpu driver is loaded (/dev/kfd exists), that "
        "/dev/kfd and the render nodes are among the container's devices, and that the group ids are the "
        "node's own (getent group render video).",
    ),
    _signature(
        "invalid_device",
        (r"invalid device ordinal", r"hipErrorInvalidDevice"),
        "The instance was given a GPU that does not exist here. The partition mode may have changed since "
        "the plan: run playbooks/plan.yml and deploy again; check gpus and *_VISIBLE_DEVICES of the "
        "deployment.",
    ),
    _signature(
        "gpu_fault",
        (
            r"Memory access fault by GPU node",
            r"HW Exception by GPU node",
            r"HSA_STATUS_ERROR",
            r"hipErrorIllegalAddress|illegal memory access was encountered",
            r"hipErrorLaunchFailure|unspecified launch failure",
            r"\bGPU [Hh]ang\b",
        ),
        "The GPU faulted. dmesg | grep amdgpu tells more. Try without AITER (VLLM_ROCM_USE_AITER=0) or with "
        "enforce_eager to narrow it down; if other models fail on this GPU too, reset or replace it.",
    ),
    _signature(
        "collective_failed",
        (
            r"Watchdog caught collective operation timeout",
            r"(?:NCCL|RCCL) error",
            r"nccl(?:System|Internal|Remote|Unhandled\w*)Error",
            r"DistNetworkError",
            r"DistStoreError",
            r"Timed out after \d+ seconds waiting for clients",
        ),
        "The GPUs do not reach one another (RCCL). Check iommu=pt on the kernel command line and that NUMA "
        "balancing is off; NCCL_DEBUG=INFO in env shows where it stops. Over several nodes also "
        "NCCL_SOCKET_IFNAME and the firewall.",
    ),
    _signature(
        "shared_memory",
        (
            r"No space left on device.*(?:/dev/shm|shm)",
            r"(?:/dev/shm|shm\S*).*No space left on device",
            r"unable to (?:open|mmap|write to|resize) (?:file in )?shared memory",
            r"[Bb]us error",
        ),
        "Shared memory is too small. Use runtime.ipc: host (the default) or raise runtime.shm_size.",
    ),
    _signature(
        "disk_full",
        (r"No space left on device", r"\[Errno 28\]"),
        "A disk of the node is full: df -h shows which (Docker's directory, the cache, or /tmp in the "
        "container).",
    ),
    _signature(
        "unsupported_model",
        (
            r"Model architectures? \[.*\] (?:are|is) not supported",
            r"Model architectures? \[.*\] failed to be inspected",
            r"does not recognize this architecture",
            r"[Qq]uantization(?: method)?.* (?:is|are) (?:currently )?not supported",
            r"Unknown quantization method",
            r"is not supported (?:on|for|by) (?:the )?(?:this|current|rocm|ROCm|gfx)",
            r"Pipeline parallelism is not supported for this model",
        ),
        "This image's vLLM cannot run this model or its quantization on this GPU. Use a newer image, or "
        "another checkpoint (for MI300X: FP8, not MXFP4).",
    ),
    _signature(
        "bad_config",
        (
            r"Value error, ",
            r"User-specified max_model_len",
            r"must be divisible by",
            r"is not divisible by",
            r"max_num_batched_tokens \(\d+\)",
            r"trust_remote_code=True",
        ),
        "vLLM refuses this combination of settings; the line says which. Correct engine_args of the "
        "deployment.",
    ),
    _signature(
        "command_missing",
        (
            r"(?:vllm|python3?|bash|exec): (?:command )?not found",
            r"executable file not found",
            r"No module named '?vllm'?",
        ),
        "The image does not have vLLM where it was looked for. Use an image that has `vllm` in its PATH.",
    ),
    _signature(
        "illegal_instruction",
        (r"[Ii]llegal instruction",),
        "The image was built for another CPU or GPU. Use an image built for this node's architecture.",
    ),
    _signature(
        "killed",
        (
            r"Out of memory: Killed process",
            r"\bKilled$",
            r"died (?:unexpectedly|with exit code -9)",
            r"exit code:? -9\b",
        ),
        "A process of the engine was killed. dmesg | grep -i 'killed process' says whether the node ran out "
        "of memory; then lower the host memory use (fewer instances, runtime.memory).",
    ),
)

# Lines that only pass on a failure that was explained above them.
_WRAPPERS = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineCore failed to start"
    r"|WorkerProc initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|Worker failed with error|See (?:root cause|stack trace)|ContextTerminated|CancelledError"
    r"|^(?:SystemExit|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|EOFError)\b|: cancelled$"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Fault|Warning)(?::\s.*|$)")
_WARNING = re.compile(r"^[\w.]*Warning\b")

_SOURCE = re.compile(r'^(?:    |  File ")')
_PYDANTIC = re.compile(r" \[type=[a-z_]+, input_value=.*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROCESS = re.compile(r"^(?:\([^()]*pid=\d+[^()]*\)\s?)+")
_STAMP = re.compile(
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s+\[?[\w./]+:\d+\]\s?"
)

_NEXT_EXCEPTION = (
    "The whole log is kept beside the instance; the lines above this one say where it came from."
)
_NEXT_UNKNOWN = "The log does not say why. Read it whole; VLLM_LOGGING_LEVEL=DEBUG in env makes it tell more."


def clean(line: str) -> str:
    """A log line without colours, progress bars, process name and time stamp; indentation is kept."""
    line = _COLOUR.sub("", line.rstrip()).rsplit("\r", 1)[-1]
    return _STAMP.sub("", _PROCESS.sub("", line))


def classify(text: str, exit_code: int | None = None, oom_killed: bool = False) -> Finding:
    """Why a server did not start, from its log, its exit code and Docker's OOMKilled."""
    lines = [line for line in (clean(raw) for raw in text.split("\n")) if line.strip()]
    if oom_killed:
        return _finding(
            "killed",
            _last(lines),
            "The container used more memory than runtime.memory allows and was killed. Raise or drop the "
            "limit.",
        )
    # A traceback quotes the source: `raise LocalEntryNotFoundError(` names an error, but does not tell it.
    told = [line for line in lines if not _SOURCE.match(line)]
    for signature in SIGNATURES:
        # Warnings of Python's warnings module quote harmless texts that look like errors.
        for line in [*told, *lines]:
            if signature.pattern.search(line) and not _WARNING.match(line):
                return _finding(signature.kind, line, signature.next_step)
    if exit_code == 132:
        return _finding("illegal_instruction", _last(lines), _step_of("illegal_instruction"))
    if exit_code == 137:
        return _finding("killed", _last(lines), _step_of("killed"))
    raised = [line for line in lines if _EXCEPTION.match(line) and not _WARNING.match(line)]
    own = [line for line in raised if not _WRAPPERS.search(line)]
    if raised:
        return _finding("python_exception", (own or raised)[-1], _NEXT_EXCEPTION)
    return _finding("unknown", _last(lines), _NEXT_UNKNOWN)


def tail(text: str, lines: int = 20) -> list[str]:
    """The last non-empty lines of a log, for people; of a progress bar, its last state."""
    shown = (_COLOUR.sub("", raw.rstrip()).rsplit("\r", 1)[-1] for raw in text.split("\n"))
    return [line for line in shown if line.strip()][-lines:]


def _finding(kind: str, line: str, next_step: str) -> Finding:
    line = _PYDANTIC.sub("", line.strip())
    return Finding(kind, line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] + " …", next_step)


def _last(lines: list[str]) -> str:
    return " | ".join(line.strip() for line in lines[-2:]) if lines else "the log is empty"


def _step_of(kind: str) -> str:
    return next(signature.next_step for signature in SIGNATURES if signature.kind == kind)
