# SPDX-License-Identifier: Apache-2.0
"""Plan a quantization: on which devices, file by file or as a whole, and whether memory and disk suffice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.disk_space import human_size
from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.common.hashing import canonical, text_hash
from ...base.text import plural
from .card import card_text
from .schemes import Architecture, QuantizationScheme, find_architecture, find_scheme

FILE_BY_FILE, WHOLE = "file_to_file", "whole"
RESERVE = 2 * 2**30
"""Bytes of memory for Python, PyTorch and the backend; it took 0.6 GB for the lab's model."""
OVERHEAD = 1.25
"""Factor for the bytes of a whole model: activations and observers during calibration."""
COPIES = 3
"""Factor for the bytes of a file, which is in memory as read, as FP32 (one matrix at a time), and as written."""
DISK_MARGIN = 2**30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True)
class QuantizeRequest:
    """What the operator wants.

    exclude: patterns that replace the architecture's; None to keep those. device: auto, gpu or cpu.
    """

    scheme: str
    kv_cache: str = ""
    name: str = ""
    device: str = "auto"
    exclude: tuple[str, ...] | None = None
    architecture: str = ""
    samples: int = 128
    length: int = 512
    remote_code: bool = False


@dataclass(frozen=True)
class QuantizePlan:
    """What will be done: `job` for the module, `lines` for people. there: an earlier output of the same inputs."""

    job: Mapping[str, Any]
    scheme: QuantizationScheme
    lines: tuple[str, ...]
    there: Mapping[str, Any] | None


def output_name(request: QuantizeRequest, data: Mapping[str, Any], source: str) -> str:
    """Return the local repository's name: the operator's, else the source's with the scheme's. Raises FleetError."""
    scheme = _scheme(request, data)
    base = re.sub(r"-(BF16|bf16)$", "", source.rstrip("/").rsplit("/", 1)[-1])
    suffix = scheme.key.replace("_", "-") + ("-kv" if request.kv_cache else "")
    name = request.name or f"{base}-{suffix}"
    if not NAME.fullmatch(name) or ".." in name:
        what = f"{name!r} is not a valid directory name: letters, digits, dots, hyphens and underscores, at most 96."
        raise FleetError([Problem(("quantize_name",), what, "Set quantize_name.")])
    return name


def _scheme(request: QuantizeRequest, data: Mapping[str, Any]) -> QuantizationScheme:
    scheme = find_scheme(data, request.scheme)
    if isinstance(scheme, Problem):
        raise FleetError([scheme])
    return scheme


def plan_quantization(
    request: QuantizeRequest,
    data: Mapping[str, Any],
    requirements: Mapping[str, str],
    facts: Mapping[str, Any],
    image: str,
) -> QuantizePlan:
    """Return the plan. facts: of quantize/facts.py. requirements: the packages of each backend. Raises FleetError."""
    scheme, source = _scheme(request, data), facts["source"]
    architecture = _architecture(request, scheme, data, source["config"])
    problems = [*_source_problems(source, scheme, request), *_kv_problems(request, scheme, architecture)]
    if isinstance(architecture, Problem):
        raise FleetError([architecture, *problems])
    placed = _place(request, scheme, facts, scheme_loads(scheme, request))
    problems += [
        *_calibration_problems(request, scheme, facts),
        *placed.problems,
        *_disk_problems(scheme, facts),
    ]
    if problems:
        raise FleetError(problems)
    calibration = facts["calibration"] if _is_calibrated(request, scheme) else None
    settings = _settings(request, scheme, architecture, bool(calibration))
    record = {
        "source": {"repo": source["repo"], "commit": source["commit"]},
        "scheme": scheme.key,
        "settings": settings,
        "calibration": calibration and calibration["sha256"],
        "backend": data["backends"][scheme.backend]["title"],
        "requirements": text_hash(requirements[scheme.backend]),
    }
    key = text_hash(canonical(record))[:16]
    name = output_name(request, data, source["repo"])
    devices = [f"cuda:{number}" for number in range(len(placed.render_nodes))] or ["cpu"]
    job = {
        "key": key,
        "name": name,
        "image": image,
        "source": source["path"],
        "calibration": calibration,
        "data": {**settings, **_checked(request, scheme, architecture), "devices": devices},
        "record": record,
        "card": card_text(name, scheme, request.kv_cache, source, record),
        "render_nodes": list(placed.render_nodes),
        "memory": placed.memory,
    }
    same = (item for item in facts["outputs"] if (item["key"], item["name"]) == (key, name))
    return QuantizePlan(job, scheme, _lines(request, scheme, facts, record, placed.text), next(same, None))


