# SPDX-License-Identifier: Apache-2.0
"""Types of results/<run>/summary.json. What a dataclass writes as it is stands with its dataclass alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import (
    BATCH_KEYS,
    LATENCY_KEYS,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.json_record import Count
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.causes import Cause
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.suite import Shape, Slo
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.node_facts import VERSIONS
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    MeasurementFailure,
)

from .derive import Schema, schema

Time = Annotated[str, {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}]
MaybeCount = Annotated[int | None, {"minimum": 0}]
Amount = Annotated[float | None, {"minimum": 0}]
Share = Annotated[float, {"minimum": 0, "maximum": 1}]
MaybeTime = Annotated[Any, {"anyOf": [{"type": "string", **Time.__metadata__[0]}, {"type": "null"}]}]


class Summary(TypedDict):
    schema: Literal[1]
    run: str
    started: MaybeTime
    finished: Time
    benchmarks: list[Benchmark]
    slo_searches: list[SloSearch]  # what the searches of a suite found, one for each instance, shape and SLO
    deployments: Mapping[str, Deployment]
    hosts: Mapping[str, Host]
    failures: list[MeasurementFailure]
    gpu_verdicts: list[GpuVerdict]  # every GPU that was measured, by host and number


class Load(TypedDict):
    kind: Literal["concurrency", "rate", "batch", "all"]
    value: float | None


class Benchmark(TypedDict):
    """One cell of an instance: medians over its runs."""

    host: str
    instance: str
    deployment: str
    kind: Literal["serve", "latency", "throughput"]
    suite: str | None  # the suite of the cell; null for single arguments
    cell: str  # name of the cell, made of shape and load
    shape: Shape | None  # tokens of each prompt and answer; null for data sets of various lengths
    load: Load  # requests at once, requests per second, sequences of a batch; all: no limit
    metric: str  # the key whose runs decide about repeats; `interval` is of it
    block: MaybeCount  # pass over all cells, from 1 on; null in a summary
    order: MaybeCount  # position in the block, from 1 on; null in a summary
    seed: int | None  # seed of the client; null in a summary
    # which probe of a search it is; null for a cell of a given load
    probe: Annotated[int | None, {"minimum": 1}]
    # the SLOs for which it is the highest load that keeps them, each with the 95 % interval of its requests per second
    at_slo: Mapping[str, tuple[float | None, float | None]]
    live: bool  # measured through the load balancer, beside users
    runs: Annotated[int, {"minimum": 1}]  # runs with a result
    cv: Amount  # coefficient of variation of output_throughput over the runs; null below 2
    # 95 % interval of the median of `metric`, Student's around the mean; null below 3 runs
    interval: tuple[float, float] | None
    started: MaybeTime  # start of the first run
    seconds: float | None  # seconds the client ran, its start included
    model: str | None
    commit: str | None
    image: str | None
    digest: str | None
    num_prompts: MaybeCount  # requests the client was told to send
    # requests per second offered; "inf": all at once
    request_rate: Annotated[Any, {"anyOf": [{"type": ["number", "null"]}, {"const": "inf"}]}]
    burstiness: float | None  # 1: Poisson arrivals
    max_concurrency: MaybeCount  # most requests in flight; null: no limit
    completed: MaybeCount  # requests answered
    failed: MaybeCount  # requests not answered, of the run with the most
    duration_s: float | None  # seconds of measuring, without the client's start
    total_input_tokens: MaybeCount  # tokens of all prompts
    total_output_tokens: MaybeCount  # tokens generated
    request_throughput: float | None  # requests per second
    request_goodput: float | None  # requests per second within --goodput; null when not asked for
    output_throughput: float | None  # generated tokens per second
    total_token_throughput: float | None  # prompt and generated tokens per second
    max_output_tokens_per_s: float | None  # most tokens generated in one second (vLLM 0.11.0 and later)
    max_concurrent_requests: MaybeCount  # most requests in flight as seen (0.11.0 and later)
    steady_output_throughput: float | None  # generated tokens per second of the steady part
    steady_share: Amount  # length of the steady part over that of the run
    # CPU seconds of the client per second of measuring; close to 1, the client is the limit
    client_cpu_share: Amount
    send_lag_ms: float | None  # median delay of a request in the client
    client_bound: bool | None  # the client, not the server, was the limit
    goodput: Mapping[str, float | None]  # requests per second that kept each named limit
    # share of the requests that kept each named limit; failed ones did not
    slo_attainment: Mapping[str, Annotated[float | None, {"minimum": 0, "maximum": 1}]]
    warnings: list[str]  # why there is no steady part, or what is wrong with it
    # share of its time in which the other instances of the deployment ran the same cell
    overlap: Annotated[float | None, {"minimum": 0, "maximum": 1}]
    kv_usage_max: Amount  # highest use of the KV cache, 0 to 1
    preemptions: float | None
    prefix_hit_rate: Amount  # tokens found in the prefix cache over tokens looked up
    acceptance_length: float | None  # tokens per step of speculative decoding
    # what a GPU must read in a decode step over what its HBM delivers in the median TPOT at its peak
    hbm_share: Amount
    flop_share: Amount  # 2 x active parameters x tokens/s over the peak dense FLOPS of the instance's GPUs
    roofline_note: str | None  # why a share is null
    power_w: float | None  # mean power of the instance's GPUs over the requests' window
    joules_per_output_token: float | None
    # false: gaps in the samples, an energy counter that differs, or GPUs shared with another instance; null: no sensor
    power_valid: bool | None
    # share of the time for which a GPU was throttled, by cause; of several GPUs the largest
    throttled: Mapping[str, Share] | None
    ecc: MaybeCount  # uncorrectable memory errors of the GPUs since their driver was loaded
    gpus: list[int]  # logical GPU indices
    render_nodes: list[str]
    port: int | None
    serve_command: str | None
    env: Mapping[str, Any]  # the server's variables; secret ones masked
    command: str | None  # the benchmark's command line
    spec_hash: str | None
    versions: Versions  # versions in use; rocm is that of the image
    other: Mapping[str, float | str | bool]  # further scalars of vLLM's result, under vLLM's names
    gpu_telemetry: list[GpuTelemetry]  # what each GPU of the instance did during the measurement


Versions = TypedDict("Versions", dict.fromkeys(VERSIONS, str | None))  # type: ignore[misc]


class Deployment(TypedDict):
    model: str | None
    revision: str | None
    commit: str | None
    image: str | None
    digest: str | None
    served_model: str | None
    slos: list[Slo]  # the suite's limits for the model, whose goodput the rows have
    reasons_of: str  # the instance whose reasons these are
    reasons: list[GivenReason]


class GivenReason(TypedDict):
    setting: str
    value: Any
    reason: Any
    source: Any


class Host(TypedDict):
    os: str | None
    kernel: str | None
    cmdline: list[str] | None
    rocm: str | None
    driver: str | None  # version of amdgpu
    docker: str | None
    cpu: Mapping[str, Any] | None
    memory_bytes: MaybeCount
    numa_nodes: MaybeCount
    numa_balancing: int | None  # 0: off
    virtual_machine: bool | None
    compute_partition: str | None  # of all GPUs; several when they differ: "CPX, SPX"
    memory_partition: str | None
    gpus: list[Gpu]


class Gpu(TypedDict):
    model: str | None
    pci_id: str | None
    index: int | None
    bdf: str | None
    gfx: str | None
    unique_id: str | None
    vram_total: MaybeCount  # bytes
    numa_node: int | None
    link_speed: str | None
    link_width: int | None
    compute_partition: str | None
    memory_partition: str | None
    partitions: Count


class GpuVerdict(TypedDict):
    host: str
    gpu: int | None  # index on its host, in PCI order
    bdf: str | None
    unique_id: str | None
    instances: list[str]  # what ran on it
    # bad: a fault (ECC, link, temperature); suspect: too few runs or one metric only; null: nothing to compare with, or
    # too few runs to judge
    verdict: Literal["ok", "slow", "suspect", "bad"] | None
    speed: Literal["ok", "slow", "suspect"] | None  # the verdict of the comparison alone
    # what is slow; instance: its GPUs together; pair: one of two, at fault is not shown
    scope: Literal["gpu", "node", "instance", "pair"] | None
    relative: float | None  # speed of its instance as a share of the median; 1 at the median
    z: float | None  # robust z, positive is slower
    runs: Count
    reasons: list[str]
    causes: list[Cause]  # what is more frequent among the slow GPUs, by falling lift
    next_step: str | None


class GpuTelemetry(TypedDict):
    bdf: str
    power_w: NotRequired[float | None]  # mean of the samples, one per second
    hotspot_c: NotRequired[float | None]
    memory_c: NotRequired[float | None]
    gfx_clock_mhz: NotRequired[float | None]
    memory_clock_mhz: NotRequired[float | None]
    energy_j: NotRequired[Amount]
    energy_invalid: NotRequired[str | None]  # why there is no energy
    throttled: NotRequired[Mapping[str, Share] | None]
    ecc_uncorrectable: NotRequired[Amount]
    ecc_uncorrectable_new: NotRequired[Amount]  # during the measurement
    ecc_correctable_new: NotRequired[Amount]
    link_width: NotRequired[int | None]
    link_width_max: NotRequired[int | None]
    link_speed: NotRequired[str | None]
    link_speed_max: NotRequired[str | None]
    vbios: NotRequired[str | None]
    power_cap_w: NotRequired[float | None]


class Span(TypedDict):
    value: float | None
    low: float | None
    high: float | None


class SloSearch(TypedDict):
    host: str
    instance: str
    deployment: str
    suite: str
    search: str  # the cells' name without their load
    shape: Shape | None  # tokens of each prompt and answer; null for data sets of various lengths
    slo: Slo
    share: float  # of the requests that must keep it
    load: Literal["rate", "concurrency"]
    value: float | None  # the highest load that keeps it; null: none did
    low: float | None  # the highest load that surely keeps it; null: no probe is certain
    high: float | None  # the lowest load that surely does not
    cell: str | None  # the probe at that load, in benchmarks
    probes: Count
    request_throughput: Span
    output_throughput: Span
    output_throughput_per_gpu: Span
    why: str  # why it ended, and what stands against a higher load


def summary_schema() -> Schema:
    """Return the schema of summary.json. A row has the statistics of bench_metrics.py, and percentiles asked for."""
    made = schema(
        "One measurement of the fleet (results/<run>/summary.json)",
        Summary,
        description="null: not measured or not known, never 0. Keys ending in _ms are milliseconds, _s seconds.",
    )
    row = made["$defs"]["benchmark"]
    row["description"] = (
        "One cell of an instance: medians over its runs. results/<run>/runs.jsonl has the runs, with the same keys but "
        "runs, cv and interval."
    )
    batches, *latencies = (*BATCH_KEYS, *LATENCY_KEYS)
    row["properties"][batches] = {
        "description": "Batches timed (latency benchmark).", "type": ["integer", "null"], "minimum": 0
    }  # fmt: skip
    row["properties"] |= {key: {"type": ["number", "null"], "minimum": 0} for key in latencies}
    row["patternProperties"] = {
        "^p[0-9]+(\\.[0-9]+)?_(ttft|tpot|itl|e2el|batch_latency)_ms$": {"type": ["number", "null"]}
    }
    row["required"] += [batches, *latencies]
    return made
