# SPDX-License-Identifier: Apache-2.0
"""Quantize a model inside a container, without a network: AMD Quark or llm-compressor, then a check against the source.

Its one argument is the path of the job, written by quantize/job.py on the node. The last line that it prints is the
report, as JSON after REPORT.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
import time
from typing import Any

from ..content.probe_output import REPORT
from ..quantize.tensor_check import BadCheckpoint, check_index, compare, read_tensors

OTHER_FORMATS = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
"""What an output never has: weights in formats that execute code, or that nothing loads if there are safetensors."""
TEXT_KEYS = ("text", "content", "article", "prompt", "question")
SAMPLED = 24  # matrices that are compared by value


def main(argv: list[str]) -> int:
    """Run the program."""
    with open(argv[1], encoding="utf-8") as stream:
        job = json.load(stream)
    begun = time.monotonic()
    try:
        report = {"ok": True, **quantize(job)}
    except BadCheckpoint as error:
        report = {"ok": False, "kind": "check", "error": str(error)}
    except MemoryError as error:
        report = {"ok": False, "kind": "memory", "error": str(error) or "out of memory"}
    except Exception as error:
        out_of_memory = "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
        import traceback

        traceback.print_exc()
        kind = "memory" if out_of_memory else "job"
        report = {"ok": False, "kind": kind, "error": f"{type(error).__name__}: {str(error)[:2000]}"}
    report["seconds"] = round(time.monotonic() - begun, 1)
    report["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(REPORT + json.dumps(report))
    return 0 if report["ok"] else 1


def say(text: str) -> None:
    """Print a line at once, even if the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def quantize(job: dict[str, Any]) -> dict[str, Any]:
    """Quantize, copy what belongs to the model, and check. Return the report."""
    output = job["output"]
    shutil.rmtree(output, ignore_errors=True)
    versions = BACKENDS[job["backend"]](job)
    say("checking the output against its source")
    tidy(job["source"], output, OTHER_FORMATS if job["remote_code"] else (".py", *OTHER_FORMATS))
    report = check(job)
    return {**report, "versions": versions}


# ---- backends ------------------------------------------------------------------------------------------------


def run_quark(job: dict[str, Any]) -> dict[str, str]:
    """Quantize with AMD Quark."""
    os.environ["QUARK_DISABLE_VLLM_PLUGIN"] = "1"
    import quark
    import torch
    import transformers
    from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors

    template = LLMTemplate.get(job["template"])
    own = {"exclude_layers": list(job["exclude"])}  # an empty list means none: never the template's
    config = template.get_config(scheme=job["scheme"], kv_cache_scheme=job["kv_cache"] or None, **own)
    quantizer = ModelQuantizer(config)
    if job["mode"] == "file_to_file":
        devices = job["devices"]
        device = devices[0] if len(devices) == 1 else devices
        quantizer.direct_quantize_checkpoint(job["source"], job["output"], device=device)
    else:
        model, tokenizer = load(job)
        model = quantizer.freeze(quantizer.quantize_model(model, samples(job, tokenizer, model)))
        with torch.no_grad():
            export_safetensors(model=model, output_dir=job["output"])
    return {
        "amd-quark": quark.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run_llm_compressor(job: dict[str, Any]) -> dict[str, str]:
    """Quantize with llm-compressor, without calibration: its schemes here scale activations as they come."""
    import fnmatch
    import importlib.metadata

    import torch
    import transformers
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    model, tokenizer = load(job)
    ignore = [f"re:{fnmatch.translate(pattern)}" for pattern in job["exclude"]]
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=job["scheme"], ignore=ignore))
    model.save_pretrained(job["output"], save_compressed=True)
    tokenizer.save_pretrained(job["output"])
    version = importlib.metadata.version("llmcompressor")
    return {"llmcompressor": version, "torch": torch.__version__, "transformers": transformers.__version__}


BACKENDS = {"quark": run_quark, "llm-compressor": run_llm_compressor}


def load(job: dict[str, Any]) -> tuple[Any, Any]:
    """Return the whole model and its tokenizer, on the job's devices."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = {"trust_remote_code": bool(job["remote_code"])}
    several = len(job["devices"]) > 1
    say(f"loading {job['source']} on {', '.join(job['devices'])}")
    model = AutoModelForCausalLM.from_pretrained(
        job["source"], dtype="auto", **own, **({"device_map": "auto"} if several else {})
    )
    if not several:
        model = model.to(job["devices"][0])
    model.eval()
    return model, AutoTokenizer.from_pretrained(job["source"], **own)


# ---- calibration ---------------------------------------------------------------------------------------------


def samples(job: dict[str, Any], tokenizer: Any, model: Any) -> Any:
    """Return the calibration's samples, token by token; None for a scheme without calibration.

    Texts are joined until they have the length: a sample must not be shorter than it claims to be.
    """
    wanted = job["calibration"]
    if not wanted:
        return None
    from torch.utils.data import DataLoader

    found: list[Any] = []
    waiting: list[int] = []
    for text in texts(wanted["path"]):
        waiting += tokenizer(text)["input_ids"]
        while len(waiting) >= wanted["length"] and len(found) < wanted["samples"]:
            found.append(waiting[: wanted["length"]])
            waiting = waiting[wanted["length"] :]
        if len(found) >= wanted["samples"]:
            break
    if len(found) < wanted["samples"]:
        raise BadCheckpoint(
            f"The calibration data has {len(found)} samples of {wanted['length']} tokens, but {wanted['samples']} are "
            "needed: give more text, or lower quantize_samples or quantize_length."
        )
    import torch

    say(f"calibrating with {len(found)} samples of {wanted['length']} tokens")
    device = next(model.parameters()).device
    return DataLoader([torch.tensor(ids, device=device) for ids in found], batch_size=1)


def texts(path: str) -> Any:
    """Yield the texts of a file or of all files of a directory: .txt, .jsonl, .json and .parquet, in order of names."""
    if os.path.isdir(path):
        for directory, names, files in os.walk(path):
            names.sort()
            for name in sorted(files):
                yield from texts(os.path.join(directory, name))
        return
    ending = os.path.splitext(path)[1]
    if ending == ".txt":
        with open(path, encoding="utf-8") as stream:
            yield stream.read()
    elif ending == ".jsonl":
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                if line.strip():
                    yield text_of(json.loads(line), path)
    elif ending == ".json":
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
        for item in data if isinstance(data, list) else []:
            yield text_of(item, path)
    elif ending == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(64):
            for item in batch.to_pylist():
                yield text_of(item, path)


def text_of(item: Any, path: str) -> str:
    """Return the text of a row: itself, the value of a usual key, or a conversation's turns."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        for key in TEXT_KEYS:
            if isinstance(item.get(key), str):
                return str(item[key])
        for key in ("messages", "conversations"):
            turns = [turn.get("content") or turn.get("value") for turn in item.get(key) or ()]
            if turns:
                return "\n".join(str(turn) for turn in turns if turn)
    raise BadCheckpoint(
        f"{os.path.basename(path)} of the calibration data has a row without a text: "
        f"{', '.join(TEXT_KEYS)} or messages is needed."
    )


