# SPDX-License-Identifier: Apache-2.0
"""An update of the toolkit that changes what runs is named as such, and no other change is."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import Generation
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.release import toolkit_release
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import (
    parse_deployments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import InstanceFactory
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.planned import PlannedInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.generations_world import SCHEMA, llama, two
from tests.worlds.plan_world import GIB, IMAGE, LOCK, SOFTWARE, apply_to_state, fleet, knowledge, render

CACHE = (("VLLM_NEW_CACHE", "/cache/new"),)
FLAG = (("--enable-sleep-mode",),)
OTHER_IMAGE = replace(LOCK, images={IMAGE: ImagePin("sha256:" + "2" * 64, 4 * GIB, SOFTWARE)})


class Release(InstanceFactory):
    """A release of the toolkit, which gives instances these variables and flags besides."""

    def __init__(
        self, toolkit: str, *, lock: Lock = LOCK, env: Any = (), argv: Any = (), text: str = ""
    ) -> None:
        super().__init__(knowledge(), lock, render(), {}, toolkit=toolkit)
        self.more = (env, argv, text)

    def _make(self, *args: Any) -> PlannedInstance:
        made, (env, argv, text) = super()._make(*args), self.more
        instance = replace(made.instance, env=(*made.instance.env, *env), argv=(*made.instance.argv, *argv))
        files = {name: old + text for name, old in self.render(instance).items()}
        return replace(made, instance=instance, files=files, spec_hash=spec_hash(files))


def planned(factory: Release, states: Any, wanted: Any, **variables: Any) -> FleetPlan:
    plan = plan_fleet(check_fleet(fleet(states, wanted, **variables)), factory)
    SCHEMA.validate(json.loads(json.dumps(plan.to_json())))
    return plan


def ran(factory: Release) -> dict[str, Any]:
    """Two hosts on which a release of the toolkit started two instances each."""
    data = planned(factory, two(), llama()).to_json()["hosts"]
    return {name: apply_to_state(found, data[name]) for name, found in two().items()}


def said(plan: FleetPlan) -> list[str]:
    return [line for line in explain(plan).splitlines() if line.startswith("toolkit")]


OLD = Release("1.2.0")


@pytest.mark.parametrize(
    ("new", "line", "why"),
    [
        (
            Release("1.3.0", env=CACHE),
            "toolkit 1.2.0 → 1.3.0 changes 4 instances: environment VLLM_NEW_CACHE",
            "toolkit 1.2.0 → 1.3.0: VLLM_NEW_CACHE /cache/new (new)",
        ),
        (
            Release("1.3.0", env=CACHE, argv=FLAG),
            "toolkit 1.2.0 → 1.3.0 changes 4 instances: --enable-sleep-mode, environment VLLM_NEW_CACHE",
            "toolkit 1.2.0 → 1.3.0: --enable-sleep-mode (new); VLLM_NEW_CACHE /cache/new (new)",
        ),
        (
            Release("1.2.0", text="\n"),
            "toolkit 1.2.0 (another checkout) changes 4 instances: files of the containers",
            "toolkit 1.2.0 (another checkout): the content of its files changes",
        ),
    ],
)
def test_an_update_is_named(new: Release, line: str, why: str) -> None:
    plan = planned(new, ran(OLD), llama())
    assert said(plan) == [line]
    assert [revision.why for revision in plan.revisions] == [why]


@pytest.mark.parametrize(
    ("new", "wanted", "variables"),
    [
        (Release("1.3.0"), llama(), {}),  # nothing changes
        (Release("1.3.0", env=CACHE), llama(16), {}),
        (Release("1.3.0", env=CACHE), llama(env={"A": "1"}), {}),
        (Release("1.3.0", env=CACHE, lock=OTHER_IMAGE), llama(), {}),
        (Release("1.3.0", env=CACHE), llama(), {"hf_model_cache_dir": "/data/hf"}),
        (Release("1.3.0", env=CACHE), llama(gpus=[4, 5]), {}),
    ],
)
def test_a_change_of_anything_else_is_not(new: Release, wanted: Any, variables: Any) -> None:
    plan = planned(new, ran(OLD), wanted, **variables)
    assert said(plan) == []
    assert not any(revision.why.startswith("toolkit") for revision in plan.revisions)


def test_records_without_a_release_say_nothing() -> None:
    """Those that were made before releases were recorded."""
    states = ran(Release(""))
    record = states["n1"]["generations"][0]["kept"][0]
    assert "toolkit" not in record
    assert said(planned(Release("1.3.0", env=CACHE), states, llama())) == []


def test_only_hosts_that_the_update_changes_count() -> None:
    states = {**ran(OLD), "n3": two(("n3",))["n3"]}
    plan = planned(Release("1.3.0", env=CACHE), states, llama())
    assert said(plan) == ["toolkit 1.2.0 → 1.3.0 changes 4 instances: environment VLLM_NEW_CACHE"]


def test_a_record_keeps_its_release() -> None:
    record = ran(OLD)["n1"]["generations"][0]["kept"][0]
    assert (record["toolkit"], len(record["definition"])) == ("1.2.0", 16)
    made = Generation.from_json(record)
    assert Generation.from_json(made.to_json()) == made
    older = copy.deepcopy(record)
    del older["toolkit"], older["definition"]
    assert Generation.from_json(older) == replace(made, toolkit="", definition="")


def test_a_definition_has_no_value_of_a_secret() -> None:
    """Whoever reads a record could try out short ones."""
    hashes = []
    for secrets in ({"TOKEN": "one-secret"}, {"TOKEN": "another-secret"}, {"OTHER": "one-secret"}):
        (found,), problems = parse_deployments(llama(secrets=secrets))
        assert problems == ()
        hashes.append(found.definition)
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_release_is_that_of_the_collection() -> None:
    assert toolkit_release().count(".") == 2