def _settings(
    request: QuantizeRequest, scheme: QuantizationScheme, architecture: Architecture, calibration: bool
) -> dict[str, Any]:
    """Return what decides about the output's bytes."""
    return {
        "backend": scheme.backend,
        "scheme": scheme.name,
        "kv_cache": request.kv_cache,
        "template": architecture.name,
        "exclude": list(architecture.exclude if request.exclude is None else request.exclude),
        "remote_code": request.remote_code,
        "mode": WHOLE if scheme_loads(scheme, request) else FILE_BY_FILE,
        "calibration": {"samples": request.samples, "length": request.length} if calibration else None,
    }


def _checked(
    request: QuantizeRequest, scheme: QuantizationScheme, architecture: Architecture
) -> dict[str, Any]:
    """Return what the output is checked for."""
    return {
        "tensors": scheme.tensors,
        "packed": scheme.packed,
        "relative_error": scheme.relative_error,
        "quant_method": scheme.quant_method,
        "kv_layers": list(architecture.kv_layers) if request.kv_cache else [],
    }


def _lines(
    request: QuantizeRequest,
    scheme: QuantizationScheme,
    facts: Mapping[str, Any],
    record: Mapping[str, Any],
    place: str,
) -> tuple[str, ...]:
    """Return the plan for people."""
    source, settings = facts["source"], record["settings"]
    cache = " with an FP8 KV cache" if request.kv_cache else ""
    return (
        f"{source['repo']} at {source['commit'][:12]}: {human_size(source['bytes'])} in "
        f"{plural(source['files'], 'file')}",
        f"{scheme.key}{cache}: {scheme.title}, by {record['backend']}",
        f"{'the whole model' if settings['mode'] == WHOLE else 'file by file'} on {place}",
        f"stays as it is: {', '.join(settings['exclude']) or 'nothing'}",
        f"output: about {human_size(output_bytes(source, scheme))}, {human_size(facts['disk_free'])} free",
    )


def _architecture(
    request: QuantizeRequest, scheme: QuantizationScheme, data: Mapping[str, Any], config: Mapping[str, Any]
) -> Architecture | Problem:
    found = find_architecture(data, str(config.get("model_type") or ""), request.architecture)
    if isinstance(found, Problem) and scheme.backend != "quark" and request.exclude is not None:
        return Architecture("", request.exclude, ())
    return found


def _source_problems(
    source: Mapping[str, Any], scheme: QuantizationScheme, request: QuantizeRequest
) -> list[Problem]:
    problems = []
    quantization = source["config"].get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown")
        what = f"{source['repo']} is quantized already ({method})."
        problems.append(Problem((), what, "Name the model that it was made from, in BF16 or FP16."))
    if not source["bytes"]:
        what = f"{source['path']} has no *.safetensors."
        problems.append(
            Problem((), what, "Convert it first: pickles run what they contain, and are not loaded.")
        )
    if source["config"].get("auto_map") and scheme_loads(scheme, request) and not request.remote_code:
        code = ", ".join(source["code"][:3]) or "code of another repository"
        what = f"{source['repo']} has code of its own ({code}), and cannot be loaded without it."
        fix = "Read it; if you trust it, add -e quantize_remote_code=true. A scheme that works file by file runs none."
        problems.append(Problem((), what, fix))
    return problems


def scheme_loads(scheme: QuantizationScheme, request: QuantizeRequest) -> bool:
    """Return whether the model is built in memory, and not only its files read."""
    return scheme.static or scheme.whole or bool(request.kv_cache)


def _kv_problems(
    request: QuantizeRequest, scheme: QuantizationScheme, found: Architecture | Problem
) -> list[Problem]:
    if not request.kv_cache:
        return []
    path = ("quantize_kv_cache",)
    if request.kv_cache != "fp8":
        return [Problem(path, f"{request.kv_cache!r} is not a type of the KV cache.", "Valid: fp8.")]
    if scheme.backend != "quark":
        return [
            Problem(path, f"{scheme.key} has no scales for it.", "Use one of Quark's schemes, such as fp8.")
        ]
    if isinstance(found, Architecture) and not found.has_kv_scales:
        what = f"vLLM reads scales of k_proj and v_proj, but {found.name} has {', '.join(found.kv_layers) or 'none'}."
        return [Problem(path, what, "Leave quantize_kv_cache out; kv_cache_dtype fp8 then has the scale 1.")]
    return []


def _is_calibrated(request: QuantizeRequest, scheme: QuantizationScheme) -> bool:
    return scheme.static or bool(request.kv_cache)


def _calibration_problems(
    request: QuantizeRequest, scheme: QuantizationScheme, facts: Mapping[str, Any]
) -> list[Problem]:
    if facts["calibration"] is not None or not _is_calibrated(request, scheme):
        return []
    why = (
        f"{scheme.key} measures the scales of activations"
        if scheme.static
        else "the KV cache's scales are measured"
    )
    fix = (
        "Give quantize_calibration, a file or directory of the host (.txt, .jsonl, .json, .parquet), or "
        "quantize_calibration_file, one of the control node; or use ptpc_fp8, which needs none."
    )
    return [Problem(("quantize_calibration",), f"{why}, so texts are needed.", fix)]


