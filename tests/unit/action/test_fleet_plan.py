# SPDX-License-Identifier: Apache-2.0
"""fleet_plan under ansible-playbook: it reads what operators write, and says what is wrong where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import jsonschema
import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    check_request,
)

from lab.hub import make, server
from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.worlds.fake_registry import IMAGE, digest, running_registry
from tests.worlds.generations_world import HELD
from tests.worlds.plan_world import DIGEST, LOCK, SOFTWARE, apply_to_state, deployment, plan, state
from tests.worlds.plan_world import IMAGE as IMAGE_REF

SCHEMA = json.loads((ROOT / "catalog/schemas/plan.schema.json").read_text(encoding="utf-8"))

# As playbooks/plan.yml, with states from files in the place of node_state.
PLAYBOOK = """
- hosts: instinct
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        node_state_result: "{{ lookup('ansible.builtin.file', observed_file) | from_json }}"
      when: observed_file is defined
    - name: Plan what is missing
      instinct.fleet.fleet_plan:
        plan_file: "{{ plan_file | default(omit) }}"
        offline: "{{ offline | default(omit) }}"
        explain: "{{ explain | default(omit) }}"
        refresh: "{{ refresh | default(omit) }}"
      run_once: true
      register: fleet_plan_result
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/result.json"
        content: "{{ fleet_plan_result }}"
        mode: "0600"
      delegate_to: localhost
      run_once: true
      check_mode: false
"""

# As playbooks/site.yml goes on where images had to be asked.
AGAIN = """
    - ansible.builtin.add_host:
        name: "{{ item.name }}"
        groups: "{{ item.groups }}"
        fleet_host_plan: "{{ item.plan }}"
      loop: "{{ fleet_plan_result.todo }}"
- hosts: fleet_partial
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        node_state_result: "{{ lookup('ansible.builtin.file', asked_file) | from_json }}"
    - name: Plan again
      instinct.fleet.fleet_plan:
        hosts: "{{ fleet_plan_result.plan.hosts | list }}"
        again: "{{ ansible_play_hosts }}"
        refresh: true
      run_once: true
      register: fleet_plan_result
    - ansible.builtin.add_host:
        name: "{{ item.name }}"
        groups: "{{ item.groups }}"
        fleet_host_plan: "{{ item.plan }}"
      loop: "{{ fleet_plan_result.todo }}"
- hosts: todo_vllm_serve
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/{{ inventory_hostname }}.end.json"
        content: "{{ {'result': fleet_plan_result, 'plan': fleet_host_plan} | to_json }}"
        mode: "0600"
      delegate_to: localhost
