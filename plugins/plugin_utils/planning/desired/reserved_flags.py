# SPDX-License-Identifier: Apache-2.0
"""List the flags and variables that an operator may not set, with what to use instead."""

from __future__ import annotations

import json
import re

from ....module_utils.common.redact import is_secret_name

# vLLM's own short spellings in any release, so that `tp: 2` is recognized like `tensor_parallel_size: 2`.
ENGINE_ALIASES = {
    "ac": "attention_config",
    "asc": "api_server_count",
    "cc": "compilation_config",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "device_memory_utilization": "gpu_memory_utilization",
    "dp": "data_parallel_size",
    "dpb": "data_parallel_backend",
    "dpm": "data_parallel_multi_port_external_lb",
    "ep": "enable_expert_parallel",
    "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size",
    "q": "quantization",
    "sc": "speculative_config",
    "spec_draft_tp": "speculative_draft_tensor_parallel_size",
    "tp": "tensor_parallel_size",
}

_NODES = "Use the deployment's key nodes; ranks, addresses and ports follow from it."
_DATA = "Use the deployment's keys data_parallel_size, data_parallel_balancing and nodes."
_SECRET = "Keep API keys in the proxy in front of vLLM: a flag is readable in every process list."

ENGINE_OWNED = {
    "model": "Use the deployment's key model.",
    "model_tag": "Use the deployment's key model.",
    "revision": "Use the deployment's key revision.",
    "served_model_name": "Use the deployment's key served_model_name.",
    "host": "Use the deployment's key listen.",
    "port": "Use the deployment's key port.",
    "uds": "Use the deployment's keys listen and port.",
    "tensor_parallel_size": "Use the deployment's key tensor_parallel_size.",
    "pipeline_parallel_size": "Use the deployment's key pipeline_parallel_size.",
    "download_dir": "Use hf_model_cache_dir, the host's variable.",
    "config": "Write its settings into engine_args, so that the plan can check and explain them.",
    "data_parallel_size": _DATA,
    "data_parallel_size_local": _DATA,
    "data_parallel_rank": _DATA,
    "data_parallel_start_rank": _DATA,
    "data_parallel_address": _DATA,
    "data_parallel_rpc_port": _DATA,
    "data_parallel_hybrid_lb": _DATA,
    "data_parallel_external_lb": _DATA,
    "nnodes": _NODES,
    "node_rank": _NODES,
    "master_addr": _NODES,
    "master_port": _NODES,
    "headless": _NODES,
    "api_key": _SECRET,
    "hf_token": "Weights are fetched before vLLM starts, with hf_model_token or hf_model_token_file.",
}

_CACHE = "Use hf_model_cache_dir, the host's variable."
_VISIBLE = "The container gets only the devices of its GPUs: choose them with the deployment's key gpus."

ENV_OWNED = {
    "HF_HOME": _CACHE,
    "HF_HUB_CACHE": _CACHE,
    "HUGGINGFACE_HUB_CACHE": _CACHE,
    "TRANSFORMERS_CACHE": _CACHE,
    "HF_HUB_OFFLINE": "Weights are fetched at a pinned commit before the server starts; it needs no network.",
    "HF_ENDPOINT": "Use hf_model_endpoint, the host's variable.",
    "VLLM_CACHE_ROOT": "It is the instance's own cache directory.",
    "HIP_VISIBLE_DEVICES": _VISIBLE,
    "ROCR_VISIBLE_DEVICES": _VISIBLE,
    "CUDA_VISIBLE_DEVICES": _VISIBLE,
    "GPU_DEVICE_ORDINAL": _VISIBLE,
}

# The value says where a secret is; it is not the secret.
_PLACE = re.compile(r"_(FILE|PATH|DIR|NAME)$", re.IGNORECASE)
_HUB = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_API_TOKEN", "HUGGINGFACEHUB_API_TOKEN")


# Hub tokens, keys in OpenAI's format, which many services share, and URLs with an account, under any name.
_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|[A-Za-z][A-Za-z0-9+.-]*://(?:(?<!ssh://)|[^/\s:@]*:)[^/\s]+@)"
)


def holds_secret(value: object) -> bool:
    """Return whether a text contains a token, a key or a password."""
    if not isinstance(value, str):
        return False
    return _SECRET_VALUE.search(value) is not None or _names_secret(_json(value))


def _json(text: str) -> object:
    """Return the data of a text that is a JSON map or list, which many flags accept; None for other text."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None


def _names_secret(value: object) -> bool:
    if isinstance(value, dict):
        return any(
            (isinstance(item, str) and item != "" and secret_place(key) != "") or _names_secret(item)
            for key, item in value.items()
        )
    return isinstance(value, list) and any(map(_names_secret, value))


def secret_place(name: str) -> str:
    """Return where the value of a secret variable belongs; empty if the variable is not secret."""
    if is_secret_name(name) and not _PLACE.search(name):
        return other_place(name) or "Put it in the deployment's secrets, vaulted."
    return ""


def other_place(name: str) -> str:
    """Return where a secret belongs that is not a deployment's own; empty for other variables."""
    if name.upper() in _HUB:
        return "Put it in hf_model_token (vaulted) or hf_model_token_file, the host's variables."
    if name.upper() == "VLLM_API_KEY":
        return "Keep API keys in the proxy in front of vLLM."
    return ""
