# SPDX-License-Identifier: Apache-2.0
"""A small model's directory, what quantizing it leaves, the facts of a host, and the catalogue's schemes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_quantization
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.plan import (
    QuantizePlan,
    QuantizeRequest,
    plan_quantization,
)

DATA, REQUIREMENTS = load_quantization()
GIB = 2**30
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1}
Shapes = Mapping[str, tuple[str, Sequence[int]]]
COMMIT = "0123456789" * 4


def write_tensors(path: Path, tensors: Shapes) -> None:
    """Write a safetensors file of zeros."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def source_tensors(layers: int = 2) -> dict[str, tuple[str, Sequence[int]]]:
    """The tensors of a small Llama."""
    found: dict[str, tuple[str, Sequence[int]]] = {
        "model.embed_tokens.weight": ("BF16", [320, 64]), "lm_head.weight": ("BF16", [320, 64]),
        "model.norm.weight": ("BF16", [64]),
    }  # fmt: skip
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, shape in {"self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64],
                            "mlp.down_proj": [64, 128]}.items():  # fmt: skip
            found[f"{at}.{name}.weight"] = ("BF16", shape)
        found[f"{at}.input_layernorm.weight"] = ("BF16", [64])
    return found


def quantized_tensors(scheme: str, kv: bool = False, layers: int = 2) -> dict[str, tuple[str, Sequence[int]]]:
    """The tensors that a backend makes of them."""
    found: dict[str, tuple[str, Sequence[int]]] = {}
    for name, (dtype, shape) in source_tensors(layers).items():
        module = name.removesuffix(".weight")
        if ".layers." not in name or len(shape) != 2:
            found[name] = (dtype, shape)
            continue
        if scheme == "mxfp4":
            found[name] = ("U8", [shape[0], shape[1] // 2])
            found[f"{module}.weight_scale"] = ("U8", [shape[0], shape[1] // 32])
        else:
            found[name] = ("F8_E4M3", shape)
            found[f"{module}.weight_scale"] = ("F32", [] if scheme == "fp8" else [shape[0]])
        if scheme == "fp8":
            found[f"{module}.input_scale"] = ("F32", [])
        if kv and module.endswith(("k_proj", "v_proj")):
            found[f"{module}.output_scale"] = ("F32", [])
    return found


def write_model(directory: Path, tensors: Shapes | None = None, **config: Any) -> Path:
    """Write a model's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "model.safetensors", source_tensors() if tensors is None else tensors)
    about = {"model_type": "llama", "vocab_size": 320, "hidden_size": 64, **config}
    (directory / "config.json").write_text(json.dumps(about))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "LICENSE").write_text("a licence")
    (directory / "README.md").write_text("---\nlicense: llama3.1\nbase_model: lab/base\n---\n# model\n")
    return directory


def facts(**changes: Any) -> dict[str, Any]:
    """A host with eight free MI300X, and a 70B model of the hub."""
    source = {
        "path": "/data/models/llama-70b", "repo": "lab/Llama-70B-Instruct", "commit": COMMIT, "local": False,
        "config": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192}, "bytes": 141 * 10**9,
        "largest": 5 * 10**9, "files": 30, "card": {"license": "llama3.1"}, "licences": ["LICENSE"], "code": [],
        **changes.pop("source", {}),
    }  # fmt: skip
    gpus = [
        {"index": n, "gfx": "gfx942", "render_node": f"renderD{128 + n}", "free": 190 * GIB, "users": []}
        for n in range(8)
    ]
    return {
        "source": source, "calibration": None, "outputs": [], "disk_free": 900 * GIB, "memory_available": 2000 * GIB,
        "gpus": gpus, "image": "sha256:" + "1" * 64, **changes,
    }  # fmt: skip


CALIBRATION = {"path": "/data/pile.jsonl", "mount": "/data", "inside": "pile.jsonl", "sha256": "c" * 64}


def planned(request: QuantizeRequest | None = None, **changes: Any) -> QuantizePlan:
    """The plan of a request for such a host."""
    wanted = request or QuantizeRequest("ptpc_fp8")
    return plan_quantization(wanted, DATA, REQUIREMENTS, facts(**changes), "rocm/vllm:x")