"""


@dataclass
class Fleet:
    """An inventory of local hosts in a directory of its own."""

    place: Path
    playbooks: Playbooks

    @property
    def inventory(self) -> Path:
        return self.place / "inventory"

    @property
    def lock(self) -> Path:
        return self.inventory / "fleet.lock.json"

    def write(self, states: Mapping[str, Mapping[str, Any] | None], **variables: Any) -> None:
        (self.inventory / "group_vars").mkdir(parents=True, exist_ok=True)
        hosts: dict[str, Any] = {}
        for name, found in states.items():
            hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
            if found is not None:
                file = self.place / f"{name}.json"
                file.write_text(json.dumps({"changed": False, "node_state": found}), encoding="utf-8")
                hosts[name]["observed_file"] = str(file)
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"instinct": {"hosts": hosts}}), "utf-8")
        text = yaml.safe_dump(variables, sort_keys=False)
        (self.inventory / "group_vars" / "instinct.yml").write_text(text, "utf-8")

    def run(self, *args: str, playbook_text: str = PLAYBOOK) -> subprocess.CompletedProcess[str]:
        playbook = self.place / "plan.yml"
        playbook.write_text(playbook_text, "utf-8")
        return self.playbooks.run("-i", str(self.inventory), str(playbook), *args, cwd=self.place)

    def result(self, of: str = "result") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / f"{of}.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture
def fleet(tmp_path: Path, playbooks: Playbooks) -> Fleet:
    return Fleet(tmp_path, playbooks)


def test_a_plan_of_three_hosts(fleet: Fleet) -> None:
    wanted = [
        deployment(
            instances_per_host=2, port="{{ first_port }}", engine_args={"chat_template": "{{ '{{' }} raw }}"}
        )
    ]
    lines = [{**wanted[0], "port": 8100, "engine_args": {"chat_template": "{{ raw }}"}}]
    done = apply_to_state(state(), plan({"n2": state()}, lines).to_json()["hosts"]["n2"])
    fleet.write({"n1": state(), "n2": done, "n3": None}, first_port=8100, vllm_deployments=wanted)
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    written = fleet.place / "out.json"
    run = fleet.run("-e", f"plan_file={written}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    assert "Plan: 2 hosts, 6 actions on 1 of them.\n\nn1: 8 x MI300X, GPUs 2-7 free\n" in run.stdout
    assert "Excluded hosts\n  n3: it could not be reached\n" in run.stdout
    data = json.loads(written.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    result = fleet.result()
    assert result["plan"] == data
    assert result["changes"] == 6
    assert result["changed"] is False
    assert result["text"].splitlines()[0] in run.stdout
    assert [(item["name"], item["groups"]) for item in result["todo"]] == [
        ("n1", ["todo_host_prep", "todo_vllm_image", "todo_hf_model", "todo_vllm_serve"])
    ]
    assert result["todo"][0]["plan"] == data["hosts"]["n1"]
    assert data["hosts"]["n1"]["instances"][1]["port"] == 8101
    assert "{{ raw }}" in data["hosts"]["n1"]["instances"][0]["argv"]

    # --limit shortens the play, and so the plan.
    assert fleet.run("--limit", "n2").returncode == 0
    assert list(fleet.result()["plan"]["hosts"]) == ["n2"]


def test_problems_name_file_line_and_hosts(fleet: Fleet) -> None:
    wrong = [
        deployment(tensor_paralel_size=2, env={"HF_TOKEN": "hf_do_not_print_me"}),
        deployment(name="b", port=0),
    ]
    fleet.write({"n1": state(), "n2": state()}, vllm_deployments=wrong, gpu_partition_compute="CPQ")
    run = fleet.run()
    file = "inventory/group_vars/instinct.yml"
    lines = [
        "The plan has 4 problems; nothing was changed.",
        f"* vllm_deployments[0].tensor_paralel_size (llama, hosts n1, n2, {file}:5): unknown key. "
        "Did you mean tensor_parallel_size?",
        f"* vllm_deployments[0].env.HF_TOKEN (llama, hosts n1, n2, {file}:7): is a secret, and would be "
        "readable in the "
        "instance's files. Put it in hf_model_token (vaulted) or hf_model_token_file, the host's variables.",
        f"* vllm_deployments[1].port (b, hosts n1, n2, {file}:11): 0 is out of range. It must be from 1 "
        "to 65535.",
        f"* gpu_partition_compute (hosts n1, n2, {file}:12): 'CPQ' is not valid. Valid: SPX, DPX, "
        "TPX, CPX, QPX.",
    ]
    assert run.returncode == 2
    assert run.stderr == ""
    assert "hf_do_not_print_me" not in run.stdout
    assert "Traceback" not in run.stdout
    assert f"\nfailed: [n1]: {lines[0]}\n" in run.stdout
    assert all(run.stdout.count(line) == 1 for line in lines[1:])
    assert "Origin:" not in run.stdout
    assert run.stdout.rstrip().endswith(
        "Failed: n1, at: Plan what is missing\n"
        + "".join(f"  {line}\n" for line in lines)
        + "Next: correct the input named above, and run the same command again."
    )
    # With -v, Ansible's own output is there too.
    verbose = fleet.run("-v")
    assert "fatal: [n1]: FAILED! =>" in verbose.stdout
    assert "hf_do_not_print_me" not in verbose.stdout + verbose.stderr


def test_pins_are_resolved_once_and_kept(fleet: Fleet, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    make.write_repo(root, make.GATED, [make.Commit("one", {"config.json": b"{}"})], gated=True)
    users = {make.TOKEN: {"name": "lab", "gated": [make.GATED]}}
    (root / "hub.json").write_text(json.dumps({"tokens": users}), encoding="utf-8")
    token = tmp_path / "token"
    token.write_text(make.TOKEN + "\n", encoding="utf-8")
    variables: dict[str, Any] = {"hf_model_token_file": str(token)}
    with running_registry() as registry, server.Hub(root) as hub:
        wanted = deployment(image=f"{registry}/lab/vllm:1", vllm_version="0.11.1", model=make.GATED)
        variables["vllm_deployments"] = [wanted]
        variables["vllm_image_registries"] = {registry: {"insecure": True}}
        variables["hf_model_endpoint"] = hub.url
        fleet.write({"n1": state()}, **variables)
        checked = fleet.run("--check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert not fleet.lock.exists()
        predicted = fleet.result()["plan"]
        run = fleet.run("-vvv")
        assert run.returncode == 0, run.stdout + run.stderr
        assert fleet.result()["plan"] == predicted

        fleet.write({"n1": state()}, **{**variables, "hf_model_token": "hf_wrong_but_long_enough"})
        kept = fleet.lock.read_text(encoding="utf-8")
        fleet.lock.unlink()
        refused = fleet.run("-vvv")
        assert refused.returncode == 2
        assert "refuses the token of hf_model_token" in refused.stdout + refused.stderr
        for shown in (run, refused, checked):
            assert make.TOKEN not in shown.stdout + shown.stderr
            assert "hf_wrong_but_long_enough" not in shown.stdout + shown.stderr
        fleet.lock.write_text(kept, encoding="utf-8")
        # The pins stand, but what they name may no longer be had with this token.
        withdrawn = fleet.run()
        assert withdrawn.returncode == 2
        assert "refuses the token of hf_model_token" in withdrawn.stdout + withdrawn.stderr
        assert fleet.lock.read_text(encoding="utf-8") == kept
    lock = json.loads(kept)
    assert list(lock["images"].values()) == [
        {"digest": digest(IMAGE), "bytes": 5800, "platform": "linux/amd64"}
    ]
    assert [list(item["files"]) for item in lock["models"].values()] == [["config.json"]]
    assert make.TOKEN not in kept
    # Registry and hub are gone now; the pins are enough for the plan. Whether the node will get them is not known.
    fleet.write({"n1": state()}, **variables)
    again = fleet.run()
    assert again.returncode == 0, again.stdout + again.stderr
    reported = fleet.result()["plan"]
    assert [registry in reported["warnings"][0], hub.url in reported["warnings"][1]] == [True, True]
    assert {**reported, "warnings": []} == {**predicted, "warnings": []}
    # With nothing to fetch nobody is asked, and no token is read.
    token.unlink()
    fleet.write({"n1": apply_to_state(state(), predicted["hosts"]["n1"])}, **variables)
    quiet = fleet.run()
    assert quiet.returncode == 0, quiet.stdout + quiet.stderr
    assert fleet.result()["plan"]["warnings"] == []


MEASURED = PLAYBOOK.replace(
    "        refresh:",
    '        measure: "{{ fleet_operation is not defined }}"\n'
    '        operation: "{{ fleet_operation | default(omit) }}"\n        refresh:',
).replace(
    "    - ansible.builtin.copy:",
    """    - name: Plan what is measured
      instinct.fleet.bench_plan:
        todo: "{{ fleet_plan_result.todo }}"
        kinds: "{{ fleet_plan_result.kinds }}"
        operation: "{{ fleet_operation | default(omit) }}"
        run: "{{ benchmark_run | default(omit) }}"
      run_once: true
      register: bench_plan_result
      when: fleet_plan_result.measures
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/measured.json"
        content: "{{ bench_plan_result }}"
        mode: "0600"
      delegate_to: localhost
      run_once: true
      check_mode: false
    - ansible.builtin.copy:""",
    1,
)
"""With what follows where a run measures."""


@pytest.mark.deep
def test_a_suite_is_checked_for_what_a_run_measures(fleet: Fleet) -> None:
    """The plan says what is left out, and fails for what would fail once instances are drained or started."""
    wanted = [deployment(engine_args={"max_model_len": 2048})]
    fleet.write({"n1": state(), "n2": state()}, vllm_deployments=wanted, benchmark_suite="serving")
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    run = fleet.run(playbook_text=MEASURED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "suite serving, hosts n1, n2: in8192-out1024-c64 is left out." in " ".join(run.stdout.split())
    assert fleet.result()["kinds"] == ["serve"]
    assert [item["plan"]["measure"][0]["name"] for item in fleet.result()["todo"]] == ["llama-0"] * 2

    run = fleet.run("-e", '{"benchmark_suite_args": {"percentiles": [99.99]}}', playbook_text=MEASURED)
    assert run.returncode == 2
    assert "hosts n1, n2" in run.stdout
    assert "p99.99 needs" in run.stdout

    run = fleet.run("-e", "benchmark_suite=seed-latency", playbook_text=MEASURED)
    assert run.returncode == 2
    assert "seed-latency has offline benchmarks (latency), which stop instances" in run.stdout


@pytest.mark.deep
def test_the_suite_of_each_host_is_checked(fleet: Fleet) -> None:
    """Also of the second one; and one whose instances stop is not measured beside one of running instances."""
    wanted = [deployment(engine_args={"max_model_len": 2048})]
    of_host = "{{ {'n2': 'serving'}[inventory_hostname] | default('quick') }}"
    fleet.write({"n1": state(), "n2": state()}, vllm_deployments=wanted, benchmark_suite=of_host)
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    run = fleet.run(playbook_text=MEASURED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "suite serving, host n2: in8192-out1024-c64 is left out." in " ".join(run.stdout.split())

    fleet.write({"n1": state(), "n2": state()}, vllm_deployments=wanted,
                benchmark_suite=of_host.replace("serving", "cpx"))  # fmt: skip
    run = fleet.run("-e", "fleet_operation=benchmark", playbook_text=MEASURED)
    assert run.returncode == 2
    assert "quick (serve) on n1; cpx (throughput) on n2." in run.stdout


@pytest.mark.deep
def test_a_benchmark_goes_on_where_the_same_command_was_killed(fleet: Fleet) -> None:
    fleet.write({"n1": state()}, vllm_deployments=[deployment()])
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    assert fleet.run().returncode == 0
    assert not fleet.result()["measures"]
    serving = apply_to_state(state(), fleet.result()["plan"]["hosts"]["n1"])
    names = sorted(item["name"] for item in serving["instances"])
    kept = [{"run": "r1", "target": f"{name}-serve", "runs": [3, 1]} for name in names]
    fleet.write({"n1": {**serving, "benchmarks": kept}}, vllm_deployments=[deployment()],
                benchmark_suite="serving")  # fmt: skip
    first = fleet.run("-e", "benchmark_run=r1", "-e", "fleet_operation=benchmark", playbook_text=MEASURED)
    assert first.returncode == 0, first.stdout + first.stderr
    begun = fleet.result("measured")["run"]
    assert (begun["name"], begun["request"]["suite"]) == ("r1", "serving")
    assert [name for name in begun["fingerprints"] if name.startswith("n1/")] == [
        f"n1/{name}" for name in names
    ]
    assert "continues" not in first.stdout
    assert not (fleet.place / "results").exists()  # nothing has begun
    record = fleet.place / "results/.r1.unfinished/run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(begun))
    again = fleet.run("-e", "fleet_operation=benchmark", playbook_text=MEASURED)
    assert again.returncode == 0, again.stdout + again.stderr
    assert fleet.result("measured")["run"] == begun
    assert f"continues run r1, begun {begun['begun']}: {len(names)} of {7 * len(names)} cells" in again.stdout


@pytest.mark.deep
def test_only_a_run_that_applies_makes_secrets(fleet: Fleet) -> None:
    """A plan and a check leave the inventory's directory as it is."""
    empty = {"installed": True, "running": False, "files": {}, "applied": "", "config": {}, "out": {}}
    fleet.write({"n1": state(balancer=empty)}, vllm_deployments=[deployment()])
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    (fleet.inventory / "lb.yml").write_text("load_balancer: {hosts: {n1: }}\n", encoding="utf-8")
    playbook = PLAYBOOK.replace(
        "        offline:", '        apply: "{{ fleet_apply | default(omit) }}"\n        offline:'
    )
    secrets = fleet.inventory / ".secrets"
    for args in ((), ("-e", "fleet_apply=true", "--check")):
        run = fleet.run(*args, playbook_text=playbook)
        assert run.returncode == 0, run.stdout + run.stderr
        assert not secrets.exists()
    run = fleet.run("-e", "fleet_apply=true", playbook_text=playbook)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in secrets.iterdir()} == {"api-keys.yml", "endpoint.pem", "instance-key"}


