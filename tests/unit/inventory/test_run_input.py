# SPDX-License-Identifier: Apache-2.0
"""What a run would silently ignore is named: groups, files of variables, patterns, tags and values."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory import (
    inventory_files,
    run_input,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.tags import (
    own_playbooks,
    toolkit_tags,
)

from tests import ROOT

BOTH = ("instinct", "load_balancer")


@pytest.mark.parametrize(
    ("required", "groups", "said"),
    [
        (BOTH, {"instinct": ["a"]}, ""),
        (BOTH, {"instinct": [], "load_balancer": ["a"]}, ""),
        (BOTH, {"instinct": ["a"], "load_balancer": ["b"], "loadbalancer": ["c"]}, ""),
        (BOTH, {"instinct": ["a"], "instinct_new": ["a"], "mi300x": ["a"]}, ""),
        (BOTH, {"instinct": ["a"], "load_balancers": ["b"]}, "Rename load_balancers to load_balancer"),
        (BOTH, {"instinct": ["a"], "Load-Balancer": ["b"]}, "Rename Load-Balancer to load_balancer"),
        (BOTH, {"instict": ["a"]}, "Rename instict to instinct"),
        (BOTH, {"gpus": ["a", "b"]}, "no host in the group instinct. Put the hosts into it, or the group"),
        (BOTH, {"gpus": ["a", "b"]}, "gpus (2)"),
        (("load_balancer",), {"instinct": ["a"]}, "docs/runbooks/endpoint.md"),
    ],
)  # fmt: skip
def test_groups(required: tuple[str, ...], groups: dict[str, list[str]], said: str) -> None:
    problems = run_input.group_problems(required, BOTH, {"all": ["a"], "ungrouped": [], **groups})
    assert len(problems) == bool(said)
    assert said in "".join(problem.text() for problem in problems)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mi300x-1", "mi300x-01"),     # the same number
        ("mi3000x-01", None),
        ("m300x-01", "mi300x-01"),
        ("mi300x-03", None),           # a host that was removed, and whose file stayed
        ("spare", None),
    ],
)  # fmt: skip
def test_a_name_with_another_number_is_another_host(name: str, near: str | None) -> None:
    assert run_input.nearest_name(name, ["mi300x-01", "mi300x-02", "lb-01"]) == near


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"offline": "yes", "explain": True, "rollout_soak": "30", "own": "x"}, ""),
        ({"offline": "{{ x }}", "deployment": "llama", "new_secrets": "api_keys,certificate"}, ""),
        ({"offline": "tru"}, "-e offline=tru: must be true or false."),
        ({"benchmark_timeout": "2h"}, "-e benchmark_timeout=2h: must be a whole number."),
        ({"compare_tolerance": "nan"}, "-e compare_tolerance=nan: must be a number."),
        (
            {
                "benchmark_timeout": "60.0",
                "compare_tolerance": "3",
                "offline": "ON",
                "licenses_accepted": "a,b",
            },
            "",
        ),
        (
            {"instinct_gpus": "MI300X"},
            "must be a map. Write it as JSON with its name: -e '{\"instinct_gpus\": …}'.",
        ),
        ({"vllm_deployments": "llama"}, "must be a list of maps."),
        ({"licenses_accepted": '["a"]'}, "must be a list. Write a,b or"),
        ({"new_secrets": "api_key"}, "Did you mean api_keys?"),
        ({"gpu_partition_backend": "amdsmi"}, "Did you mean amd-smi?"),
    ],
)
def test_values(given: dict[str, object], said: str) -> None:
    problems = run_input.value_problems(given, public_variables())
    assert len(problems) == bool(said)
    assert said in "".join(problem.text() for problem in problems)


def test_tags() -> None:
    known = set(toolkit_tags())
    assert {"benchmark", "latency", "host_prep", "vllm_serve"} <= known
    assert run_input.tag_problems(["benchmark", "always", "untagged"], known) == []
    assert [problem.what for problem in run_input.tag_problems(["benchmrk", "all"], known)] == [
        "tag benchmrk: no task has it."
    ]


def test_no_more_files_are_read_for_tags_than_needed() -> None:
    known = iter(["benchmark", "latency", "host_prep"])
    assert run_input.tag_problems(["all"], known) == []
    assert run_input.tag_problems(["latency", "all"], known) == []
    assert list(known) == ["host_prep"]


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (str(ROOT / "playbooks/site.yml"), True),
        ("instinct.fleet.site", True),
        (str(ROOT / "tests/lab/plays/site.yml"), False),
        ("mine.yml", False),
    ],
)
def test_playbooks_of_others_have_tags_of_their_own(path: str, own: bool) -> None:
    assert own_playbooks([path]) is own


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("group_vars/all.yml", "a: 1\nb: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  61\n", ""),
        ("group_vars/instinct/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n\t61: {\n", ""),
        ("group_vars/instinct/notes.txt", "a: {\n", ""),
        ("group_vars/instinct/.swp.yml", "a: {\n", ""),
        ("group_vars/instinct/a.yml", "a: 'b\n", "a.yml:2:1: is not valid YAML"),
        ("group_vars/instinct/deep/a", "a: b: c\n", "a:1:5: is not valid YAML"),
        ("host_vars/n1.yaml", "a:\n\tb: 1\n", "n1.yaml:2:1: is not valid YAML"),
        ("host_vars/n1.yaml", "a:\n\tb: 1\n", "spaces instead of a tab"),
        ("group_vars/instinct.json", '{"a": 1', "instinct.json:"),
        ("hosts.yml", "instinct: [\n", "hosts.yml:2:1: is not valid YAML"),
        ("hosts", "[instinct]\nn1 a=[\n", ""),      # not YAML
    ],
)  # fmt: skip
def test_yaml_errors_have_file_and_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    beside = tmp_path / ("servers" if "vars" in name else name)
    beside.touch()
    for source in (tmp_path, beside):
        problems = inventory_files.yaml_problems([str(source)], str(tmp_path / "plays"))
        assert len(problems) == bool(said)
        assert said in "".join(problem.text() for problem in problems)
    beside_playbook = inventory_files.yaml_problems(["n1,"], str(tmp_path))
    assert len(beside_playbook) == (bool(said) and "vars" in name)


def test_sources(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "ours.yml").touch()
    sources = [str(tmp_path / "mien"), str(tmp_path / "mine"), "n1,n2"]
    found = inventory_files.source_problems(sources, [str(tmp_path), str(tmp_path / "ours.yml")])
    assert [problem.text() for problem in found] == [
        f"-i {tmp_path}/mien: does not exist. Did you mean mine?",
        f"{tmp_path}/ours.yml: cannot be read as an inventory. Ansible's warnings above say why; hosts of this "
        "file are missing from the run.",
    ]
