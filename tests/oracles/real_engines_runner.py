# SPDX-License-Identifier: Apache-2.0
"""Let a vLLM make its engine's configuration from command lines; runs in vLLM's own Python, with probe.py beside it.

Standard input: one JSON object per line, {"argv": […]}. Standard output, for each: a marker line with
{"accepted": true}, or the error's class, its text, the file and line of vLLM that raised it, and the stage.
The platform is ROCm with eight MI300X: the libraries of a host without GPUs are answered for.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import inspect
import json
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path

from catalog.tools import probe

MARKER = "instinct-fleet-engine:"
GFX, MEMORY, COUNT = "gfx942", 206141652992, 8


class RefusedError(Exception):
    """What argparse would have printed before it ends the process."""


def refuse(parser: object, message: str) -> None:
    """In place of ArgumentParser.error, which ends the process."""
    raise RefusedError(message)


def simulate() -> None:
    """Eight MI300X, for torch and amdsmi. vLLM asks them when its modules are imported."""
    import torch
    import torch._dynamo
    import torch._inductor.utils  # they look for what torch was built with

    smi = types.ModuleType("amdsmi")
    answers = {
        "amdsmi_init": lambda *_: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(range(COUNT)),
        "amdsmi_get_gpu_asic_info": lambda _: {
            "target_graphics_version": GFX,
            "device_id": "0x74a1",
            "market_name": "AMD Instinct MI300X",
        },
        "amdsmi_get_gpu_device_uuid": str,
        "amdsmi_get_gpu_memory_total": lambda *_: MEMORY,
        "amdsmi_topo_get_link_type": lambda *_: {"hops": 1, "type": 2},
        "amdsmi_topo_get_numa_node_number": lambda _: 0,
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "AmdSmiMemoryType": types.SimpleNamespace(VRAM=0),
    }
    smi.__dict__.update(answers)
    smi.__spec__ = importlib.machinery.ModuleSpec("amdsmi", None)
    sys.modules["amdsmi"] = smi
    card = types.SimpleNamespace(
        gcnArchName=f"{GFX}:sramecc+:xnack-",
        name="AMD Instinct MI300X",
        total_memory=MEMORY,
        multi_processor_count=304,
        major=9,
        minor=4,
        warp_size=64,
    )
    import psutil

    psutil.virtual_memory = lambda: types.SimpleNamespace(total=2 << 40, available=2 << 40)
    torch.version.hip = "7.0.51831"
    torch.cuda.get_device_properties = lambda *_: card
    torch.cuda.get_device_capability = lambda *_: (9, 4)
    torch.cuda.get_device_name = lambda *_: card.name
    torch.cuda.device_count = lambda: COUNT
    torch.cuda.is_available = lambda: True
    torch.cuda.mem_get_info = lambda *_: (MEMORY, MEMORY)
    torch.cuda.current_device = lambda: 0
    torch.cuda._is_compiled = lambda: True
    torch.cuda._device_count_amdsmi = lambda: COUNT
    torch.cuda.is_initialized = lambda: False


def anything(*_args: object, **_keys: object) -> None:
    """Take whatever is given."""


def attribute(_self: object, name: str) -> object:
    """Return a function that takes whatever is given."""
    if name.startswith("__"):
        raise AttributeError(name)
    return anything


BODY = {"__init__": anything, "__call__": anything, "__bool__": lambda _: False, "__getattr__": attribute}


class AnyAttribute(type):
    """Classes that have every attribute."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyAttribute(name, (), BODY)


class Anything(types.ModuleType):
    """A package that is not installed: it has every module, class and function, and none is ever run."""

    __path__ = ()
    __version__ = "3.4.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyAttribute(name, (), BODY)


