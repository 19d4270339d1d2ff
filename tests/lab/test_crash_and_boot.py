# SPDX-License-Identifier: Apache-2.0
"""Crashes and boots: what ends comes back, in bounds, with its first error told, and on clean GPUs only."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

from .conftest import Lab, Run, copy_inventory, reset_lab
from .faults import DockerKilled
from .helpers import MODEL, completion, deployment, wait_for

HOST = "lab-n1"
RUNBOOK = (ROOT / "docs/runbooks/crash.md").read_text(encoding="utf-8")
BLOCKS = "".join(re.findall(r"```console\n(.+?)```", RUNBOOK, re.DOTALL))
COMMANDS = re.findall(r"^[$#] .+$", BLOCKS, re.MULTILINE)
ENGINES = "docker top {container} -eo pid,args | grep -v 'PID\\|docker-init\\|supervise.py' || true"
STRANDED = """
cat > /etc/systemd/system/stranded.service << 'END'
[Unit]
Before=docker.service
[Service]
Type=oneshot
ExecStart=/usr/local/bin/gpusim fault stranded=46111@0
[Install]
WantedBy=multi-user.target
END
systemctl enable stranded
"""


class Node:
    """The node with two instances: llama-0 on GPU 0, and fragile-0 on GPU 1, which dies at its fourth request."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def book(self, text: str) -> Run:
        """Run the runbook's command that begins so."""
        (command,) = [line for line in COMMANDS if text in line]
        words = command[2:].replace(",lb-01", "").replace("mi300x-01", HOST)
        if command.startswith("# "):
            return Run(0, self.lab.on(HOST, words), [])
        playbook, *args = shlex.split(words.replace("ansible-playbook -i inventory/mine playbooks/", ""))
        return self.lab.play(playbook.removesuffix(".yml"), *args)

    def said(self, name: str = "llama-0") -> dict[str, Any]:
        """state.json of an instance."""
        return json.loads(self.lab.on(HOST, f"cat /var/lib/instinct-fleet/cache/{name}/supervise/state.json"))

    def policies(self) -> dict[str, str]:
        """Each instance's restart policy, as Docker has it."""
        return self._inspected("{{.HostConfig.RestartPolicy.Name}}")

    def status(self) -> dict[str, str]:
        """Each instance's status; {} while Docker does not answer."""
        return self._inspected("{{.State.Status}}")

    def started(self, name: str) -> str:
        """When Docker has started an instance's container."""
        return self._inspected("{{.State.StartedAt}}")[name]

    def _inspected(self, field: str) -> dict[str, str]:
        show = f"docker inspect -f '{field}' instinct-"
        values = {
            name: self.lab.on(HOST, show + name, check=False).strip() for name in ("llama-0", "fragile-0")
        }
        return {name: value for name, value in values.items() if value}

    def engines(self, name: str = "llama-0") -> list[str]:
        """Processes in a container besides the supervisor."""
        return self.lab.on(HOST, ENGINES.format(container=f"instinct-{name}")).splitlines()

    def restarts(self, name: str = "llama-0") -> int:
        return int(self.lab.on(HOST, f"docker inspect -f '{{{{.RestartCount}}}}' instinct-{name}"))

    def serves(self, port: int = 8000) -> bool:
        try:
            return completion(self.lab, HOST, port)["usage"]["completion_tokens"] == 4
        except (AssertionError, ValueError):
            return False


@pytest.fixture(scope="module")
def node(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("crash"))
    lab.write_vars(
        vllm_deployments=[
            deployment(gpus=[0], hosts=[HOST]),
            deployment(
                name="fragile", gpus=[1], port=8100, served_model_name="fragile", hosts=[HOST],
                env={"STANDIN_CRASH_AFTER": 3},
            ),
        ]
    )  # fmt: skip
    run = lab.play("site", "--limit", HOST, "--skip-tags", "benchmark")
    assert run.rc == 0, run.out[-3000:]
    yield Node(lab)
    reset_lab()


def test_an_engine_that_is_killed_comes_back(node: Node) -> None:
    (line,) = node.engines()
    node.lab.on(HOST, f"kill -9 {line.split()[0]}")
    wait_for("tokens", node.serves)
    assert (node.restarts(), [item["kind"] for item in node.said()["failures"]]) == (1, ["killed"])


def test_an_engine_that_dies_with_exit_code_0_comes_back(node: Node) -> None:
    for _ in range(3):
        node.lab.on(HOST, ask("fragile", 8100), check=False)
    wait_for("its end", lambda: node.restarts("fragile-0") == 1)
    (failure,) = node.said("fragile-0")["failures"]
    assert failure["code"] == 0
    assert "EngineDeadError" in failure["line"]
    wait_for("its start", lambda: node.said("fragile-0")["state"] == "running")


