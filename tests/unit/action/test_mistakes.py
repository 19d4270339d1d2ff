# SPDX-License-Identifier: Apache-2.0
"""What operators get wrong ends a real ansible-playbook with place and fix, before a host is contacted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.playbooks import Playbooks

GROUP_VARS = "group_vars/instinct"
DEPLOYMENTS = f"{GROUP_VARS}/deployments.yml"
HARDWARE = f"{GROUP_VARS}/hardware.yml"
SECRETS = f"{GROUP_VARS}/secrets.yml"
OFFLINE = ("-e", "offline=true")
Change = Callable[[Path], object]


@dataclass(frozen=True)
class Mistake:
    """What an operator does, and what the run has to say; without `offline`, it would contact the hosts."""

    said: tuple[str, ...]
    change: Change = lambda place: None
    args: tuple[str, ...] = ()
    playbook: str = "plan"
    inventory: str = "mine"
    offline: bool = True


def edit(file: str, old: str, new: str) -> Change:
    """Replace a text of a file, once."""

    def change(place: Path) -> None:
        text = (place / file).read_text(encoding="utf-8")
        assert old in text
        (place / file).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def add(file: str, text: str) -> Change:
    """Add a text to the end of a file, which may be new."""

    def change(place: Path) -> None:
        (place / file).parent.mkdir(exist_ok=True)
        with (place / file).open("a", encoding="utf-8") as stream:
            stream.write(text)

    return change


def key(line: str) -> Change:
    """Add a key to the first deployment."""
    return edit(DEPLOYMENTS, "    objective: throughput", f"    {line}\n    objective: throughput")


def command(*args: str, said: tuple[str, ...], playbook: str = "plan") -> Mistake:
    """Return a mistake of the command line, with hosts that a run would contact."""
    return Mistake(said, args=args, playbook=playbook, offline=False)


MODEL = "amd/Llama-3.1-8B-Instruct-FP8-KV"
IMAGE = "vllm/vllm-openai-rocm:v0.33.0"
BALANCER = "\nload_balancer:\n  hosts:\n    lb-01:\n      ansible_host: 192.0.2.10\n"

MISTAKES = {
    # The inventory
    "no inventory": Mistake(("no inventory was given", "-i inventory/mine"), inventory="", offline=False),
    "a path that does not exist": Mistake(
        ("-i mein: does not exist", "Did you mean mine?"), inventory="mein", offline=False
    ),
    "another name for the group of servers": Mistake(
        ("no host in the group instinct", "gpu_servers (2)"), edit("hosts.yml", "instinct:", "gpu_servers:")
    ),
    "a misspelled group of servers": Mistake(
        ("Rename instincts to instinct",), edit("hosts.yml", "instinct:", "instincts:")
    ),
    "a misspelled group of balancers": Mistake(
        ("Rename loadbalancer to load_balancer",), add("hosts.yml", BALANCER.replace("load_b", "loadb"))
    ),
    "a file of variables for a misspelled group": Mistake(
        ("group_vars/instnct.yml: the inventory has no group instnct. Did you mean instinct?",),
        add("group_vars/instnct.yml", "a: 1\n"),
    ),
    "a file of variables for a misspelled host": Mistake(
        ("host_vars/m300x-01.yml: the inventory has no host m300x-01. Did you mean mi300x-01?",),
        add("host_vars/m300x-01.yml", "a: 1\n")
    ),
    "no host in the group": Mistake(
        ("no host in the group instinct",), lambda place: (place / "hosts.yml").write_text("instinct:\n  hosts:\n")
    ),
    "hosts that are not YAML": Mistake(("hosts.yml:", "is not valid YAML"), add("hosts.yml", "    b: [\n")),
    "hosts in the wrong form": Mistake(
        ("hosts.yml: cannot be read as an inventory",),
        lambda place: (place / "hosts.yml").write_text("instinct:\n  hosts:\n    - a\n    - b\n"),
    ),
    "one of two inventory files is broken": Mistake(
        ("more.yml:3:1: is not valid YAML",), add("more.yml", "a:\n  b: {\n")
    ),
    "a tab in the deployments": Mistake(
        ("deployments.yml:11:1: is not valid YAML", "spaces instead of a tab"),
        edit(DEPLOYMENTS, "    objective", "\tobjective"),
    ),
    "an indentation in the deployments": Mistake(
        ("deployments.yml:", "is not valid YAML", "indentation"), edit(DEPLOYMENTS, "    image:", "   image:")
    ),
    "a key twice": Mistake(
        ("deployments.yml:13: instances_per_host is also set in line 11",), key("instances_per_host: 2")
    ),
    "deployments in two files": Mistake(
        (f"vllm_deployments: is set in mine/{DEPLOYMENTS}:4 and in mine/{GROUP_VARS}/test.yml:4;",
         "Ansible takes only mine/group_vars/instinct/test.yml:4. Keep one of them."),
        lambda place: shutil.copy(place / DEPLOYMENTS, place / GROUP_VARS / "test.yml"),
    ),
    "a vaulted file without its password": Mistake(
        ("group_vars/instinct/vault.yml: cannot be read:", "--ask-vault-pass, or --vault-password-file FILE."),
        add(f"{GROUP_VARS}/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n" + "61" * 40 + "\n"),
    ),
    "a misspelled argument of a benchmark": Mistake(
        ("benchmark_serve_args.num_promts", "is not an argument of vLLM's serve", "Did you mean num_prompts?"),
        add(HARDWARE, "benchmark_serve_args: {num_promts: 64, max_concurrency: 8}\n"),
    ),
    "a misspelled suite": Mistake(
        ("benchmark_suite.suite servin (hosts", "unknown suite. Did you mean serving?"),
        add(HARDWARE, "benchmark_suite: servin\n"),
    ),
    "a misspelled variable of the connection": Mistake(
        ("ansible_hots (host mi300x-01", "hosts.yml:", "Did you mean ansible_host?"),
        edit("hosts.yml", "ansible_host", "ansible_hots"),
    ),
    "one machine under two names": Mistake(
        ("ansible_host (hosts mi300x-01, mi300x-02", "one machine"), edit("hosts.yml", "192.0.2.12", "192.0.2.11")
    ),
    # The command line
    "a start in the middle": command(
        "--start-at-task", "Run the instances", playbook="site", said=("completed steps are not repeated",)
    ),
    "a start at no task": command("--start-at-task", "Nope", playbook="site", said=("--start-at-task Nope",)),
    "a drain without a load balancer": command(
        "--limit", "mi300x-01", playbook="drain", said=("no host in the group load_balancer", "endpoint.md")
    ),
    "a misspelled -e": command("-e", "offlin=true", said=("-e offlin", "Did you mean offline?")),
    "a misspelled -e of a changing playbook": command(
        "-e", "deploymnt=llama", playbook="upgrade", said=("-e deploymnt", "Did you mean deployment?")
    ),
    "a misspelled -e where no plan is made": command(
        "-e", "detial=true", playbook="status", said=("-e detial", "Did you mean detail?")
    ),
    "a former name with -e": command(
        "-e", "again=true", "-e", "upgrade_serial=2", playbook="upgrade",
        said=("-e again: is now called retry. Write -e retry=…", "-e upgrade_serial: is now called rollout_serial."),
    ),
    "a value that is no boolean": command("-e", "explain=treu", said=("-e explain=treu: must be true or false",)),
    "a limit that matches nothing": command("--limit", "mi300x-9", said=("mi300x-9",)),
    "a limit of which a part matches nothing": command(
        "--limit", "mi300x-01,mi300x-2", said=("--limit mi300x-2: no host", "Did you mean mi300x-02?")
    ),
    "an exclusion that excludes nothing": command("--limit", "all:!mi300x-2", said=("--limit !mi300x-2: no host",)),
    "an unknown tag": command(
        "--tags", "bnechmark", playbook="site", said=("tag bnechmark: no task has it. Did you mean benchmark?",)
    ),
    "an unknown tag to skip": command("--skip-tags", "benchmarks", playbook="site", said=("Did you mean benchmark?",)),
    "offline for a changing playbook": command(
        "-e", "offline=true", playbook="site", said=("an offline plan cannot be applied", "run plan.yml")
    ),
    "an offline rollback": command(
        "-e", "offline=true", "-e", "deployment=llama-8b", playbook="rollback", said=("plan.yml plans offline",)
    ),
    # Variables
    "a misspelled variable": Mistake(
        ("gpu_partiton_compute (hosts mi300x-01, mi300x-02", "hardware.yml:9", "Did you mean gpu_partition_compute?"),
        edit(HARDWARE, "gpu_partition_compute", "gpu_partiton_compute"),
    ),
    "a former name where no plan is made": Mistake(
        ("upgrade_min_in: is set in mine/group_vars/instinct/hardware.yml:", "is now called rollout_min_available."),
        lambda place: (add(HARDWARE, "upgrade_min_in: 75%\n")(place), add("hosts.yml", BALANCER)(place)),
        args=("--limit", "mi300x-01"),
        playbook="drain",
        offline=False,
    ),
    "a former name in the file of the hosts, where no plan is made": Mistake(
        ("Nothing was done. upgrade_min_in: is now called rollout_min_available. Rename it.",),
        lambda place: (
            edit("hosts.yml", "ansible_user: ops", "ansible_user: ops\n    upgrade_min_in: 75%")(place),
            add("hosts.yml", BALANCER)(place),
        ),
        args=("--limit", "mi300x-01"),
        playbook="drain",
        offline=False,
    ),
    "a former name in the file of the hosts": Mistake(
        ("upgrade_soak (hosts mi300x-01, mi300x-02, mine/hosts.yml:", "is now called rollout_soak. Rename it."),
        edit("hosts.yml", "    ansible_user: ops", "    ansible_user: ops\n    upgrade_soak: 5"),
    ),
}  # fmt: skip
# Mistakes in values, and more files that look left behind, at night: each costs a run.
AT_NIGHT = {
    "old deployments": Mistake(
        ("deployments_old.yml: looks left behind", "It sets vllm_deployments."),
        lambda place: shutil.copy(place / DEPLOYMENTS, place / GROUP_VARS / "deployments_old.yml"),
    ),
    "a file beside the group's directory": Mistake(
        ("group_vars/instinct.yml: Ansible does not read it, because mine/group_vars/instinct/ is there.",),
        add("group_vars/instinct.yml", "store_quota: 1\n"),
    ),
    "groups that contradict each other": Mistake(
        ("gpu_partition_compute (host mi300x-01", "hardware.yml:9) and rack (mine/hosts.yml:", "set it differently"),
        add("hosts.yml", "rack:\n  hosts:\n    mi300x-01:\n  vars:\n    gpu_partition_compute: CPX\n"),
    ),
    "a copy of the deployments": Mistake(
        ("deployments copy.yml: looks left behind, but Ansible reads it. It sets vllm_deployments.",),
        lambda place: shutil.copy(place / DEPLOYMENTS, place / GROUP_VARS / "deployments copy.yml"),
    ),
    "a copy of the hosts": Mistake(
        ("hosts copy.yml: looks left behind, but Ansible reads it. It defines instinct, mi300x-01, mi300x-02.",),
        lambda place: shutil.copy(place / "hosts.yml", place / "hosts copy.yml"),
    ),
    "a variable without one of its words": Mistake(
        ("hf_token_file", "secrets.yml:6", "Did you mean hf_model_token_file?"),
        add(SECRETS, "hf_token_file: ~/.token\n"),
    ),
    "a token file that does not exist": Mistake(
        ("hf_model_token_file (", "secrets.yml:5", "/nonesuch cannot be read"),
        edit(SECRETS, 'token_file: ""', "token_file: /nonesuch"),
    ),
    "an unknown partition mode": Mistake(("hardware.yml:9", "Valid: SPX"), edit(HARDWARE, "SPX\n#", "SPQ\n#")),
    "an unknown GPU model": Mistake(("instinct_gpus", "MI300X"), edit(HARDWARE, "model: MI300X", "model: MI300Z")),
    # Deployments
    "deployments as a map": Mistake(
        ("vllm_deployments", "must be a list, not a map. Begin each entry with a dash"),
        lambda place: (place / DEPLOYMENTS).write_text("vllm_deployments:\n  name: a\n"),
    ),
    "deployments that are all comments": Mistake(
        ("vllm_deployments", "must be a list"),
        lambda place: (place / DEPLOYMENTS).write_text("vllm_deployments:\n#  - name: a\n"),
    ),
    "an unknown key": Mistake(
        ("deployments.yml:12", "unknown key. Did you mean instances_per_host?"),
        edit(DEPLOYMENTS, "instances_per_host", "instance_per_host"),
    ),
    "a model without its organisation": Mistake(
        ("deployments.yml:8", "organisation/name"), edit(DEPLOYMENTS, f"model: {MODEL}", "model: Llama-3.1-8B")
    ),
    "an image for other GPUs": Mistake(
        ("deployments.yml:10", "vllm/vllm-openai-rocm"), edit(DEPLOYMENTS, IMAGE, "vllm/vllm-openai:v0.33.0")
    ),
    "a percentage": Mistake(("Did you mean 0.95?",), key("settings: {gpu_memory_utilization: 95}")),
    "a data type that does not exist": Mistake(("kv_cache_dtype", "fp88"), key("settings: {kv_cache_dtype: fp88}")),
    "a boolean in quotes": Mistake(
        ("async_scheduling", "true or false, without quotes"),
        edit(DEPLOYMENTS, "async_scheduling: true", 'async_scheduling: "yes"'),
    ),
    "two instances on one port": Mistake(
        ("8000", "llama-8b", "llama-70b"), edit(DEPLOYMENTS, "port: 8100", "port: 8000")
    ),
    "two instances on one GPU": Mistake(("GPU 3", "llama-70b"), edit(DEPLOYMENTS, "[4, 5, 6, 7]", "[3, 4, 5, 6]")),
    "more ranks than GPUs": Mistake(("tensor_parallel_size",), edit(DEPLOYMENTS, "[4, 5, 6, 7]", "[4, 5]")),
    "GPUs by a variable": Mistake(("HIP_VISIBLE_DEVICES", "gpus"), key('env: {HIP_VISIBLE_DEVICES: "0"}')),
    "a secret in the environment": Mistake(("env.HF_TOKEN", "hf_model_token"), key("env: {HF_TOKEN: hf_abcdefghijkl}")),
    "a host that does not exist": Mistake(
        ("there is no host or group", "Did you mean mi300x-01?"), key("hosts: [mi300x-1]")
    ),
    "one name for two deployments": Mistake(("llama-8b",), edit(DEPLOYMENTS, "name: llama-70b", "name: llama-8b")),
}  # fmt: skip


@pytest.fixture(scope="module")
def playbooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playbooks]:
    """Runs in which whoever is contacted is noted."""
    home = tmp_path_factory.mktemp("home")
    ssh = home / "ssh"
    ssh.write_text('#!/bin/sh\necho $@ >> "$CONTACTED"\nexit 255\n', encoding="utf-8")
    ssh.chmod(0o755)
    running = Playbooks(home, {"ANSIBLE_SSH_EXECUTABLE": str(ssh)})
    yield running
    running.close()


@pytest.mark.parametrize(
    "name", [*MISTAKES, *(pytest.param(name, marks=pytest.mark.deep) for name in AT_NIGHT)]
)
def test_it_ends_the_run_and_says_what_to_do(name: str, tmp_path: Path, playbooks: Playbooks) -> None:
    mistake = {**MISTAKES, **AT_NIGHT}[name]
    shutil.copytree(ROOT / "inventory/example", tmp_path / "mine")
    mistake.change(tmp_path / "mine")
    before = written(tmp_path / "mine")
    contacted = tmp_path / "contacted"
    given = ("-i", mistake.inventory) if mistake.inventory else ()
    run = playbooks.run(
        *given, *mistake.args, *(OFFLINE if mistake.offline else ()), str(ROOT / f"playbooks/{mistake.playbook}.yml"),
        cwd=tmp_path, env={"CONTACTED": str(contacted)},
    )  # fmt: skip
    output = run.stdout + run.stderr
    assert run.returncode != 0, output
    words = " ".join(output.split())
    assert [text for text in mistake.said if text not in words] == [], output
    assert "Traceback" not in output
    assert not contacted.exists(), "a host was contacted"
    assert written(tmp_path / "mine") == before


def written(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_the_marker_works(tmp_path: Path, playbooks: Playbooks) -> None:
    """Without a mistake, the hosts are contacted."""
    mistake = Mistake((), offline=False)
    MISTAKES["none"] = mistake
    try:
        with pytest.raises(AssertionError, match="a host was contacted"):
            test_it_ends_the_run_and_says_what_to_do("none", tmp_path, playbooks)
    finally:
        del MISTAKES["none"]