def test_a_fetch_outside_of_its_hours_is_refused(fleet: Fleet) -> None:
    """Before anything is touched; a plan only warns, and the command can say otherwise."""
    far = (datetime.now(UTC).hour + 12) % 24
    hours = {"fetch_window": f"{far:02d}:00-{(far + 1) % 24:02d}:00"}
    fleet.write({"n1": state()}, vllm_deployments=[deployment()], **hours)
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    playbook = PLAYBOOK.replace("        offline:", "        apply: true\n        offline:")
    refused = fleet.run(playbook_text=playbook)
    assert refused.returncode == 2
    assert "to fetch now, add -e fetch_now=true" in refused.stdout + refused.stderr
    shown = fleet.run()
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "it is outside the window" in " ".join(shown.stdout.split())
    told = fleet.run("-e", "fetch_now=true", playbook_text=playbook)
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_hold_of_the_future_is_told_and_does_not_count(fleet: Fleet) -> None:
    """What binds all hosts is compared with the clock of the control node."""
    wanted = [deployment()]
    done = apply_to_state(state(), plan({"n1": state()}, wanted).to_json()["hosts"]["n1"])
    done["generations"][0]["held"] = {**HELD, "since": "2999-01-01T00:00:00Z"}
    fleet.write({"n1": done}, vllm_deployments=wanted)
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    run = fleet.run()
    assert run.returncode == 0, run.stdout + run.stderr
    assert "begins in the future and is ignored" in " ".join(run.stdout.split())


