# SPDX-License-Identifier: Apache-2.0

"""The start-up log classifier, on logs shaped as vLLM, torch, RCCL, HIP and argparse write them."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failures import (
    Diagnosis,
    Signature,
    clean,
    tail,
    to_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failures import classify as classify_by
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.signatures import (
    parse_signatures,
)


def classify(log: str, exit_code: int | None = None, oom_killed: bool = False) -> Diagnosis:
    return classify_by(SIGNATURES, log, exit_code, oom_killed)


API = "(APIServer pid=1) "
CORE = "(EngineCore_DP0 pid=272) "
WORKER = "(Worker_TP3 pid=301) "
STAMP = "ERROR 10-24 12:00:05 [core.py:708] "

BEFORE = f"""\
{API}INFO 10-24 12:00:00 [api_server.py:1839] vLLM API server version 0.11.1
{API}INFO 10-24 12:00:00 [utils.py:233] non-default args: {{'model_tag': 'lab/tiny-llama', 'port': 8000}}
{API}INFO 10-24 12:00:01 [__init__.py:216] Automatically detected platform rocm.
{API}/opt/venv/lib/x.py:3: FutureWarning: The pynvml package is deprecated.
{CORE}INFO 10-24 12:00:02 [core.py:77] Initializing a V1 LLM engine (v0.11.1) with config: model='lab/tiny-llama'
"""

AFTER = f"""\
{CORE}Process EngineCore_DP0:
{CORE}Traceback (most recent call last):
{CORE}  File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap
{CORE}    self.run()
{API}Traceback (most recent call last):
{API}  File "/usr/local/bin/vllm", line 8, in <module>
{API}    sys.exit(main())
{API}  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 786, in wait_for_engine_startup
{API}    raise RuntimeError("Engine core initialization failed. "
{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""


def engine_core(final: str, prefix: str = CORE + STAMP) -> str:
    """A log in which the engine core fails with this last line of its traceback."""
    return f"""{BEFORE}\
{prefix}EngineCore failed to start.
{prefix}Traceback (most recent call last):
{prefix}  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 699, in run_engine_core
{prefix}    engine_core = EngineCoreProc(*args, **kwargs)
{prefix}                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{prefix}{final}
{AFTER}"""


KV_SMALL = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache "
    "is needed, "
    "which is larger than the available KV cache memory (4.30 GiB). Based on the available memory, the "
    "estimated "
    "maximum model length is 35200. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
)
IN_USE = (
    "ValueError: Free memory on device cuda:0 (130.2/191.7 GiB) on startup is less than desired GPU memory "
    "utilization (0.92, 176.4 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)
OOM = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 28.00 GiB. GPU 0 has a total capacity of "
    "191.69 "
    "GiB of which 12.31 GiB is free."
)
ARGPARSE = f"""{BEFORE}\
usage: vllm serve [model_tag] [options]
vllm: error: unrecognized arguments: --max-modle-len 4096
"""
FAULT = f"""{BEFORE}\
{WORKER}INFO 02-24 02:39:34 [gpu_model_runner.py:4758] Graph capturing
Memory access fault by GPU node-5 (Agent handle: 0x460e3a50) on address 0x7ec4dfe0e000. Reason: Unknown.
Capturing CUDA graphs (decode, FULL):  88%|████▋     | 45/51 [00:05<00:00,  9.32it/s]
{CORE}ERROR 02-24 02:39:35 [multiproc_executor.py:231] Worker proc VllmWorker-3 died unexpectedly, shutting down.
{AFTER}"""
RCCL = f"""{BEFORE}\
[rank1]:[E1001 16:06:04.537131842 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=128, NumelOut=128, Timeout(ms)=600000) ran for 600009 milliseconds
[rank1]:[E1001 16:06:04.537356909 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception detected by watchdog
{AFTER}"""
OFFLINE = engine_core(
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for "
    "the "
    "specified revision on the local disk and outgoing traffic has been disabled.",
    API,
)
SOURCE = f"""{BEFORE}\
{API}Traceback (most recent call last):
{API}  File "/opt/venv/lib/python3.12/site-packages/huggingface_hub/file_download.py", line 1961, in _raise
{API}    raise LocalEntryNotFoundError(
{API}huggingface_hub.errors.LocalEntryNotFoundError: Cannot reach the hub: offline mode is enabled.
"""
PYDANTIC = f"""{BEFORE}\
{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
{API}  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len (2048). [type=value_error, input_value=ArgsKwargs((), {{'a': [1]}}), input_type=ArgsKwargs]
{API}    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""  # noqa: E501 - a log line as it is written
WORKER_DIES = f"""{BEFORE}\
{WORKER}ERROR 10-24 12:00:04 [multiproc_executor.py:597] WorkerProc failed to start.
{WORKER}ERROR 10-24 12:00:04 [multiproc_executor.py:597] Traceback (most recent call last):
{WORKER}ERROR 10-24 12:00:04 [multiproc_executor.py:597]   File "/app/x.py", line 3, in load
{WORKER}ERROR 10-24 12:00:04 [multiproc_executor.py:597] KeyError: 'lm_head.weight'
{CORE}{STAMP}Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace
{AFTER}"""

CASES = [
    ("unknown_flag", "vllm: error: unrecognized arguments: --max-modle-len 4096", ARGPARSE),
    (
        "unknown_flag",
        "vllm serve: error: argument --dtype: invalid choice: 'bf8'",
        BEFORE + "vllm serve: error: argument --dtype: invalid choice: 'bf8'\n",
    ),
    ("kv_cache_too_small", KV_SMALL, engine_core(KV_SMALL)),
    (
        "kv_cache_too_small",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        engine_core(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
            "when "
            "initializing the engine.",
            "ERROR 05-23 09:31:47 [core.py:396] ",
        ),
    ),
    ("gpu_memory_in_use", IN_USE, engine_core(IN_USE)),
    ("out_of_memory", OOM, engine_core(OOM, WORKER + STAMP)),
    (
        "port_in_use",
        "OSError: [Errno 98] Address already in use",
        f"{BEFORE}{API}    sock.bind(addr)\n{API}OSError: [Errno 98] Address already in use\n",
    ),
    (
        "port_in_use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        engine_core(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            "network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
    ),
    ("missing_weights", None, OFFLINE),
    (
        "missing_weights",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot reach the hub: offline mode is enabled.",
        SOURCE,
    ),
    (
        "gpu_fault",
        "raise RuntimeError('HSA_STATUS_ERROR')",
        BEFORE + "    raise RuntimeError('HSA_STATUS_ERROR')\n",
    ),
    (
        "missing_weights",
        None,
        engine_core("RuntimeError: Cannot find any model weights with `/hf/hub/models--a--b/snapshots/1`"),
    ),
    (
        "gated_model",
        None,
        engine_core("OSError: You are trying to access a gated repo.", API),
    ),
    ("no_gpu_access", None, engine_core("RuntimeError: No HIP GPUs are available")),
    (
        "no_gpu_access",
        None,
        BEFORE
        + "Unable to open /dev/kfd read-write: Permission denied\nroot is not member of render group\n",
    ),
    ("no_gpu_access", None, f"{BEFORE}{API}RuntimeError: Failed to infer device type\n"),
    (
        "invalid_device",
        None,
        engine_core("torch.AcceleratorError: HIP error: invalid device ordinal", WORKER + STAMP),
    ),
    (
        "gpu_fault",
        "Memory access fault by GPU node-5 (Agent handle: 0x460e3a50) on address 0x7ec4dfe0e000. Reason: "
        "Unknown.",
        FAULT,
    ),
    (
        "gpu_fault",
        None,
        BEFORE
        + ":0:rocdevice.cpp :2984: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL op\n",
    ),
    (
        "out_of_memory",
        None,
        BEFORE + "Queue aborting: HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed\n",
    ),
    ("collective_failed", None, RCCL),
    (
        "collective_failed",
        None,
        engine_core("RuntimeError: NCCL error: unhandled system error", WORKER + STAMP),
    ),
    (
        "shared_memory",
        None,
        engine_core(
            "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device: /dev/shm/torch_1"
        ),
    ),
    ("disk_full", None, engine_core("OSError: [Errno 28] No space left on device: '/cache/vllm/x'")),
    (
        "unsupported_model",
        None,
        f"{BEFORE}{API}  Value error, Model architectures ['FooForCausalLM'] are not supported for now.\n",
    ),
    (
        "unsupported_model",
        None,
        engine_core("ValueError: awq_marlin quantization is currently not supported in rocm."),
    ),
    (
        "bad_config",
        "Value error, User-specified max_model_len (99999) is greater than the derived max_model_len (2048).",
        PYDANTIC,
    ),
    (
        "bad_config",
        None,
        engine_core(
            "ValueError: Total number of attention heads (6) must be divisible by tensor parallel size (4)."
        ),
    ),
    (
        "command_missing",
        "/instinct/serve.sh: line 9: exec: vllm: not found",
        "/instinct/serve.sh: line 9: exec: vllm: not found",
    ),
    (
        "illegal_instruction",
        "Illegal instruction (core dumped)",
        BEFORE + "Illegal instruction (core dumped)\n",
    ),
    (
        "killed",
        None,
        f"{BEFORE}{CORE}ERROR 02-24 02:39:35 [x.py:1] Worker proc VllmWorker-3 died unexpectedly, shutting "
        f"down.\n{AFTER}",
    ),
    ("python_exception", "KeyError: 'lm_head.weight'", WORKER_DIES),
    (
        "python_exception",
        "ModuleNotFoundError: No module named 'my_plugin'",
        engine_core("ModuleNotFoundError: No module named 'my_plugin'"),
    ),
    (
        "python_exception",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        BEFORE + AFTER,
    ),
    ("unknown", "one | two", "zero\none\n\ntwo\n"),
    ("unknown", "the log is empty", ""),
]


@pytest.mark.parametrize(("kind", "line", "log"), CASES)
def test_finds_kind_and_line(kind: str, line: str | None, log: str) -> None:
    finding = classify(log)
    assert finding.kind == kind
    if line is not None:
        assert finding.line == line
    assert finding.line in log or kind == "unknown"
    assert len(finding.next_step) > 40


def test_every_kind_is_covered_by_a_log() -> None:
    assert {signature.kind for signature in SIGNATURES} <= {kind for kind, _line, _log in CASES}


@pytest.mark.parametrize(
    ("kind", "exit_code", "oom_killed"),
    [
        ("illegal_instruction", 132, False),
        ("killed", 137, False),
        ("killed", 137, True),
        ("unknown", 1, False),
    ],
)
def test_the_exit_code_speaks_when_the_log_does_not(kind: str, exit_code: int, oom_killed: bool) -> None:
    assert classify(BEFORE.replace("FutureWarning", "note"), exit_code, oom_killed).kind == kind


def test_without_signatures_exit_code_and_exception_speak() -> None:
    for log, code, kind in (
        (OOM, 137, "killed"),
        (OOM, 132, "illegal_instruction"),
        (OOM, 1, "python_exception"),
    ):
        finding = classify_by((), engine_core(log), code)
        assert (finding.kind, len(finding.next_step) > 40) == (kind, True)


def test_a_file_of_signatures_is_what_was_written() -> None:
    assert parse_signatures(to_text(SIGNATURES)) == SIGNATURES


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2, "signatures": []}', '{"schema": 1, "signatures": [{"kind": "x"}]}',
     to_text([Signature("x", ("(",), "Do.")])],
)  # fmt: skip
def test_another_file_is_none_of_signatures(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        parse_signatures(text)


def test_the_log_outweighs_the_exit_code_but_not_dockers_word() -> None:
    assert classify(engine_core(OOM), 137).kind == "out_of_memory"
    assert classify(engine_core(OOM), 137, True).kind == "killed"


def test_a_healthy_log_is_no_failure_of_a_known_kind() -> None:
    healthy = f"""{BEFORE}\
{CORE}INFO 10-24 12:00:09 [gpu_worker.py:298] Available KV cache memory: 142.51 GiB
{CORE}INFO 10-24 12:00:09 [kv_cache_utils.py:1087] GPU KV cache size: 1,167,424 tokens
{CORE}WARNING 10-24 12:00:09 [rocm.py:3] Model architecture 'X' is partially supported by ROCm: see notes
{API}UserWarning: must be divisible by nothing, this is only a warning
{API}INFO:     Application startup complete.
"""
    assert classify(healthy).kind == "unknown"


def test_the_first_crash_of_a_crash_loop_decides() -> None:
    first = engine_core(OOM.replace("28.00", "11.00"))
    assert "11.00 GiB" in classify(first + engine_core(OOM)).line


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("(EngineCore_DP0 pid=272) ERROR 10-24 12:00:05 [core.py:708] ValueError: x", "ValueError: x"),
        ("(VllmWorker rank=1 pid=2445156)   File x", "  File x"),
        ("(APIServer pid=7) (Worker pid=8) x", "x"),
        ("ERROR 06-24 13:22:36 engine.py:389] CacheNotFound", "CacheNotFound"),
        ("\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO 10-24 12:00:05.123 [v1/x.py:1] hello", "hello"),
        ("10%|█|\r100%|██| done   ", "100%|██| done"),
        ("no prefix (pid=3) here", "no prefix (pid=3) here"),
    ],
)
def test_prefixes_go(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_a_very_long_line_is_cut() -> None:
    assert len(classify("ValueError: " + "x" * 5000).line) < 700


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b]52;c;Y3VybA==\x07b", "ab"),  # the clipboard
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x1b]0;never ended", "a"),
        ("\x1b[?1049hb", "b"),  # another screen
        ("\x1bcb\x1b(0", "b"),  # a reset, another set of characters
        ("a\x9b31mb\x00\x08", "a31mb"),  # what remains is only text
        ("a\tb", "a\tb"),
    ],
)
def test_a_terminal_has_nothing_to_obey(raw: str, shown: str) -> None:
    assert clean(raw) == shown
    assert tail(raw) == [shown]
    assert classify(f"ValueError: {raw}").line == f"ValueError: {shown}"


def test_only_the_beginning_of_a_line_is_read() -> None:
    """Some patterns take time that grows with the square of a line's length."""
    assert len(clean("/dev/dri " * 20_000)) <= 4096
    assert clean("x" * 10_000 + "\rdone") == "done"


def test_tail() -> None:
    assert tail("a\n\nb\x1b[0m\n1%\r50%\rc  \n", 2) == ["b", "c"]
