# SPDX-License-Identifier: Apache-2.0
"""Pins: references, what a fetch selects, which pins are missing, and the lock file's form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import (
    ImageRef,
    ImageSoftware,
    parse_ref,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.pins import required_pins
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
    parse_lock,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.model_card import (
    CardTerms,
    ModelCard,
)
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.plan_world import COMMIT, DIGEST, IMAGE, LOCK, PULL, REPO, deployment, fleet, state

OTHER = "sha256:" + "2" * 64


@pytest.mark.parametrize(
    ("ref", "parsed", "repository"),
    [
        ("vllm:1", ImageRef("docker.io", "library/vllm", "1", ""), "vllm"),
        ("rocm/vllm:a.b", ImageRef("docker.io", "rocm/vllm", "a.b", ""), "rocm/vllm"),
        ("docker.io/rocm/vllm:1", ImageRef("docker.io", "rocm/vllm", "1", ""), "rocm/vllm"),
        ("index.docker.io/rocm/vllm:1", ImageRef("docker.io", "rocm/vllm", "1", ""), "rocm/vllm"),
        ("localhost/x:1", ImageRef("localhost", "x", "1", ""), "localhost/x"),
        ("reg:5000/a/b:1", ImageRef("reg:5000", "a/b", "1", ""), "reg:5000/a/b"),
        ("reg.io/a/b/c:1", ImageRef("reg.io", "a/b/c", "1", ""), "reg.io/a/b/c"),
        (f"reg:5000/a@{DIGEST}", ImageRef("reg:5000", "a", "", DIGEST), "reg:5000/a"),
        ("vllm", ImageRef("docker.io", "library/vllm", "latest", ""), "vllm"),
        ("library/vllm", ImageRef("docker.io", "library/vllm", "latest", ""), "vllm"),
        ("libraryx/vllm", ImageRef("docker.io", "libraryx/vllm", "latest", ""), "libraryx/vllm"),
        ("docker.io/vllm", ImageRef("docker.io", "library/vllm", "latest", ""), "vllm"),
        ("registry-1.docker.io/vllm:2", ImageRef("docker.io", "library/vllm", "2", ""), "vllm"),
        ("Registry/x", ImageRef("Registry", "x", "latest", ""), "Registry/x"),
        (
            "localhost:5000/library/x",
            ImageRef("localhost:5000", "library/x", "latest", ""),
            "localhost:5000/library/x",
        ),
        ("reg.io/x", ImageRef("reg.io", "x", "latest", ""), "reg.io/x"),
        (f"vllm@{DIGEST}", ImageRef("docker.io", "library/vllm", "", DIGEST), "vllm"),
        (f"rocm/vllm:1@{DIGEST}", ImageRef("docker.io", "rocm/vllm", "1", DIGEST), "rocm/vllm"),
    ],
)
def test_references(ref: str, parsed: ImageRef, repository: str) -> None:
    assert parse_ref(ref) == parsed
    assert parse_ref(ref).repository == repository


def test_a_digest_and_a_commit_are_their_own_pins() -> None:
    lock = Lock({f"a@{DIGEST}": ImagePin(OTHER, 1)}, {})
    assert lock.image(f"b@{DIGEST}") == ImagePin(DIGEST, None)
    assert lock.image(f"a@{DIGEST}") == ImagePin(DIGEST, None)  # a lock file edited by hand does not win
    assert lock.image("a:1") is None
    assert lock.model("", "a/b", COMMIT) == ModelPin(COMMIT)
    assert lock.model("", "a/b", "main") is None
    for revision in (COMMIT[1:], COMMIT + "0", "g" * 40):
        assert lock.model("", "a/b", revision) is None
    # What is known of them beside is not lost.
    known = Lock(
        {f"a@{DIGEST}": ImagePin(DIGEST, 7)}, {model_key("", "a/b", COMMIT): ModelPin(COMMIT, (("x", 1),))}
    )
    assert known.image(f"a@{DIGEST}") == ImagePin(DIGEST, 7)
    assert known.model("", "a/b", COMMIT) == ModelPin(COMMIT, (("x", 1),))


SOFTWARE = ImageSoftware("0.11.2", "rocm", "7.0.0", None, "3.12", ("gfx942", "gfx950"))


def test_newer_pins_come_over_older_ones() -> None:
    old = Lock(
        {"a:1": ImagePin(DIGEST, 1, SOFTWARE), "b:1": ImagePin(DIGEST, 2)},
        {"m": ModelPin("1"), "n": ModelPin("2")},
    )
    new = Lock({"a:1": ImagePin(DIGEST, 3), "c:1": ImagePin(OTHER, 4)}, {"n": ModelPin("3")})
    assert old.merged(new) == Lock(
        {"a:1": ImagePin(DIGEST, 3, SOFTWARE), "b:1": ImagePin(DIGEST, 2), "c:1": ImagePin(OTHER, 4)},
        {"m": ModelPin("1"), "n": ModelPin("3")},
    )
    # Of another digest nothing is known, and what is known anew counts.
    assert old.merged(Lock({"a:1": ImagePin(OTHER, 1)})).images["a:1"] == ImagePin(OTHER, 1)
    later = ImageSoftware("0.12.0")
    assert old.merged(Lock({"a:1": ImagePin(DIGEST, 1, later)})).images["a:1"] == ImagePin(DIGEST, 1, later)
    assert old.merged(Lock({"b:1": ImagePin(DIGEST, 1, later)})).images["b:1"] == ImagePin(DIGEST, 1, later)


def test_the_form_of_the_file() -> None:
    lock = Lock(
        {"b:1": ImagePin(OTHER), "a:1": ImagePin(DIGEST, 5, SOFTWARE)},
        {"z": ModelPin(COMMIT), "k": ModelPin(COMMIT, (("b", 2), ("a", 1)), {"x": 1})},
    )
    data = lock.to_json()
    assert data == {
        "schema": 1,
        "images": {
            "a:1": {
                "digest": DIGEST, "bytes": 5, "platform": "linux/amd64",
                "software": {"vllm": "0.11.2", "platform": "rocm", "rocm": "7.0.0", "pytorch": None, "python": "3.12",
                             "gfx": ["gfx942", "gfx950"]},
            },
            "b:1": {"digest": OTHER, "bytes": None, "platform": "linux/amd64"},
        },
        "models": {
            "k": {"commit": COMMIT, "files": {"b": 2, "a": 1}, "config": {"x": 1}},
            "z": {"commit": COMMIT, "files": {}, "config": None},
        },
    }  # fmt: skip
    assert [list(data[kind]) for kind in ("images", "models")] == [["a:1", "b:1"], ["k", "z"]]
    read = parse_lock(data)
    assert read.images == lock.images
    assert read.models == {"k": ModelPin(COMMIT, (("a", 1), ("b", 2)), {"x": 1}), "z": ModelPin(COMMIT, ())}


def test_hashes_of_files_are_kept_and_older_files_have_none() -> None:
    hashes = (("a", "git-sha1:" + "1" * 40), ("b", "sha256:" + "2" * 64))
    lock = Lock({}, {"k": ModelPin(COMMIT, (("a", 1), ("b", 2)), None, hashes)})
    data = lock.to_json()
    assert data["models"]["k"]["hashes"] == dict(hashes)
    assert parse_lock(data) == lock
    del data["models"]["k"]["hashes"]
    assert parse_lock(data).models["k"] == ModelPin(COMMIT, (("a", 1), ("b", 2)))


def test_a_card_is_kept_and_older_files_have_none() -> None:
    base = CardTerms("org/base", ("llama3.1",), gate="manual", eu=False)
    own = CardTerms("lab/m", ("other",), "its own", "https://lab.example/license")
    for card in (
        ModelCard(CardTerms("lab/m")),
        ModelCard(own, (base,), ("org/gone",), False, (("a.bin", "unsafe"),)),
        ModelCard(own, scanned=True),
    ):
        lock = Lock(
            {}, {model_key("https://mirror:1", "lab/m", "v@1"): ModelPin(COMMIT, (("a", 1),), card=card)}
        )
        data = json.loads(json.dumps(lock.to_json()))
        assert parse_lock(data) == lock
    (pin,) = data["models"].values()
    del pin["card"]
    assert parse_lock(data).model("https://mirror:1", "lab/m", "v@1") == ModelPin(COMMIT, (("a", 1),))


@pytest.mark.parametrize(
    "card", [5, [], {}, {"licenses": 5}, {"licenses": [], "base": 5}, {"licenses": [], "issues": []}]
)
def test_a_damaged_card(card: Any) -> None:
    entry = {"commit": COMMIT, "files": {}, "config": None, "card": card}
    with pytest.raises(ValueError, match="an entry is incomplete"):
        parse_lock({"schema": 1, "images": {}, "models": {"|a/b@main": entry}})


def test_what_an_image_said() -> None:
    for software in (SOFTWARE, ImageSoftware(""), ImageSoftware("1", gfx=())):
        assert ImageSoftware.from_json(software.to_json()) == software
    given = {"vllm": 1, "platform": None, "rocm": 7, "pytorch": 2, "python": 3, "gfx": [942]}
    assert ImageSoftware.from_json(given) == ImageSoftware("1", "None", "7", "2", "3", ("942",))
    with pytest.raises(KeyError):
        ImageSoftware.from_json({"vllm": "1"})


def test_models_are_pinned_per_endpoint() -> None:
    lock = Lock({}, {model_key("http://mirror", "a/b", "main"): ModelPin(COMMIT, ())})
    assert lock.model("http://mirror", "a/b", "main") is not None
    assert lock.model("", "a/b", "main") is None


def test_the_file_reads_as_written() -> None:
    assert parse_lock(LOCK.to_json()) == LOCK
    assert LOCK.merged(Lock({IMAGE: ImagePin(OTHER, 5)}, {})).image(IMAGE) == ImagePin(OTHER, 5)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], 'it is not a lock file of this version ("schema": 1 is expected)'),
        ({"schema": 2}, 'it is not a lock file of this version ("schema": 1 is expected)'),
        ({"schema": 1, "images": {}}, "an entry is incomplete: KeyError('models')"),
        ({"schema": 1, "images": [], "models": {}}, "an entry is incomplete: AttributeError"),
        ({"schema": 1, "images": {"a": []}, "models": {}}, "an entry is incomplete: AttributeError"),
        ({"schema": 1, "images": {}, "models": {"m": 5}}, "an entry is incomplete: TypeError"),
        ({"schema": 1, "images": {"a": {}}, "models": {}}, "an entry is incomplete: KeyError('digest')"),
    ],
)
def test_damaged_files(data: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"lock file|incomplete") as error:
        parse_lock(data)
    assert str(error.value).startswith(text)


PATHS = [
    "config.json",
    "model-00001.safetensors",
    "original/params.json",
    "original/a/b.bin",
    "x.gguf",
    "config.json.gz",
    "[1].txt",
]
PATTERNS = ["*", "*.json", "original/*", "original/", "*.safetensors", "x.*", "[[]1].txt", "none"]


@given(st.lists(st.sampled_from(PATTERNS), max_size=3), st.lists(st.sampled_from(PATTERNS), max_size=3))
def test_selection_is_the_hubs(exclude: list[str], include: list[str]) -> None:
    pin = ModelPin(COMMIT, tuple((path, 1) for path in PATHS))
    expected = filter_repo_objects(PATHS, allow_patterns=include or None, ignore_patterns=exclude or None)
    assert list(pin.selection(exclude, include)) == list(expected)
    assert ModelPin(COMMIT).selection(exclude, include) == {}


HAVE_IMAGE = {"id": "i", "tags": [], "digests": [PULL]}
HAVE_MODEL = {
    "cache_dir": "/var/lib/instinct-fleet/hf",
    "repo": REPO,
    "commit": COMMIT,
    "complete": True,
    "bytes": 1,
    "files": 1,
}


@pytest.mark.parametrize(
    ("changes", "wanted", "lock", "images", "models"),
    [
        ({}, deployment(), Lock(), [IMAGE], ["main"]),
        ({}, deployment(), LOCK, [], []),
        # A digest and a commit that are on the node need no sizes, and so no network.
        ({}, deployment(image=PULL, revision=COMMIT), Lock(), [PULL], [COMMIT]),
        (
            {"images": [HAVE_IMAGE], "models": [HAVE_MODEL]},
            deployment(image=PULL, revision=COMMIT),
            Lock(),
            [],
            [],
        ),
        (
            {"images": [HAVE_IMAGE], "models": [{**HAVE_MODEL, "complete": False}]},
            deployment(image=PULL, revision=COMMIT),
            Lock(),
            [],
            [COMMIT],
        ),
        ({}, deployment(model="/srv/m", image=None, build={"repo": "/r", "ref": "v1"}), Lock(), [], []),
    ],
)
def test_missing_pins(
    changes: dict[str, Any], wanted: dict[str, Any], lock: Lock, images: list[str], models: list[str]
) -> None:
    hosts = fleet({"n1": state(**changes)}, [wanted])
    found_images, found_models = required_pins(hosts, lock)
    assert [need.ref for need in found_images] == images
    assert [need.revision for need in found_models] == models


def test_each_pin_is_asked_once_and_refresh_asks_all() -> None:
    hosts = fleet({"n1": state(), "n2": state()}, [deployment(), deployment(name="b", port=9000, gpus=[1])])
    images, models = required_pins(hosts, LOCK, refresh=True)
    assert [(need.ref, need.path, need.host.name) for need in images] == [
        (IMAGE, ("vllm_deployments", 0, "image"), "n1")
    ]
    assert [(need.repo, need.revision, need.path) for need in models] == [
        (REPO, "main", ("vllm_deployments", 0, "model"))
    ]
