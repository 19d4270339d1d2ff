# SPDX-License-Identifier: Apache-2.0
"""What each action of a plan says: from what to what, why, and by which source; and when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    NO_KEY,
    InstanceKey,
    header_map,
    mark,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import (
    build_tools,
    docker_engine,
    has_weights,
    images,
    instance_key,
    models,
    partition,
    remove,
    restart_policy,
    server,
    stop_servers,
    unique,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import has_image, size
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Host
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import (
    ObservedInstance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.companion_models import (
    ModelRepository,
)

from tests.worlds.plan_world import (
    COMMIT,
    DIGEST,
    GIB,
    IMAGE,
    LOCK,
    PULL,
    REPO,
    apply_to_state,
    deployment,
    fleet,
    gpus,
    plan,
    state,
)

HF = "/var/lib/instinct-fleet/hf"
Told = tuple[str, str, str, str, str]


def host(found: dict[str, Any] | None = None, *deployments: dict[str, Any], **keys: Any) -> Host:
    """n1 as it was found; None: it was not looked at."""
    (only,) = fleet({"n1": found}, list(deployments), offline=found is None, **keys).hosts
    return only


def told(action: Any) -> Told:
    return action.target, action.before, action.after, action.reason, action.source


def actions(found: dict[str, Any], kind: str, deployments: Any = (), **keys: Any) -> list[Told]:
    """Of a kind, as plan.json has them."""
    data = plan({"n1": found}, list(deployments), **keys).to_json()["hosts"]["n1"]["actions"]
    keys_ = ("target", "before", "after", "reason", "source")
    return [tuple(item[key] for key in keys_) for item in data if item["kind"] == kind]  # type: ignore[misc]


# ---- Docker ------------------------------------------------------------------------------------------

ABSENT = {"installed": False, "available": False, "root_dir": None, "error": None}
SILENT = {"installed": True, "available": False, "root_dir": None, "error": "no answer"}
INSTALL = ("docker.io", "absent", "installed", "instances run in containers", "the distribution's package")


@pytest.mark.parametrize(
    ("found", "wanted", "action"),
    [
        (state(), True, None),
        (state(docker=ABSENT), True, INSTALL),
        (state(docker=ABSENT), False, None),
        (None, True, INSTALL),
        (None, False, None),
        (state(docker=SILENT), True, None),
        (state(docker=ABSENT, os={"id": "ubuntu"}), True, INSTALL),
    ],
)
def test_docker(found: dict[str, Any] | None, wanted: bool, action: Told | None) -> None:
    made = docker_engine(host(found, *([deployment()] if wanted else [])))
    assert (told(made) if made else None) == action


# ---- NUMA balancing ----------------------------------------------------------------------------------

VARY = "moving pages between sockets makes transfers between CPU, GPU and network vary"


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (None, False, ("on, as is assumed", "off now and after a reboot", VARY)),
        (None, True, None),
        (
            state(),
            False,
            ("on now, as the kernel decides after a reboot", "off now and after a reboot", VARY),
        ),
        (
            state(numa_balancing={"runtime": 1, "persisted": 0, "file": None}),
            True,
            ("on now, off after a reboot", "on now and after a reboot", "host_prep_numa_balancing is true"),
        ),
        (state(numa_balancing={"runtime": 1, "persisted": 1, "file": None}), True, None),
        (state(numa_balancing={"runtime": 2, "persisted": None, "file": None}), True, None),
        (state(numa_balancing={"runtime": 0, "persisted": 0, "file": None}), False, None),
        (state(numa_balancing={"runtime": None, "persisted": None, "file": None}), False, None),
        (
            state(numa_balancing={"runtime": 0, "persisted": 1, "file": None}),
            False,
            ("off now, on after a reboot", "off now and after a reboot", VARY),
        ),
        (
            state(numa_balancing={"runtime": 1, "persisted": 0, "file": None}),
            False,
            ("on now, off after a reboot", "off now and after a reboot", VARY),
        ),
        (state(), None, None),
    ],
)
def test_numa_balancing(
    found: dict[str, Any] | None, wanted: bool | None, expected: tuple[str, str, str] | None
) -> None:
    from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import (
        numa_balancing,
    )

    there = host(found)
    made = numa_balancing(replace(there, settings=replace(there.settings, numa_balancing=wanted)))
    assert (told(made)[1:4] if made else None) == expected
    assert not made or (made.target, made.role) == ("kernel.numa_balancing", "host_prep")


# ---- the instances' key ------------------------------------------------------------------------------

KEY = InstanceKey("instance-key", "new mark", True)
SENT = "sk-instances-" + "i" * 30
KEYLESS = InstanceKey("instance-key", "", True, header_map(SENT))
WHY = "instances accept only requests with the load balancers' key"


@pytest.mark.parametrize(
    ("found", "deployments", "key", "before"),
    [
        (state(), [deployment()], KEY, "absent"),
        (state(instance_key="old mark"), [deployment()], KEY, "old mark"),
        (state(instance_key="new mark"), [deployment()], KEY, None),
        (None, [deployment()], KEY, "unknown"),
        (state(), [deployment()], NO_KEY, None),
        (state(), [], KEY, None),
        (state(), [deployment(endpoint=False)], KEY, None),
        (state(), [deployment(endpoint=False), deployment(name="b", port=9000, gpus=[1])], KEY, "absent"),
    ],
)
def test_the_instances_key(found: Any, deployments: Any, key: InstanceKey, before: str | None) -> None:
    made = instance_key(host(found, *deployments), key)
    expected = ("of the load balancers", before, "new mark", WHY, "load_balancer_instance_auth")
    assert (told(made) if made else None) == (expected if before else None)


@pytest.mark.parametrize("key", [KEY, KEYLESS, NO_KEY])
@pytest.mark.parametrize("there", [None, "old mark", "new mark", mark(SENT)])
def test_a_key_comes_with_the_instances_and_not_in_the_next_run(key: InstanceKey, there: str | None) -> None:
    coming = host(state(instance_key=there), deployment())
    assert instance_key(coming, key) == instance_key(coming, key, stored=True)


def test_who_asks_for_no_key_keeps_up_with_it_where_there_is_one() -> None:
    for there, before in ((None, None), ("old mark", "old mark"), (mark(SENT), None)):
        made = instance_key(host(state(instance_key=there), deployment()), KEYLESS)
        assert (told(made)[1:3] if made else None) == ((before, mark(SENT)) if before else None)


# ---- partition modes ---------------------------------------------------------------------------------


def test_only_what_may_hold_a_gpu_is_stopped_for_a_change_of_modes() -> None:
    found = state(
        instances=[
            {
                "name": f"{name}-0",
                "deployment": name,
                "state": name,
                "spec_hash": "1" * 64,
                "artefact_hash": None,
            }
            for name in ("running", "restarting", "paused", "exited", "created", "dead")
        ]
    )
    assert [item.name for item in stop_servers(host(found))] == ["paused-0", "restarting-0", "running-0"]
    assert stop_servers(host(None)) == ()


def test_what_is_stopped_for_a_change_of_modes() -> None:
    found = apply_to_state(state(), plan({"n1": state()}, [deployment()]).to_json()["hosts"]["n1"])
    source = "ROCm/amdgpu-docs docs/gpu-partitioning"
    assert actions(found, "stop_server", [deployment()], gpu_partition_compute="CPX") == [
        ("llama-0", "running", "stopped", "the driver refuses to partition a GPU that is in use", source)
    ]
    assert actions(found, "compute_partition", [deployment()], gpu_partition_compute="CPX") == [
        ("8 GPUs", "SPX", "CPX", "gpu_partition_compute is CPX", source)
    ]
    data = plan(
        {"n1": None}, [deployment(vllm_version="0.11.1")], offline=True, gpu_partition_compute="CPX",
        instinct_gpus={"model": "MI300X", "count": 4},
    ).to_json()["hosts"]["n1"]  # fmt: skip
    assert [
        (item["target"], item["before"]) for item in data["actions"] if item["role"] == "gpu_partition"
    ] == [("4 GPUs", "SPX, as is assumed")]


GPUS = "ROCm/amdgpu-docs docs/gpu-partitioning"


def in_modes(*modes: tuple[str, str | None]) -> dict[str, Any]:
    """A node with a GPU in each of these modes."""
    found = [gpus(compute, 1)[0] for compute, _ in modes]
    for at, (gpu, (_, memory)) in enumerate(zip(found, modes, strict=True)):
        gpu.update(index=at, bdf=f"0000:{at:02x}:00.0", memory_partition=memory,
                   available_memory_partitions=["NPS1", "NPS4"])  # fmt: skip
    return state(gpus=found)


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (in_modes(("SPX", "NPS1"), ("SPX", "NPS1")), {}, []),
        (in_modes(("CPX", "NPS4")), {"compute": "CPX", "memory": "NPS4"}, []),
        (
            in_modes(("SPX", "NPS1"), ("SPX", "NPS1")),
            {"compute": "CPX", "memory": "NPS4"},
            [
                (
                    "memory_partition", "2 GPUs", "NPS1", "NPS4, which reloads the driver",
                    "gpu_partition_memory is NPS4",
                ),
                ("compute_partition", "2 GPUs", "SPX", "CPX", "gpu_partition_compute is CPX"),
            ],
        ),
        (
            in_modes(("CPX", "NPS1"), ("CPX", "NPS4")),
            {"compute": "CPX", "memory": "NPS4"},
            [
                (
                    "memory_partition", "2 GPUs", "NPS1 on 1, NPS4 on 1", "NPS4, which reloads the driver",
                    "gpu_partition_memory is NPS4",
                )
            ],
        ),
        (
            in_modes(("CPX", "NPS1"), ("SPX", "NPS1"), ("SPX", "NPS1")),
            {"compute": "CPX"},
            [("compute_partition", "3 GPUs", "CPX on 1, SPX on 2", "CPX", "gpu_partition_compute is CPX")],
        ),
        (
            in_modes(("SPX", None)),
            {"memory": "NPS1"},
            [("memory_partition", "1 GPUs", "none", "NPS1, which reloads the driver", "gpu_partition_memory is NPS1")],
        ),
        (
            None,
            {"compute": "CPX"},
            [("compute_partition", "8 GPUs", "SPX, as is assumed", "CPX", "gpu_partition_compute is CPX")],
        ),
        (
            None,
            {"memory": "NPS4"},
            [
                (
                    "memory_partition", "8 GPUs", "NPS1, as is assumed", "NPS4, which reloads the driver",
                    "gpu_partition_memory is NPS4",
                )
            ],
        ),
        (
            {**in_modes(("SPX", "NPS1")), "partition_change": "load"},
            {"compute": "SPX"},
            [
                (
                    "partition_change", "1 GPUs", "interrupted at step load", "finished",
                    "an earlier partition change was interrupted",
                )
            ],
        ),
        (
            {**in_modes(("SPX", "NPS1")), "partition_change": "load"},
            {"compute": "CPX"},
            [("compute_partition", "1 GPUs", "SPX", "CPX", "gpu_partition_compute is CPX")],
        ),
    ],
)  # fmt: skip
def test_changes_of_modes(found: Any, wanted: dict[str, str], expected: list[Told]) -> None:
    there = host(found, instinct_gpus={"model": "MI300X", "count": 8})
    made = partition(replace(there, settings=replace(there.settings, **wanted)), ("SPX", "NPS1"))
    assert [(item.kind, *told(item)[:4]) for item in made] == expected
    assert {(item.role, item.source) for item in made} <= {("gpu_partition", GPUS)}


# ---- images ------------------------------------------------------------------------------------------

TAG = "registry.lab:5000/lab/vllm:other"
RUNS = "deployment llama uses it"
IMAGES: dict[str, tuple[list[dict[str, Any]], Lock, tuple[str, ...], list[dict[str, Any]], list[Told]]] = {
    # deployments, pins, images to ask, images that are there, actions
    "absent": (
        [deployment()],
        LOCK,
        (),
        [],
        [(IMAGE, "absent", f"pulled as {DIGEST[:19]}, 4.0 GiB", RUNS, "fleet.lock.json")],
    ),
    "of unknown size": (
        [deployment()],
        Lock({IMAGE: ImagePin(DIGEST)}, {}),
        (),
        [],
        [(IMAGE, "absent", f"pulled as {DIGEST[:19]}", RUNS, "fleet.lock.json")],
    ),
    "without a pin": ([deployment()], Lock(), (), [], [(IMAGE, "absent", "pulled", RUNS, "the deployment")]),
    "there": ([deployment()], LOCK, (), [{"tags": [], "digests": [PULL]}], []),
    "there by its tag, without a pin": ([deployment()], Lock(), (), [{"tags": [IMAGE], "digests": []}], []),
    "its tag is there, and its digest is another": (
        [deployment()],
        LOCK,
        (),
        [{"tags": [IMAGE], "digests": []}],
        [(IMAGE, "absent", f"pulled as {DIGEST[:19]}, 4.0 GiB", RUNS, "fleet.lock.json")],
    ),
    "there, and to be asked": (
        [deployment()],
        LOCK,
        (IMAGE,),
        [{"tags": [], "digests": [PULL]}],
        [(IMAGE, "present", "probed", "its name does not show which vLLM it contains", "catalog/images.yml")],
    ),
    "absent, and to be asked": (
        [deployment()],
        Lock(),
        (IMAGE,),
        [],
        [(IMAGE, "absent", "pulled, and probed for its vLLM version", RUNS, "the deployment")],
    ),
    "another one is to be asked": ([deployment()], LOCK, (TAG,), [{"tags": [], "digests": [PULL]}], []),
    "of two deployments": (
        [deployment(), deployment(name="b", port=9000, gpus=[1])],
        Lock(),
        (),
        [],
        [(IMAGE, "absent", "pulled", "deployment b uses it", "the deployment")],
    ),
    "two": (
        [deployment(image=TAG), deployment(name="b", port=9000, gpus=[1])],
        Lock(),
        (),
        [],
        [
            (IMAGE, "absent", "pulled", "deployment b uses it", "the deployment"),
            (TAG, "absent", "pulled", RUNS, "the deployment"),
        ],
    ),
    "the first is there": (
        [deployment(), deployment(name="b", port=9000, gpus=[1], image=TAG)],
        Lock(),
        (),
        [{"tags": [IMAGE], "digests": []}],
        [(TAG, "absent", "pulled", "deployment b uses it", "the deployment")],
    ),
}


@pytest.mark.parametrize("case", IMAGES)
def test_images(case: str) -> None:
    deployments, lock, unknown, there, expected = IMAGES[case]
    found = state(
        images=[{"id": f"sha256:{number}", "bytes": 1, **item} for number, item in enumerate(there)]
    )
    made = images(host(found, *deployments), lock, unknown)
    assert [told(action) for _, action in made] == expected
    assert [step.ref for step, _ in made] == [item[0] for item in expected]


def test_an_image_is_had_by_digest_or_tag() -> None:
    there = host(state(images=[{"id": "x", "tags": ["a:1"], "digests": ["a@sha256:1"], "bytes": 1}])).state
    known = [has_image(there, name) for name in ("a:1", "a@sha256:1", "a:2", "a")]
    assert (known, has_image(None, "a:1")) == ([True, True, False, False], False)


BUILD = {"repo": "https://github.com/ROCm/vllm.git", "ref": "main", "tag": "local/vllm:1"}


def test_what_a_host_lacks_to_build_an_image() -> None:
    built = deployment(image=None, build=BUILD, vllm_version="0.11.1")
    there = host(state(), built)
    steps = [step for step, _ in images(there, LOCK)]
    made = build_tools(there, steps)
    assert made is not None
    action, packages = made
    assert packages[:2] == ("ca-certificates", "git")
    names = ", ".join(packages)
    assert told(action) == (
        names, "absent", "installed", "an image is built on this host", "vLLM's docker/Dockerfile.rocm",
    )  # fmt: skip
    ((step, pull),) = images(there, LOCK)
    assert step.build
    after = f"built from {BUILD['repo']} at main, {step.build.dockerfile}"
    assert told(pull) == (step.build.tag, "absent", after, RUNS, "the deployment")
    pulled = host(state(), deployment())
    assert build_tools(pulled, [step for step, _ in images(pulled, LOCK)]) is None
    both = host(state(), built, deployment(name="b", port=9000, gpus=[1]))
    assert build_tools(both, [step for step, _ in images(both, LOCK)]) == made
    assert build_tools(there, []) is None


# ---- weights -----------------------------------------------------------------------------------------

FILES = (("config.json", 1), ("model.safetensors", 2), ("original/a.npz", 3), ("original/b.npz", 4))
PIN = ModelPin(COMMIT, FILES)
ALL: dict[str, Any] = {"exclude": [], "include": []}
WEIGHTS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], ModelPin, bool]] = {
    # the snapshot, what is wanted (exclude, include), the pin, and whether that is there
    "all, and all is wanted": ({}, (), (), PIN, True),
    "all, and some are wanted": ({}, ("original/*",), (), PIN, True),
    "all, and nobody knows the files": ({}, ("original/*",), (), ModelPin(COMMIT), True),
    "not complete": ({"complete": False}, (), (), PIN, False),
    "of another commit": ({"commit": "d" * 40}, (), (), PIN, False),
    "of another repository": ({"repo": "lab/other"}, (), (), PIN, False),
    "elsewhere": ({"cache_dir": "/other"}, (), (), PIN, False),
    "written with a slash": ({"cache_dir": f"{HF}/"}, (), (), PIN, True),
    "some, and all are wanted": ({"exclude": ["original/*"]}, (), (), PIN, False),
    "some, and the same are wanted": (
        {"exclude": ["original/*"]},
        ("original/*",),
        (),
        ModelPin(COMMIT),
        True,
    ),
    "some, and fewer are wanted": ({"exclude": ["original/b*"]}, ("original/*",), (), PIN, True),
    "some, and more are wanted": ({"exclude": ["original/*"]}, ("original/b*",), (), PIN, False),
    "some, fewer, and nobody knows": (
        {"exclude": ["original/b*"]},
        ("original/*",),
        (),
        ModelPin(COMMIT),
        False,
    ),
    "named ones": ({"include": ["config.json"]}, (), ("config.json",), ModelPin(COMMIT), True),
    "named ones, and fewer": ({"include": ["*.json", "*.npz"]}, (), ("config.json",), PIN, True),
    "named ones, and others": ({"include": ["*.json"]}, (), ("*.npz",), PIN, False),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights(case: str) -> None:
    found, exclude, include, pin, expected = WEIGHTS[case]
    base = {"cache_dir": HF, "repo": REPO, "commit": COMMIT, "complete": True, "files": 1, "bytes": 1, **ALL}
    wanted = ModelRepository("model", REPO, "main", ("vllm_deployments", 0, "model"), exclude, include)
    other = {**base, "repo": "lab/unrelated"}
    for there in ([{**base, **found}], [other, {**base, **found}], [{**base, **found}, other]):
        assert has_weights(host(state(models=there)), wanted, pin) is expected
    assert has_weights(host(None), wanted, pin) is False


HUB = "huggingface_hub documentation: guides/download"
SERVES = "deployment llama serves it"


@pytest.mark.parametrize(
    ("deployments", "lock", "expected"),
    [
        ([deployment()], LOCK, (f"{REPO}@main", f"commit {COMMIT[:12]}, 12.0 GiB in 3 files", SERVES)),
        (
            [deployment(exclude=["original/*"])],
            LOCK,
            (f"{REPO}@main", f"commit {COMMIT[:12]}, 4.8 GiB in 2 files", SERVES),
        ),
        ([deployment(revision=COMMIT)], LOCK, (REPO, f"commit {COMMIT[:12]}", SERVES)),
        (
            [deployment()],
            Lock(),
            (f"{REPO}@main", "its current commit, pinned on the first online run", SERVES),
        ),
        (
            [deployment(), deployment(name="b", port=9000, gpus=[1])],
            Lock(),
            (
                f"{REPO}@main",
                "its current commit, pinned on the first online run",
                "deployments b, llama serve it",
            ),
        ),
    ],
)
def test_a_fetch(deployments: Any, lock: Lock, expected: tuple[str, str, str]) -> None:
    ((step, action),) = models(host(state(), *deployments), lock, {"llama": "image:1", "b": "image:2"})
    target, after, reason = expected
    assert told(action) == (target, "absent", after, reason, HUB)
    fetched_in = "image:2" if len(deployments) > 1 else "image:1"  # that of the first deployment
    assert (step.image, step.cache_dir, step.bytes) == (fetched_in, HF, sum(step.files.values()))


def test_weights_that_one_of_two_deployments_lacks() -> None:
    snapshot = {"cache_dir": HF, "repo": REPO, "commit": COMMIT, "complete": True, "files": 1, "bytes": 1}
    found = state(models=[{**snapshot, "exclude": ["original/*"], "include": []}])
    some, every = deployment(exclude=["original/*"]), deployment(name="b", port=9000, gpus=[1])
    image_of = {"llama": "image:1", "b": "image:2"}
    assert models(host(found, some), LOCK, image_of) == ()
    ((step, action),) = models(host(found, some, every), LOCK, image_of)
    assert (action.before, len(step.files)) == ("other files of this commit", 3)


@pytest.mark.parametrize(
    ("complete", "commit", "before"),
    [
        (True, COMMIT, "other files of this commit"),
        (False, COMMIT, "incomplete"),
        (False, "d" * 40, "absent"),
        (True, "d" * 40, f"commit {'d' * 12}"),
    ],
)
def test_what_of_a_model_is_there(complete: bool, commit: str, before: str) -> None:
    there = {"cache_dir": HF, "repo": REPO, "commit": commit, "complete": complete, "files": 1, "bytes": 1}
    found = state(models=[{**there, "exclude": [], "include": ["*.txt"]}])
    ((_, action),) = models(host(found, deployment()), LOCK, {"llama": "image:1"})
    assert action.before == before


KEY_OF_REPO = model_key("", REPO, "main")
HASHES = (("config.json", "git-sha1:1"), ("gone.bin", "sha256:2"))
HASHED = Lock(LOCK.images, {KEY_OF_REPO: replace(LOCK.models[KEY_OF_REPO], hashes=HASHES)})
NEVER = "fetched, but its content was never verified"
SIZES = "an earlier release compared only the sizes of the files"


@pytest.mark.parametrize(
    ("verified", "asked", "before", "reason"),
    [
        (True, False, "", ""),
        (None, False, "", ""),  # an observation of an earlier version
        (False, False, NEVER, SIZES),
        (False, True, NEVER, "verify is true"),
        (True, "true", "verified when it was fetched", "verify is true"),
    ],
)  # fmt: skip
def test_complete_weights_are_verified_once_or_when_asked_for(
    verified: bool | None, asked: bool | str, before: str, reason: str
) -> None:
    there = {"cache_dir": HF, "repo": REPO, "commit": COMMIT, "complete": True, "files": 1, "bytes": 1}
    there |= {"exclude": ["original/*"], "include": []} | ({} if verified is None else {"verified": verified})
    wanted = deployment(exclude=["original/*"])
    found = host(state(models=[there]), wanted, verify=asked)
    assert has_weights(
        found, ModelRepository("model", REPO, "main", (), ("original/*",), ()), LOCK.models[f"|{REPO}@main"]
    )
    made = models(found, HASHED, {"llama": "image:1"})
    assert bool(made) is bool(reason)
    for step, action in made:
        assert told(action) == (f"{REPO}@main", before, "verified by content, 4.8 GiB to read", reason, HUB)
        assert (action.kind, action.role, step.bytes) == ("verify_model", "hf_model", 0)
        data = step.to_json()
        assert (data["verify"], data["hashes"]) == (True, {"config.json": "git-sha1:1"})
        assert (list(data["files"]), data["exclude"]) == (
            ["config.json", "model-1.safetensors"],
            ["original/*"],
        )


def test_weights_whose_files_nobody_lists_are_not_verified() -> None:
    there = {"cache_dir": HF, "repo": REPO, "commit": COMMIT, "complete": True, "files": 1, "bytes": 1, **ALL}
    found = host(state(models=[{**there, "verified": False}]), deployment(revision=COMMIT))
    assert models(found, Lock(LOCK.images), {"llama": "image:1"}) == ()


def test_verifying_restarts_and_fetches_nothing() -> None:
    done = apply_to_state(state(), plan({"n1": state()}, [deployment()]).to_json()["hosts"]["n1"])
    done["models"][0]["verified"] = False
    done["disk"][1]["free_bytes"] = 0
    made = plan({"n1": done}, [deployment()]).to_json()["hosts"]["n1"]
    assert [(item["kind"], item["role"]) for item in made["actions"]] == [("verify_model", "hf_model")]
    assert (made["todo"], made["models"][0]["bytes"]) == (["hf_model"], 0)


def test_weights_of_another_commit_are_named_by_it() -> None:
    other = "0123456789abcdef" * 2 + "01234567"
    there = {"cache_dir": HF, "repo": REPO, "commit": other, "complete": True, "files": 1, "bytes": 1, **ALL}
    ((_, action),) = models(host(state(models=[there]), deployment()), LOCK, {"llama": "image:1"})
    assert action.before == f"commit {other[:12]}"


def test_names_with_signs_of_patterns_are_taken_as_they_are() -> None:
    """Two selections of one commit become one fetch of their files, whose names may look like patterns."""
    pin = ModelPin(COMMIT, (("a[1].bin", 1), ("b*.bin", 2), ("c?.bin", 3), ("d.bin", 4)), None)
    lock = Lock({}, {model_key("", REPO, "main"): pin})
    first = deployment(include=["a*", "b*"])
    second = deployment(name="b", port=9000, gpus=[1], include=["c*"])
    ((step, _),) = models(host(state(), first, second), lock, {"llama": "i", "b": "i"})
    assert step.include == ("a[[]1].bin", "b[*].bin", "c[?].bin")
    assert pin.selection((), step.include) == {"a[1].bin": 1, "b*.bin": 2, "c?.bin": 3} == dict(step.files)


# ---- servers -----------------------------------------------------------------------------------------


def running(**keys: Any) -> ObservedInstance:
    hashes = tuple(keys.pop("file_hashes", {}).items())
    base = {"state": "running", "spec_hash": "1" * 64, "artefact_hash": "1" * 64, "exit_code": 0}
    return ObservedInstance(name="llama-0", deployment="llama", file_hashes=hashes, **{**base, **keys})


@pytest.mark.parametrize(
    ("there", "before"),
    [
        ("running", "running"),
        ("exited", "exited"),
        ("restarting", "restarting"),
        (None, "stopped"),
        ("", "stopped"),
    ],
)
def test_an_instance_that_goes(there: str | None, before: str) -> None:
    reason = "no deployment on this host defines llama-0"
    assert told(remove(running(state=there))) == ("llama-0", before, "removed", reason, "vllm_deployments")
    assert remove(running(state=there)).role == "vllm_serve"


FILE_HASHES = {"serve.sh": "a", "env": "b", "container.json": "c"}
AFTER = f"running, spec {'1' * 12}"
SERVERS: dict[str, tuple[dict[str, Any] | None, bool, tuple[str, str, str] | None]] = {
    # what is there, a change of modes, (before, after, reason)
    "absent": (None, False, ("absent", AFTER, "not deployed yet")),
    "as wanted": ({}, False, None),
    "stopped for a change of modes": (
        {},
        True,
        (AFTER, AFTER, "it is stopped while the compute partition changes"),
    ),
    "of an older form": (
        {"spec_hash": None},
        False,
        ("running", AFTER, "its container was created by an older version of instinct-fleet"),
    ),
    "of another specification": (
        {"spec_hash": "2" * 64, "artefact_hash": "2" * 64, "file_hashes": {**FILE_HASHES, "env": "x"}},
        False,
        (f"running, spec {'2' * 12}", AFTER, "its specification changed: environment"),
    ),
    "of another specification in two files": (
        {"spec_hash": "2" * 64, "artefact_hash": "2" * 64, "file_hashes": {"env": "b"}},
        False,
        (f"running, spec {'2' * 12}", AFTER, "its specification changed: container, command"),
    ),
    "of another specification, and nobody knows where": (
        {"spec_hash": "2" * 64, "artefact_hash": "2" * 64},
        False,
        (f"running, spec {'2' * 12}", AFTER, "its specification changed"),
    ),
    "its files are newer than its container": (
        {"spec_hash": "2" * 64},
        False,
        (
            f"running, spec {'2' * 12}",
            AFTER,
            "its files are current, but its container was created from older ones",
        ),
    ),
    "its files are gone": (
        {"artefact_hash": None},
        False,
        (AFTER, AFTER, "its files are missing from the node"),
    ),
    "its files were changed": (
        {"artefact_hash": "3" * 64, "file_hashes": {**FILE_HASHES, "serve.sh": "x"}},
        False,
        (AFTER, AFTER, "its files were changed on the node: command"),
    ),
    "ended": (
        {"state": "exited", "exit_code": 3},
        False,
        (f"exited with code 3, spec {'1' * 12}", AFTER, "it is not running"),
    ),
    "ended, and nobody knows how": (
        {"state": "exited", "exit_code": None},
        False,
        (f"exited, spec {'1' * 12}", AFTER, "it is not running"),
    ),
    "in no known state": ({"state": None}, False, (f"unknown, spec {'1' * 12}", AFTER, "it is not running")),
    "not ready": (
        {"ready": False},
        False,
        (AFTER, f"{AFTER}, ready", "it was started but has not generated tokens yet"),
    ),
}


@pytest.mark.parametrize("case", SERVERS)
def test_a_server(case: str) -> None:
    there, repartition, expected = SERVERS[case]
    found = None if there is None else running(**there)
    made = server("llama-0", "1" * 64, FILE_HASHES, found, repartition)
    assert (told(made) if made else None) == (
        ("llama-0", *expected, "vllm_deployments") if expected else None
    )
    assert not made or (made.kind, made.role) == ("server", "vllm_serve")


@pytest.mark.parametrize(
    ("policy", "own", "differs"),
    [
        ("always", "always", False),
        ("no", "always", True),
        ("no", "on-failure:3", True),
        ("no", "no", False),
        (None, "always", False),  # Docker did not say
        ("unless-stopped", "", False),  # of an earlier release
    ],
)
def test_a_restart_policy_is_put_back(policy: str | None, own: str, differs: bool) -> None:
    found = restart_policy(running(policy=policy, own_policy=own))
    assert (found and (found.kind, found.before, found.after)) == (
        ("restart_policy", policy, own) if differs else None
    )


def test_an_instance_that_gets_its_restart_policy_back_is_not_touched_otherwise() -> None:
    """It is neither drained nor replaced: vllm_server finds that only the policy differs."""
    whole = plan({"n1": state()}, [deployment(instances_per_host=2)])
    done = apply_to_state(state(), whole.to_json()["hosts"]["n1"])
    first, second = done["instances"]
    first.update(restart_policy="no", own_restart_policy="always")
    second.update(restart_policy="always", own_restart_policy="always")
    made = plan({"n1": done}, [deployment(instances_per_host=2)])
    (host,) = made.hosts
    assert [(item.kind, item.target) for item in host.actions] == [("restart_policy", "llama-0")]
    assert (host.start, host.stop, host.remove, host.policies) == ((), (), (), ("llama-0",))
    data = host.to_json()
    assert [server["name"] for server in data["servers"]] == data["serve"] == ["llama-0"]
    assert (data["todo"], data["resume"], data["spans"]) == (["vllm_serve"], [], [])
    assert "1. restart policy llama-0: no → always" in explain(made)
    # Whatever else an instance needs brings its policy along.
    first["state"] = "exited"
    (host,) = plan({"n1": done}, [deployment(instances_per_host=2)]).hosts
    assert ([item.kind for item in host.actions], host.policies) == (["server"], ())


# ---- words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown size"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (1024**2, "1.0 MiB"),
        (5 * GIB, "5.0 GiB"),
        (1024**4, "1.0 TiB"),
        (3000 * 1024**4, "3000.0 TiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_each_once_in_the_order_of_their_first_appearance() -> None:
    assert unique(["b", "a", "b", "c", "a"]) == ("b", "a", "c")
