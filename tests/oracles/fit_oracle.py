# SPDX-License-Identifier: Apache-2.0
"""What the real vLLM makes of a model: bytes of weights, KV cache blocks, tokens and concurrency.

Run by a Python that has vLLM (the lab's image); needs nothing of this repository and no network:

    python fit_oracle.py [--start] < cases.json > answers.json

Multimodal models need torchvision and pycountry beside it, on PYTHONPATH. Recorded answers are cases too.

A case is {"name", "config": a config.json, "tp", "pp", "engine": keyword arguments of vLLM's EngineArgs, "kv_bytes"}.
It comes back with "answer": what was found, or {"error"}. vLLM's own code does all of it: its config, its model
class with weights that are allocated and not filled, the layers' KV cache specs, get_kv_cache_configs. Parallel
ranks are processes with gloo between them. With --start an engine is started for each case (half a minute), and
"logged" is what its log says.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from queue import Empty
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_KIMI_K3_GEMM_AR": "0",
    "VLLM_ENABLE_GEMM_RS": "0",
}


PATIENCE = 1800
"""Seconds for one case: a busy machine needs minutes to import vLLM."""

OWN_CODE: dict[str, tuple[str, dict[str, Any]]] = {
    "PanguEmbedded": ("LlamaConfig", {}),
    "bailing_moe": ("LlamaConfig", {}),
    "bailing_moe_v2": ("LlamaConfig", {}),
    "exaone": ("LlamaConfig", {}),
    "internlm2": ("LlamaConfig", {}),
    "internlm3": ("LlamaConfig", {}),
    "mimo": ("Qwen2Config", {}),
    "minicpm": ("LlamaConfig", {"tie_word_embeddings": True}),
    "minicpm3": ("LlamaConfig", {"tie_word_embeddings": True, "v_head_dim": 64}),
    "orion": ("LlamaConfig", {}),
    "solar": ("LlamaConfig", {}),
}
"""Model types whose checkpoints bring their config class with them: the class that theirs is like, and its defaults."""

LINE = re.compile(
    r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"
)


def measure(case: dict[str, Any], directory: Path, rank: int) -> dict[str, Any]:
    """The answer to one case on one rank; the model parallel groups are those of this case afterwards."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    _, defaults = OWN_CODE.get(case["config"]["model_type"], ("", {}))
    (directory / "config.json").write_text(json.dumps({**defaults, **case["config"]}))
    tp, pp = case.get("tp", 1), case.get("pp", 1)
    arguments = {"skip_tokenizer_init": True, "load_format": "dummy", "enforce_eager": True, **case["engine"]}
    config = EngineArgs(
        model=str(directory), tensor_parallel_size=tp, pipeline_parallel_size=pp, **arguments
    ).create_engine_config()
    with set_current_vllm_config(config):
        parallel_state.destroy_model_parallel()
        parallel_state.ensure_model_parallel_initialized(tp, pp, 1, 1)
        with set_default_torch_dtype(config.model_config.dtype), torch.device("cpu"):
            model = initialize_model(vllm_config=config)
        weights = sum({id(tensor): tensor.nbytes for tensor in model.parameters()}.values()) + absorbed(
            config
        )
        del model
        ranks: list[Any] = [None] * (tp * pp)
        torch.distributed.all_gather_object(ranks, (weights, specs(config)))
        return {
            "weights_bytes": max(size for size, _ in ranks),
            "max_model_len": config.model_config.max_model_len,
            **cache(config, [found for _, found in ranks], case["kv_bytes"]),
        }


def absorbed(config: Any) -> int:
    """Bytes of the copies that latent attention makes of kv_b_proj's halves."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    made = 0
    for layer in get_layers_from_vllm_config(config, AttentionLayerBase).values():
        if not hasattr(layer, "kv_b_proj"):
            continue
        layer.kv_b_proj.weight.data.zero_()
        layer.process_weights_after_loading(config.model_config.dtype)
        made += sum(getattr(layer, name).nbytes for name in ("W_UV", "W_UK_T") if hasattr(layer, name))
    return made


def specs(config: Any) -> dict[str, Any]:
    """KV cache specs of this rank's layers, as the model runner collects them."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.utils import customize_attention_spec

    current_platform.update_block_size_for_backend(config)
    found = {}
    backends = []
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        spec = layer.get_kv_cache_spec(config)
        if spec is not None:
            backends.append(layer.get_attn_backend())
            found[name] = (
                customize_attention_spec(backends[-1], spec) if isinstance(spec, AttentionSpec) else spec
            )
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    resolve_kv_cache_layout(config, [layouts], list(found.values()))
    return found


def cache(config: Any, ranks: list[dict[str, Any]], available: int) -> dict[str, Any]:
    """What EngineCore makes of all ranks' specs."""
    from vllm.v1.core import kv_cache_utils

    found = kv_cache_utils.get_kv_cache_configs(config, ranks, [available] * len(ranks))[0]
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, found)
    return {
        "tokens": tokens,
        "concurrency": concurrency,
        "blocks": found.num_blocks,
        "block_size": config.cache_config.block_size,
        "groups": sorted(
            [type(group.kv_cache_spec).__name__, len(group.layer_names), group.kv_cache_spec.page_size_bytes]
            for group in found.kv_cache_groups
        ),
    }


