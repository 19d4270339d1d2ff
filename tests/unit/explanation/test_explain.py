# SPDX-License-Identifier: Apache-2.0
"""What a plan says of deployments: groups of hosts once, shared GPUs, command lines to copy, notes once."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.text import gpus_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, Lock

from tests import ROOT
from tests.worlds.network_world import ethernet, node
from tests.worlds.plan_world import DIGEST, LOCK, deployment, plan, state


def block(text: str, name: str) -> str:
    """A deployment's part of the text, its lines joined."""
    found = [part for part in text.split("\n\n") if part.startswith(f"Deployment {name} ")]
    assert len(found) == 1
    return " ".join(found[0].split())


def words(script: str) -> list[str]:
    """As a shell reads a command over several lines."""
    return shlex.split(script.replace("\\\n", " "))


def command(text: str, name: str) -> list[str]:
    """The words of the command that the text shows of an instance."""
    lines = text.partition(f"  Command of {name}")[2].splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    return words("\n".join(lines[: end + 1]))


def test_a_group_of_hosts_is_told_once() -> None:
    wanted = [deployment(nodes=2, tensor_parallel_size=4, pipeline_parallel_size=2, port=8000)]
    states = {f"n{number}": state() for number in range(1, 5)}
    own = {name: {"instinct_address": f"192.0.2.{name[1:]}"} for name in states}
    said = block(explain(plan(states, wanted, own=own)), "llama")
    assert said.startswith(
        "Deployment llama on n1, n2, n3, n4: 1 instance over each group of hosts, vLLM 0.11.1 "
        "group n1 is the head, with n2; they meet at 192.0.2.1, port 28000 "
        "group n3 is the head, with n4; they meet at 192.0.2.3, port 28000 "
        "parallel tensor parallel 4 within each host, pipeline parallel 2 between them; GPUs 0-3 on each host; "
        "GPUs 4-7 on each host idle memory "
    )


def test_what_the_other_hosts_of_a_group_use_of_their_network() -> None:
    states = {"n1": node(1), "n2": node(2, interfaces=[ethernet(2, name="ens1f0")])}
    own = {name: {"ansible_host": f"10.0.0.{name[1:]}"} for name in states}
    wanted = [deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)]
    made = plan(states, wanted, own=own)
    text = "network n2 has VLLM_HOST_IP=10.0.0.2, NCCL_SOCKET_IFNAME==ens1f0, GLOO_SOCKET_IFNAME=ens1f0"
    assert text in block(explain(made, full=True), "llama")
    assert "ens1f0" not in explain(made)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"data_parallel_size": 16},
            "tensor parallel 1 within each host, data parallel 16 between them (8 ranks",
        ),
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 4},
            "tensor parallel 4 within each host, pipeline parallel 4 between them (2 stages on each); GPUs 0-7",
        ),
        ({"tensor_parallel_size": 16}, "parallel tensor parallel 16 across hosts; GPUs 0-7"),
    ],
)
def test_how_a_group_is_divided(keys: dict[str, Any], text: str) -> None:
    said = block(explain(plan({"n1": state(), "n2": state()}, [deployment(nodes=2, **keys)])), "llama")
    assert text in said
    assert said.startswith("Deployment llama on n1, n2: 1 instance over both hosts, ")
    assert "idle" not in said


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ([0, 1, 2], "GPUs 0-2"),
        ([3], "GPU 3"),
        ([3, 3], "GPU 3, two on it"),
        ([gpu for gpu in range(8) for _ in range(2)], "GPUs 0-7, two on each"),
        ([0, 0, 0, 1, 1], "GPUs 0-1, up to three on each"),
    ],
)
def test_gpus(gpus: list[int], text: str) -> None:
    assert gpus_text(gpus) == text


def test_instances_that_share_a_gpu() -> None:
    text = explain(plan({"n1": state()}, [deployment(instances_per_gpu=2, instances_per_host="max")]))
    assert "(16 instances), ports 8000-8015, GPUs 0-7, two on each: absent → running" in text
    said = "memory per instance, two on each GPU, each with 45% of it (86.4 GiB): 4.8 GiB of weights and "
    assert said in block(text, "llama")


def test_two_models_share_a_gpu_as_the_documents_write_it() -> None:
    parts = {"a": 0.6, "b": 0.3}
    wanted = [
        deployment(name=name, gpus=[0], port=8000 + index, engine_args={"gpu_memory_utilization": part})
        for index, (name, part) in enumerate(parts.items())
    ]
    made = plan({"n1": state()}, wanted)
    text = explain(made)
    assert "per instance, on a GPU that it shares, with 60% of it (115.2 GiB)" in block(text, "a")
    assert "per instance, on a GPU that it shares, with 30% of it (57.6 GiB)" in block(text, "b")
    for item in made.to_json()["hosts"]["n1"][
        "instances"
    ]:  # neither waits for a GPU that the other keeps in use
        assert "--gpu renderD128" not in item["server"]["files"]["serve.sh"]["text"]


