# SPDX-License-Identifier: Apache-2.0
"""gpu_burnin: refused while GPUs are used, one container with all of them, and devices known by their address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import burnin
from ansible_collections.instinct.fleet.plugins.module_utils.bench.burnin import BurninRequest, burn_in
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.observe.gpus import read_gpus
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.programs import burnin as program

from tests.worlds.bench_world import IMAGE
from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program
from tests.worlds.gpu_tree import Tree, write

REQUEST = BurninRequest(IMAGE, "print('tested')", {"device": "gpu", "seconds": 1}, 60)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    tree = Tree(tmp_path / "node").build()
    write(tree.root / "dev/kfd", "")
    return tree


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        yield fake


def answers(found: dict[str, Any], code: int = 0) -> Program:
    """A container that prints a result."""

    def run(container: FakeContainer) -> int:
        container.log = f"a library's line\n{burnin.MARK}{json.dumps(found)}\n"
        return code

    return run


def found(count: int = 8, **more: Any) -> dict[str, Any]:
    alone = [{"gpu": gpu, "bdf": None, "copy_gbps": 4000.0, "gemm": {}} for gpu in range(count)]
    rates = {str(a): {str(b): 44.0 for b in range(count) if b != a} for a in range(count)}
    return {
        "device": "gpu", "torch": "2.8", "count": count, "alone": alone, "peers": [{"gpu": 0, "rates": rates}],
        "reduce": [{"gpu": gpu, "rates": {"1": 9.0}} for gpu in range(count)], **more,
    }  # fmt: skip


def run(tree: Tree, docker: FakeDocker, check: bool = False) -> dict[str, Any]:
    return burn_in(lambda: DockerClient(docker.path), REQUEST, check, str(tree.root))


def test_a_node_is_tested_in_one_container_with_all_gpus(tree: Tree, docker: FakeDocker) -> None:
    seen: list[FakeContainer] = []

    def program_of(container: FakeContainer) -> int:
        seen.append(container)
        return answers(found())(container)

    docker.programs[burnin.CONTAINER] = program_of
    done = run(tree, docker)["burnin"]
    (container,) = seen
    host = container.body["HostConfig"]
    assert [item["PathOnHost"] for item in host["Devices"]] == [
        "/dev/kfd", *(f"/dev/dri/renderD{128 + 8 * gpu}" for gpu in range(8))
    ]  # fmt: skip
    assert host["NetworkMode"] == "none"
    assert "Binds" not in host
    assert container.body["Entrypoint"][4:] == ["print('tested')", '{"device": "gpu", "seconds": 1}']
    assert burnin.CONTAINER not in docker.containers
    # Without an address from PyTorch the devices are the GPUs in PCI order.
    assert [gpu["bdf"] for gpu in done["gpus"]] == [gpu["bdf"] for gpu in read_gpus(Source(str(tree.root)))]
    assert done["gpus"][2]["peer_gbps"] == {str(other): 44.0 for other in range(8) if other != 2}
    assert done["gpus"][2]["telemetry"]["bdf"] == done["gpus"][2]["bdf"]
    assert done["reduce"][0] == {"gpu": 0, "rates": {"1": 9.0}}
    assert done["tools"] == {"rvs": None, "all_reduce_perf": None, "TransferBench": None}


def test_an_address_from_pytorch_counts_more_than_the_order(tree: Tree, docker: FakeDocker) -> None:
    answer = found(1)
    answer["alone"][0]["bdf"] = "0000:65:00.0"
    docker.programs[burnin.CONTAINER] = answers(answer)
    (gpu,) = run(tree, docker)["burnin"]["gpus"]
    assert (gpu["bdf"], gpu["index"], gpu["device_id"]) == ("0000:65:00.0", 3, 0x74A1)


def test_devices_that_cannot_be_told_have_no_address(tree: Tree, docker: FakeDocker) -> None:
    docker.programs[burnin.CONTAINER] = answers(found(3))
    assert [gpu["bdf"] for gpu in run(tree, docker)["burnin"]["gpus"]] == [None] * 3


def test_used_gpus_are_refused_before_anything_starts(tree: Tree, docker: FakeDocker) -> None:
    tree.hold(4242, "python3 train.py")
    gpu_id = read_gpus(Source(str(tree.root)))[3]["partitions"][0]["gpu_id"]
    write(tree.root / f"sys/class/kfd/kfd/proc/4242/vram_{gpu_id}", "1\n")
    with pytest.raises(NodeError, match=r"GPU 3 is in use \(pid 4242\).*playbooks/burnin.yml"):
        run(tree, docker)
    assert docker.changes() == []


def test_no_gpu_and_no_image_are_said_before_anything_starts(
    tmp_path: Path, tree: Tree, docker: FakeDocker
) -> None:
    with pytest.raises(NodeError, match="No GPU of AMD's driver"):
        burn_in(lambda: DockerClient(docker.path), REQUEST, False, str(tmp_path / "empty"))
    docker.images.clear()
    with pytest.raises(NodeError, match="is not on this node"):
        run(tree, docker)
    assert docker.changes() == []


def test_check_mode_starts_nothing(tree: Tree, docker: FakeDocker) -> None:
    done = run(tree, docker, check=True)
    assert done["burnin"] is None
    assert len(done["actions"]) == 2
    assert docker.changes() == []


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (
            {"device": "gpu", "torch": "2.8", "count": 0, "error": "PyTorch sees no GPU"},
            1,
            "PyTorch sees no GPU",
        ),
        (None, 1, "ended with exit code 1: ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_a_test_that_cannot_run_is_a_failure_with_its_reason(
    tree: Tree, docker: FakeDocker, answer: dict[str, Any] | None, code: int, reason: str
) -> None:
    def fails(container: FakeContainer) -> int:
        container.log = "ModuleNotFoundError: No module named 'torch'\n"
        return code

    docker.programs[burnin.CONTAINER] = answers(answer, code) if answer else fails
    with pytest.raises(NodeError, match=reason):
        run(tree, docker)
    assert burnin.CONTAINER not in docker.containers


def test_tools_of_the_host_are_named(tree: Tree) -> None:
    write(tree.root / "opt/rocm/bin/rvs", "#!/bin/sh\n")
    assert burnin.tools(str(tree.root))["rvs"] is None
    (tree.root / "opt/rocm/bin/rvs").chmod(0o755)
    assert burnin.tools(str(tree.root))["rvs"] == "/opt/rocm/bin/rvs"


# ---- the program: its processes, without PyTorch ---------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"print('x'); print({program.MARK!r} + '{{\"copy_gbps\": 1}}'); print('y')", {"gpu": 0, "copy_gbps": 1}),
        ("import os; print('HIP error: lost', flush=True); os._exit(3)",
         {"gpu": 0, "error": "ended with exit code 3: HIP error: lost"}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {"gpu": 0, "error": "ended with exit code -11: "}),
        ("import time; time.sleep(600)", {"gpu": 0, "error": "did not finish in time: the GPU hangs, or is very slow"}),
    ],
)  # fmt: skip
def test_a_process_that_dies_or_hangs_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: dict[str, Any]
) -> None:
    path = tmp_path / "phase.py"
    path.write_text(script)
    monkeypatch.setattr(program, "__file__", str(path))
    limit = 1.0 if "sleep" in script else 60.0
    assert program.run_phase("alone", program.BurninOptions(phase_seconds=limit), 1) == [expected]


def test_what_one_test_cannot_do_is_its_error() -> None:
    def fails() -> None:
        raise RuntimeError("not supported\nat line 3")

    assert program.attempt(fails) == {"error": "RuntimeError: not supported"}
    assert program.attempt(lambda: 5) == 5


@pytest.mark.parametrize(
    ("arch", "eight"), [("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn"), (None, "float8_e4m3fn")]
)
def test_eight_bits_have_the_form_of_the_hardware(arch: str | None, eight: str) -> None:
    class Torch:
        float16 = bfloat16 = ""
        float8_e4m3fn, float8_e4m3fnuz = "float8_e4m3fn", "float8_e4m3fnuz"

    assert program.types(Torch, program.BurninOptions(), arch)["fp8"] == eight


def test_the_mark_is_that_of_the_program() -> None:
    assert burnin.MARK == program.MARK