def _disk_problems(scheme: QuantizationScheme, facts: Mapping[str, Any]) -> list[Problem]:
    need = output_bytes(facts["source"], scheme) + DISK_MARGIN
    if facts["disk_free"] >= need:
        return []
    what = f"{human_size(need)} are needed for the output, and {human_size(facts['disk_free'])} are free."
    fix = (
        "Remove models that nothing uses from /var/lib/instinct-fleet/models by hand: prune.yml "
        "leaves them, as no hub has them."
    )
    return [Problem((), what, fix)]


def output_bytes(source: Mapping[str, Any], scheme: QuantizationScheme) -> int:
    """Return an upper bound of the output: embeddings and the head stay as they are."""
    config = source["config"].get("text_config") or source["config"]
    kept = 2 * 2 * int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)
    kept = min(kept, source["bytes"])
    return int((source["bytes"] - kept) * scheme.weight_bits / 16 + kept)


@dataclass(frozen=True)
class _Placed:
    render_nodes: tuple[str, ...] = ()
    memory: int = 0
    text: str = ""
    problems: tuple[Problem, ...] = ()


def _place(
    request: QuantizeRequest, scheme: QuantizationScheme, facts: Mapping[str, Any], whole: bool
) -> _Placed:
    """Choose GPUs that nothing uses, else the CPU if it is allowed; say what is missing if neither suffices."""
    source, free = facts["source"], [gpu for gpu in facts["gpus"] if not gpu["users"]]
    need = int(source["bytes"] * OVERHEAD) + RESERVE if whole else COPIES * source["largest"] + RESERVE
    on_gpu = _smallest(sorted(free, key=lambda gpu: -gpu["free"]), need) if request.device != "cpu" else ()
    ram = COPIES * source["largest"] + RESERVE if on_gpu else need
    have = facts["memory_available"]
    if on_gpu and have >= ram:
        nodes = tuple(gpu["render_node"] for gpu in on_gpu)
        total = human_size(sum(gpu["free"] for gpu in on_gpu))
        names = ", ".join(str(gpu["index"]) for gpu in on_gpu)
        return _Placed(nodes, 0, f"GPU {names}: {human_size(need)} of {total} free")
    if request.device == "gpu" or (
        whole and scheme.backend == "quark" and request.device == "auto" and facts["gpus"]
    ):
        return _Placed(problems=(_no_gpu(facts["gpus"], free, need, whole, request),))
    if have < ram:
        what = f"{human_size(ram)} of memory are needed, and {human_size(have)} are available."
        fix = _smaller(whole, "use a host with more memory, or stop what uses it.")
        return _Placed(problems=(Problem((), what, fix),))
    return _Placed((), int(ram * 1.5), f"the CPU: {human_size(ram)} of {human_size(have)} memory available")


def _smallest(free: Sequence[Mapping[str, Any]], need: int) -> tuple[Mapping[str, Any], ...]:
    """Return as few GPUs as suffice, none if not even all of them do. A tenth of each is reserved for loading."""
    for count in range(1, len(free) + 1):
        if sum(gpu["free"] for gpu in free[:count]) * 0.9 >= need:
            return tuple(free[:count])
    return ()


def _no_gpu(
    gpus: Sequence[Mapping[str, Any]],
    free: Sequence[Mapping[str, Any]],
    need: int,
    whole: bool,
    request: QuantizeRequest,
) -> Problem:
    used = len(gpus) - len(free)
    have = human_size(sum(gpu["free"] for gpu in free))
    what = (
        f"{human_size(need)} of GPU memory are needed for {'the whole model' if whole else 'its largest file'}, and "
        f"{plural(len(free), 'free GPU')} of {len(gpus)} {'have' if len(free) != 1 else 'has'} {have}."
    )
    ways = []
    if used:
        stop = "playbooks/stop.yml --limit HOST,load_balancer"
        ways.append(f"{plural(used, 'GPU')} serve: stop instances first ({stop})")
    ways.append("use a host with more GPUs")
    if request.device == "auto" and whole:
        ways.append("set quantize_device=cpu, which takes very long for a large model")
    text = "; ".join(ways)
    return Problem(("quantize_device",), what, _smaller(whole, f"{text[0].lower()}{text[1:]}."))


def _smaller(whole: bool, otherwise: str) -> str:
    if whole:
        return f"Use ptpc_fp8 or mxfp4, which work file by file; or {otherwise}"
    return f"{otherwise[0].upper()}{otherwise[1:]}"
