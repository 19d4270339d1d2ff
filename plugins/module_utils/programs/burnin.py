# SPDX-License-Identifier: Apache-2.0
"""Test the GPUs of a node with PyTorch alone, and print one line of JSON: inside a container of a vLLM image.

Phases: each GPU by itself, all at the same time (GEMM in several types with a check of every result, memory copy);
copies between each pair; all-reduce over all. Each phase has its own processes: a GPU that hangs or crashes one of them
does not end the others. Arguments: a JSON object of `BurninOptions`; a process of a phase also gets its name and rank.

The matrices hold whole numbers from -15 to 15. Every product and sum is exact in 32-bit accumulators, in any order, so
any element that differs from the first result was computed or stored wrong.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

MARK = "instinct-burnin: "
"""Begins the line with a result: libraries print lines of their own."""
MIB = 1 << 20
CHECKED_ROWS = 64


@dataclass(frozen=True)
class BurninOptions:
    """What to run.

    Attributes:
        device: gpu, or cpu to try the program without one
        seconds: duration of GEMM in each type; phase_seconds: limit of a phase
        size: rows and columns of the matrices
        copy_mib, peer_mib: bytes copied at once in memory, and between GPUs
        reduce_mib: sizes of the all-reduce
    """

    device: str = "gpu"
    seconds: float = 30.0
    size: int = 8192
    copy_mib: int = 4096
    peer_mib: int = 256
    reduce_mib: tuple[int, ...] = (1, 16, 256, 1024)
    phase_seconds: float = 600.0
    ranks: int = 2


class Device:
    """One GPU, or the CPU in its place."""

    def __init__(self, torch: Any, options: BurninOptions, rank: int) -> None:
        self.torch = torch
        self.gpu = options.device == "gpu"
        self.name = f"cuda:{rank}" if self.gpu else "cpu"
        if self.gpu:
            torch.cuda.set_device(rank)

    def wait(self) -> None:
        """Wait for what was submitted."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def timed(self, run: Callable[[], Any], seconds: float, least: int = 3) -> tuple[int, float]:
        """Run again and again. Return how often and in how many seconds."""
        run()
        self.wait()
        count, start = 0, time.perf_counter()
        while count < least or time.perf_counter() - start < seconds:
            run()
            count += 1
            if count % 8 == 0:
                self.wait()
        self.wait()
        return count, time.perf_counter() - start


def describe(torch: Any, options: BurninOptions, rank: int) -> dict[str, Any]:
    """Return what a device is; its address where this PyTorch knows it."""
    if options.device != "gpu":
        return {"gpu": rank, "name": "CPU", "arch": None, "bdf": None, "memory_bytes": None}
    found = torch.cuda.get_device_properties(rank)
    place = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [int(part) for part in place if part is not None]
    bdf = "{:04x}:{:02x}:{:02x}.0".format(*known) if len(known) == 3 else None
    arch = getattr(found, "gcnArchName", "").split(":")[0] or None
    return {"gpu": rank, "name": found.name, "arch": arch, "bdf": bdf, "memory_bytes": found.total_memory}


def types(torch: Any, options: BurninOptions, arch: str | None) -> dict[str, Any]:
    """Return the types to multiply: 8 bits in the form that the hardware has."""
    if options.device != "gpu":
        return {"bf16": torch.bfloat16}
    eight = "float8_e4m3fnuz" if (arch or "").startswith("gfx94") else "float8_e4m3fn"
    found = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return {**found, "fp8": getattr(torch, eight)} if hasattr(torch, eight) else found


