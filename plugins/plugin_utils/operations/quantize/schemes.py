# SPDX-License-Identifier: Apache-2.0
"""The schemes and architectures of catalog/quantization. Pure; the action plugin reads the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import Problem, suggest


@dataclass(frozen=True)
class QuantizationScheme:
    """How weights are quantized, and what that needs.

    static: scales of activations are measured beforehand. whole: the backend needs the whole model in memory anyway.
    tensors: what each quantized matrix has afterwards. quant_method: as in config.json.
    """

    key: str
    title: str
    backend: str
    name: str
    static: bool
    whole: bool
    weight_bits: float
    quant_method: str
    vllm: str
    gfx: tuple[str, ...]
    packed: bool
    tensors: Mapping[str, Any]
    relative_error: float


@dataclass(frozen=True)
class Architecture:
    """Which modules stay as they are, and whose results go into the KV cache: patterns of their names."""

    name: str
    exclude: tuple[str, ...]
    kv_layers: tuple[str, ...]

    @property
    def has_kv_scales(self) -> bool:
        """Return whether vLLM reads scales of this KV cache: it only knows those of k_proj and v_proj."""
        return bool(self.kv_layers) and all(name.endswith(("k_proj", "v_proj")) for name in self.kv_layers)


def find_scheme(data: Mapping[str, Any], name: str) -> QuantizationScheme | Problem:
    """Return a scheme by its name or by a former name of Quark's, or the problem."""
    schemes = data["schemes"]
    names = {alias: key for key, item in schemes.items() for alias in (key, item["name"], *item["aliases"])}
    if name not in names:
        return Problem(("quantize_scheme",), f"{name!r} is not a scheme.", suggest(name, names))
    key = names[name]
    item = schemes[key]
    return QuantizationScheme(
        key=key,
        title=item["title"],
        backend=item["backend"],
        name=item["name"],
        static=item["static"],
        whole=item.get("whole", False),
        weight_bits=item["weight_bits"],
        quant_method=item["quant_method"],
        vllm=item["vllm"],
        gfx=tuple(item["gfx"]),
        packed=item.get("packed", False),
        tensors=item["tensors"],
        relative_error=item["relative_error"],
    )


def find_architecture(data: Mapping[str, Any], model_type: str, given: str) -> Architecture | Problem:
    """Return what is known of a model_type, or of the architecture with the same names that the operator gave."""
    known = data["architectures"]
    name = given or model_type
    if name not in known:
        where = ("quantize_architecture",) if given else ()
        what = (
            f"{name!r} is not an architecture that Quark knows."
            if given
            else f"model_type {name!r} is not known to Quark."
        )
        fix = f"{suggest(name, known)} Set quantize_architecture to one whose modules have the same names."
        return Problem(where, what, fix)
    return Architecture(name, tuple(known[name]["exclude"]), tuple(known[name]["kv_layers"]))