@pytest.mark.deep
def test_what_had_to_be_asked_is_planned_for_afterwards(fleet: Fleet) -> None:
    """As site.yml does it: nobody knows n1's image, n2's is known. Then n1's engine has it, and its answer."""
    bare = Lock({image: replace(pin, software=None) for image, pin in LOCK.images.items()}, LOCK.models)
    other = deployment(name="other", image=f"registry.lab:5000/lab/other@{DIGEST}", vllm_version="0.11.1")
    wanted = [deployment(hosts=["n1"]), {**other, "hosts": ["n2"]}]
    there = {"id": "i", "tags": [], "digests": [other["image"]]}
    states = {"n1": state(), "n2": state(images=[there])}
    fleet.write(states, vllm_deployments=wanted)
    fleet.lock.write_text(json.dumps(bare.to_json()), encoding="utf-8")
    reported = apply_to_state(states["n1"], plan(states, wanted, bare).to_json()["hosts"]["n1"])
    reported["images"][0]["software"] = SOFTWARE.to_json()
    asked = fleet.place / "asked.json"
    asked.write_text(json.dumps({"changed": False, "node_state": reported}), encoding="utf-8")
    run = fleet.run("-e", f"asked_file={asked}", playbook_text=PLAYBOOK + AGAIN)
    assert run.returncode == 0, run.stdout + run.stderr

    first = fleet.result()
    assert first["partial"] == first["plan"]["partial"] == [IMAGE_REF]
    assert [(item["name"], item["groups"]) for item in first["todo"]] == [
        ("n1", ["todo_host_prep", "todo_vllm_image", "fleet_partial"]),
        ("n2", ["todo_host_prep", "todo_hf_model", "todo_vllm_serve"]),
    ]
    end = {name: json.loads((fleet.place / f"{name}.end.json").read_text()) for name in ("n1", "n2")}
    second = end["n1"]["result"]
    assert second["partial"] == second["plan"]["partial"] == []
    assert [(item["name"], item["groups"]) for item in second["todo"]] == [
        ("n1", ["todo_hf_model", "todo_vllm_serve"])
    ]
    # Both hosts go on by their own plan: the first one of n2, the second one of n1.
    assert end["n1"]["plan"] == second["plan"]["hosts"]["n1"]
    assert end["n1"]["plan"]["servers"]
    assert end["n2"]["plan"] == first["plan"]["hosts"]["n2"] == second["plan"]["hosts"]["n2"]
    assert (run.stdout.count("\nn1: 8 x MI300X"), run.stdout.count("\nn2: 8 x MI300X")) == (2, 1)
    assert json.loads(fleet.lock.read_text(encoding="utf-8")) == LOCK.to_json()


