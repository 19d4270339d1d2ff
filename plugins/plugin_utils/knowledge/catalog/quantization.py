# SPDX-License-Identifier: Apache-2.0
"""Which quantization method of a vLLM release runs a checkpoint, and what --quantization may say about it. Pure.

The data is catalog/vllm/quantization.json and checkpoints.json, read from the sources of each release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.engines.versions import Timeline

UNKNOWN = "unknown"
"""The quant_method of a checkpoint whose quantization is not known."""


@dataclass(frozen=True)
class Method:
    """One quantization method of a release.

    dtypes: the types in which it computes. files: those of which a checkpoint must have one if its config.json does not
    say how it is quantized. unquantized: it also quantizes a checkpoint that is not, while it loads.
    """

    rocm: bool
    deprecated: bool
    dtypes: tuple[str, ...]
    files: tuple[str, ...]
    unquantized: bool


@dataclass(frozen=True)
class QuantizationTable:
    """The methods of a release, and which of them run checkpoints of other methods.

    runs: kind of checkpoint → {--quantization: method that runs it}; "" where there is none, "*" for any.
    """

    methods: Mapping[str, Method]
    runs: Mapping[str, Mapping[str, str]]

    def running(self, checkpoint: Mapping[str, Any], model_type: str, wanted: str) -> str | None:
        """Return the method that runs a checkpoint under this --quantization ("": none); None if vLLM refuses it."""
        own = method_of(checkpoint)
        found = next((self.runs[kind] for kind in kinds(checkpoint, model_type) if kind in self.runs), None)
        if found is None:
            return own if wanted in ("", own) else None
        return found.get(wanted, found.get("*"))

    def accepted(self, checkpoint: Mapping[str, Any], model_type: str) -> list[str]:
        """Return what --quantization may say about a checkpoint, so that ROCm runs it."""
        wanted = [name for name in self.methods if self.running(checkpoint, model_type, name) is not None]
        return [
            name
            for name in wanted
            if (method := self.methods.get(str(self.running(checkpoint, model_type, name)))) and method.rocm
        ]


def quantization(
    methods: Mapping[str, Any], checkpoints: Mapping[str, Any], line: Timeline, index: int
) -> QuantizationTable:
    """Return the table of one release, from the two files."""

    def at(data: Mapping[str, Any], entry: Mapping[str, Any], key: str) -> Any:
        return line.value(entry.get(key, ()), index, data["defaults"][key])

    return QuantizationTable(
        {
            name: Method(
                at(methods, entry, "rocm"),
                at(methods, entry, "deprecated"),
                tuple(at(methods, entry, "dtypes")),
                tuple(at(methods, entry, "files")),
                at(methods, entry, "unquantized"),
            )
            for name, entry in methods["methods"].items()
            if line.within(entry["present"], index)
        },
        {
            name: at(checkpoints, entry, "runs")
            for name, entry in checkpoints["checkpoints"].items()
            if line.within(entry["present"], index)
        },
    )


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a config.json says about quantization, where vLLM looks for it; None if it says nothing."""
    inner = config.get("text_config")
    for place in (config, inner if isinstance(inner, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            found = place.get(key)
            if isinstance(found, Mapping) and found:
                return found
    return None


def method_of(checkpoint: Mapping[str, Any]) -> str:
    """Return the method that a checkpoint names, as vLLM spells it; ModelOpt names its algorithm instead."""
    producer = checkpoint.get("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        return "modelopt_fp4" if _algorithm(checkpoint) == "NVFP4" else "modelopt"
    return (
        str(checkpoint.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    )


def kinds(checkpoint: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    """Return the names under which the catalogue may have a checkpoint, the closest first."""
    own = method_of(checkpoint)
    if own.startswith("modelopt"):
        algorithm = _algorithm(checkpoint)
        if "FP4" in algorithm:
            algorithm = "NVFP4"
        return f"modelopt {algorithm}", own
    return f"{own} {model_type}", own


def _algorithm(checkpoint: Mapping[str, Any]) -> str:
    inner = checkpoint.get("quantization")
    place = inner if isinstance(inner, Mapping) else checkpoint
    return str(place.get("quant_algo") or "").upper()