# ---- after the backend ---------------------------------------------------------------------------------------


def tidy(source: str, output: str, refused: tuple[str, ...]) -> None:
    """Make a repository of the output: with the source's tokenizer and licence, without code or pickles."""
    own = (".safetensors", ".safetensors.index.json", *refused)
    for name in sorted(os.listdir(source)):
        path, target = os.path.join(source, name), os.path.join(output, name)
        wanted = os.path.isfile(path) and name != "README.md" and not name.endswith(own)
        if wanted and not name.startswith(".") and not os.path.exists(target):
            shutil.copyfile(path, target)
    for directory, names, files in os.walk(output, topdown=False):
        for name in files:
            if (
                name.startswith(".")
                or name.endswith(refused)
                or (directory != output and name.endswith(".safetensors"))
            ):
                os.unlink(os.path.join(directory, name))
        for name in names:
            if not os.listdir(os.path.join(directory, name)):
                os.rmdir(os.path.join(directory, name))


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Compare the output with its source by names, types, shapes and values. Raise BadCheckpoint."""
    before, after = read_tensors(job["source"]), read_tensors(job["output"])
    check_index(job["output"], after)
    check_config(job)
    found = compare(before, after, job["tensors"], job["exclude"], job["kv_layers"])
    if found.problems:
        more = f" and {len(found.problems) - 5} more" if len(found.problems) > 5 else ""
        raise BadCheckpoint(
            f"The output is not what the scheme promises: {'; '.join(found.problems[:5])}{more}."
        )
    errors = value_errors(job, before, after, found.quantized)
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > job["relative_error"]:
        raise BadCheckpoint(
            f"{worst} is off by {errors[worst]:.1%} of its source, where the scheme has at most "
            f"{job['relative_error']:.1%}: the quantized weights do not represent those of the source."
        )
    return {
        "quantized": len(found.quantized),
        "excluded": len(found.excluded),
        "left": found.left,
        "unmatched": found.unmatched,
        "kv_scales": sum(name.endswith(".output_scale") for name in after),
        "compared": len(errors),
        "worst": {"tensor": worst, "relative_error": round(errors[worst], 5)},
        "mean_relative_error": round(sum(errors.values()) / len(errors), 5),
    }


def check_config(job: dict[str, Any]) -> None:
    """Raise BadCheckpoint unless the config says how the model is quantized, as the loader of vLLM reads it."""
    with open(os.path.join(job["output"], "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method != job["quant_method"]:
        raise BadCheckpoint(f"config.json has the quant_method {method!r}, not {job['quant_method']!r}.")


def value_errors(job: dict[str, Any], before: Any, after: Any, modules: list[str]) -> dict[str, float]:
    """Return the relative error (RMS of the difference over RMS of the source) of some of the matrices."""
    from safetensors import safe_open

    step = max(1, len(modules) // SAMPLED)
    found = {}
    for module in modules[::step]:
        name = f"{module}.weight"
        with safe_open(os.path.join(job["source"], before[name].file), "pt") as stream:
            was = stream.get_tensor(name).float()
        scale_name = f"{module}.weight_scale"
        with safe_open(os.path.join(job["output"], after[name].file), "pt") as stream:
            own = stream.get_tensor(name)
        with safe_open(os.path.join(job["output"], after[scale_name].file), "pt") as stream:
            scale = stream.get_tensor(scale_name)
        found[name] = relative_error(was, dequantize(own, scale, job["packed"]))
    return found


def dequantize(weight: Any, scale: Any, packed: bool) -> Any:
    """Return the values that quantized weights represent. packed: two FP4 values per byte, with scales of 2^(e-127)."""
    import torch

    if not packed:
        scale = scale.float()
        return weight.float() * (scale.reshape(-1, 1) if scale.numel() > 1 else scale)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    low, high = weight & 0xF, weight >> 4
    codes = torch.stack((low, high), dim=-1).flatten(1).long()
    values = table[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    factor = torch.exp2(scale.float() - 127).repeat_interleave(values.shape[1] // scale.shape[1], dim=1)
    return values * factor


def relative_error(was: Any, own: Any) -> float:
    """Return the RMS of the difference over that of the source; infinity where a value is not a number."""
    difference = float((own - was).pow(2).mean().sqrt())
    size = float(was.pow(2).mean().sqrt())
    if not math.isfinite(difference):
        return float("inf")
    return difference / size if size else difference


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