def level() -> None:
    """Make every machine answer alike, also for what only GPUs run.

    For some CPUs vLLM has other block and state sizes. Sparse attention has no CPU kernel, and the size of its caches
    does not come from the kernel; nor have experts without a gate, nor latent attention in large blocks. A torchvision
    whose operators do not load is enough to read image processors.
    """
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float limit) -> Tensor")
    import transformers
    from vllm.model_executor.layers.fused_moe import config as mixtures
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    torch.cpu._is_avx512_bf16_supported = lambda: False  # type: ignore[attr-defined]
    torch.cpu._is_amx_tile_supported = lambda: False  # type: ignore[attr-defined]
    torch.cuda.Event = torch.cuda.Stream = object  # type: ignore[assignment,misc]
    registry._run_in_subprocess = lambda function: function()
    backend = CpuPlatform.get_attn_backend_cls.__func__  # type: ignore[attr-defined]

    def dense(cls: Any, selected: Any, attn_selector_config: Any, num_heads: Any = None) -> Any:
        return backend(cls, selected, attn_selector_config._replace(use_sparse=False), num_heads)

    CpuPlatform.get_attn_backend_cls = classmethod(dense)
    CpuPlatform._check_aligned_block_size = classmethod(lambda *_: None)
    mixtures.current_platform = type("Any", (CpuPlatform,), {"is_xpu": lambda self: True})()
    for check in ("_supports_no_act_and_mul", "_supports_activation"):
        setattr(CPUUnquantizedExperts, check, staticmethod(lambda *_: True))
    for name, (base, _) in OWN_CODE.items():
        renamed = {"num_hidden_layers": "num_layers"} if name == "exaone" else {}
        made = type(name, (getattr(transformers, base),), {"model_type": name, "attribute_map": renamed})
        transformers.AutoConfig.register(name, made, exist_ok=True)


def run(cases: list[dict[str, Any]], world: int, rank: int, port: int, queue: Any) -> None:
    """Answer the cases of this many ranks, one after the other; what libraries print goes to stderr."""
    os.dup2(2, 1)
    os.environ.update(
        ENVIRONMENT, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world)
    )
    level()
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform

    assert current_platform.is_cpu()
    parallel_state.init_distributed_environment(world, rank, "env://", rank, "gloo")
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                answer = measure(case, Path(scratch), rank)
            except Exception:
                answer = {"error": traceback.format_exc(limit=-4)}
        gc.collect()
        if rank == 0:
            queue.put((case["name"], answer))


def start(case: dict[str, Any]) -> dict[str, Any]:
    """What the log of a real engine says, started with weights that are made up."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(case["config"]))
        arguments = {
            "model": scratch,
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "enforce_eager": True,
            "tensor_parallel_size": case["tp"],
            "pipeline_parallel_size": case["pp"],
            "kv_cache_memory_bytes": case["kv_bytes"],
            **case["engine"],
        }
        done = subprocess.run(
            [sys.executable, "-c", f"from vllm import LLM\nif __name__ == '__main__': LLM(**{arguments!r})"],
            env={**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=240,
        )  # fmt: skip
    found = LINE.search(done.stdout)
    if found is None:
        return {"error": done.stdout[-2000:]}
    return {"line": found[0], "tokens": int(found[1].replace(",", "")), "concurrency": float(found[2])}


def _world(case: dict[str, Any]) -> int:
    return int(case["tp"] * case["pp"])


def _next(queue: Any, ranks: list[Any]) -> tuple[str, Any]:
    """The next answer; an error if a rank has ended without one, or after PATIENCE."""
    for _ in range(PATIENCE):
        try:
            name, answer = queue.get(timeout=1)
        except Empty:
            if any(process.exitcode for process in ranks):
                break
        else:
            return name, answer
    for process in ranks:
        process.terminate()
    raise RuntimeError("a rank ended, or waited too long, without an answer")


def answers(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What measure() finds, by the cases' names."""
    found: dict[str, Any] = {}
    spawn = multiprocessing.get_context("spawn")
    os.environ["VLLM_DIST_IDENT"] = str(os.getpid())
    for world in sorted({_world(case) for case in cases}):
        chosen = [case for case in cases if _world(case) == world]
        queue = spawn.Queue()
        ranks = [
            spawn.Process(target=run, args=(chosen, world, rank, 29540 + world, queue))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for _ in chosen:
            name, answer = _next(queue, ranks)
            found[name] = answer
        for process in ranks:
            process.join()
    return found


def main() -> None:
    """Read cases, write them with their answers, one per line."""
    given = json.load(sys.stdin)
    cases = given["cases"] if isinstance(given, dict) else given
    started = "--start" in sys.argv[1:]
    found = {case["name"]: start(case) for case in cases} if started else answers(cases)
    key = "logged" if started else "answer"
    lines = ",\n".join(json.dumps({**case, key: found[case["name"]]}) for case in cases)
    how = "tests/oracles/fit_oracle.py" + (" --start" if started else "")
    print(f'{{"vllm": "{importlib.metadata.version("vllm-cpu")}", "how": "{how}", "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