def ask(model: str, port: int) -> str:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1})
    program = (
        f"import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:{port}/v1/completions', {body!r}.encode(), "
        "{'Content-Type': 'application/json'}), timeout=120)"
    )
    return f"python3 -c {shlex.quote(program)}"


def test_a_crash_loop_is_bounded_and_told_with_its_first_error(node: Node) -> None:
    weights = f"/var/lib/instinct-fleet/hf/hub/models--{MODEL.replace('/', '--')}/snapshots/*/*.safetensors"
    node.lab.on(HOST, f"rm $(ls {weights} | head -n 1) && docker restart instinct-llama-0")
    wait_for("the end of its tries", lambda: node.said()["state"] == "gave_up")
    assert (node.engines(), node.restarts()) == ([], 2)
    assert [item["kind"] for item in node.said()["failures"]] == ["missing_weights"] * 3
    assert (
        "supervise: gave up after 3 failures in a row, the first one missing_weights"
        in node.book("docker logs").out
    )
    assert '"state": "gave_up"' in node.book("cat").out
    assert "Cannot find any model weights" in node.book("failure-1.log").out
    status = node.book("status.yml")
    assert status.rc == 2, status.out
    assert "missing_weights" in status.out
    # The GPU is free, so anything may use it meanwhile.
    assert int(node.lab.on(HOST, "cat /sys/class/drm/renderD128/device/mem_info_vram_used")) < 1 << 30

    run = node.book("site.yml")
    assert run.rc == 0, run.out[-3000:]
    assert (
        "it gave up after 3 failures: missing_weights: RuntimeError: Cannot find any model weights" in run.out
    )
    assert node.serves()
    assert node.said()["failures"] == []


@pytest.mark.deep
def test_what_was_stopped_stays_so_and_what_serves_comes_back(node: Node) -> None:
    """However Docker ends, and over a boot; the restart policy is said to whoever looks at the container."""
    docker = DockerKilled(HOST)
    stopped = node.lab.play("stop", "-e", "instance=llama-0", "-e", "at_once=true")
    assert stopped.rc == 0, stopped.out
    assert node.policies() == {"llama-0": "no", "fragile-0": "always"}

    def comes_back() -> None:
        wait_for("the other instance", lambda: node.status() == {"llama-0": "exited", "fragile-0": "running"})
        wait_for("its engine", lambda: node.said("fragile-0")["state"] == "running")

    docker.begin(node.lab)
    docker.end(node.lab)
    comes_back()
    node.lab.reboot(HOST)
    comes_back()
    # A run that was interrupted between the policy and the stop: the plan shows it, and nothing is restarted.
    started = node.started("fragile-0")
    node.lab.on(HOST, "docker update --restart no instinct-fragile-0")
    site = node.lab.play("site", "--skip-tags", "benchmark")
    assert site.rc == 0, site.out
    assert "restart policy fragile-0: no → always" in site.out
    assert node.policies() == dict.fromkeys(("llama-0", "fragile-0"), "always")
    assert node.started("fragile-0") == started
    wait_for("tokens", node.serves)
    again = node.lab.play("site", "--skip-tags", "benchmark")
    assert (again.rc, again.changed()) == (0, []), again.out


@pytest.mark.deep
def test_after_a_boot_it_waits_for_clean_gpus_and_then_serves_by_itself(node: Node) -> None:
    node.lab.on(HOST, STRANDED)
    node.lab.reboot(HOST)
    wait_for("the other instance", lambda: node.said("fragile-0")["state"] == "running")
    wait_for("a state", lambda: node.said()["state"] == "waiting")
    # It says anew what it sees every two seconds; while the node comes up, that may be more.
    reason = "GPU memory is in use before vLLM was started: renderD128 (45.3 GiB)"
    wait_for("its reason", lambda: reason in node.said()["why"])
    assert node.engines() == []
    node.lab.on(
        HOST,
        "gpusim fault clear stranded; systemctl disable stranded; rm /etc/systemd/system/stranded.service",
    )
    wait_for("tokens", node.serves)
    assert node.restarts() == 0
    clean = node.book("partition.yml")
    assert clean.rc == 0, clean.out


def test_every_command_of_the_runbook_is_run() -> None:
    """By the tests above, which ask for each by a part of it."""
    asked = re.findall(r'node\.book\("(.+?)"\)', Path(__file__).read_text(encoding="utf-8"))
    assert COMMANDS
    assert sorted(line for text in asked for line in COMMANDS if text in line) == sorted(COMMANDS)
