# SPDX-License-Identifier: Apache-2.0
"""What a load balancer lacks, by what its host has and what GPU hosts offer: files, packages, actions, warnings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash, text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    NO_KEY,
    InstanceKey,
)
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BackendInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    ObservedBalancer,
    VirtualAddress,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    BalancerPlan,
    BalancerSecrets,
    EndpointAssets,
    EndpointInputs,
    plan_balancers,
    wanted_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import HostBackends

from tests.worlds.defaults import balancer_settings

MATERIAL = BalancerSecrets("keys\n", "pem\n", "keys.yml", "endpoint.pem", ("the certificate ends soon",))
KEY = InstanceKey("instance-key", "mark", True, "key Bearer x\n")
BOTH = frozenset(("n1", "n2"))
URL = "https://192.0.2.1:8443"


def instance(name: str, port: int, **keys: Any) -> BackendInstance:
    deployment = name.rpartition("-")[0]
    base = {"listen": "0.0.0.0", "ports": (port,), "limit": 10, "models": (f"lab/{deployment}",)}
    return BackendInstance(name=name, deployment=deployment, port=port, **{**base, **keys})


def offer(host: str, *instances: BackendInstance, **keys: Any) -> HostBackends:
    return HostBackends(host, f"192.0.2.1{host[1:]}", instances, **keys)


ONE = offer("n1", instance("llama-0", 8000))
TWO = offer("n2", instance("llama-0", 8000))
N1, N2 = "llama/n1.llama-0:8000", "llama/n2.llama-0:8000"


def lb(seen: ObservedBalancer | None = None, name: str = "lb", **keys: Any) -> BalancerHost:
    settings = balancer_settings(**keys.pop("settings", {}))
    base = {"os_id": "debian", "absent": ""}
    return BalancerHost(name, "192.0.2.1", settings, seen, **{**base, **keys})


def planned(
    host: BalancerHost,
    *gpu_hosts: HostBackends,
    material: BalancerSecrets = MATERIAL,
    key: InstanceKey = NO_KEY,
) -> tuple[BalancerPlan, list[str], list[str]]:
    """The plan of one balancer, the texts of problems, and the fleet's warnings."""
    assets = EndpointAssets(
        lambda data: f"config of {json.dumps(data['backends'])}\n",
        "agent\n",
        {"lb": material},
        key,
        "router\n",
    )
    plans, problems, warnings = plan_balancers(EndpointInputs((host,), BOTH, assets), gpu_hosts)
    (plan,) = plans
    return plan, [problem.text() for problem in problems], list(warnings)


def seen_of(plan: BalancerPlan, **changes: Any) -> ObservedBalancer:
    """What is on the host after a run of this plan."""
    texts = wanted_files(plan.files, plan.host.settings, plan.material, plan.instance_key)
    assert texts is not None
    base = {
        "installed": True,
        "running": True,
        "files": {name: text_hash(text) for name, text in texts.items()},
        "applied": spec_hash(texts),
        "config": json.loads(texts["balancer.json"]),
    }
    return ObservedBalancer(**{**base, **changes})


def settled(*gpu_hosts: HostBackends, settings: dict[str, Any] | None = None, **changes: Any) -> BalancerHost:
    return lb(
        seen_of(planned(lb(settings=settings or {}), *gpu_hosts)[0], **changes), settings=settings or {}
    )


def told(plan: BalancerPlan) -> list[tuple[str, str, str, str, str]]:
    return [(item.kind, item.target, item.before, item.after, item.reason) for item in plan.actions]


