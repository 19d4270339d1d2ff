# SPDX-License-Identifier: Apache-2.0
"""Groups that contradict each other: a table, and random trees of groups about which Ansible itself is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible.vars.hostvars import HostVars
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    conflict_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.group_values import (
    GroupValue,
    conflict,
    group_conflicts,
    group_table,
    winner,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.variable_files import (
    VariableFiles,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.inventories import Inventory, write

KEY = "store_quota"


def problems(inventory: Inventory, hosts: Sequence[str] = ("n1", "n2")) -> list[str]:
    hostvars = HostVars(inventory.manager, inventory.variables, inventory.loader)
    reader = InventoryReader({"hostvars": hostvars, "groups": inventory.groups})
    return [problem.text() for problem in conflict_problems(reader, hosts, inventory.loader)]


def rack(*names: str, **variables: Any) -> dict[str, Any]:
    return {"hosts": dict.fromkeys(names), "vars": variables}


ONE, TWO, BARE = rack("n1", store_quota=1), rack("n1", store_quota=2), rack("n1")
OWN = {"hosts": {"n1": {"store_quota": 3}}, "vars": {"store_quota": 2}}
INNER = {**TWO, "children": {"c": rack("n1", store_quota=3)}}
VARS = "mine/group_vars"


@pytest.mark.parametrize(
    ("groups", "files", "said"),
    [
        ({"a": ONE, "b": rack("n1", "n2", store_quota=2)}, {}, "store_quota (host n1): the groups b ("),
        ({"a": rack("n1", "n2", store_quota=1), "b": rack("n1", "n2")}, {f"{VARS}/b.yml": "store_quota: 2\n"},
         "store_quota (hosts n1, n2): the groups b ("),
        ({"a": BARE, "b": BARE}, {f"{VARS}/a.yml": "ansible_user: x\n", f"{VARS}/b/x.yml": "ansible_user: y\n"},
         "ansible_user (host n1): the groups b ("),
        # A file of the playbook is taken before those of the inventory, whatever the names are.
        ({"a": BARE, "b": TWO}, {"plays/group_vars/a.yml": "store_quota: 1\n"}, "the groups a ("),
        # The same value, a host's own one, another depth, another priority, and no variable of ours.
        ({"a": ONE, "b": ONE}, {}, ""),
        ({"a": ONE, "b": OWN}, {}, ""),
        ({"a": ONE, "b": TWO}, {"mine/host_vars/n1.yml": "store_quota: 3\n"}, ""),
        ({"a": ONE, "b": {"children": {"c": TWO}}}, {}, ""),
        ({"a": ONE, "b": rack("n1", store_quota=2, ansible_group_priority=2)}, {}, ""),
        ({"a": rack("n1", own=1), "b": rack("n1", own=2)}, {}, ""),
        ({"a": ONE, "b": rack("n2", store_quota=2)}, {}, ""),
        # In group_vars, Ansible does not read a priority.
        ({"a": ONE, "b": BARE}, {f"{VARS}/b.yml": "store_quota: 2\nansible_group_priority: 2\n"}, "(host n1)"),
        # Two groups contradict each other, but a deeper one decides.
        ({"a": ONE, "b": INNER}, {}, ""),
        ({"all": {"vars": {"store_quota": 1}}, "a": TWO}, {}, ""),
        # group_vars/all.yml replaces what the hosts' file says of their groups: Ansible says so.
        ({"a": ONE, "b": TWO}, {f"{VARS}/all.yml": "store_quota: 3\n"}, ""),
    ],
)  # fmt: skip
def test_contradictions(
    groups: Mapping[str, Any], files: Mapping[str, str], said: str, tmp_path: Path
) -> None:
    hosts = {"instinct": {"hosts": {"n1": None, "n2": None}}, **groups}
    found = problems(Inventory(write(tmp_path, {"mine/hosts.yml": hosts, **files})))
    assert len(found) == bool(said), found
    assert said in "".join(found)


def test_the_message_names_both_places(tmp_path: Path) -> None:
    write(tmp_path, {
        "mine/hosts.yml": "instinct:\n  hosts:\n    n1:\nrack:\n  hosts:\n    n1:\n  vars:\n    store_quota: 2\n",
        "mine/group_vars/instinct/x.yml": "---\nstore_quota: 1\n",
    })  # fmt: skip
    assert problems(Inventory(tmp_path), ["n1"]) == [
        f"store_quota (host n1): the groups instinct ({tmp_path}/mine/group_vars/instinct/x.yml:2) and rack "
        f"({tmp_path}/mine/hosts.yml:8) set it differently; neither "
        "contains the other. Ansible uses the value of instinct. "
        "Set it in one of them, or in the host's own variables; or give one of the groups "
        "ansible_group_priority: 2, which Ansible reads in the inventory's file only."
    ]


def test_an_ini_inventory_and_an_extra_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[instinct]\nn1\n[rack]\nn1\n[instinct:vars]\nstore_quota=1\n[rack:vars]\nstore_quota=2\n"
    inventory = Inventory(write(tmp_path, {"mine/hosts": text}))
    assert [line.partition(":")[0] for line in problems(inventory, ["n1"])] == ["store_quota (host n1)"]
    module = "ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check"
    monkeypatch.setattr(f"{module}.load_extra_vars", lambda loader: {"store_quota": "5"})
    assert problems(inventory, ["n1"]) == []


def test_values() -> None:
    low, high = GroupValue("a", 1, 1, (1, 0), 1), GroupValue("b", 1, 1, (1, 0), 2)
    assert winner([high, low]) == high
    assert conflict([low, high]) == (high, low)
    assert conflict([low]) is None
    assert conflict([low, GroupValue("b", 2, 1, (1, 0), 2)]) is None
    assert conflict([low, GroupValue("b", 1, 5, (1, 0), 2)]) is None


def test_where_no_variable_has_two_groups_no_host_is_looked_at(tmp_path: Path) -> None:
    """A thousand hosts cost as much as one."""

    class Asked:
        name = "n"
        vars: Mapping[str, Any] = {}
        asked = 0

        def get_groups(self) -> list[Any]:
            Asked.asked += 1
            return [type("Group", (), {"name": "a", "depth": 1, "priority": 1, "vars": {KEY: 1}})()]

    inventory = Inventory(write(tmp_path, {"mine/hosts.yml": {"instinct": {"hosts": {"n1": None}}}}))
    files = VariableFiles(inventory.loader, inventory.sources, str(tmp_path))
    assert list(group_conflicts([Asked()], files, {KEY})) == []
    assert Asked.asked == 1


# ---- random trees ------------------------------------------------------------------------------------

GROUPS = "abcde"
HOSTS = ("n1", "n2", "n3")
PLACES = ("inline", "mine", "plays")
"""Where a group sets the variable: in the hosts' file, in group_vars beside it, in group_vars beside the playbook."""