def test_offline_needs_no_host_and_no_network(fleet: Fleet) -> None:
    wanted = [
        deployment(
            image="registry.invalid/lab/vllm:1", vllm_version="0.11.1", instances_per_host=8, gpus=None
        )
    ]
    declared = {"model": "MI300X", "count": 8}
    fleet.write({"n1": None}, vllm_deployments=wanted, instinct_gpus=declared, gpu_partition_compute="CPX")
    run = fleet.run("-e", "offline=true", "-e", "explain=true")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "n1: 8 x MI300X in CPX, 64 logical GPUs, GPUs 1-7, 9-15, 17-23, 25-31, " in run.stdout
    assert "Deployment llama on n1: 8 instances per host, vLLM 0.11.1" in run.stdout
    assert not fleet.lock.exists()
    slip = fleet.run("-e", "offline=true", "-e", "deploymnt=llama")
    assert slip.returncode == 2
    assert "-e deploymnt: unknown variable. Did you mean deployment?" in slip.stdout


@pytest.mark.parametrize(
    ("variables", "lock", "text"),
    [
        ({}, "{", "fleet.lock.json cannot be used: "),
        (
            {},
            "[]",
            "fleet.lock.json cannot be used: it is not a lock file of this version "
            '("schema": 1 is expected).',
        ),
        (
            {"hf_model_cache_dir": "{{ nowhere }}"},
            None,
            "hf_model_cache_dir (host n1, inventory/group_vars/instinct.yml:5): cannot be evaluated: ",
        ),
        (
            {"hf_model_token_file": "/nonexistent/token"},
            None,
            "hf_model_token_file (host n1, inventory/group_vars/instinct.yml:5): /nonexistent/token cannot be read: "
            "No such file or directory. The path is on this machine.",
        ),
        (
            {"hf_model_token": "hf_long_enough_for_one", "hf_model_endpoint": "http://mirror.example:8080"},
            None,
            "hf_model_endpoint (host n1, inventory/group_vars/instinct.yml:6): http://mirror.example:8080 has no TLS: "
            "anybody on the way there could read the hub's token. Use an https:// mirror, leave the token out for",
        ),
        (
            {"instinct_proxy": {"https_proxy": "proxy.example:3128"}},
            None,
            "instinct_proxy.https_proxy (host n1, inventory/group_vars/instinct.yml:6): is not a proxy's URL. Write "
            "http://HOST:PORT",
        ),
        (
            {"hf_model_token": "short"},
            None,
            "hf_model_token (host n1, inventory/group_vars/instinct.yml:5): does not contain a token: it has fewer "
            "than 8 characters, or contains white space. Tokens of the hub look like hf_….",
        ),
    ],
)
def test_other_problems(fleet: Fleet, variables: dict[str, Any], lock: str | None, text: str) -> None:
    fleet.write({"n1": state()}, vllm_deployments=[deployment(image=f"x/y@sha256:{'0' * 64}")], **variables)
    if lock is not None:
        fleet.lock.write_text(lock, encoding="utf-8")
    else:
        known = {**LOCK.to_json(), "models": {}}
        known["images"] = {f"x/y@sha256:{'0' * 64}": {"digest": f"sha256:{'0' * 64}", "bytes": 1}}
        fleet.lock.write_text(json.dumps(known), encoding="utf-8")
    run = fleet.run()
    assert run.returncode == 2
    assert text in run.stdout + run.stderr


