# SPDX-License-Identifier: Apache-2.0
"""Which servers are one backend, what it is called, and which of its names only some of its servers have."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BackendInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import (
    Backend,
    group_servers,
    names_of,
    routing_warnings,
    unprintable_model_names,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    HostBackends,
)


def server(deployment: str, models: str, port: int = 8000, weight: int = 1) -> BackendServer:
    """A server that is asked for these names, which have spaces between them."""
    return BackendServer(
        "n1", f"{deployment}-0", deployment, "192.0.2.11", port, 4, tuple(models.split()), weight
    )


def shown(backends: tuple[Backend, ...]) -> dict[str, tuple[str, str, list[tuple[str, str]]]]:
    """By backend: the names that all servers have, the deployments, and the subsets' names and deployments."""
    return {
        backend.name: (
            " ".join(backend.models),
            " ".join(backend.deployments),
            [
                (" ".join(subset.models), " ".join(member.deployment for member in subset.members))
                for subset in backend.subsets
            ],
        )
        for backend in backends
    }


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([], {}),
        ([server("b", "y"), server("a", "x")], {"a": ("x", "a", []), "b": ("y", "b", [])}),
        ([server("a", "x"), server("b", "x")], {"a:b": ("x", "a b", [])}),
        ([server("a", "x y"), server("b", "x")], {"a:b": ("x", "a b", [("y", "a")])}),
        # Directly or through another one.
        ([server("a", "x"), server("b", "y"), server("c", "y x")],
         {"a:b:c": ("", "a b c", [("x", "a c"), ("y", "b c")])}),
        ([server("a", "x z"), server("b", "x z"), server("c", "x w v")],
         {"a:b:c": ("x", "a b c", [("z", "a b"), ("w v", "c")])}),
        # Two backends of one deployment's servers, as while its name changes.
        ([server("a", "x"), server("a", "y", 9000)], {"a": ("x", "a", []), "a:2": ("y", "a", [])}),
    ],
)  # fmt: skip
def test_what_shares_a_name_is_one_backend(
    servers: list[BackendServer], expected: dict[str, tuple[str, str, list[tuple[str, str]]]]
) -> None:
    assert shown(group_servers(servers)) == expected


def test_subsets_are_named_after_their_backend() -> None:
    (backend,) = group_servers([server("a", "x y"), server("b", "x z")])
    assert [subset.name for subset in backend.subsets] == ["a:b.names1", "a:b.names2"]
    assert backend.names == ("x", "y", "z")
    assert names_of([backend]) == {
        "a:b/n1.a-0:8000": server("a", "x y"),
        "a:b/n1.b-0:8000": server("b", "x z"),
    }


ONE, TWO = server("a", "x"), server("b", "y")


@pytest.mark.parametrize(
    ("servers", "known", "names"),
    [
        ([ONE], {ONE.name: "old"}, ["old"]),
        # Most of its servers decide; of equally many, the first name.
        ([server("a", "x"), server("b", "x"), server("c", "x")],
         {"n1.a-0:8000": "p", "n1.b-0:8000": "q", "n1.c-0:8000": "q"}, ["q"]),
        ([server("a", "x"), server("b", "x")], {"n1.a-0:8000": "q", "n1.b-0:8000": "p"}, ["p"]),
        # A backend that is split keeps its name once.
        ([ONE, TWO], {ONE.name: "old", TWO.name: "old"}, ["b", "old"]),
        # Who is in a backend comes before who would have its name.
        ([ONE, TWO], {TWO.name: "a"}, ["a", "a:2"]),
        ([ONE, server("a", "y", 9000), server("a", "z", 9001)], {}, ["a", "a:2", "a:3"]),
    ],
)  # fmt: skip
def test_a_backend_keeps_its_name(
    servers: list[BackendServer], known: dict[str, str], names: list[str]
) -> None:
    assert [backend.name for backend in group_servers(servers, known)] == names


@pytest.mark.parametrize(
    ("servers", "prefix", "routed", "warnings"),
    [
        ([ONE, TWO], {"a"}, [True, False], []),
        ([server("a", "x"), server("b", "x")], {"a", "b"}, [True], []),
        ([server("a", "x"), server("b", "x")], set(), [False], []),
        ([server("a", "x"), server("b", "x")], {"a"}, [False],
         ["x: requests go to the instance with the fewest requests, as b shares a name with a and is not routed by "
          "prefix. Set the same routing in all of them"]),
        ([server("a", "x y"), server("b", "x")], {"a", "b"}, [True],
         ["y: requests go to the instance with the fewest requests, as routing by prefix needs names that all "
          "instances of x have"]),
        ([server("a", "x"), server("b", "y"), server("c", "x y")], {"a", "b", "c"}, [True],
         ["x, y: requests go to the instance with the fewest requests, as routing by prefix needs names that all "
          "instances of x, y have"]),
        ([server("a", "x", weight=2), server("b", "x")], {"a", "b"}, [True],
         ["x: vllm-router ignores weights; they apply only to requests that it does not route"]),
        ([server("a", "x", weight=2), server("b", "x")], set(), [False], []),
        ([server("a", "x", weight=2)], {"a"}, [True], []),
    ],
)  # fmt: skip
def test_routing_of_a_shared_name(
    servers: list[BackendServer], prefix: set[str], routed: list[bool], warnings: list[str]
) -> None:
    backends = group_servers(servers, prefix=prefix)
    assert [backend.prefix for backend in backends] == routed
    assert list(routing_warnings(backends, prefix)) == warnings


@pytest.mark.parametrize(("models", "bad"), [(("x", "y"), 0), (("x", "y\n"), 1), (("\x00", "\u200b"), 2)])
def test_names_that_no_line_can_hold_are_refused(models: tuple[str, ...], bad: int) -> None:
    item = BackendInstance("a-0", "a", models, "0.0.0.0", 8000, (8000,), 4, path=("vllm_deployments", 1))
    hidden = BackendInstance("b-0", "b", ("\n",), "0.0.0.0", 8001, (8001,), 4, endpoint=False)
    found = list(unprintable_model_names([HostBackends("n1", "192.0.2.11", (item, hidden))]))
    assert [(one.path, one.hosts) for one in found] == [
        (("vllm_deployments", 1, "served_model_name"), ("n1",))
    ] * bad