@dataclass(frozen=True)
class Tree:
    """children and hosts: of each group. values: by group and place. own: of the hosts that set the variable."""

    children: Mapping[str, Sequence[str]]
    hosts: Mapping[str, Sequence[str]]
    priorities: Mapping[str, int]
    values: Mapping[tuple[str, str], int]
    own: Mapping[str, int]

    def write(self, place: Path, value: Callable[[tuple[str, str]], Any]) -> Inventory:
        """Write it, with these values, and let Ansible read it."""
        groups: dict[str, Any] = {"instinct": {"hosts": dict.fromkeys(HOSTS)}}
        files: dict[str, Any] = {}
        for name in GROUPS:
            variables = {"ansible_group_priority": self.priorities[name]} if name in self.priorities else {}
            if (name, "inline") in self.values:
                variables[KEY] = value((name, "inline"))
            members = dict.fromkeys(self.hosts.get(name, ()))
            children = dict.fromkeys(self.children.get(name, ()))
            groups[name] = {"hosts": members, "children": children, "vars": variables}
        for key in self.values:
            if key[1] != "inline":
                files[f"{key[1]}/group_vars/{key[0]}.yml"] = {KEY: value(key)}
        for host in self.own:
            files[f"mine/host_vars/{host}.yml"] = {KEY: "own"}
        return Inventory(write(place, {"mine/hosts.yml": groups, **files}))


def trees() -> st.SearchStrategy[Tree]:
    """Groups of which each may only contain later ones, so that no loop comes about."""
    later = {name: st.lists(st.sampled_from(GROUPS[at + 1 :]), unique=True, max_size=2) if at < 4 else st.just([])
             for at, name in enumerate(GROUPS)}  # fmt: skip
    settings = st.sampled_from([(name, place) for name in GROUPS for place in PLACES])
    return st.builds(
        Tree,
        st.fixed_dictionaries(later),
        st.dictionaries(st.sampled_from(GROUPS), st.lists(st.sampled_from(HOSTS), unique=True)),
        st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 2), max_size=2),
        st.dictionaries(settings, st.integers(1, 2), min_size=1),
        st.dictionaries(st.sampled_from(HOSTS), st.just(0), max_size=1),
    )


@given(trees())
def test_ansible_takes_what_the_check_says(tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> None:
    """Written once more, each value says where it is: so Ansible tells which group it takes."""
    place = tmp_path_factory.mktemp("groups")
    (place / "values").mkdir()
    (place / "places").mkdir()
    inventory = tree.write(place / "values", lambda key: tree.values[key])
    marked = tree.write(place / "places", lambda key: f"{key[0]} {key[1]}")
    said = " ".join(problems(inventory, HOSTS))
    table = group_table(
        inventory.manager.groups.values(),
        VariableFiles(inventory.loader, inventory.sources, inventory.loader.get_basedir()),
        {KEY},
    ).get(KEY, {})
    wrong = set()
    for name in HOSTS:
        host = inventory.manager.get_host(name)
        mine = {group.name: table[group.name] for group in host.get_groups() if group.name in table}
        taken = marked.taken(name).get(KEY)
        if name in tree.own:
            assert (inventory.taken(name)[KEY], taken) == ("own", "own")
        elif not mine:
            assert taken is None
        else:
            group, where = str(taken).split()
            assert winner(mine.values()).group == group
            assert winner(mine.values()).value == tree.values[group, where] == inventory.taken(name)[KEY]
            rival = {
                (item.depth, item.priority): item
                for item in inventory.manager.groups.values()
                if item.name == group
            }
            ((claim, _group),) = rival.items()
            for other in host.get_groups():
                if (other.depth, other.priority) == claim and other.name in mine:
                    last = max(
                        (PLACES.index(at), number)
                        for (one, at), number in tree.values.items()
                        if one == other.name
                    )
                    if last[1] != tree.values[group, where]:
                        wrong.add(name)
    assert {name for name in HOSTS if f" {name}," in said or f" {name})" in said} == wrong