def test_the_documentation_is_the_argument_spec() -> None:
    source = (ROOT / "library/fleet_plan.py").read_text(encoding="utf-8")
    documented = yaml.safe_load(source.split('DOCUMENTATION = r"""')[1].split('"""')[0])["options"]
    keys = ("type", "default", "elements", "choices")

    def spec(options: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: {key: item[key] for key in keys if key in item} for name, item in options.items()}
        for name, item in options.items():
            if "suboptions" in item:
                found[name]["options"] = spec(item["suboptions"])
        return found

    assert spec(documented) == OPTIONS


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, []),
        ({"operation": "upgrade", "instance": "llama-0"}, ["instance"]),
        ({"operation": "restart", "instance": "llama-0", "generation": 2}, ["generation"]),
        ({"operation": "rollback", "generation": 2}, []),
        ({"operation": "rollback", "generation": 2, "offline": True}, ["offline"]),
        ({"operation": "deploy", "offline": True}, []),
        ({"serial": "bogus", "soak": "long"}, ["rollout_serial", "rollout_soak"]),
        ({"canary_terms": {"canary_runs": 2, "canary_tolerance": -3.0}}, ["canary_runs", "canary_tolerance"]),
    ],
)
def test_terms_of_upgrades_are_judged_before_anything_else(given: dict[str, Any], names: list[str]) -> None:
    """A canary with a tolerance that makes no sense would be turned back, and its deployment held."""

    nothing = {"serial": None, "min_available": None, "soak": None, "canary_terms": {}}
    request = {**nothing, **given}
    assert [problem.path[0] for problem in check_request(request)] == names