def gemm(device: Device, options: BurninOptions, kind: Any) -> dict[str, Any]:
    """Multiply for some time. Return TFLOPS, wrong elements, and whether sampled rows equal those of the CPU."""
    torch, size = device.torch, options.size
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        setattr(torch.backends.cuda.matmul, name, False)
    generator = torch.Generator().manual_seed(size)
    whole = [
        torch.randint(-15, 16, (size, size), generator=generator).to(torch.float32) for _matrix in range(2)
    ]
    left, right = (matrix.to(device.name).to(kind) for matrix in whole)
    if kind.itemsize == 1:
        one = torch.ones((), device=device.name)
        right = right.t().contiguous().t()  # the 8-bit product needs contiguous columns

        def multiply() -> Any:
            return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    else:

        def multiply() -> Any:
            return left @ right

    first = multiply()
    rows = torch.arange(0, size, max(1, size // CHECKED_ROWS))
    expected = (whole[0][rows].double() @ whole[1].double()).to(first.dtype)
    right_rows = bool(torch.equal(first[rows.to(device.name)].cpu(), expected))
    wrong = torch.zeros((), dtype=torch.int64, device=device.name)

    def step() -> None:
        wrong.add_((multiply() != first).sum())

    count, seconds = device.timed(step, options.seconds)
    # The comparison takes part of the time, so the speed is measured without it.
    count_fast, seconds_fast = device.timed(multiply, min(3.0, options.seconds))
    return {
        "tflops": 2 * size**3 * count_fast / seconds_fast / 1e12,
        "products": count,
        "seconds": seconds,
        "wrong_elements": int(wrong),
        "rows_right": right_rows,
    }


def copy_rate(device: Device, options: BurninOptions) -> float:
    """Return the rate of a copy within the device's memory in GB/s: bytes read and bytes written."""
    source = device.torch.ones(options.copy_mib * MIB // 4, dtype=device.torch.float32, device=device.name)
    target = device.torch.empty_like(source)
    count, seconds = device.timed(lambda: target.copy_(source), min(3.0, options.seconds))
    return float(2 * options.copy_mib * MIB * count / seconds / 1e9)


def attempt(run: Callable[[], Any]) -> Any:
    """Return the result, or {"error": …}: what one test cannot do does not end the others."""
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}


def alone(torch: Any, options: BurninOptions, rank: int) -> dict[str, Any]:
    """Test one device by itself."""
    device, facts = Device(torch, options, rank), describe(torch, options, rank)
    kinds = types(torch, options, facts["arch"])
    results = {name: attempt(partial(gemm, device, options, kind)) for name, kind in kinds.items()}
    return {**facts, "gemm": results, "copy_gbps": attempt(lambda: copy_rate(device, options))}


def peers(torch: Any, options: BurninOptions, _rank: int) -> dict[str, Any]:
    """Copy between each pair of devices, one after another. Return GB/s by source and target, and wrong copies."""
    rates: dict[str, dict[str, Any]] = {}
    for source in range(torch.cuda.device_count()):
        for target in range(torch.cuda.device_count()):
            if source != target:
                rates.setdefault(str(source), {})[str(target)] = attempt(
                    partial(_peer, torch, options, source, target)
                )
    return {"rates": rates}


def _peer(torch: Any, options: BurninOptions, source: int, target: int) -> float:
    device = Device(torch, options, source)
    sent = torch.arange(options.peer_mib * MIB // 4, dtype=torch.int32, device=f"cuda:{source}")
    got = torch.zeros_like(sent, device=f"cuda:{target}")
    count, seconds = device.timed(lambda: got.copy_(sent), min(0.5, options.seconds))
    torch.cuda.synchronize(target)
    if not torch.equal(got.cpu(), sent.cpu()):
        raise ValueError("the copy differs from what was sent")
    return float(options.peer_mib * MIB * count / seconds / 1e9)


def reduce(torch: Any, options: BurninOptions, rank: int) -> dict[str, Any]:
    """All-reduce over all devices. Return the bus bandwidth in GB/s by size in MiB, as rccl-tests defines it."""
    device = Device(torch, options, rank)
    torch.distributed.init_process_group("nccl" if device.gpu else "gloo")
    ranks, rates = torch.distributed.get_world_size(), {}
    for mib in options.reduce_mib:
        data = torch.ones(mib * MIB // 4, dtype=torch.float32, device=device.name)
        torch.distributed.all_reduce(data)
        device.wait()
        if not bool((data == ranks).all()):
            raise ValueError(f"the sum of {mib} MiB over all devices is wrong")
        data.zero_()
        # A fixed number, so that all ranks run it the same number of times.
        count, seconds = device.timed(partial(torch.distributed.all_reduce, data), 0.0, 20)
        rates[str(mib)] = 2 * (ranks - 1) / ranks * mib * MIB * count / seconds / 1e9
    torch.distributed.destroy_process_group()
    return {"rates": rates}


PHASES: dict[str, Callable[[Any, BurninOptions, int], dict[str, Any]]] = {
    "alone": alone,
    "peers": peers,
    "reduce": reduce,
}


def run_phase(name: str, options: BurninOptions, ranks: int) -> list[dict[str, Any]]:
    """Run the processes of a phase. Return the result of each rank; what failed has an `error`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = json.dumps(vars(options))
    # Files, because a pipe that nobody reads would stop a process that prints much, and all that wait for it.
    outputs = [tempfile.TemporaryFile("w+") for _unused in range(ranks)]  # noqa: SIM115
    processes = [
        subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), text, name, str(rank)],
            stdout=outputs[rank],
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + options.phase_seconds
    results = [_result(process, file, deadline) for process, file in zip(processes, outputs)]
    return [{"gpu": rank, **result} for rank, result in enumerate(results)]


def _result(process: Any, output: Any, deadline: float) -> dict[str, Any]:
    try:
        process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": "did not finish in time: the GPU hangs, or is very slow"}
    output.seek(0)
    text = output.read()
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if lines:
        return dict(json.loads(lines[-1][len(MARK) :]))
    last = [line for line in text.splitlines() if line.strip()][-1:]
    return {"error": f"ended with exit code {process.returncode}: {' '.join(last)[:300]}"}


def phases(options: BurninOptions, count: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run all phases that this number of devices has."""
    yield "alone", run_phase("alone", options, count)
    if count > 1:
        if options.device == "gpu":
            yield "peers", run_phase("peers", options, 1)
        yield "reduce", run_phase("reduce", options, count)


def _print(found: object) -> None:
    """Print a result, which the program's caller finds by its mark."""
    sys.stdout.write(f"{MARK}{json.dumps(found)}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Print the result of all phases, or that of one process of a phase."""
    torch = importlib.import_module("torch")  # the image has it
    given = json.loads(arguments[0]) if arguments else {}
    options = BurninOptions(
        **{**given, "reduce_mib": tuple(given.get("reduce_mib", BurninOptions.reduce_mib))}
    )
    if len(arguments) > 1:
        rank = int(arguments[2])
        _print(attempt(lambda: PHASES[arguments[1]](torch, options, rank)))
        return 0
    count = torch.cuda.device_count() if options.device == "gpu" else options.ranks
    found: dict[str, Any] = {"device": options.device, "torch": torch.__version__, "count": count}
    if not count:
        _print({**found, "error": "PyTorch sees no GPU"})
        return 1
    _print({**found, **dict(phases(options, count))})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
