# SPDX-License-Identifier: Apache-2.0
"""The load balancer's plan: who is behind it, what differs, what is refused; and HAProxy's own word on its file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash, text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    NO_KEY,
    UNMADE,
    InstanceKey,
    header_map,
    mark,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.node_key import node_key
from ansible_collections.instinct.fleet.plugins.module_utils.observe.balancer import read_balancer
from ansible_collections.instinct.fleet.plugins.module_utils.observe.instances import read_instance_key
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    parse_balancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerPlan,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
    wanted_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import (
    haproxy_word,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.balancer_world import ADDRESSES, DRAW, MATERIAL, NEVER, applied, host
from tests.worlds.plan_world import LOCK, SCHEMA, apply_to_state, deployment, fleet, state, workshop
from tests.worlds.programs import program

SECRET = "sk-instances-" + "i" * 30
KEY = InstanceKey("instance-key", mark(SECRET), True, header_map(SECRET))


def planned(
    states: dict[str, Any],
    deployments: Any,
    *hosts: BalancerHost,
    gpu_hosts: tuple[str, ...] = (),
    key: InstanceKey = NO_KEY,
    **keys: Any,
) -> FleetPlan:
    """A plan with balancers."""
    some = hosts or (host(),)
    assets = EndpointAssets(DRAW, "agent\n", {item.name: MATERIAL for item in some}, key, "router\n")
    endpoint = EndpointInputs(some, frozenset((*states, *gpu_hosts)), assets)
    keys.setdefault("own", {name: ADDRESSES.get(name, {}) for name in states})
    groups = {"load_balancer": [item.name for item in some]}
    shop = workshop(LOCK)
    shop.key = key
    plan = plan_fleet(check_fleet(fleet(states, deployments, groups=groups, **keys)), shop, endpoint)
    SCHEMA.validate(json.loads(json.dumps(plan.to_json())))
    return plan


def actions(plan: FleetPlan) -> list[str]:
    return [f"{item.kind} {item.target}: {item.reason}" for item in plan.balancers[0].actions]


def names(plan: BalancerPlan) -> list[str]:
    return [f"{backend.name}/{member.name}" for backend in plan.backends for member in backend.members]


def two(**changes: Any) -> dict[str, Any]:
    return {"n1": state(**changes), "n2": state(**changes)}


def settled(deployments: Any, **keys: Any) -> dict[str, Any]:
    """Two nodes on which these deployments run."""
    plan = planned(two(), deployments, **keys).to_json()["hosts"]
    return {name: apply_to_state(state(), plan[name]) for name in ("n1", "n2")}


def test_all_instances_of_all_hosts() -> None:
    plan = planned(two(), [deployment(instances_per_host=2)], own=ADDRESSES)
    (balancer,) = plan.balancers
    assert balancer.url == "https://192.0.2.1:8443"
    (backend,) = balancer.backends
    assert backend.models == ("lab/tiny-llama",)
    assert [(m.name, m.address, m.port) for m in backend.members] == [
        ("n1.llama-0:8000", "192.0.2.11", 8000),
        ("n1.llama-1:8001", "192.0.2.11", 8001),
        ("n2.llama-0:8000", "192.0.2.12", 8000),
        ("n2.llama-1:8001", "192.0.2.12", 8001),
    ]
    assert actions(plan) == [
        "haproxy haproxy: it distributes requests among the instances",
        "balancer https://192.0.2.1:8443: the host is in the group load_balancer and has no load balancer yet",
    ]
    text = explain(plan)
    assert "2 actions on load balancer lb" in text
    assert "lab/tiny-llama: deployment llama on n1 (2), n2 (2)" in text
    assert "listen on all addresses" not in text
    asked = planned(two(), [deployment(listen="0.0.0.0")])
    assert "instances of llama listen on all addresses" in explain(asked)


def test_nothing_differs_after_a_run() -> None:
    deployments = [deployment()]
    states = settled(deployments)
    first = planned(states, deployments)
    again = planned(states, deployments, host(applied(first.balancers[0])))
    assert again.changes == 0
    assert explain(again).startswith("Plan: 2 hosts, nothing to do; 2 instances up to date.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"running": False}, "it is not running"),
        ({"applied": None}, "its files are current, but the run that wrote them did not finish"),
        ({"applied": "0" * 64}, "its files are current, but the running HAProxy has not loaded them"),
        ({"files": {}}, "the host is in the group load_balancer and has no load balancer yet"),
    ],
)
def test_what_is_amiss_on_the_host(changes: dict[str, Any], reason: str) -> None:
    deployments = [deployment()]
    states = settled(deployments)
    first = planned(states, deployments).balancers[0]
    assert actions(planned(states, deployments, host(applied(first, **changes)))) == [
        f"balancer https://192.0.2.1:8443: {reason}"
    ]


def test_a_file_that_was_changed_by_hand() -> None:
    states = settled([deployment()])
    there = applied(planned(states, [deployment()]).balancers[0])
    there["files"]["keys.map"] = text_hash("other")
    assert actions(planned(states, [deployment()], host(there))) == [
        "balancer https://192.0.2.1:8443: the content of keys.map changes"
    ]


def test_an_instance_leaves_before_it_is_replaced_and_comes_back() -> None:
    states = settled([deployment()])
    there = applied(planned(states, [deployment()]).balancers[0])
    changed = planned(states, [deployment(engine_args={"max_model_len": 4096})], host(there))
    (balancer,) = changed.balancers
    assert [item.kind for item in balancer.actions] == ["drain", "drain"]
    both = ["llama/n1.llama-0:8000", "llama/n2.llama-0:8000"]
    assert (list(balancer.to_drain), list(balancer.undrain)) == (both, both)
    assert balancer.drain_steps("n2") == {"drain": both[1:], "undrain": both[1:]}


def test_what_goes_stays_until_it_has_gone() -> None:
    states = settled([deployment(instances_per_host=2)])
    there = applied(planned(states, [deployment(instances_per_host=2)]).balancers[0])
    (balancer,) = planned(states, [deployment(port=9000)], host(there)).balancers
    assert names(balancer) == ["llama/n1.llama-0:9000", "llama/n2.llama-0:9000"]
    before = json.loads(balancer.files_before["balancer.json"])["backends"][0]["servers"]
    assert [item["name"] for item in before] == [
        "n1.llama-0:8000", "n1.llama-0:9000", "n1.llama-1:8001",
        "n2.llama-0:8000", "n2.llama-0:9000", "n2.llama-1:8001",
    ]  # fmt: skip
    assert len(balancer.to_drain) == 6  # those of the new ports too: who answers there is drained
    assert balancer.undrain == ("llama/n1.llama-0:9000", "llama/n2.llama-0:9000")


def test_hosts_that_are_not_planned_keep_what_the_balancer_has_of_them() -> None:
    states = settled([deployment()])
    there = applied(planned(states, [deployment()]).balancers[0])
    limited = {"n1": states["n1"]}
    assert planned(limited, [deployment()], host(there), gpu_hosts=("n2",)).changes == 0
    dead = planned({"n1": states["n1"], "n2": None}, [deployment()], host(there))
    assert dead.changes == 0
    removed = planned(limited, [deployment()], host(there))
    assert actions(removed) == [
        "drain 1 instance of n2: the host left the inventory; running requests finish before the load balancer "
        "removes it",
        "balancer https://192.0.2.1:8443: gone: llama/n2.llama-0:8000",
    ]


def test_who_took_a_server_out() -> None:
    states = settled([deployment()])
    out = {
        "llama/n1.llama-0:8000": {"state": "drain", "by": "run", "since": "2026-11-21T19:00:00Z"},
        "llama/n2.llama-0:8000": {"state": "drain", "by": "operator", "since": "2026-11-21T19:00:00Z"},
        "gone/n1.gone-0:9000": {"state": "drain", "by": "run", "since": "2026-11-21T19:00:00Z"},
    }
    there = applied(planned(states, [deployment()]).balancers[0], out=out)
    plan = planned(states, [deployment()], host(there))
    assert actions(plan) == ["undrain llama/n1.llama-0:8000: an interrupted run left it drained"]
    assert "llama/n2.llama-0:8000 has been drained since 2026-11-21T19:00:00Z" in explain(plan)


def test_a_balancer_that_is_not_part_of_the_run() -> None:
    plan = planned(two(), [deployment()], host(absent="it could not be reached"))
    assert plan.balancers == ()
    text = (
        "load balancer lb keeps its configuration, and instances stop without being drained from it: it "
        "could not be reached. When it is back, run site.yml: it writes lb's configuration"
    )
    assert text in plan.warnings


def test_keys_that_are_yet_to_be_made() -> None:
    endpoint = EndpointInputs((host(),), frozenset(("n1",)), EndpointAssets(DRAW, "agent\n"))
    wanted = fleet({"n1": state()}, [deployment()], groups={"load_balancer": ["lb"]}, own=ADDRESSES)
    plan = plan_fleet(check_fleet(wanted), workshop(), endpoint)
    assert [item.kind for item in plan.balancers[0].actions] == ["haproxy", "balancer"]


def problems(deployments: Any, *hosts: BalancerHost, states: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(FleetError) as error:
        planned(states or {"n1": state()}, deployments, *hosts, own=ADDRESSES)
    return [item.text() for item in error.value.problems]


def test_two_deployments_of_one_name_are_one_backend() -> None:
    second = deployment(name="second", port=9000, gpus=[1], weight=3)
    plan = planned({"n1": state()}, [deployment(), second], own=ADDRESSES)
    (backend,) = plan.balancers[0].backends
    assert (backend.name, backend.models, backend.subsets) == ("llama:second", ("lab/tiny-llama",), ())
    assert [(member.name, member.weight) for member in backend.members] == [
        ("n1.llama-0:8000", 1),
        ("n1.second-0:9000", 3),
    ]
    assert "lab/tiny-llama: deployments llama and second on n1" in explain(plan)
    alone = planned({"n1": state()}, [deployment(), {**second, "endpoint": False}], own=ADDRESSES)
    assert names(alone.balancers[0]) == ["llama/n1.llama-0:8000"]


def test_an_instance_that_the_balancer_cannot_reach() -> None:
    only = [deployment(listen="127.0.0.1")]
    assert problems(only) == [
        "vllm_deployments[0].listen (host n1): instances of n1 listen on 127.0.0.1, which load balancer lb cannot "
        "reach. Listen on an address of the host that the load balancer reaches, or set endpoint: false."
    ]
    here = planned({"n1": state()}, only, host(name="n1")).balancers[0]
    assert here.backends[0].members[0].address == "127.0.0.1"


@pytest.mark.parametrize(
    ("balancers", "address", "keys", "listen", "target"),
    [
        (["n1"], "192.0.2.11", {}, "127.0.0.1", "127.0.0.1"),
        (["n1"], "a-name", {}, "127.0.0.1", "127.0.0.1"),
        (["lb"], "192.0.2.11", {}, "192.0.2.11", "192.0.2.11"),
        (["lb"], "fd00::11", {}, "fd00::11", "fd00::11"),
        (["n1", "lb"], "192.0.2.11", {}, "192.0.2.11", "192.0.2.11"),
        (["n1"], "192.0.2.11", {"listen": "0.0.0.0"}, "0.0.0.0", "127.0.0.1"),
        (["lb"], "192.0.2.11", {"listen": "0.0.0.0"}, "0.0.0.0", "192.0.2.11"),
        (["lb"], "a-name", {"listen": "0.0.0.0"}, "0.0.0.0", "a-name"),
        (["lb"], "192.0.2.11", {"listen": "10.0.0.1"}, "10.0.0.1", "10.0.0.1"),
        (["lb"], "a-name", {"endpoint": False}, "127.0.0.1", None),
    ],
)
def test_where_instances_listen(
    balancers: list[str], address: str, keys: dict[str, Any], listen: str, target: str | None
) -> None:
    own = {"n1": {"ansible_host": address}}
    plan = planned({"n1": state()}, [deployment(**keys)], *(host(name=name) for name in balancers), own=own)
    (item,) = plan.to_json()["hosts"]["n1"]["instances"]
    assert item["argv"][item["argv"].index("--host") + 1] == listen
    for balancer in plan.balancers:
        assert [member.address for backend in balancer.backends for member in backend.members] == (
            [target] if target else []
        )


@pytest.mark.parametrize("address", ["a-name", "127.0.0.1", "::1", "192.0.2.99"])
def test_an_address_at_which_other_hosts_do_not_reach_it(address: str) -> None:
    eth = {"name": "eth0", "addresses": ["192.0.2.11"], "up": True, "mtu": 1500, "speed": None}
    node = state(interfaces=[eth])
    planned({"n1": node}, [deployment()], own={"n1": {"ansible_host": "192.0.2.11"}})
    planned({"n1": node}, [deployment(listen="0.0.0.0")], own={"n1": {"ansible_host": address}})
    ((name, why),) = planned({"n1": node}, [deployment()], own={"n1": {"ansible_host": address}}).excluded
    assert name == "n1"
    assert why.startswith(f"a load balancer on another host must reach the instances, but {address} is not")


def test_a_port_that_both_want() -> None:
    assert problems([deployment(port=8443)], host(name="n1")) == [
        "vllm_deployments[0].port (host n1): instance llama-0 and the load balancer would both listen on port 8443. "
        "Choose another port, or set load_balancer_port."
    ]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"load_balancer_port": "https"}, "load_balancer_port: must be a whole number, not text."),
        ({"load_balancer_auth": "maybe"}, "load_balancer_auth: must be true or false, not text."),
        ({"load_balancer_api_keys": {"a b": "x" * 30}}, "load_balancer_api_keys.a b: is not a valid name of a key"),
        ({"load_balancer_api_keys": {"a": "short-secret"}}, "load_balancer_api_keys.a: its key must be text"),
        ({"load_balancer_hang_timeout": 14}, "load_balancer_hang_timeout: 14 is out of range. It must be from 15 to"),
        ({"load_balancer_repeat_unanswered": 2}, "load_balancer_repeat_unanswered: must be true or false, not"),
        ({"load_balancer_metrics_port": 8443}, "load_balancer_port: the load balancer cannot use one port twice"),
    ],
)  # fmt: skip
def test_wrong_variables(variables: dict[str, Any], text: str) -> None:
    (problem,) = parse_balancer(variables, "lb")[2]
    assert problem.text().startswith(text)
    assert "short-secret" not in problem.text()


def test_no_key_in_the_plan() -> None:
    lb = host(load_balancer_api_keys={"me": "sk-" + "s" * 40})
    plan = planned({"n1": state()}, [deployment()], lb)
    assert "s" * 40 not in json.dumps(plan.to_json()) + repr(plan)


def test_instances_and_balancers_share_a_key_that_no_plan_has() -> None:
    deployments = [deployment(), deployment(name="own", port=9000, gpus=[1], endpoint=False)]
    plan = planned({"n1": state()}, deployments, key=KEY)
    found = plan.to_json()
    assert SECRET not in json.dumps(found) + repr(plan)
    on_node = found["hosts"]["n1"]
    llama, own = on_node["instances"]
    assert "source /instinct-keys/instances\n" in llama["server"]["files"]["serve.sh"]["text"]
    assert "/etc/instinct-fleet/keys:/instinct-keys:ro" in llama["server"]["container"]["HostConfig"]["Binds"]
    assert "instinct-keys" not in json.dumps(own["server"])  # who asks it does not come by a balancer
    assert (on_node["instance_key_file"], on_node["todo"][-2:]) == (
        "instance-key",
        ["instance_key", "vllm_serve"],
    )
    (balancer,) = plan.balancers
    assert "map_str(instance.map)" in balancer.files["haproxy.cfg"]
    assert applied(balancer)["files"]["instance.map"] == text_hash(f"key Bearer {SECRET}\n")


def test_a_new_key_replaces_the_instances_and_is_brought_first() -> None:
    other = InstanceKey("instance-key", mark(SECRET + "2"), True, header_map(SECRET + "2"))
    first = planned({"n1": state()}, [deployment()], key=KEY)
    there = {**apply_to_state(state(), first.to_json()["hosts"]["n1"]), "instance_key": KEY.mark}
    lb = host(applied(first.balancers[0]))
    assert planned({"n1": there}, [deployment()], lb, key=KEY).changes == 0
    # Opted out: instances are replaced by such without a key; balancers send it as long as it is there.
    out = planned({"n1": there}, [deployment()], lb, key=InstanceKey("f", "", True, KEY.map))
    assert [item.kind for item in out.hosts[0].actions] == ["generation", "server"]
    changed = planned({"n1": there}, [deployment()], lb, key=other)
    assert [item.kind for item in changed.hosts[0].actions] == ["instance_key", "generation", "server"]
    assert actions(changed)[-1].endswith("the content of instance.map changes")
    lost = planned({"n1": {**there, "instance_key": None}}, [deployment()], lb, key=KEY)
    assert [(item.kind, item.before) for item in lost.hosts[0].actions] == [("instance_key", "absent")]


def test_a_key_that_is_yet_to_be_made() -> None:
    plan = planned({"n1": state()}, [deployment()], key=InstanceKey("instance-key", UNMADE, True))
    assert [item.after for item in plan.hosts[0].actions if item.kind == "instance_key"] == [UNMADE]
    assert wanted_files({}, plan.balancers[0].host.settings, MATERIAL, plan.balancers[0].instance_key) is None


@pytest.mark.parametrize("text", ['a "b"', "$HOME", "back\\slash", "a b", "q'uote", "#x", "ü"])
def test_words(text: str) -> None:
    assert (
        haproxy_word(text) == '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
    )


def test_a_router_is_there_for_deployments_that_are_routed_by_prefix() -> None:
    deployments = [
        deployment(routing="prefix"),
        deployment(name="b", port=9000, gpus=[1], served_model_name="b"),
    ]
    states = settled(deployments)
    (first,) = planned(states, deployments).balancers
    data = json.loads(first.files["balancer.json"])
    assert (data["routers"], data["router_port"]) == ({"llama": 8410}, 8407)
    assert first.files["router.py"] == "router\n"
    routes = [
        line.split()[1] for line in first.files["haproxy.cfg"].splitlines() if "    use_backend" in line
    ]
    assert routes == ["b", "llama.router", "llama", "llama"]  # the last: what comes back from the router
    assert planned(states, deployments, host(applied(first))).changes == 0

    # Another one before it in the alphabet takes another port; hosts alone keep what the balancer has.
    both = [*deployments, deployment(name="a", port=9100, gpus=[2], served_model_name="a", routing="prefix")]
    (more,) = planned(states, both, host(applied(first))).balancers
    assert json.loads(more.files["balancer.json"])["routers"] == {"llama": 8410, "a": 8411}
    (none,) = planned(states, [deployment(), deployments[1]], host(applied(first))).balancers
    assert "router.py" not in none.files
    assert "8407" not in none.files["haproxy.cfg"]


def test_ports_of_routers_are_taken() -> None:
    assert problems([deployment(port=8410, routing="prefix")], host(name="n1")) == [
        "vllm_deployments[0].port (host n1): instance llama-0 and the load balancer would both listen on port 8410. "
        "Choose another port, or set load_balancer_port."
    ]
    planned({"n1": state()}, [deployment(port=8410)], host(name="n1"))


@pytest.mark.parametrize("key", [KEY, NO_KEY])
@pytest.mark.parametrize(
    ("deployments", "variables"),
    [
        ([deployment()], {}),
        ([deployment(), deployment(name="b", port=9000, gpus=[1], served_model_name='q "x" $HOME \\ #')], {}),
        ([deployment(routing="prefix")], {}),
        (
            [deployment(routing="prefix"), deployment(name="b", port=9000, gpus=[1], served_model_name="b")],
            {},
        ),
        ([deployment()], {"load_balancer_tls": False}),
        ([deployment()], {"load_balancer_auth": False}),
        ([deployment()], {"load_balancer_listen": "::", "load_balancer_metrics_listen": "::1"}),
        ([], {}),
    ],
)
def test_haproxy_takes_the_configuration(
    tmp_path: Path, deployments: Any, variables: dict[str, Any], key: InstanceKey
) -> None:
    lb = host(**variables)
    (balancer,) = planned({"n1": state()}, deployments, lb, own=ADDRESSES, key=key).balancers
    texts = wanted_files(balancer.files, balancer.host.settings, MATERIAL, key)
    assert texts is not None
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [program("haproxy"), "-c", "-C", str(tmp_path), "-f", "haproxy.cfg"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    # Of the state file, which the module makes, and of metrics, which are not logged.
    assert [
        line
        for line in warnings
        if "server state file" not in line and "since it has no log address" not in line
    ] == []


def test_what_node_state_finds(tmp_path: Path) -> None:
    source = Source(str(tmp_path))
    etc, var = tmp_path / "etc/balancer", tmp_path / "var/balancer"
    assert read_balancer(source, str(etc.parent), str(var.parent)) == NEVER
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/haproxy").touch()
    (etc / "abc").mkdir(parents=True)
    (etc / "current").symlink_to("abc")
    var.mkdir(parents=True)
    plan = planned(two(), [deployment()]).balancers[0]
    texts = wanted_files(plan.files, plan.host.settings, plan.material, plan.instance_key)
    assert texts is not None
    for name, text in texts.items():
        (etc / "current" / name).write_text(text)
    (var / "applied").write_text(spec_hash(texts) + "\n")
    (var / "out.json").write_text('{"a/b": {"by": "run"}}')
    (var / "haproxy.pid").write_text("1\n")  # not HAProxy
    seen = read_balancer(source, str(etc.parent), str(var.parent))
    assert seen == applied(plan, running=False, out={"a/b": {"by": "run"}})


def test_node_state_knows_the_key_by_its_mark(tmp_path: Path) -> None:
    assert read_instance_key(str(tmp_path)) is None
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/instances").write_text(f"VLLM_API_KEY={SECRET}\n")
    assert read_instance_key(str(tmp_path)) == mark(SECRET)
    assert node_key(str(tmp_path / "keys")) == SECRET


def test_hosts_that_differ_in_their_address_only_are_told_once() -> None:
    text = explain(planned({"n1": state(), "n2": state()}, [deployment()]), full=True)
    assert text.count("\nDeployment llama on ") == 1
    assert "Deployment llama on n1, n2: " in text
    assert "inside its container; the others differ in address:" in text