class AnyFinder:
    """Finds the packages that vLLM's modules import on ROCm, which the configuration does not need."""

    packages = ("arctic_inference", "flash_attn", "lmcache", "ray", "torchvision", "triton")

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return a spec for each of their modules."""
        if name.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: object) -> types.ModuleType:
        """Return such a module."""
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def on_rocm() -> None:
    """Make ROCm the platform, whatever this vLLM was built for, and inspect models in this process."""
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: version(name).partition("+cpu")[0]
    for name in (
        "vllm.triton_utils",
        "transformers.image_utils",
        "torch._inductor.runtime.triton_helpers",
    ):  # they look for the real ones
        importlib.import_module(name)
    language = importlib.import_module("vllm.triton_utils").tl
    language.bfloat16 = language.float16 = None  # kernels of 0.32 name them when they are imported
    sys.meta_path.append(AnyFinder())
    registry = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda fn: fn()
    configuration = importlib.import_module("vllm.config.vllm")
    if hasattr(configuration, "HAS_TRITON"):  # by which it chooses between its model runners
        configuration.HAS_TRITON = True
    # Compiled for ROCm too, and no part of what is unpacked here.
    importlib.import_module("vllm.device_allocator.cumem").cumem_available = True
    platforms = importlib.import_module("vllm.platforms.interface")
    platforms.Platform.is_cumem_allocator_available = lambda _: True  # a library of images for GPUs


def warm() -> None:
    """Import what the models of the working directory need, before the first fork."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    for path in sorted(Path().glob("*/*/config.json")):
        for name in json.loads(path.read_text(encoding="utf-8"))["architectures"]:
            if name in registry.ModelRegistry.models:
                registry.ModelRegistry._try_inspect_model_cls(name)


def accepted(function: object, given: dict) -> dict:
    """Those of the arguments that a function has in this release."""
    known = inspect.signature(function).parameters
    every = any(item.kind is item.VAR_KEYWORD for item in known.values())
    return {name: value for name, value in given.items() if every or name in known}


def choose_attention(config: object) -> None:
    """Choose the attention backend and make its implementation, as every layer does when the model is made."""
    choose = probe.first_import(
        "vllm.v1.attention.selector:get_attn_backend", "vllm.attention.selector:get_attn_backend"
    )
    current = probe.first_import(
        "vllm.config.vllm:set_current_vllm_config", "vllm.config:set_current_vllm_config"
    )
    model, cache = config.model_config, config.cache_config
    sinks = "GptOssForCausalLM" in model.architectures
    heads = model.get_num_attention_heads(config.parallel_config)
    given = {
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "use_mla": model.use_mla,
        "has_sink": sinks,
        "num_heads": heads,
    }
    with current(config):
        implementation = choose(**accepted(choose, given)).get_impl_cls()
        layer = {
            "num_heads": heads,
            "head_size": model.get_head_size(),
            "scale": 1.0,
            "num_kv_heads": model.get_num_kv_heads(config.parallel_config),
            "alibi_slopes": None,
            "sliding_window": None,
            "kv_cache_dtype": cache.cache_dtype,
            "logits_soft_cap": None,
            "attn_type": "decoder",
            "kv_sharing_target_layer_name": None,
        }
        if model.use_mla:
            text = model.hf_text_config
            sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            latent = {name: getattr(text, name) for name in sizes}
            latent["qk_head_dim"] = text.qk_nope_head_dim + text.qk_rope_head_dim
            layer |= {**latent, "kv_b_proj": None}
        if sinks:
            layer["sinks"] = importlib.import_module("torch").zeros(heads)
        try:
            implementation(**accepted(implementation.__init__, layer))
        except (NotImplementedError, ValueError):
            raise
        except Exception:
            return  # made with parts of a model, which this has not


def find_adapters(config: object, modules: object) -> None:
    """Load each adapter as far as it goes without GPUs: the server ends when one is not there."""
    for item in modules:
        if config.lora_config is None:
            runner = probe.first_import("vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin")
            runner._ensure_lora_enabled(types.SimpleNamespace())
        find = probe.first_import("vllm.lora.utils:get_adapter_absolute_path")
        (Path(find(item.path)) / "adapter_config.json").read_text(encoding="utf-8")


class Engine:
    """vLLM's parser of `vllm serve`, and what it does with the result before a process is started."""

    def __init__(self) -> None:
        self.top = probe.new_parser()
        type(self.top).error = refuse
        serve = probe.first_import("vllm.entrypoints.cli.serve:ServeSubcommand")()
        serve.subparser_init(self.top.add_subparsers(dest="subparser"))
        self.serve = serve
        self.arguments = probe.first_import("vllm.engine.arg_utils:AsyncEngineArgs")
        self.usage = probe.first_import("vllm.usage.usage_lib:UsageContext")
        factory = probe.first_import("vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory")
        self.connectors = getattr(factory, "get_connector_class", lambda _: None)
        self.check = None
        for place in ("vllm.entrypoints.launchers.launcher", "vllm.entrypoints.openai.api_server"):
            try:
                self.check = importlib.import_module(place).validate_api_server_args
            except (ImportError, AttributeError):
                continue
            break

    def stages(self, argv: list[str]):
        """Do one stage after the other, and yield the name of each before it begins."""
        yield "parser"
        args = self.top.parse_args(["serve", *argv])
        yield "validate"
        self.serve.validate(args)
        if getattr(args, "model_tag", None) is not None:
            args.model = args.model_tag
        yield "server"
        if self.check is not None:
            self.check(args)
        yield "engine args"
        engine = self.arguments.from_cli_args(args)
        yield "engine config"
        if "usage_context" in engine.create_engine_config.__code__.co_varnames:
            config = engine.create_engine_config(usage_context=self.usage.OPENAI_API_SERVER)
        else:
            config = engine.create_engine_config()
        yield "attention"
        choose_attention(config)
        yield "adapters"
        find_adapters(config, getattr(args, "lora_modules", None) or ())
        yield "connector"
        if config.kv_transfer_config is not None and config.kv_transfer_config.is_kv_transfer_instance:
            self.connectors(config.kv_transfer_config)

    def verdict(self, argv: list[str]) -> dict:
        """Whether a command line gets as far as the start of the engine."""
        stage = ""
        try:
            for name in self.stages(argv):
                stage = name
        except (Exception, SystemExit) as error:
            where = [
                frame for frame in traceback.extract_tb(error.__traceback__) if "/vllm/" in frame.filename
            ]
            place = where[-1] if where else None
            found = {
                "accepted": False,
                "stage": stage,
                "error": type(error).__name__,
                "text": str(error)[:2000],
            }
            if place:
                found["where"] = f"{place.filename.rpartition('/vllm/')[2]}:{place.lineno} {place.name}"
            if os.environ.get("ENGINE_TRACE"):
                found["trace"] = "".join(traceback.format_exception(error))[-4000:]
            return found
        return {"accepted": True}


def main() -> None:
    """Read command lines, print verdicts."""
    home = tempfile.mkdtemp(prefix="engines-")
    os.environ.update(
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CACHE_ROOT=f"{home}/vllm",
        HF_HOME=f"{home}/hf",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
    )
    sys.argv = ["vllm", "serve"]
    sys.stdin.reconfigure(encoding="utf-8")
    simulate()
    on_rocm()
    engine = Engine()
    warm()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        if os.fork():  # the parser's defaults are objects, which the configuration changes
            os.wait()
            continue
        print(MARKER + json.dumps(engine.verdict(json.loads(line)["argv"])), file=out, flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