# ---- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "material", "key", "names"),
    [
        ({}, MATERIAL, KEY, ["endpoint.pem", "instance.map", "keys.map"]),
        ({}, MATERIAL, NO_KEY, ["endpoint.pem", "keys.map"]),
        ({"auth": False}, MATERIAL, NO_KEY, ["endpoint.pem"]),
        ({"tls": False}, MATERIAL, NO_KEY, ["keys.map"]),
        ({"auth": False, "tls": False}, MATERIAL, KEY, ["instance.map"]),
        ({"auth": False, "tls": False}, BalancerSecrets(), NO_KEY, []),
        ({}, BalancerSecrets(None, "pem\n"), NO_KEY, None),
        ({}, BalancerSecrets("keys\n", None), NO_KEY, None),
        ({"tls": False}, BalancerSecrets("keys\n", None), NO_KEY, ["keys.map"]),
        ({"auth": False}, BalancerSecrets(None, "pem\n"), NO_KEY, ["endpoint.pem"]),
        ({}, MATERIAL, InstanceKey("f", "mark", True, None), None),
    ],
)
def test_secret_files(
    settings: dict[str, Any], material: BalancerSecrets, key: InstanceKey, names: list[str] | None
) -> None:
    found = wanted_files({"haproxy.cfg": "x"}, balancer_settings(**settings), material, key)
    assert (found and sorted(found)) == (None if names is None else sorted(["haproxy.cfg", *names]))
    texts = {
        "endpoint.pem": "pem\n",
        "keys.map": "keys\n",
        "instance.map": "key Bearer x\n",
        "haproxy.cfg": "x",
    }
    assert all(texts[name] == text for name, text in (found or {}).items())


# ---- where clients reach it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, URL),
        ({"listen": "::"}, URL),
        ({"listen": "10.0.0.1"}, "https://10.0.0.1:8443"),
        ({"listen": "fd00::1"}, "https://[fd00::1]:8443"),
        ({"tls": False, "port": 80}, "http://192.0.2.1:80"),
        ({"virtual": VirtualAddress("192.0.2.100/24", 7), "listen": "10.0.0.1"}, "https://192.0.2.100:8443"),
    ],
)
def test_the_address(settings: dict[str, Any], url: str) -> None:
    assert planned(lb(settings=settings), ONE)[0].url == url


# ---- what is to be done ------------------------------------------------------------------------------

NEW_HOST = "the host is in the group load_balancer and has no load balancer yet"
SPREADS = "it distributes requests among the instances"


@pytest.mark.parametrize(
    ("host", "gpu_hosts", "expected"),
    [
        (
            lb(),
            [ONE],
            [
                ("haproxy", "haproxy", "unknown", "installed", SPREADS),
                ("balancer", URL, "unknown", "1 instance", NEW_HOST),
            ],
        ),
        (
            lb(ObservedBalancer()),
            [ONE, TWO],
            [
                ("haproxy", "haproxy", "absent", "installed", SPREADS),
                ("balancer", URL, "absent", "2 instances", NEW_HOST),
            ],
        ),
        (lb(ObservedBalancer(installed=True)), [], [("balancer", URL, "absent", "0 instances", NEW_HOST)]),
        (settled(ONE), [ONE], []),
        (settled(ONE), [ONE, TWO], [("balancer", URL, "1 instance", "2 instances", f"new: {N2}")]),
        (settled(ONE, TWO), [ONE, offer("n2")], [("balancer", URL, "2 instances", "1 instance", f"gone: {N2}")]),
        (
            settled(ONE),
            [offer("n1", instance("llama-0", 9000))],
            [("balancer", URL, "1 instance", "1 instance", f"new: llama/n1.llama-0:9000; gone: {N1}")],
        ),
        (settled(ONE, running=False), [ONE], [("balancer", URL, "absent", "1 instance", "it is not running")]),
        (
            settled(ONE, applied="x"),
            [ONE],
            [
                (
                    "balancer", URL, "1 instance", "1 instance",
                    "its files are current, but the running HAProxy has not loaded them",
                )
            ],
        ),
        (
            settled(ONE, settings={"timeout": 7}),
            [ONE],
            [],
        ),
    ],
    ids=["not looked at", "bare", "without instances", "as wanted", "one comes", "one goes", "one moves",
         "does not run", "not applied", "its own settings"],
)  # fmt: skip
def test_actions(host: BalancerHost, gpu_hosts: list[HostBackends], expected: list[Any]) -> None:
    plan, problems, _ = planned(host, *gpu_hosts)
    assert (told(plan), problems) == (expected, [])
    assert {item.role for item in plan.actions} <= {"load_balancer"}


@pytest.mark.parametrize(
    "name", ["haproxy.cfg", "balancer.json", "agent.py", "keys.map", "endpoint.pem", "other"]
)
def test_a_file_with_other_content(name: str) -> None:
    host = settled(ONE)
    assert host.observed
    files = {**host.observed.files, name: "else"}
    (action,) = planned(lb(ObservedBalancer(**{**vars(host.observed), "files": files})), ONE)[0].actions
    assert action.reason == f"the content of {name} changes"


