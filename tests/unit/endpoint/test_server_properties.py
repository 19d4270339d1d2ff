# SPDX-License-Identifier: Apache-2.0
"""Random instances before and after a change: who is asked for which name, and what the written configuration says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.service.balancer_config import (
    carried_servers,
    configured_servers,
    followers,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import (
    SUBSET,
    Backend,
    group_servers,
    names_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    changing_servers,
    seen_servers,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.balancer_world import DRAW
from tests.worlds.defaults import balancer_settings

NAMES = ("chat", "code", "next")
HOSTS = {"n1": "192.0.2.11", "n2": "2001:db8::12"}
MODELS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[BackendServer, ...]:
    """Up to six instances of two deployments on two hosts, no two at one port."""
    found: dict[tuple[str, int], BackendServer] = {}
    for _ in range(draw(st.integers(0, 6))):
        host, port = draw(st.sampled_from(sorted(HOSTS))), draw(st.integers(8000, 8003))
        deployment, index = draw(st.sampled_from("ab")), draw(st.integers(0, 1))
        server = BackendServer(
            host, f"{deployment}-{index}", deployment, HOSTS[host], port, draw(st.integers(1, 9)), draw(MODELS),
            draw(st.integers(1, 3)),
        )  # fmt: skip
        if server.of not in {other.of for other in found.values()}:
            found[host, port] = server
    return tuple(found.values())


def asked(servers: Iterable[BackendServer]) -> Counter[tuple[str, object]]:
    """How many servers are asked for each name at each place."""
    return Counter((model, server.place) for server in servers for model in server.models)


def written(backends: Iterable[Backend]) -> dict[str, Any]:
    """The configuration as the load balancer's host reads it."""
    data: dict[str, Any] = json.loads(json.dumps(config_data(balancer_settings(), tuple(backends))))
    return data


def known_backends(servers: Iterable[BackendServer]) -> dict[str, str]:
    return {
        server.name: name.partition("/")[0]
        for name, server in names_of(group_servers(tuple(servers))).items()
    }


@given(fleets(), fleets())
def test_during_a_change_each_name_is_asked_once_at_each_place_of_both_sides(
    before: tuple[BackendServer, ...], after: tuple[BackendServer, ...]
) -> None:
    during = changing_servers(after, before)
    assert asked(during) == dict.fromkeys((*asked(before), *asked(after)), 1)
    assert len({server.name for server in during}) == len(during)
    new = {server.of for server in after} - {server.of for server in before}
    assert {server.of for server in during if server.coming} == new


@given(fleets(), fleets())
def test_a_change_that_is_over_and_one_that_is_none(
    before: tuple[BackendServer, ...], after: tuple[BackendServer, ...]
) -> None:
    """A run that was cut off leaves the servers of the change, and the next one goes on from there."""
    assert asked(changing_servers(before, before)) == asked(before)
    again = changing_servers(after, changing_servers(after, before))
    assert asked(again) == asked(changing_servers(after, before))


@given(fleets(), fleets(), st.booleans())
def test_each_name_is_in_one_backend_with_all_servers_that_have_it(
    before: tuple[BackendServer, ...], after: tuple[BackendServer, ...], known: bool
) -> None:
    servers = changing_servers(after, before)
    backends = group_servers(servers, known_backends(before) if known else None)
    assert sorted(member.name for backend in backends for member in backend.members) == sorted(
        server.name for server in servers
    )
    assert len({backend.name for backend in backends}) == len(backends)
    pools = [pool for backend in backends for pool in (backend, *backend.subsets)]
    for model in {model for server in servers for model in server.models}:
        (pool,) = (pool for pool in pools if model in pool.models)
        assert {member.name for member in pool.members} == {
            one.name for one in servers if model in one.models
        }


@given(fleets(), fleets())
def test_what_is_written_is_what_is_read(
    before: tuple[BackendServer, ...], after: tuple[BackendServer, ...]
) -> None:
    backends = group_servers(changing_servers(after, before), known_backends(before))
    data = written(backends)
    assert seen_servers(data) == names_of(backends)
    configured = configured_servers(data)
    shown: dict[str, str] = {}
    tracked: dict[str, list[str]] = {}
    backend = ""
    for words in map(str.split, DRAW(data).splitlines()):
        if words[:1] == ["backend"]:
            backend = words[1]
        elif words[:1] == ["server"] and backend in {name.partition("/")[0] for name in configured}:
            shown[f"{backend}/{words[1]}"] = words[2]
        elif words[:1] == ["server"] and SUBSET in backend:
            tracked.setdefault(words[words.index("track") + 1], []).append(f"{backend}/{words[1]}")
    assert shown == {name: server["target"] for name, server in configured.items()}
    assert tracked == followers(data)


@given(fleets(), fleets())
def test_states_are_carried_to_servers_of_the_same_instance_with_a_name_in_common(
    before: tuple[BackendServer, ...], after: tuple[BackendServer, ...]
) -> None:
    known = known_backends(before)
    old, new = group_servers(before), group_servers(changing_servers(after, before), known)
    former, present = names_of(old), names_of(new)
    carried = carried_servers(written(old), written(new))
    for name, continued in carried.items():
        assert present[name].place == former[continued].place
        assert set(present[name].models) & set(former[continued].models)
    # Whatever was asked goes on with its state: for a name at a place, the server that is asked for it.
    for name, server in present.items():
        gone_on = [
            one
            for one in former.values()
            if one.place == server.place and set(one.models) & set(server.models)
        ]
        assert (name in carried) == bool(gone_on)
    # And back at the end: no two servers of one instance are mixed up.
    end = group_servers(after, {server.name: name.partition("/")[0] for name, server in present.items()})
    back = carried_servers(written(new), written(end))
    assert set(back) == set(names_of(end))
    assert len(set(back.values())) == len(back)