def test_hub_library_is_not_loaded_without_need() -> None:
    """A run with nothing to resolve must not pay for huggingface_hub and requests."""
    program = (
        "import sys; sys.path[:0] = ['.collections']; "
        "import ansible_collections.instinct.fleet.plugins.action.fleet_plan; "
        "print([name for name in ('huggingface_hub', 'dxf', 'requests', 'yaml.cyaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "huggingface_hub" not in done.stdout
    assert "dxf" not in done.stdout
    assert huggingface_hub.constants.ENDPOINT  # it is there to be loaded


def test_what_plans_loads_nothing_that_measures() -> None:
    """Every run imports the actions of its play ahead, also of tasks that it skips."""
    plays = yaml.safe_load((ROOT / "playbooks/plan.yml").read_text(encoding="utf-8"))
    tasks = {key for play in plays for task in play["tasks"] for key in task}
    names = [name.rpartition(".")[2] for name in tasks if name.startswith("instinct.fleet.")]
    actions = [name for name in names if (ROOT / f"plugins/action/{name}.py").exists()]
    assert {"fleet_plan", "bench_plan"} <= set(actions)
    imports = "; ".join(
        f"import ansible_collections.instinct.fleet.plugins.action.{name}" for name in actions
    )
    program = (
        f"import sys; sys.path[:0] = ['.collections']; {imports}; "
        "print([name for name in sys.modules if '.plugin_utils.measuring' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def vaulted(text: str, place: Path) -> str:
    """What ansible-vault makes of a text."""
    password = place / "password"
    password.write_text("open sesame\n", encoding="utf-8")
    file = place / "plain"
    file.write_text(text, encoding="utf-8")
    command = ["encrypt", "--vault-password-file", str(password), str(file)]
    subprocess.run(
        [str(Path(sys.executable).parent / "ansible-vault"), *command], check=True, capture_output=True
    )
    return file.read_text(encoding="utf-8")


def test_what_comes_from_a_vault_is_known_through_templates(fleet: Fleet) -> None:
    """Inline and in an encrypted file, alone and within another text. `secrets` takes it, and no plan has it."""
    args = {"kv_transfer_config": {"kv_connector_extra_config": {"remote": "{{ inline }}"}}}
    env = {
        "WHOLE": "{{ inline }}",
        "PART": "user:{{ inline }}@host",
        "CHAIN": "{{ middle }}",
        "FILE": "{{ in_file }}",
        "PLAIN": "{{ plain }}",
    }
    lines = [deployment(env=env, engine_args=args)]
    fleet.write({"n1": state()}, vllm_deployments=lines, middle="x{{ inline }}y", plain="ordinary words")
    text = vaulted("canary-inline-41", fleet.place).replace("\n", "\n          ").rstrip()
    group = fleet.inventory / "group_vars"
    (group / "all").mkdir()
    (group / "all" / "inline.yml").write_text(f"inline: !vault |\n          {text}\n", encoding="utf-8")
    (group / "all" / "file.yml").write_text(
        vaulted("in_file: canary-file-42\n", fleet.place), encoding="utf-8"
    )
    fleet.lock.write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    password = ("--vault-password-file", str(fleet.place / "password"))
    refused = fleet.run(*password, "-vvv")
    assert refused.returncode == 2, refused.stdout
    found = [
        line
        for line in refused.stdout.splitlines()
        if line.startswith("  * ") and "comes from a vault" in line
    ]
    places = ["engine_args.kv_transfer_config.kv_connector_extra_config.remote"]
    places += [f"env.{name}" for name in env if name != "PLAIN"]
    assert sorted(line.split(" ")[3] for line in found) == sorted(
        f"vllm_deployments[0].{item}" for item in places
    )
    assert "canary" not in refused.stdout + refused.stderr

    secrets = {name: value for name, value in env.items() if name != "PLAIN"}
    lines = [deployment(env={"PLAIN": "{{ plain }}"}, secrets=secrets)]
    fleet.write({"n1": state()}, vllm_deployments=lines, middle="x{{ inline }}y", plain="ordinary words")
    taken = fleet.run(*password, "-vvv", "-e", "explain=true")
    assert taken.returncode == 0, taken.stdout + taken.stderr
    shown = taken.stdout + taken.stderr + json.dumps(fleet.result())
    assert "of the secrets" in shown
    assert "canary" not in shown