def test_files_that_are_missing_or_too_many() -> None:
    host = settled(ONE)
    assert host.observed
    files = {**host.observed.files, "left.over": "x"}
    del files["agent.py"]
    (action,) = planned(lb(ObservedBalancer(**{**vars(host.observed), "files": files})), ONE)[0].actions
    assert action.reason == "the content of agent.py, left.over changes"


@pytest.mark.parametrize(("count", "text"), [(4, "{0}, {1}, {2}, {3}"), (5, "{0}, {1}, {2}, … (5)")])
def test_many_servers_in_few_words(count: int, text: str) -> None:
    """In the order in which people count."""
    names = [f"llama/n1.llama-{number}:{8000 + number}" for number in range(8, 8 + count)]
    many = offer("n1", *(instance(f"llama-{number}", 8000 + number) for number in range(8, 8 + count)))
    (action,) = planned(settled(), many)[0].actions
    assert action.reason == f"new: {text.format(*names)}"


def test_a_key_that_is_yet_to_be_made() -> None:
    (action,) = planned(settled(ONE), ONE, material=BalancerSecrets(None, "pem\n"))[0].actions
    assert action.reason == "an API key or the certificate has not been generated yet"


# ---- out and in --------------------------------------------------------------------------------------

GONE = "llama/n1.llama-9:8009"
OUT = {
    N1: {"state": "drain", "by": "run", "since": "s"},
    N2: {"state": "drain", "by": "operator", "since": "2026-11-21T19:00:00Z"},
    GONE: {"state": "drain", "by": "run", "since": "s"},
}
STOPS = "this run stops it; it is drained first, so running requests can finish"
LEFT = "an interrupted run left it drained"


@pytest.mark.parametrize(
    ("stopping", "out", "changes", "drain", "undrain", "expected"),
    [
        ((), {}, {}, [], [], []),
        (("llama-0",), {}, {}, [N1], [N1], [("drain", N1, "in service", "drained", STOPS)]),
        ((), OUT, {}, [], [N1], [("undrain", N1, "drained", "in service", LEFT)]),
        (("llama-0",), OUT, {}, [N1], [N1], [("drain", N1, "in service", "drained", STOPS)]),
        (("llama-0",), {}, {"running": False}, [N1], [N1], None),
        (("other-0",), {}, {}, [], [], []),
    ],
    ids=["nothing", "it is replaced", "left out", "left out and replaced", "nothing runs", "not behind it"],
)
def test_out_and_in(
    stopping: tuple[str, ...], out: Any, changes: Any, drain: list[str], undrain: list[str], expected: Any
) -> None:
    host = settled(ONE, TWO, drained=out, **changes)
    plan = planned(host, offer("n1", *ONE.instances, stopping=stopping), TWO)[0]
    assert (list(plan.to_drain), list(plan.undrain)) == (drain, undrain)
    assert plan.drain_steps("n1") == {"drain": drain, "undrain": [name for name in undrain if name in drain]}
    assert plan.drain_steps("n2") == {"drain": [], "undrain": []}
    if expected is not None:
        assert told(plan) == expected


def test_what_goes_leaves_and_does_not_come_back() -> None:
    plan = planned(settled(ONE, TWO), offer("n1", stopping=("llama-0",)), TWO)[0]
    assert (dict(plan.drain), plan.undrain) == ({("n1", "llama-0"): (N1,)}, ())
    before, after = (json.loads(found["balancer.json"]) for found in (plan.files_before, plan.files))
    assert [[item["host"] for item in data["backends"][0]["servers"]] for data in (before, after)] == [
        ["n1", "n2"], ["n2"],
    ]  # fmt: skip


def test_what_stops_at_the_port_of_another_one_leaves_that_one_in_service() -> None:
    """The release that was to give its port away was turned back, and the load balancer has both configurations."""
    gives, takes = instance("llama-0", 8000), instance("chat-0", 9000)
    both = offer("n1", gives, takes, instance("chat-0", 8000))
    stops = offer("n1", takes, stopping=("llama-0",), present=(gives, takes))
    plan = planned(settled(both, TWO), stops, TWO)[0]
    drain = [N1, "chat/n1.chat-0:8000"]
    assert dict(plan.drain) == {("n1", "llama-0"): tuple(drain)}
    assert plan.drain_steps("n1") == {"drain": drain, "undrain": []}


