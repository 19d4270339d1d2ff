# SPDX-License-Identifier: Apache-2.0
"""Write the card of a quantized model, and what is printed about it. No dates: the same inputs give the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....module_utils.common.disk_space import human_size
from .schemes import QuantizationScheme


def card_text(
    name: str, scheme: QuantizationScheme, kv_cache: str, source: Mapping[str, Any], record: Mapping[str, Any]
) -> str:
    """Return README.md: front matter as the hub reads it, and what a reader must know."""
    card = source["card"]
    front = {
        "base_model": source["repo"],
        "base_model_relation": "quantized",
        **{key: card[key] for key in ("license", "license_name", "license_link") if card.get(key)},
        "library_name": "transformers",
        "tags": [scheme.quant_method, scheme.key],
    }
    settings = record["settings"]
    calibration = "none"
    if settings["calibration"]:
        sizes = settings["calibration"]
        calibration = (
            f"{sizes['samples']} samples of {sizes['length']} tokens, data sha256:{record['calibration']}"
        )
    rows = {
        "source": f"{source['repo']} at {source['commit']}",
        "scheme": f"{scheme.key}: {scheme.title}",
        "KV cache": f"{kv_cache}, with scales" if kv_cache else "not quantized",
        "made with": record["backend"],
        "not quantized": ", ".join(f"`{item}`" for item in settings["exclude"]) or "nothing",
        "calibration": calibration,
        "licence": _licence(card, source["licences"]),
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        "",
        f"# {name}",
        "",
    ]
    lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]
    serve = f"vLLM {scheme.vllm} and newer, on {' and '.join(scheme.gfx)}"
    lines += [
        f"For {serve}{': set `kv_cache_dtype: fp8`' if kv_cache else ''}. `quantization.json` has every setting.",
        "",
    ]
    return "\n".join(lines)


def _licence(card: Mapping[str, str], files: list[str]) -> str:
    name = card.get("license_name") or card.get("license") or "not stated by the source"
    base = (
        f"; that of {card['base_model']}, which the source is made of, holds too"
        if card.get("base_model")
        else ""
    )
    return f"that of the source: {name}{' (' + ', '.join(files) + ')' if files else ''}{base}"


def result_text(
    host: str,
    lines: tuple[str, ...],
    result: Mapping[str, Any],
    scheme: QuantizationScheme,
    kv_cache: str,
    signed: str,
) -> str:
    """Return what is printed at the end: what was made, how it compares with its source, and how to serve it."""
    report = result.get("report")
    text = [f"{host}: {lines[0]}", *(f"  {line}" for line in lines[1:])]
    if not result.get("path"):
        return "\n".join(text)
    text.append(f"{'There already' if not result['changed'] else 'Made'}: {result['path']}")
    if result.get("bytes"):
        text[-1] += (
            f", {human_size(result['bytes'])} in {result['files']} files, by commit {result['commit'][:12]}"
        )
    if report:
        error = report["worst"]
        text.append(
            f"  compared with its source: {report['quantized']} matrices quantized, {report['excluded']} excluded; "
            f"relative error {report['mean_relative_error']:.1%} on average, at most {error['relative_error']:.1%} "
            f"({error['tensor']})"
        )
        if report["left"]:
            text.append(f"  left as they are, though nothing excludes them: {_some(report['left'])}")
        if report["unmatched"]:
            text.append(
                f"  ATTENTION: no module has the name {_some(report['unmatched'])}: check quantize_exclude"
            )
    text.append(f"  {signed}")
    settings = f"model: {result['path']}" + (", kv_cache_dtype: fp8" if kv_cache else "")
    text.append(
        f"  serve it: {settings} in a deployment ({scheme.quant_method}, vLLM {scheme.vllm} or newer); deploy.yml "
        "copies it to the other hosts"
    )
    text.append(
        "  then compare its answers with those of the source: playbooks/accuracy.yml (docs/quantize.md)"
    )
    return "\n".join(text)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
