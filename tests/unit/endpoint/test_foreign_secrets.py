# SPDX-License-Identifier: Apache-2.0
"""A checkout without the fleet's secrets is refused; whoever says so replaces them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.api_keys import key_marks, keys_map
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    NO_KEY,
    UNMADE,
    InstanceKey,
    header_map,
    mark,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    ObservedBalancer,
    key_problem,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.assets import (
    SecretsPolicy,
    VaultReader,
    load_endpoint,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerSecrets,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.foreign_secrets import (
    KINDS,
    LocalSecrets,
    foreign_secrets,
    in_use,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.secrets import (
    instance_key,
    load_secrets,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    check_request,
)

from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.worlds.defaults import balancer_settings

KEY, OTHER = "sk-" + "a" * 30, "sk-" + "b" * 30
PEM, OTHER_PEM = "certificate\n", "another\n"
FILES = {"keys_file": ".secrets/api-keys.yml", "certificate_file": ".secrets/endpoint.pem"}
NOTHING = LocalSecrets({}, InstanceKey(".secrets/instance-key", "", True))


def observed(keys: dict[str, str] | None = None, pem: str = PEM, key: str = KEY) -> ObservedBalancer:
    """A load balancer as its host tells it."""
    files = {"endpoint.pem": text_hash(pem), "instance.map": text_hash(header_map(key))}
    return ObservedBalancer(files=files, keys=tuple(key_marks(keys_map(keys or {"default": KEY}))))


def lb(found: ObservedBalancer | None, name: str = "lb", **settings: Any) -> BalancerHost:
    return BalancerHost(name, "192.0.2.1", balancer_settings(**settings), found)


def here(
    keys: dict[str, str] | None = None, pem: str | None = PEM, key: str | None = KEY, *names: str
) -> LocalSecrets:
    """The secrets beside the inventory."""
    material = BalancerSecrets(keys_map(keys or {"default": KEY}), pem, **FILES)
    own = (
        InstanceKey(".secrets/instance-key", mark(key), True, header_map(key))
        if key
        else NOTHING.instance_key
    )
    return LocalSecrets(dict.fromkeys(names or ("lb", "lb-2"), material), own)


EMPTY = LocalSecrets(
    dict.fromkeys(("lb", "lb-2"), BalancerSecrets(**FILES)), InstanceKey(".secrets/instance-key", "x", True)
)
ALL = ["the API keys", "the certificate", "the key of its instances"]


@pytest.mark.parametrize(
    ("hosts", "marks", "own", "refused"),
    [
        # The same, none yet, and a checkout without any.
        ([lb(observed())], {"n1": mark(KEY)}, here(), []),
        ([lb(ObservedBalancer())], {"n1": ""}, EMPTY, []),
        ([lb(observed())], {"n1": mark(KEY)}, EMPTY, ALL),
        # Generated elsewhere.
        ([lb(observed())], {}, here({"default": OTHER}, OTHER_PEM, OTHER), ALL),
        # Keys added, removed and renamed; all of them replaced.
        ([lb(observed({"a": KEY}))], {}, here({"a": KEY, "b": OTHER}), []),
        ([lb(observed({"a": KEY, "b": OTHER}))], {}, here({"renamed": KEY}), []),
        ([lb(observed({"a": KEY}))], {}, here({"a": OTHER}), ["the API keys"]),
        # An interrupted replacement: one of two has ours.
        ([lb(observed()), lb(observed({"d": OTHER}, OTHER_PEM, OTHER), "lb-2")], {}, here(), []),
        # A node that was away while the key was replaced; no load balancer yet, and nodes with a key.
        ([lb(observed())], {"n1": mark(OTHER)}, here(), []),
        ([lb(ObservedBalancer())], {"n1": mark(OTHER), "n2": ""}, here(), ["the key of its instances"]),
        ([lb(ObservedBalancer())], {"n1": mark(OTHER), "n2": mark(KEY)}, here(), []),
        # Ones own certificate is renewed without asking; what is off is not missed.
        ([lb(observed(), certificate_file="mine.pem")], {}, here(pem=OTHER_PEM), []),
        ([lb(observed(), tls=False, auth=False)], {}, here(), []),
        # A load balancer that was not read may have what is missing here.
        ([lb(None)], {"n1": ""}, EMPTY, ALL),
        ([lb(ObservedBalancer()), lb(None, "lb-2")], {}, EMPTY, ALL),
        ([lb(None)], {"n1": mark(KEY)}, here(), []),
    ],
)
def test_who_is_refused(
    hosts: list[BalancerHost], marks: dict[str, str], own: LocalSecrets, refused: list[str]
) -> None:
    problems = foreign_secrets(hosts, marks, own)
    assert [any(name in problem.what for name in refused) for problem in problems] == [True] * len(refused)
    for kind in KINDS:
        assert (
            len(foreign_secrets(hosts, marks, own, [kind])) == max(len(problems) - 1, 0) or len(problems) < 3
        )
    assert foreign_secrets(hosts, marks, own, KINDS) == ()
    text = "".join(problem.text() for problem in problems)
    assert KEY not in text
    assert OTHER not in text


def test_the_message_says_where_and_what_to_do() -> None:
    problem = foreign_secrets([lb(observed())], {}, EMPTY)[0]
    assert problem.text() == (
        "new_secrets (host lb): the fleet has the API keys of its clients, but .secrets/api-keys.yml does not exist. "
        "With others, clients get 401 until they have another key. Copy .secrets from the checkout that deployed the "
        "fleet, or fetch what the hosts have: playbooks/fetch_secrets.yml. To replace them anyway: "
        "-e new_secrets=api_keys (docs/runbooks/endpoint.md)."
    )


class Files(VaultReader):
    """Files that are not vaulted."""

    def __init__(self) -> None:
        super().__init__(None)

    def text(self, path: Path) -> str:
        return path.read_text()

    def data(self, text: str) -> Any:
        return yaml.safe_load(text)


def test_nothing_is_made_before_it_is_known_that_nothing_is_there(tmp_path: Path) -> None:
    hosts = (lb(observed()),)
    make = SecretsPolicy(make=True)
    with pytest.raises(FleetError, match="new_secrets"):
        load_endpoint(hosts, ["n1"], tmp_path, make, Files())
    assert list(tmp_path.iterdir()) == []
    load_endpoint(hosts, ["n1"], tmp_path, replace(make, make=False, check=False), Files())
    assert list(tmp_path.iterdir()) == []
    load_endpoint(hosts, ["n1"], tmp_path, replace(make, replace=KINDS), Files())
    assert sorted(path.name for path in (tmp_path / ".secrets").iterdir()) == [
        "api-keys.yml", "endpoint.pem", "instance-key",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("apply", "offline", "refused"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_an_offline_plan_is_not_applied(apply: bool, offline: bool, refused: int) -> None:
    options = {name: option.get("default") for name, option in OPTIONS.items()}
    problems = check_request({**options, "apply": apply, "offline": offline})
    assert [problem.path for problem in problems] == [("offline",)] * refused


@pytest.mark.parametrize(
    "playbook",
    [
        "site",
        *(
            pytest.param(name, marks=pytest.mark.deep)
            for name in ("deploy", "partition", "upgrade", "rollback", "restart")
        ),
    ],
)
def test_every_playbook_that_applies_says_so(playbook: str, tmp_path: Path, playbooks: Playbooks) -> None:
    (tmp_path / "hosts.yml").write_text("instinct: {hosts: {n1: {ansible_connection: local}}}\n")
    done = playbooks.run("-i", str(tmp_path), f"playbooks/{playbook}.yml", "-e", "offline=true")
    assert done.returncode == 2, done.stdout
    assert "needs the current state" in done.stdout or "an offline plan cannot be applied" in done.stdout


@pytest.mark.parametrize(
    ("hosts", "marks", "key", "expected"),
    [
        ([lb(observed())], {"n1": mark(KEY), "n2": ""}, KEY, True),
        ([lb(observed()), lb(observed(), "lb-2")], {}, KEY, True),
        # An interrupted replacement: on no host yet, on one load balancer, on the nodes.
        ([lb(observed())], {"n1": mark(KEY)}, OTHER, False),
        ([lb(observed()), lb(observed(key=OTHER), "lb-2")], {}, KEY, False),
        ([lb(observed())], {"n1": mark(OTHER)}, KEY, False),
        # A new fleet, and one whose key is to be generated anyway.
        ([lb(ObservedBalancer())], {"n1": ""}, KEY, False),
        ([lb(observed())], {"n1": mark(KEY)}, None, False),
    ],
)
def test_a_key_that_all_have_is_replaced(
    hosts: list[BalancerHost], marks: dict[str, str], key: str | None, expected: bool
) -> None:
    assert in_use(hosts, marks, here(key=key).instance_key) is expected


def test_the_instances_key_is_replaced_once_and_only_by_a_run_that_applies(tmp_path: Path) -> None:
    make = SecretsPolicy(make=True, replace=KINDS, marks={"n1": mark(KEY)})
    others = KINDS[:2]
    own = tmp_path / ".secrets" / "instance-key"
    own.parent.mkdir(mode=0o700)
    own.write_text(f"{KEY}\n")
    (own.parent / "api-keys.yml").write_text(f"default: {KEY}\n")
    there = (lb(observed()),)
    shown = load_endpoint(there, ["n1"], tmp_path, replace(make, make=False), Files())
    assert shown is not None
    assert (shown.assets.instance_key.mark, shown.assets.instance_key.map) == (UNMADE, None)
    open_to_all = (lb(observed(), instance_auth=False),)
    unasked = load_endpoint(open_to_all, ["n1"], tmp_path, replace(make, make=False), Files())
    assert unasked is not None  # new instances go on without it
    assert (unasked.assets.instance_key.mark, unasked.assets.instance_key.sent_mark) == ("", UNMADE)
    assert own.read_text() == f"{KEY}\n"
    load_endpoint(there, ["n1"], tmp_path, replace(make, replace=others), Files())
    assert own.read_text() == f"{KEY}\n"
    load_endpoint(there, ["n1"], tmp_path, make, Files())
    new = own.read_text()
    assert new != f"{KEY}\n"
    assert own.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in own.parent.iterdir()) == [
        "api-keys.yml",
        "endpoint.pem",
        "instance-key",
    ]
    # The fleet has the old one: the next run goes on with the new one.
    load_endpoint(there, ["n1"], tmp_path, make, Files())
    assert own.read_text() == new
    own.write_text(f"{KEY}\n")
    with pytest.raises(FleetError, match="would keep sending the old key"):
        load_endpoint((*there, lb(None, "lb-2")), ["n1"], tmp_path, make, Files())


@pytest.mark.deep
def test_what_load_balancers_have_is_fetched_and_is_the_same(tmp_path: Path, playbooks: Playbooks) -> None:
    """The playbook, on this machine in the place of a load balancer."""
    first, there, second = tmp_path / "first", tmp_path / "there", tmp_path / "second"
    hosts = [lb(None)]
    reading = (lambda path: path.read_text(), yaml.safe_load)
    for path in (first, there, second):
        path.mkdir()
    material = load_secrets(hosts, first, True, *reading)["lb"]
    key = instance_key(hosts, first, True, reading[0])
    (there / "keys.map").write_text(material.keys_map or "")
    (there / "endpoint.pem").write_text(material.certificate or "")
    (there / "instance.map").write_text(key.map or "")
    (second / "hosts.yml").write_text("load_balancer: {hosts: {lb: {ansible_connection: local}}}\n")
    (second / ".secrets").mkdir(mode=0o700)
    text = (ROOT / "playbooks/fetch_secrets.yml").read_text(encoding="utf-8")
    playbook = tmp_path / "fetch_secrets.yml"
    playbook.write_text(text.replace("/etc/instinct-fleet/balancer/current", str(there)), encoding="utf-8")
    command = ("-i", str(second), str(playbook), "-e", "ansible_become=false", "--diff", "-vvv")
    done = playbooks.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    fetched = load_secrets(hosts, second, False, *reading)["lb"]
    assert (fetched.keys_map, fetched.certificate) == (material.keys_map, material.certificate)
    assert instance_key(hosts, second, False, reading[0]).map == key.map
    assert {path.stat().st_mode & 0o777 for path in (second / ".secrets").iterdir()} == {0o600}
    private = (material.certificate or "").splitlines()[-2]
    for secret in ((key.map or "").split()[-1], private):
        assert secret not in done.stdout + done.stderr
    # What is here is kept.
    (second / ".secrets/instance-key").write_text("mine\n")
    assert playbooks.run(*command).returncode == 0
    assert (second / ".secrets/instance-key").read_text() == "mine\n"


def test_without_a_load_balancer_nodes_have_the_instances_key(tmp_path: Path, playbooks: Playbooks) -> None:
    (tmp_path / "instances").write_text(f"VLLM_API_KEY={KEY}\n")
    (tmp_path / "hosts.yml").write_text("instinct: {hosts: {n1: {ansible_connection: local}}}\n")
    text = (ROOT / "playbooks/fetch_secrets.yml").read_text(encoding="utf-8")
    playbook = tmp_path / "fetch_secrets.yml"
    text = text.replace("/etc/instinct-fleet/keys/", f"{tmp_path}/").replace("/etc/", f"{tmp_path}/none/")
    playbook.write_text(text, encoding="utf-8")
    done = playbooks.run(
        "-i", str(tmp_path / "hosts.yml"), str(playbook), "-e", "ansible_become=false", "-vvv"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    assert {path.name: path.read_text().strip() for path in (tmp_path / ".secrets").iterdir()} == {
        "instance-key": KEY
    }


@pytest.mark.parametrize(
    ("key", "wrong"), [("sha256:" + "0a" * 32, ""), ("sha256:" + "0a" * 31, "64 hexadecimal"), (KEY, "")]
)
def test_a_key_of_which_only_the_hash_is_known(key: str, wrong: str) -> None:
    assert (wrong in key_problem("me", key)) if wrong else not key_problem("me", key)
    assert keys_map({"me": "sha256:" + "0a" * 32}) == "0A" * 32 + " me\n"


def test_no_key_anywhere_is_no_secret_of_the_fleet() -> None:
    assert (
        foreign_secrets(
            [lb(ObservedBalancer(), tls=False, auth=False)], {"n1": mark(KEY)}, LocalSecrets({}, NO_KEY)
        )
        == ()
    )