def test_what_gets_the_port_of_one_that_stops_enters_service_there() -> None:
    """An earlier run, which died, has drained both in the load balancer."""
    gives, takes = instance("llama-0", 8000), instance("chat-0", 8000)
    both = settled(offer("n1", gives, takes), TWO)
    plan = planned(both, offer("n1", takes, stopping=("llama-0",), present=(gives,)), TWO)[0]
    drain = [N1, "chat/n1.chat-0:8000"]
    assert plan.drain_steps("n1") == {"drain": drain, "undrain": drain[1:]}
    assert plan.drain_steps("n1", without=["chat-0"]) == {
        "drain": drain,
        "undrain": [],
    }  # it returns with its batch


def test_one_that_was_not_looked_at_has_nothing_to_lose() -> None:
    plan = planned(lb(), offer("n1", *ONE.instances, stopping=("llama-0",)))[0]
    assert (plan.drain, plan.undrain, plan.files_before) == ({}, (), plan.files)


# ---- packages ----------------------------------------------------------------------------------------

SHARED = {"virtual": VirtualAddress("192.0.2.100/24", 7)}
FIX = "Install them (HAProxy 2.4, keepalived 2.0 or newer), and run again."


@pytest.mark.parametrize(
    ("seen", "settings", "os_id", "packages", "problem"),
    [
        ({}, {}, "debian", ["haproxy"], ""),
        ({}, {}, "ubuntu", ["haproxy"], ""),
        ({"installed": True}, {}, "debian", [], ""),
        ({"installed": True}, SHARED, "debian", ["keepalived"], ""),
        ({"keepalived": True}, SHARED, "debian", ["haproxy"], ""),
        ({}, SHARED, "debian", ["haproxy", "keepalived"], ""),
        (
            {},
            SHARED,
            "rhel",
            ["haproxy", "keepalived"],
            "host lb: has no haproxy and keepalived, and the toolkit cannot install packages on rhel",
        ),
        (
            {},
            {},
            "",
            ["haproxy"],
            "host lb: has no haproxy, and the toolkit cannot install packages on its system.",
        ),
        ({"installed": True}, {}, "rhel", [], ""),
        (None, {}, "rhel", ["haproxy"], ""),
    ],
)
def test_packages(seen: Any, settings: Any, os_id: str, packages: list[str], problem: str) -> None:
    found = None if seen is None else ObservedBalancer(**seen)
    host = lb(found, settings=settings, os_id=os_id, interfaces={"eth0": ("192.0.2.1",)})
    plan, problems, _ = planned(host, ONE)
    assert list(plan.packages) == packages
    assert [text for text in problems if "has no" in text] == (problems if problem else [])
    assert not problem or (problems[0].startswith(problem) and problems[0].endswith(FIX))
    assert [item.reason for item in plan.actions if item.target == "keepalived"] == (
        ["it moves 192.0.2.100 between the load balancers"] if "keepalived" in packages else []
    )


# ---- warnings, and what plan.json says ---------------------------------------------------------------

OPEN = "load_balancer_auth is false: anyone who reaches the load balancer can use the models"
PLAIN = "load_balancer_tls is false: prompts, answers and API keys can be read on the network"
METRICS = "the load balancer's metrics can be read by anyone who reaches its host"


@pytest.mark.parametrize(
    ("settings", "out", "expected"),
    [
        ({}, {}, []),
        ({"auth": False}, {}, [OPEN]),
        ({"tls": False}, {}, [PLAIN]),
        ({"metrics_listen": "0.0.0.0"}, {}, [METRICS]),
        ({"metrics_listen": "::1"}, {}, []),
        ({"auth": False, "tls": False, "metrics_listen": "::"}, {}, [OPEN, PLAIN, METRICS]),
        (
            {},
            OUT,
            [
                f"{N2} has been drained since 2026-11-21T19:00:00Z: run playbooks/undrain.yml to return it to service"
            ],
        ),
        (
            {},
            {N1: {"by": "operator"}},
            [
                f"{N1} has been drained since an unknown time: run playbooks/undrain.yml to return it to service"
            ],
        ),
    ],
)
def test_warnings(settings: Any, out: Any, expected: list[str]) -> None:
    plan = planned(lb(ObservedBalancer(installed=True, drained=out), settings=settings), ONE)[0]
    assert list(plan.warnings) == [*expected, "the certificate ends soon"]
    assert (
        list(planned(lb(settings=settings), ONE, material=BalancerSecrets())[0].warnings)
        == expected[: 0 if out else None]
    )


@pytest.mark.parametrize(
    ("listen", "endpoint", "warned"),
    [("0.0.0.0", True, True), ("192.0.2.11", True, False), ("0.0.0.0", False, False)],
)
def test_instances_that_can_be_asked_past_it(listen: str, endpoint: bool, warned: bool) -> None:
    both = [
        instance(name, 8000 + at, listen=listen, endpoint=endpoint)
        for at, name in enumerate(("b-0", "a-0", "a-1"))
    ]
    _, problems, warnings = planned(lb(), offer("n1", *both))
    assert problems == []
    found = [text for text in warnings if "unencrypted" not in text]
    assert [text.partition(" listen on all addresses")[0] for text in found] == (
        ["instances of a, b"] if warned else []
    )


@pytest.mark.parametrize(
    ("hosts", "listen", "endpoint", "expected"),
    [
        (("n1", "n2"), "192.0.2.9", True, ["n1, n2"]),
        (("n1",), "0.0.0.0", True, ["n1"]),
        (("n1",), "192.0.2.9", False, []),
        (("n1",), "127.0.0.1", True, []),
        (("lb",), "192.0.2.9", True, []),  # on the load balancer's own host
    ],
)
def test_a_network_that_must_be_the_fleets_own_is_named_once(
    hosts: tuple[str, ...], listen: str, endpoint: bool, expected: list[str]
) -> None:
    gpu_hosts = [offer(name, instance("llama-0", 8000, listen=listen, endpoint=endpoint)) for name in hosts]
    assets = EndpointAssets(lambda _: "", "agent\n", {"lb": MATERIAL})
    _, _, warnings = plan_balancers(EndpointInputs((lb(),), frozenset(hosts), assets), gpu_hosts)
    found = [text for text in warnings if "unencrypted" in text]
    assert [text.partition(" to ")[2].partition(":")[0] for text in found] == expected


def test_without_a_balancer_nothing_is_warned_about() -> None:
    assets = EndpointAssets(lambda _: "", "agent\n")
    open_one = offer("n1", instance("llama-0", 8000, listen="0.0.0.0"))
    assert plan_balancers(EndpointInputs((), BOTH, assets), [open_one]) == ((), (), ())
    absent = lb(absent="it is off")
    plans, problems, warnings = plan_balancers(EndpointInputs((absent,), BOTH, assets), [open_one])
    assert (plans, problems) == ((), ())
    assert warnings[0] == (
        "load balancer lb keeps its configuration, and instances stop without being drained from it: it is off. "
        "When it is back, run site.yml: it writes lb's configuration"
    )


@pytest.mark.parametrize(
    ("material", "key", "files"),
    [
        (MATERIAL, KEY, ["keys.yml", "endpoint.pem", "instance-key"]),
        (BalancerSecrets(), NO_KEY, [None, None, None]),
    ],
)
def test_plan_json(material: BalancerSecrets, key: InstanceKey, files: list[str | None]) -> None:
    host = lb(
        seen_of(planned(lb(), ONE)[0]),
        settings={"auth": False, "tls": False} if not material.keys_map else {},
    )
    data = planned(host, offer("n1", *ONE.instances, stopping=("llama-0",)), material=material, key=key)[
        0
    ].to_json()
    assert [data[name] for name in ("keys_file", "certificate_file", "instance_key_file")] == files
    assert (data["status"], data["drain"], data["undrain"]) == ("observed", [N1], [N1])
    assert planned(lb(), ONE)[0].to_json()["status"] == "declared"
    assert [item["name"] for item in data["backends"]] == ["llama"]
    assert sorted(data["files"]) == ["agent.py", "balancer.json", "haproxy.cfg"]
