# SPDX-License-Identifier: Apache-2.0
"""Load a quantized checkpoint with the loader of vLLM 0.32, on a CPU that has no kernel to compute with it.

    python3 vllm_loader.py DIRECTORY        with a Python that has vLLM (real_quantizers.py)

vLLM builds the model as config.json says, and its loader gives each tensor of the files to a parameter: an unknown
name or another shape is an exception there. Prints a line of JSON: how many parameters were loaded, their types, and
the ends of the names of those that the files did not fill. Kernels are left out: vLLM looks for them when it makes
parameters.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization.quark.schemes import quark_ocp_mx, quark_w8a8_fp8
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model


def _no_kernel(*_args: Any, **_kwargs: Any) -> None:
    return None


def main(path: str) -> None:
    quark_w8a8_fp8.init_fp8_linear_kernel = _no_kernel
    quark_w8a8_fp8.expose_input_quant_key = _no_kernel
    quark_ocp_mx.init_mxfp4_linear_kernel = _no_kernel
    config = EngineArgs(model=path, enforce_eager=True, max_model_len=256).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29511", 0, "gloo")
        initialize_model_parallel(1, 1)
        torch.set_default_dtype(config.model_config.dtype)
        model = initialize_model(config)
        weights = DefaultModelLoader(config.load_config).get_all_weights(config.model_config, model)
        loaded = set(model.load_weights(weights))
    parameters = dict(model.named_parameters())
    ends = {name: name.rpartition(".")[2] for name in parameters}
    found = {
        "loaded": len(loaded),
        "unfilled": sorted({ends[name] for name in set(parameters) - loaded}),
        "types": sorted({f"{ends[name]} {parameters[name].dtype}" for name in loaded & set(parameters)}),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
