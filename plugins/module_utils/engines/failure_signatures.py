# SPDX-License-Identifier: Apache-2.0
"""Signatures that tell vLLM's failures apart, with the fix for each: data for failures.classify.

They cover vLLM 0.6 to 0.33, torch, RCCL, the HIP/HSA runtime, huggingface_hub and argparse. The supervisors of a node
read them from a file next to them, which every deploy rewrites. A new signature therefore changes neither the version
of the supervisor nor the spec of any container.
"""

from __future__ import annotations

from .failures import NEXT_ILLEGAL_INSTRUCTION, NEXT_KILLED, Signature

# Ordered by weight: an earlier entry is a cause, and may bring about a later one.
SIGNATURES: tuple[Signature, ...] = (
    Signature(
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
    Signature(
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
    Signature(
        "gpu_memory_in_use",
        (r"Free memory on device.* is less than desired GPU memory utilization",),
        "Something else holds memory of this GPU. amd-smi process names it; if it is not an instance of this fleet, "
        "stop it, or give this deployment another GPU or a lower gpu_memory_utilization. With no process there, "
        "a killed one has left the memory stranded: playbooks/partition.yml -e gpu_clean=true drains the node's "
        "instances and reloads its driver.",
    ),
    Signature(
        "out_of_memory",
        (
            r"(?:HIP|CUDA) out of memory",
            r"torch\.(?:cuda\.)?OutOfMemoryError",
            r"hipErrorOutOfMemory",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        ),
        "The GPU does not have enough memory. Lower gpu_memory_utilization (this leaves space for what vLLM does not "
        "plan for), max_num_seqs or max_num_batched_tokens, or use more GPUs (tensor_parallel_size).",
    ),
    Signature(
        "port_in_use",
        (r"\[Errno 98\]", r"EADDRINUSE", r"[Aa]ddress already in use"),
        "Another process listens on that port: ss -ltnp shows which. If it is not an instance of this "
        "fleet, stop it, or "
        "give the deployment another port.",
    ),
    Signature(
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
    Signature(
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
    Signature(
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
    Signature(
        "invalid_device",
        (r"invalid device ordinal", r"hipErrorInvalidDevice"),
        "The instance was given a GPU that does not exist here. The partition mode may have changed since "
        "the plan: run playbooks/plan.yml and deploy again; check gpus and *_VISIBLE_DEVICES of the "
        "deployment.",
    ),
    Signature(
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
        "enforce_eager to narrow it down; if other models fail on this GPU too, drain its host (drain.yml), and reset "
        "or replace it.",
    ),
    Signature(
        "collective_failed",
        (
            r"Watchdog caught collective operation timeout",
            r"(?:NCCL|RCCL) error",
            r"nccl(?:System|Internal|Remote|Unhandled\w*)Error",
            r"DistNetworkError",
            r"DistStoreError",
            r"Timed out after \d+ seconds waiting for clients",
        ),
        "The GPUs cannot reach each other (RCCL). Check iommu=pt on the kernel command line and that NUMA "
        "balancing is off; NCCL_DEBUG=INFO in env shows where it stops. Over several nodes also "
        "NCCL_SOCKET_IFNAME and the firewall.",
    ),
    Signature(
        "shared_memory",
        (
            r"No space left on device.*(?:/dev/shm|shm)",
            r"(?:/dev/shm|shm\S*).*No space left on device",
            r"unable to (?:open|mmap|write to|resize) (?:file in )?shared memory",
            r"[Bb]us error",
        ),
        "Shared memory is too small. Use runtime.ipc: host (the default) or raise runtime.shm_size.",
    ),
    Signature(
        "disk_full",
        (r"No space left on device", r"\[Errno 28\]"),
        "A disk of the node is full: df -h shows which (Docker's directory, the cache, or /tmp in the "
        "container).",
    ),
    Signature(
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
    Signature(
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
    Signature(
        "command_missing",
        (
            r"(?:vllm|python3?|bash|exec): (?:command )?not found",
            r"executable file not found",
            r"No module named '?vllm'?",
        ),
        "The image does not have vLLM where it was looked for. Use an image that has `vllm` in its PATH.",
    ),
    Signature(
        "illegal_instruction",
        (r"[Ii]llegal instruction",),
        NEXT_ILLEGAL_INSTRUCTION,
    ),
    Signature(
        "killed",
        (
            r"Out of memory: Killed process",
            r"\bKilled$",
            r"died (?:unexpectedly|with exit code -9)",
            r"exit code:? -9\b",
        ),
        NEXT_KILLED,
    ),
)