def test_what_is_chosen_and_the_command_can_be_copied() -> None:
    wanted = [
        deployment(
            objective="throughput",
            engine_args={"hf_overrides": {"a": "it's"}, "enable_prefix_caching": False},
            env={"A": "b c"},
        )
    ]
    made = plan({"n1": state()}, wanted)
    text = explain(made, full=True)
    said = block(text, "llama")
    assert "--async-scheduling, " in said
    assert "--async-scheduling on, " not in said
    (instance,) = made.to_json()["hosts"]["n1"]["instances"]
    variables = [f"{name}={value}" for name, value in instance["env"].items()]
    assert command(text, "llama-0") == [*variables, *instance["argv"]]
    assert "--no-enable-prefix-caching" in instance["argv"]
    script = re.split(r"\n  -- ", instance["server"]["files"]["serve.sh"]["text"])[1]
    assert words(script) == instance["argv"]


def test_a_note_of_an_image_is_told_once() -> None:
    image = "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024"
    known = ImageSoftware("0.11.1", "rocm", "7.0.0", "2.9.0", "3.12", ("gfx942",))
    lock = Lock({image: ImagePin(DIGEST, 1, known)}, LOCK.models)
    wanted = [deployment(image=image), deployment(name="b", image=image, port=8100, gpus=[4])]
    text = explain(plan({"n1": state()}, [*wanted[:1]], lock=lock))
    assert "warning rocm/vllm:" in block(text, "llama")
    wanted[0]["gpus"] = [0]
    text = explain(plan({"n1": state()}, wanted, lock=lock))
    assert text.count("are recommended since") == 1
    assert "Warnings\n  deployments b, llama: rocm/vllm:" in text


@pytest.mark.parametrize(
    ("keys", "reported"),
    [({}, True), ({"objective": "latency"}, False), ({"engine_args": {"max_model_len": 9}}, False)],
)
def test_sizing_needs_a_length(keys: dict[str, Any], reported: bool) -> None:
    text = explain(plan({"n1": state()}, [deployment(**keys)]))
    assert ("set max_model_len to your longest request; 8,192 tokens" in text) is reported


def test_assumed_device_names_are_said_to_be() -> None:
    made = plan({"n1": None}, [deployment()], offline=True, instinct_gpus={"model": "MI300X", "count": 8})
    assert explain(made).startswith(
        "Offline plan for 1 host (not contacted; assumed empty; device names predicted): 6 actions on 1 of them."
    )
    assert "predicted" not in explain(plan({"n1": state()}, [deployment()]))


def example() -> str:
    """What `plan.yml -e offline=true` says of inventory/example."""
    there = ROOT / "inventory/example"
    variables: dict[str, Any] = {}
    for path in sorted((there / "group_vars/instinct").glob("*.yml")):
        variables.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    hosts = yaml.safe_load((there / "hosts.yml").read_text(encoding="utf-8"))["instinct"]["hosts"]
    wanted = variables.pop("vllm_deployments")
    return explain(plan(dict.fromkeys(hosts), wanted, Lock({}, {}), offline=True, **variables))


def test_the_documents_show_what_the_example_says() -> None:
    text = (ROOT / "docs/deployments.md").read_text(encoding="utf-8")
    shown = text.partition("## Does it fit?")[2].partition("```text\n")[2].partition("```")[0]
    assert shown in example()
    assert "requests of" in shown


def test_the_example_has_nothing_to_warn_of_but_the_licence() -> None:
    """It does not accept one on behalf of who copies it."""
    _plan, _title, warnings = example().partition("\nWarnings\n")
    assert "Warnings" not in _plan
    (line,) = warnings.splitlines()
    assert line.startswith(
        "  amd/Llama-3.1-8B-Instruct-FP8-KV, amd/Llama-3.1-70B-Instruct-FP8-KV: a download is refused unless"
    )
    assert line.endswith("To accept it, write in the inventory: licenses_accepted: [llama3.1]")


@pytest.mark.parametrize("sort", ["host", "instance"])
def test_every_field_of_the_plan_is_described(sort: str) -> None:
    schema = json.loads((ROOT / "catalog/schemas/plan.schema.json").read_text(encoding="utf-8"))
    fields = schema["$defs"][sort]["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []
