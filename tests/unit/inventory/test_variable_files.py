# SPDX-License-Identifier: Apache-2.0
"""What an inventory's files say twice, or in vain: a table, and random trees that Ansible itself reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible import constants
from ansible.parsing.vault import VaultEditor, VaultLib, VaultSecret
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    file_problems,
    known_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.variable_files import (
    VariableFiles,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.inventories import HOSTS, Inventory, write

ONE, TWO = "store_quota: 1\n", "store_quota: 2\n"
GROUP = "mine/group_vars/instinct"


def problems(inventory: Inventory, run: tuple[str, ...] = ("n1", "n2")) -> list[str]:
    found = file_problems(inventory.loader, inventory.sources, inventory.groups, run)
    return [problem.text() for problem in found]


def read(place: Path, files: Mapping[str, Any], *sources: str) -> Inventory:
    return Inventory(write(place, {"mine/hosts.yml": HOSTS, **files}), sources or ("mine",))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {f"{GROUP}/a.yml": ONE, f"{GROUP}/b.yml": TWO},
            ["is set in a.yml:1 and in b.yml:1; takes only b.yml:1"],
        ),
        (
            {f"{GROUP}/a.yml": ONE, f"{GROUP}/b.yml": ONE},
            ["is set in a.yml:1 and in b.yml:1; takes only b.yml:1"],
        ),
        (
            {f"{GROUP}/b.json": '{"store_quota": 1}', f"{GROUP}/a": f"own: 1\n{ONE}"},
            ["is set in a:2 and in b.json; takes only b.json."],
        ),
        (
            {f"{GROUP}/b/x.yaml": ONE, f"{GROUP}/a.yml": ONE, f"{GROUP}/c.yml": TWO},
            ["is set in a.yml:1, b/x.yaml:1 and in c.yml:1; takes only c.yml:1"],
        ),
        (
            {f"{GROUP}/b/a.yml": ONE, f"{GROUP}/b/b.yml": ONE},
            ["is set in b/a.yml:1 and in b/b.yml:1; takes only"],
        ),
        (
            {"mine/host_vars/n1/a.yml": ONE, "mine/host_vars/n1/b.yml": TWO},
            ["is set in a.yml:1 and in b.yml:1;"],
        ),
        (
            {
                "mine/group_vars/all/a.yml": "ansible_user: a\n",
                "mine/group_vars/all/b.yml": "ansible_user: b\n",
            },
            ["ansible_user: is set in a.yml:1 and in b.yml:1"],
        ),
        (
            {"plays/group_vars/instinct/a.yml": ONE, "plays/group_vars/instinct/b.yml": TWO},
            ["is set in a.yml:1 and"],
        ),
        # Not twice, or nothing of ours.
        ({f"{GROUP}/a.yml": "own: 1\n", f"{GROUP}/b.yml": "own: 2\n"}, []),
        ({f"{GROUP}/a.yml": ONE, f"{GROUP}/b.yml": "", f"{GROUP}/c.yml": "- 1\n"}, []),
        (
            {f"{GROUP}/a.yml": ONE, f"{GROUP}/b.txt": ONE, f"{GROUP}/.b.yml": ONE, f"{GROUP}/b.d/x.yml": ONE},
            [],
        ),
        ({f"{GROUP}/a.yml": ONE, "mine/group_vars/all/a.yml": TWO, "mine/host_vars/n1/a.yml": TWO}, []),
        # The playbook's group_vars replace those of the inventory: Ansible says so.
        ({f"{GROUP}/a.yml": ONE, "plays/group_vars/instinct/a.yml": TWO}, []),
        # Of hosts and groups that have no part in it.
        ({"mine/host_vars/n9/a.yml": ONE, "mine/host_vars/n9/b.yml": TWO}, []),
        ({"mine/group_vars/storage/a.yml": ONE, "mine/group_vars/storage/b.yml": TWO}, []),
        # Beside the first of a group's names, Ansible reads no other.
        (
            {f"{GROUP}/a.yml": ONE, f"{GROUP}.yml": TWO},
            ["group_vars/instinct.yml: Ansible does not read it, because"],
        ),
        (
            {f"{GROUP}/a.yml": ONE, f"{GROUP}.yml": TWO},
            ["because mine/group_vars/instinct/ is there. Move what is in it to"],
        ),
        (
            {f"{GROUP}.yml": ONE, f"{GROUP}.yaml": ONE, f"{GROUP}.json": "{}"},
            ["instinct.yaml: ", "instinct.json: "],
        ),
        (
            {"mine/host_vars/n1": ONE, "mine/host_vars/n1.yml": TWO},
            ["host_vars/n1.yml: Ansible does not read it"],
        ),
        (
            {"plays/group_vars/all/a.yml": ONE, "plays/group_vars/all.yml": TWO},
            ["group_vars/all.yml: Ansible does"],
        ),
        # By the name that a variable had.
        (
            {f"{GROUP}.yml": "own: 1\nupgrade_serial: 2\n"},
            [
                "upgrade_serial: is set in mine/group_vars/instinct.yml:2, and is now called rollout_serial. "
                "Rename it there."
            ],
        ),
        (
            {f"{GROUP}/a.yml": "upgrade_min_in: 75%\n", "mine/host_vars/n1.json": '{"upgrade_soak": 5}'},
            [
                "mine/group_vars/instinct/a.yml:1, and is now called rollout_min_available. Rename it there.",
                "upgrade_soak: is set in mine/host_vars/n1.json, and is now called rollout_soak. Rename it there.",
            ],
        ),
        (
            {"plays/group_vars/all": "load_balancer_min_in: 1\n"},
            ["load_balancer_min_in: is set in plays/group_vars/all:1, and is now called"],
        ),
        # Words that operators use for other things; what only names one; and what has no part in it.
        ({f"{GROUP}.yml": "again: true\nwhy: because\n"}, []),
        ({f"{GROUP}.yml": "# upgrade_serial\nown: {upgrade_serial: 2}\n"}, []),
        (
            {
                "mine/group_vars/storage.yml": "upgrade_serial: 2\n",
                "mine/host_vars/n9.yml": "upgrade_soak: 2\n",
            },
            [],
        ),
    ],
)
def test_what_is_said(files: Mapping[str, str], said: list[str], tmp_path: Path) -> None:
    found = problems(read(tmp_path, files))
    assert len(found) == len(said), found
    own = "/".join(next(iter(files)).split("/")[:3])
    for text, part in zip(found, said, strict=True):
        near = text.replace(f"{tmp_path}/", "")
        assert part in (near.replace(f"{own}/", "").replace("Ansible ", "") if "is set in" in part else near)


def test_directories_of_several_sources(tmp_path: Path) -> None:
    files = {
        "site/hosts.yml": HOSTS, "site/group_vars/instinct/a.yml": ONE, "site/group_vars/instinct/b.yml": TWO,
        f"{GROUP}/a.yml": TWO,
    }  # fmt: skip
    # Of two sources the later one counts, as the command says.
    assert len(problems(read(tmp_path, files, "mine", "site"))) == 1
    assert len(problems(read(tmp_path, files, "mine/hosts.yml", "site/hosts.yml", "site", "mine"))) == 1
    assert problems(read(tmp_path, files, "mine", "mine/hosts.yml")) == []
    assert problems(read(tmp_path, files, "n1,n2")) == []


def test_what_sets_maps_together_is_no_contradiction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {
        f"{GROUP}/a.yml": "instinct_gpus: {model: MI300X}\n",
        f"{GROUP}/b.yml": "instinct_gpus: {count: 8}\n",
    }
    inventory = read(tmp_path, same)
    assert len(problems(inventory)) == 1
    monkeypatch.setattr(constants, "DEFAULT_HASH_BEHAVIOUR", "merge")
    assert problems(inventory) == []
    assert inventory.taken("n1")["instinct_gpus"] == {"model": "MI300X", "count": 8}
    write(tmp_path, {f"{GROUP}/c.yml": "instinct_gpus: {count: 4}\n"})
    assert len(problems(Inventory(tmp_path))) == 1


def vaulted(place: Path, name: str, text: str) -> VaultSecret:
    secret = VaultSecret(b"password")
    path = write(place, {name: text}) / name
    VaultEditor(VaultLib([("default", secret)])).encrypt_file(str(path), secret)
    return secret


def test_a_vaulted_file(tmp_path: Path) -> None:
    secret = vaulted(tmp_path, f"{GROUP}/vault.yml", ONE)
    inventory = read(tmp_path, {f"{GROUP}/a.yml": TWO})
    locked = problems(inventory)
    assert len(locked) == 1
    assert f"{GROUP}/vault.yml: cannot be read: " in locked[0]
    assert locked[0].endswith("Give its password: --ask-vault-pass, or --vault-password-file FILE.")
    # Without it, Ansible would fail as well.
    with pytest.raises(Exception, match="vault password must be specified"):
        inventory.taken("n1")
    opened = Inventory(tmp_path)
    opened.loader.set_vault_secrets([("default", secret)])
    found = problems(opened)
    assert len(found) == 1
    assert "vault.yml" in found[0]
    assert "store_quota: is set in " in found[0]
    assert opened.taken("n1")["store_quota"] == 1


def test_a_vaulted_file_that_this_run_does_not_read(tmp_path: Path) -> None:
    vaulted(tmp_path, "mine/host_vars/n2/vault.yml", ONE)
    inventory = read(tmp_path, {})
    assert problems(inventory, ("n1",)) == []
    assert len(problems(inventory, ("n1", "n2"))) == 1


def test_ansible_gets_templates_from_what_was_read_first(tmp_path: Path) -> None:
    """Ansible keeps the data of a file under its path: read otherwise, its texts would be no templates any more."""
    inventory = read(
        tmp_path, {f"{GROUP}/a.yml": 'hf_model_endpoint: "{{ x }}"\n', f"{GROUP}/b.yml": "x: 1\n"}
    )
    problems(inventory)
    from ansible.template import is_trusted_as_template

    assert is_trusted_as_template(inventory.taken("n1")["hf_model_endpoint"])


def test_a_thousand_hosts_cost_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{number}" for number in range(1000)]
    files = {f"mine/host_vars/{name}.yml": ONE for name in names[:500]}
    files |= {"mine/host_vars/n600/a.yml": ONE, "mine/host_vars/n600/b.yml": "verify: true\n"}
    inventory = read(tmp_path, {**files, "mine/hosts.yml": {"instinct": {"hosts": dict.fromkeys(names)}}})
    asked: list[tuple[str, str]] = []

    def counted(name: str, function: Any) -> Any:
        def run(path: Any, *args: Any, **keys: Any) -> Any:
            asked.append((name, str(path)))
            return function(path, *args, **keys)

        return run

    groups = inventory.groups
    monkeypatch.setattr(os, "scandir", counted("list", os.scandir))
    monkeypatch.setattr(os, "listdir", counted("list", os.listdir))
    monkeypatch.setattr(inventory.loader, "load_from_file", counted("load", inventory.loader.load_from_file))
    monkeypatch.setattr(
        inventory.loader, "find_vars_files", counted("find", inventory.loader.find_vars_files)
    )
    assert file_problems(inventory.loader, inventory.sources, groups, names) == []
    kinds = [name for name, _path in asked]
    # One listing of each directory, and of all the hosts' files only those that are beside others.
    assert (kinds.count("load"), kinds.count("find")) == (2, 1)
    assert kinds.count("list") < 10


NAMES = ("a.yml", "b.yaml", "c.json", "d", "deep/a.yml", "deep/b.yml", "deep.d/a.yml", "e.txt", ".f.yml")
TREES = st.dictionaries(
    st.sampled_from([f"{directory}/{kind}/{name}" for directory in ("mine", "plays")
                     for kind in ("group_vars/instinct", "host_vars/n1", "group_vars/all") for name in NAMES]
                    + [f"mine/group_vars/instinct{suffix}" for suffix in (".yml", ".yaml", ".json")]),
    st.lists(st.sampled_from(["store_quota", "verify", "own"]), unique=True),
    max_size=8,
)  # fmt: skip


@given(TREES)
def test_where_nothing_is_said_all_that_is_written_counts(
    tmp_path_factory: pytest.TempPathFactory, tree: Mapping[str, list[str]]
) -> None:
    """Ansible is asked: of one directory, it takes each variable from the file that the check says, or the only one."""
    place = tmp_path_factory.mktemp("tree")
    inventory = read(place, {name: dict.fromkeys(keys, name) for name, keys in tree.items()})
    found = problems(inventory)
    files = VariableFiles(inventory.loader, inventory.sources, inventory.loader.get_basedir())
    counted: dict[str, dict[str, str]] = {}
    for directory in files.directories:
        for kind, name in (("group", "all"), ("group", "instinct"), ("host", "n1")):
            setting: dict[str, list[str]] = {}
            for file in files.read(directory, kind, name):
                for key in file.values:
                    setting.setdefault(key, []).append(str(file.path.relative_to(os.path.realpath(place))))
            for key, names in setting.items():
                counted.setdefault(key, {})[f"{kind} {name} {directory.name}"] = names[-1]
                told = [text for text in found if text.startswith(f"{key}: is set in ") and names[-1] in text]
                assert len(told) == (len(names) > 1 and key in known_variables())
    taken = inventory.taken("n1")
    order = ["group all mine", "group all plays", "group instinct mine", "group instinct plays", "host n1 mine",
             "host n1 plays"]  # fmt: skip
    for key in ("store_quota", "verify", "own"):
        places = counted.get(key, {})
        last = [places[name] for name in order if name in places]
        assert taken.get(key) == (last[-1] if last else None)
    shadowing = [name for name in tree if Path(name).parent.name == "group_vars"]
    first = (
        "mine/group_vars/instinct/"
        if any(name.startswith("mine/group_vars/instinct/") for name in tree)
        else ""
    )
    unread = sorted(shadowing, key=lambda name: (".yml", ".yaml", ".json").index(Path(name).suffix))[
        0 if first else 1 :
    ]
    assert sorted(text.partition(": Ansible does not read it")[0].rpartition("/")[2] for text in found
                  if "does not read it" in text) == sorted(Path(name).name for name in unread)  # fmt: skip
