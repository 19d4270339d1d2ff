# SPDX-License-Identifier: Apache-2.0
"""What is known of an image: declared, in the catalogue, in the lock, or on a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import (
    ImageFacts,
    check_image,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    parse_lock,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.image_software import (
    merge_probed,
    software_of,
)

from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import COMMIT, DIGEST, IMAGE, LOCK, PULL, deployment, fleet, state

IMAGES = knowledge().images
ANSWER = ImageSoftware("0.11.2+rocm700", "rocm", "7.0.0", "2.9.0a0+git1c57644", "3.12.11", ("gfx942",))
NOTHING = ImageSoftware("")
EXACT = "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024"
OTHER = "sha256:" + "2" * 64
BARE = Lock({IMAGE: ImagePin(DIGEST, 1)}, LOCK.models)


def seen(*names: str, software: ImageSoftware | None = ANSWER) -> dict[str, Any]:
    """A node whose engine has an image under these names."""
    answer = software.to_json() if software else None
    tags, digests = ([n for n in names if ("@" in n) == by_digest] for by_digest in (False, True))
    return state(images=[{"id": "sha256:" + "a" * 64, "tags": tags, "digests": digests, "software": answer}])


def ask(node: dict[str, Any] | None, lock: Lock, **keys: Any) -> ImageFacts | None:
    host = fleet({"n1": node}, [deployment(**keys)], offline=node is None).hosts[0]
    return software_of(host.deployments[0], host, lock, knowledge())


def pinned(ref: str, software: ImageSoftware | None = None) -> Lock:
    return Lock({ref: ImagePin(DIGEST, 1, software)})


@pytest.mark.parametrize(
    ("node", "lock", "keys", "basis", "vllm"),
    [
        # Nobody knows: the image is to be asked.
        (state(), BARE, {}, None, None),
        (None, BARE, {}, None, None),
        (seen(PULL, software=None), BARE, {}, None, None),
        (seen(PULL.replace(DIGEST, OTHER)), BARE, {}, None, None),  # the answer of another image
        (seen(IMAGE), BARE, {}, None, None),  # a tag on the node may be anything
        # The node, the lock.
        (seen(PULL), BARE, {}, "image", "0.11.2+rocm700"),
        (state(), pinned(IMAGE, ANSWER), {}, "image", "0.11.2+rocm700"),
        (seen(PULL, software=replace(ANSWER, vllm="9")), pinned(IMAGE, ANSWER), {}, "image", "0.11.2+rocm700"),
        (seen(PULL), Lock(), {"image": PULL}, "image", "0.11.2+rocm700"),
        (seen(PULL, software=NOTHING), BARE, {}, "image", None),
        # The catalogue: exact tags, and the tags of vLLM's own repository.
        (state(), Lock(), {"image": EXACT}, "tag", "0.11.1"),
        (seen(f"rocm/vllm@{DIGEST}"), pinned(EXACT), {"image": EXACT}, "tag", "0.11.1"),
        (state(), Lock(), {"image": "docker.io/vllm/vllm-openai-rocm:v0.16.0"}, "family", "0.16.0"),
        (state(), Lock(), {"image": "vllm/vllm-openai-rocm:v0.16.0@" + DIGEST}, "family", "0.16.0"),
        (state(), Lock(), {"image": "vllm/vllm-openai-rocm:latest"}, None, None),
        (state(), Lock(), {"image": "rocm/vllm:rocm7.0.0_vllm_0.11.1_19990101"}, None, None),
        # The operator.
        (state(), BARE, {"vllm_version": "0.10.1"}, "declared", "0.10.1"),
        (seen(PULL), BARE, {"vllm_version": "0.10.1"}, "declared", "0.10.1"),
        (state(), Lock(), {"image": EXACT, "vllm_version": "0.10.1"}, "declared", "0.10.1"),
    ],
)  # fmt: skip
def test_who_is_believed(
    node: dict[str, Any] | None, lock: Lock, keys: dict[str, Any], basis: str | None, vllm: str | None
) -> None:
    facts = ask(node, lock, **keys)
    assert (facts.basis if facts else None) == basis
    assert (facts.vllm if facts else None) == vllm


def test_a_tag_that_moves_is_not_believed_and_its_image_is() -> None:
    tags = IMAGES["tags"].items()
    moving = [ref for ref, entry in tags if entry.get("floating") and entry.get("serves", True)]
    assert moving
    for ref in moving:
        assert ask(state(), Lock(), image=ref) is None
        facts = ask(state(), pinned(ref, ANSWER), image=ref)
        assert facts is not None
        assert (facts.vllm, facts.rocm, facts.floating) == (ANSWER.vllm, ANSWER.rocm, False)


def test_a_documented_image_without_vllm_is_known() -> None:
    ref = next(ref for ref, entry in IMAGES["tags"].items() if entry.get("serves") is False)
    facts = ask(state(), Lock(), image=ref)
    assert facts is not None
    assert not facts.serves


def test_the_image_tells_what_a_document_does_not() -> None:
    before, after = ask(state(), Lock(), image=EXACT), ask(state(), pinned(EXACT, ANSWER), image=EXACT)
    assert before
    assert after
    assert (before.gfx, before.python, before.pytorch) == (None, None, "2.9.0")
    assert (after.gfx, after.python, after.pytorch) == (("gfx942",), "3.12.11", "2.9.0")
    assert (before.deprecated, after.deprecated) == (True, True)
    wrong = check_image(IMAGES, after, "gfx950")
    assert any("was built for gfx942" in finding.what for finding in wrong)


def test_a_contradiction_is_noted() -> None:
    facts = ask(seen(PULL), BARE, vllm_version="0.10.1")
    assert facts
    assert facts.notes == ("vllm_version is 0.10.1, but the image contains 0.11.2+rocm700.",)


def test_a_build_is_known_by_its_tag_on_its_own_node() -> None:
    build = {"repo": "https://git.example/vllm.git", "ref": COMMIT, "tag": "local/vllm:v1"}
    wanted = fleet({"n1": state()}, [deployment(image=None, build=build)]).hosts[0].deployments[0].build
    assert wanted
    assert ask(state(), Lock(), image=None, build=build) is None
    assert ask(seen("local/vllm:of-other-inputs"), Lock(), image=None, build=build) is None
    facts = ask(seen(wanted.tag), Lock(), image=None, build=build)
    assert facts
    assert (facts.basis, facts.vllm) == ("image", ANSWER.vllm)


def test_what_one_node_asked_the_fleet_knows() -> None:
    nodes = {"n1": state(), "n2": seen(PULL), "n3": None}
    wanted = [deployment(), deployment(name="b", image=PULL, port=9000, gpus=[1])]
    hosts = fleet(nodes, wanted)
    lock = merge_probed(hosts, BARE)
    assert lock.images[IMAGE] == replace(BARE.images[IMAGE], software=ANSWER)
    assert lock.images[PULL] == ImagePin(DIGEST, None, ANSWER)
    assert lock.models == BARE.models
    assert merge_probed(hosts, lock) is lock
    assert parse_lock(lock.to_json()) == lock


def test_hosts_that_contradict_each_other_are_not_taken_for_the_fleet() -> None:
    other = replace(ANSWER, vllm="0.1.0")
    hosts = fleet({"n1": seen(PULL), "n2": seen(PULL, software=other)}, [deployment()])
    assert merge_probed(hosts, BARE) is BARE


@pytest.mark.parametrize(
    "software",
    [
        None,
        NOTHING,
        # No version looks so: a node says what it wants.
        replace(ANSWER, vllm="0.11.1 x"),
        replace(ANSWER, rocm="7.0'"),
        replace(ANSWER, python="3" * 101),
        replace(ANSWER, gfx=("gfx942", "../x")),
    ],
)
def test_nothing_is_learned_from_no_answer(software: ImageSoftware | None) -> None:
    hosts = fleet({"n1": seen(PULL, software=software)}, [deployment()])
    assert merge_probed(hosts, BARE) is BARE


def test_what_is_known_of_a_digest_stays_when_it_is_pinned_again() -> None:
    lock = pinned(IMAGE, ANSWER)
    assert lock.merged(Lock({IMAGE: ImagePin(DIGEST, 2)})).images[IMAGE] == ImagePin(DIGEST, 2, ANSWER)
    assert lock.merged(Lock({IMAGE: ImagePin(OTHER, 2)})).images[IMAGE].software is None
