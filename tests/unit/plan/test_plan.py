# SPDX-License-Identifier: Apache-2.0
"""Desired minus observed: which actions, in which order, with which words; and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)

from tests.worlds.plan_world import (
    COMMIT,
    DIGEST,
    GIB,
    IMAGE,
    LOCK,
    PULL,
    REPO,
    SCHEMA,
    SOFTWARE,
    actions,
    apply_to_state,
    deployment,
    gpus,
    plan,
    problems,
    state,
)

NUMA = "numa_balancing kernel.numa_balancing"


def planned(found: dict[str, Any] | None, deployments: Any, **keys: Any) -> dict[str, Any]:
    """n1's part of plan.json; the whole is checked against the schema."""
    data = json.loads(json.dumps(plan({"n1": found}, deployments, **keys).to_json()))
    SCHEMA.validate(data)
    return data["hosts"]["n1"]


def settled(deployments: Any, found: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A node on which these deployments run."""
    found = found or state()
    return apply_to_state(found, planned(found, deployments, **keys))


def test_a_bare_host() -> None:
    docker = {"installed": False, "available": False, "root_dir": None, "error": "no such file"}
    host = planned(state(docker=docker), [deployment(instances_per_host=2)], gpu_partition_compute="CPX")
    assert actions(host) == [
        "docker_engine docker.io",
        NUMA,
        f"image {IMAGE}",
        f"model {REPO}@main",
        "generation llama",
        "compute_partition 8 GPUs",
        "server llama-0",
        "server llama-1",
    ]
    assert host["todo"] == ["host_prep", "vllm_image", "hf_model", "gpu_partition", "vllm_serve"]
    assert host["packages"] == ["docker.io"]
    assert host["numa_balancing"] is False
    assert host["partition"] == {
        "compute": "CPX", "memory": None, "clean": False, "backend": "auto", "stop_servers": [],
        "interrupted": False, "serve": ["llama-0", "llama-1"], "remove": [],
    }  # fmt: skip
    assert host["images"] == [
        {
            "ref": IMAGE,
            "pull": PULL,
            "digest": DIGEST,
            "bytes": 4 * GIB,
            "registry": "registry.lab:5000",
            "build": None,
        }
    ]
    assert host["models"][0]["commit"] == COMMIT
    assert host["models"][0]["image"] == PULL
    assert [item["render_nodes"] for item in host["instances"]] == [["renderD128"], ["renderD160"]]
    assert [item["name"] for item in host["servers"]] == ["llama-0", "llama-1"]
    assert host["gpus"] == {"model": "MI300X", "count": 8, "logical": 64, "compute": "CPX"}


def test_a_settled_host_has_nothing_to_do() -> None:
    wanted = [
        deployment(instances_per_host=2),
        deployment(name="big", tensor_parallel_size=4, gpus=[4, 5, 6, 7], port=9000),
    ]
    host = planned(settled(wanted), wanted)
    assert (host["actions"], host["todo"], host["servers"], host["images"], host["models"]) == (
        [],
        [],
        [],
        [],
        [],
    )
    assert [item["name"] for item in host["instances"]] == ["big-0", "llama-0", "llama-1"]
    assert all(item["server"]["spec_hash"] == item["spec_hash"] for item in host["instances"])


def said(state: str, failures: int) -> dict[str, Any]:
    """What a supervisor says, as node_state returns it."""
    first = {"kind": "out_of_memory", "line": "HIP out of memory", "next_step": "Use more GPUs."}
    return {"state": state, "since": 1.0, "why": "", "failures": failures, "first": first, "peer": None}


@pytest.mark.parametrize(
    ("change", "before", "reason"),
    [
        ({"state": "exited", "exit_code": 1}, "exited with code 1, spec {hash}", "it is not running"),
        ({"state": "created"}, "created, spec {hash}", "it is not running"),
        ({"state": "restarting"}, "restarting, spec {hash}", "it fails and is being restarted"),
        (
            {"state": "restarting", "supervisor": said("stopping", 1)},
            "restarting, spec {hash}",
            "it fails and is being restarted: out_of_memory: HIP out of memory",
        ),
        (
            {"state": "exited", "exit_code": 0, "supervisor": said("stopping", 2)},
            "exited with code 0, spec {hash}",
            "it is not running; it failed: out_of_memory: HIP out of memory",
        ),
        (
            {"supervisor": said("gave_up", 3)},
            "gave up, spec {hash}",
            "it gave up after 3 failures: out_of_memory: HIP out of memory",
        ),
        (
            {"ready": False, "supervisor": said("starting", 1)},
            "running, spec {hash}",
            "it was started but has not generated tokens yet",
        ),
        ({"artefact_hash": None}, "running, spec {hash}", "its files are missing from the node"),
        ({"artefact_hash": "0" * 64}, "running, spec {hash}", "its files were changed on the node"),
        (
            {"artefact_hash": "0" * 64, "files": {"serve.sh": "x"}},
            "running, spec {hash}",
            "its files were changed on the node: container, environment, command",
        ),
        (
            {"spec_hash": "1" * 64, "artefact_hash": "1" * 64},
            "running, spec 111111111111",
            "its specification changed",
        ),
        (
            {"spec_hash": "1" * 64},
            "running, spec 111111111111",
            "its files are current, but its container was created from older ones",
        ),
        ({"spec_hash": None}, "running", "its container was created by an older version of instinct-fleet"),
    ],
)
def test_an_instance_that_is_not_as_wanted(change: dict[str, Any], before: str, reason: str) -> None:
    found = settled([deployment()])
    spec = found["instances"][0]["spec_hash"]
    found["instances"][0].update(change)
    host = planned(found, [deployment()])
    assert host["actions"] == [
        {
            "kind": "server",
            "role": "vllm_serve",
            "target": "llama-0",
            "before": before.format(hash=spec[:12]),
            "after": f"running, spec {spec[:12]}" + (", ready" if change.get("ready") is False else ""),
            "reason": reason,
            "source": "vllm_deployments",
        }
    ]
    assert [item["name"] for item in host["servers"]] == ["llama-0"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine_args": {"max_model_len": 1024}}, "its specification changed: command"),
        ({"env": {"A": "1"}}, "its specification changed: environment"),
        ({"runtime": {"ipc": "private"}}, "its specification changed: container"),
        ({"gpus": [1]}, "its specification changed: container, command"),
    ],
)
def test_what_changed_is_named(change: dict[str, Any], reason: str) -> None:
    from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import text_hash

    before = planned(state(), [deployment()])
    found = apply_to_state(state(), before)
    texts = before["servers"][0]["files"]
    found["instances"][0]["files"] = {name: text_hash(file["text"]) for name, file in texts.items()}
    recorded, server = planned(found, [deployment(**change)])["actions"]
    assert (recorded["kind"], server["reason"]) == ("generation", reason)


def test_a_new_pin_replaces_the_server() -> None:
    newer = LOCK.merged(Lock({IMAGE: ImagePin("sha256:" + "9" * 64, GIB, SOFTWARE)}, {}))
    host = planned(settled([deployment()]), [deployment()], lock=newer)
    assert actions(host) == [f"image {IMAGE}", "generation llama", "server llama-0"]
    assert host["actions"][0]["after"] == "pulled as sha256:999999999999, 1.0 GiB"


def test_instances_nobody_wants_are_removed_first() -> None:
    found = settled([deployment(instances_per_host=2)])
    host = planned(found, [deployment(name="other")])
    gone = ["remove_server llama-0", "remove_server llama-1"]
    assert actions(host) == ["generation llama", "generation other", *gone, "server other-0"]
    assert host["remove"] == ["llama-0", "llama-1"]
    assert actions(planned(found, [])) == ["generation llama", *gone]


def test_no_deployments_variable_removes_nothing() -> None:
    """A typo in a variable's name must not empty a fleet."""
    found = settled([deployment()])
    assert problems({"n1": found}, None) == [
        "host n1: vllm_deployments: is not defined, but the host has instances (llama-0). Define it; an "
        "empty list, vllm_deployments: [], removes them."
    ]
    assert actions(planned(state(), None)) == [NUMA]


def test_a_partition_change_stops_before_and_starts_after() -> None:
    wanted = [deployment(instances_per_host=2)]
    found = settled(wanted)
    found["instances"].append({**found["instances"][0], "name": "old-0", "deployment": "old"})
    host = planned(found, wanted, gpu_partition_compute="CPX")
    assert actions(host) == [
        "generation llama",
        "stop_server llama-0",
        "stop_server llama-1",
        "stop_server old-0",
        "compute_partition 8 GPUs",
        "remove_server old-0",
        "server llama-0",
        "server llama-1",
    ]
    stop = host["partition"]["stop_servers"]
    assert [item["name"] for item in stop] == ["llama-0", "llama-1", "old-0"]
    assert stop[2] == {"name": "old-0", "container_name": "instinct-old-0", "stop_timeout": 120}
    # llama-0's device stays renderD128, but the memory that its driver counts is no longer its alone.
    assert host["actions"][6]["reason"] == "its specification changed"
    assert host["actions"][4]["before"] == "SPX"
    assert (host["remove"], host["partition"]["remove"]) == ([], ["old-0"])
    assert actions(planned(apply_to_state(found, host), wanted, gpu_partition_compute="CPX")) == []


def test_an_instance_that_stays_the_same_runs_again_after_a_partition_change() -> None:
    wanted = [deployment(instances_per_gpu=2, gpus=[0])]
    host = planned(settled(wanted), wanted, gpu_partition_compute="CPX")
    assert host["actions"][-1]["target"] == "llama-0"
    assert host["actions"][-1]["reason"] == "it is stopped while the compute partition changes"


def test_only_the_gpus_that_differ_matter() -> None:
    mixed = [*gpus("SPX", 1), *gpus("CPX")[1:]]
    host = planned(state(gpus=mixed), [], gpu_partition_compute="CPX")
    assert host["actions"][1]["before"] == "CPX on 7, SPX on 1"


@pytest.mark.parametrize(
    ("numa", "wanted", "expected"),
    [
        ({"runtime": 0, "persisted": 0}, False, None),
        ({"runtime": 0, "persisted": None}, False, "off now, as the kernel decides after a reboot"),
        ({"runtime": 1, "persisted": 0}, False, "on now, off after a reboot"),
        ({"runtime": 2, "persisted": 1}, False, "on now, on after a reboot"),
        ({"runtime": None, "persisted": None}, False, None),
        ({"runtime": 1, "persisted": None}, True, None),
        ({"runtime": 0, "persisted": 0}, True, "off now, off after a reboot"),
    ],
)
def test_numa_balancing(numa: dict[str, Any], wanted: bool, expected: str | None) -> None:
    host = planned(state(numa_balancing=numa), [], host_prep_numa_balancing=wanted)
    assert [item["before"] for item in host["actions"]] == ([expected] if expected else [])
    assert host["numa_balancing"] is (wanted if expected else None)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], "absent"),
        ([{"commit": "d" * 40, "complete": True}], "commit dddddddddddd"),
        ([{"commit": COMMIT, "complete": False}], "incomplete"),
        (
            [{"commit": COMMIT, "complete": True, "exclude": ["*"], "files": 1, "bytes": 2}],
            "other files of this commit",
        ),
        ([{"commit": COMMIT, "complete": True, "cache_dir": "/other"}], "other files of this commit"),
        ([{"commit": COMMIT, "complete": True, "exclude": ["x"], "files": 3, "bytes": 12 * GIB + 700}], None),
        ([{"commit": COMMIT, "complete": True}], None),
    ],
)
def test_weights(found: list[dict[str, Any]], expected: str | None) -> None:
    base = {"cache_dir": "/var/lib/instinct-fleet/hf", "repo": REPO, "files": 0, "bytes": 0}
    host = planned(state(models=[{**base, **item} for item in found]), [deployment()])
    befores = [item["before"] for item in host["actions"] if item["kind"] == "model"]
    assert befores == ([expected] if expected else [])


def test_two_selections_of_one_model_are_one_fetch() -> None:
    wanted = [
        deployment(exclude=["original/*"]),
        deployment(name="b", include=["original/*", "config.json"], gpus=[1], port=9000),
    ]
    host = planned(state(), wanted)
    (model,) = host["models"]
    assert sorted(model["files"]) == ["config.json", "model-1.safetensors", "original/params.npz"]
    assert (model["exclude"], model["include"]) == ([], sorted(model["files"]))
    assert actions(planned(apply_to_state(state(), host), wanted)) == []


def test_two_revisions_that_are_one_commit_are_one_fetch() -> None:
    lock = LOCK.merged(Lock({}, {model_key("", REPO, "v1"): LOCK.models[model_key("", REPO, "main")]}))
    wanted = [deployment(), deployment(name="b", revision="v1", gpus=[1], port=9000)]
    host = planned(state(), wanted, lock=lock)
    assert len(host["models"]) == 1
    assert actions(planned(apply_to_state(state(), host), wanted, lock=lock)) == []


def test_a_built_image() -> None:
    build = {
        "repo": "https://github.com/ROCm/vllm.git",
        "ref": "main",
        "args": {"A": "1"},
        "tag": "local/vllm:1",
    }
    wanted = [deployment(image=None, build=build, vllm_version="0.11.1")]
    host = planned(state(), wanted)
    tag = host["builds"]["build"][0]["ref"]
    assert tag.startswith("local/vllm:1-")
    assert host["images"] == []
    assert host["builds"]["build"] == [
        {
            "ref": tag,
            "pull": None,
            "digest": None,
            "bytes": None,
            "registry": "",
            "build": {**build, "tag": tag, "dockerfile": "docker/Dockerfile.rocm"},
        }
    ]
    assert host["servers"][0]["image"] == host["models"][0]["image"] == tag
    assert host["warnings"] == [
        "deployment llama builds main, which may move: name a commit, so that the build can be repeated"
    ]
    assert actions(host)[0] == "build_tools ca-certificates, git"
    assert host["packages"] == ["ca-certificates", "git"]
    after = apply_to_state(state(), host)
    assert actions(planned(after, wanted)) == []
    other = [deployment(image=None, build={**build, "args": {"A": "2"}}, vllm_version="0.11.1")]
    assert [item.split()[0] for item in actions(planned(after, other))] == ["image", "generation", "server"]


def test_a_started_instance_that_never_answered_is_waited_for() -> None:
    wanted = [deployment()]
    after = apply_to_state(state(), planned(state(), wanted))
    assert actions(planned(after, wanted)) == []
    after["instances"][0]["ready"] = False
    (action,) = planned(after, wanted)["actions"]
    assert action["kind"] == "server"
    assert "has not generated tokens yet" in action["reason"]


def test_a_model_on_the_node_is_mounted_and_not_fetched() -> None:
    host = planned(state(), [deployment(model="/srv/models/x")])
    assert host["models"] == []
    (instance,) = host["instances"]
    assert (instance["revision"], instance["commit"], instance["served_model"]) == (None, None, "x")
    assert "--revision" not in instance["argv"]
    assert "/srv/models/x:/srv/models/x:ro" in instance["server"]["container"]["HostConfig"]["Binds"]


def test_hosts_and_groups_choose() -> None:
    states = {name: state() for name in ("n1", "n2", "n3")}
    wanted = [deployment(hosts=["blue", "n3"]), deployment(name="b", hosts=["n2"])]
    data = plan(states, wanted, groups={"blue": ["n1"]}).to_json()
    SCHEMA.validate(data)
    assert {name: [item["name"] for item in host["instances"]] for name, host in data["hosts"].items()} == {
        "n1": ["llama-0"],
        "n2": ["b-0"],
        "n3": ["llama-0"],
    }
    assert data["deployments"] == ["llama", "b"]


def test_unreachable_hosts_are_named_and_omitted() -> None:
    data = plan({"n1": state(), "n2": None}, [deployment()]).to_json()
    assert list(data["hosts"]) == ["n1"]
    assert data["unreachable"] == {"n2": "it could not be reached"}


def test_offline_plans_a_bare_host_and_needs_no_pins() -> None:
    host = planned(
        None,
        [deployment(instances_per_host=2, vllm_version="0.11.1")],
        offline=True,
        lock=Lock(),
        instinct_gpus={"model": "MI355X", "count": 4},
        gpu_partition_compute="DPX",
    )
    assert host["status"] == "declared"
    assert [item.split()[0] for item in actions(host)] == [
        "docker_engine", "numa_balancing", "image", "model", "generation", "compute_partition", "server", "server",
    ]  # fmt: skip
    assert host["images"][0]["pull"] == IMAGE
    assert host["instances"][1]["render_nodes"] == ["renderD144"]  # the other socket
    assert host["gpus"] == {"model": "MI355X", "count": 4, "logical": 8, "compute": "DPX"}


DISK = [
    {"path": "/var/lib/docker", "free_bytes": 11 * GIB, "total_bytes": 90 * GIB, "device": 1},
    {"path": "/var/lib/instinct-fleet/hf", "free_bytes": 11 * GIB, "total_bytes": 90 * GIB, "device": 2},
]


def cached(repo: str, size: int) -> dict[str, Any]:
    files = {"complete": True, "files": 1, "exclude": [], "include": []}
    return {
        "cache_dir": "/var/lib/instinct-fleet/hf",
        "repo": repo,
        "commit": "1" * 40,
        "bytes": size,
        **files,
    }


def one_disk(free: int) -> list[dict[str, Any]]:
    return [{**entry, "free_bytes": free * GIB, "device": 1} for entry in DISK]


@pytest.mark.parametrize(
    ("changes", "keys", "expected"),
    [
        (
            {"disk": DISK},
            {},
            [
                "not enough disk space for /var/lib/docker: 12.0 GiB are needed (image "
                "registry.lab:5000/lab/vllm:1 12.0 GiB), 11.0 GiB are free. Make room: move Docker's "
                "data-root to a larger file system.",
                "not enough disk space for /var/lib/instinct-fleet/hf: 12.0 GiB are needed (weights of "
                "lab/tiny-llama 12.0 GiB), 11.0 GiB are free. Make room: point hf_model_cache_dir at a "
                "larger file system.",
            ],
        ),
        ({"disk": one_disk(25)}, {}, []),
        (
            {"disk": one_disk(23)},
            {},
            [
                "not enough disk space for /var/lib/docker and /var/lib/instinct-fleet/hf: 24.0 GiB are "
                "needed (image registry.lab:5000/lab/vllm:1 12.0 GiB, weights of lab/tiny-llama 12.0 GiB), 23.0 GiB "
                "are free. Make room: move Docker's data-root to a larger file system, or point "
                "hf_model_cache_dir at a larger file system."
            ],
        ),
        # What prune.yml would remove: images that the toolkit has read, and weights, to which nothing refers.
        (
            {
                "disk": DISK,
                "images": [
                    {
                        "id": "i",
                        "tags": ["old:1"],
                        "digests": [],
                        "bytes": 3 * GIB,
                        "software": SOFTWARE.to_json(),
                    },
                    {"id": "j", "tags": ["others:1"], "digests": [], "bytes": 50 * GIB},
                ],
                "models": [cached("a/b", 2 * GIB), cached("c/d", GIB)],
            },
            {},
            [
                "not enough disk space for /var/lib/docker: 12.0 GiB are needed (image "
                "registry.lab:5000/lab/vllm:1 12.0 GiB), 11.0 GiB are free; prune.yml would free at most 3.0 GiB. Make "
                "room: remove what nothing uses (prune.yml --limit n1 lists it), or move Docker's data-root to a "
                "larger file system.",
                "not enough disk space for /var/lib/instinct-fleet/hf: 12.0 GiB are needed (weights of "
                "lab/tiny-llama 12.0 GiB), 11.0 GiB are free; prune.yml would free at most 3.0 GiB. Make room: remove "
                "what nothing uses (prune.yml --limit n1 lists it), or point hf_model_cache_dir at a larger file "
                "system.",
            ],
        ),
        # Without the files that are not fetched it fits.
        ({"disk": one_disk(23)}, {"exclude": ["original/*"]}, []),
        # What an interrupted fetch left is not needed again.
        (
            {
                "disk": one_disk(23),
                "fetching": [{"cache_dir": "/var/lib/instinct-fleet/hf", "repo": REPO, "bytes": 4 * GIB}],
            },
            {},
            [],
        ),
        # An image that is there needs no room.
        ({"disk": one_disk(13), "images": [{"id": "i", "tags": [], "digests": [PULL]}]}, {}, []),
    ],
)
def test_disk(changes: dict[str, Any], keys: dict[str, Any], expected: list[str]) -> None:
    found = problems({"n1": state(**changes)}, [deployment(**keys)])
    assert found == ([f"host n1: {' '.join(expected)}"] if expected else [])


USED = {"id": "i", "tags": ["old/vllm:1"], "digests": [], "bytes": 3 * GIB, "software": SOFTWARE.to_json()}
OTHERS = {**USED, "software": None}
NEED = (
    "24.0 GiB are needed (image registry.lab:5000/lab/vllm:1 12.0 GiB, weights of lab/tiny-llama 12.0 GiB), the "
    "toolkit has"
)
HAVE = "5.0 GiB (images 3.0 GiB, weights and content store 2.0 GiB); prune.yml would free at most 3.0 GiB."
PRUNE = (
    "Make room: run prune.yml --limit n1 -e apply=true (without apply it only lists what it would remove); or"
)
RAISE = "aise store_quota, or give this host fewer deployments."


@pytest.mark.parametrize(
    ("quota", "changes", "expected"),
    [
        (0, {"images": [USED], "held_bytes": 900 * GIB}, ""),  # no limit
        (25, {}, ""),
        (25, {"images": [OTHERS]}, ""),
        (
            12,
            {"disk": [{**item, "free_bytes": 90 * GIB, "network": "nfs4"} for item in DISK]},
            "",
        ),  # others' too
        (30, {"images": [USED], "held_bytes": 2 * GIB}, ""),
        (
            29,
            {"images": [USED], "held_bytes": 2 * GIB},
            f"store_quota allows 29.0 GiB: {NEED} {HAVE} {PRUNE} r{RAISE}",
        ),
        (
            26,
            {"images": [USED], "held_bytes": 2 * GIB},
            f"store_quota allows 26.0 GiB: {NEED} {HAVE} R{RAISE}",
        ),
        (
            24,
            {},
            f"store_quota allows 24.0 GiB: {NEED} 0 B (images 0 B, weights and content store 0 B); "
            f"prune.yml would free at most 0 B. R{RAISE}",
        ),
    ],
)
def test_quota(quota: int, changes: dict[str, Any], expected: str) -> None:
    found = problems({"n1": state(**changes)}, [deployment()], store_quota=quota * GIB)
    assert found == ([f"host n1: {expected}"] if expected else [])


def test_a_quota_stops_only_what_is_fetched() -> None:
    there = apply_to_state(state(), planned(state(), [deployment()]))
    assert problems({"n1": {**there, "held_bytes": 9 * GIB}}, [deployment()], store_quota=GIB) == []


def test_disk_of_a_directory_above_and_of_none() -> None:
    root = [{"path": "/", "free_bytes": GIB, "total_bytes": GIB, "device": 7}]
    assert len(problems({"n1": state(disk=root)}, [deployment()])) == 1
    host = planned(state(disk=[]), [deployment()])
    assert host["warnings"] == [
        "the free space of /var/lib/docker is unknown; image registry.lab:5000/lab/vllm:1 needs 12.0 GiB "
        "there",
        "the free space of /var/lib/instinct-fleet/hf is unknown; weights of lab/tiny-llama needs 12.0 "
        "GiB there",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"euid": 1000},
            "host n1: not root: the module ran with user id 1000. Set ansible_become: true (and a user "
            "that may become root) for this host.",
        ),
        (
            {"docker": {"installed": True, "available": False, "error": "connection refused"}},
            "host n1: its Docker engine does not answer (connection refused). Start it (systemctl start "
            "docker); if it stops again, see journalctl -u docker.",
        ),
        (
            {
                "docker": {"installed": False, "available": False, "error": None},
                "os": {"id": "rhel", "pretty_name": "Red Hat Enterprise Linux 9"},
            },
            "host n1: has no Docker engine, and the toolkit cannot install one on Red Hat Enterprise "
            "Linux 9. Install Docker Engine 20.10 or newer, and run again.",
        ),
    ],
)
def test_hosts_that_cannot_serve(changes: dict[str, Any], text: str) -> None:
    assert problems({"n1": state(**changes)}, [deployment()]) == [text]


def test_a_state_that_is_none() -> None:
    assert problems({"n1": {"schema": 1}}, []) == [
        "host n1: its node_state cannot be read: KeyError('os'). It comes from another version of this toolkit, or "
        "is damaged: observe again."
    ]


def test_a_host_that_is_not_root_is_omitted() -> None:
    found = problems({"n1": state(euid=5), "n2": state(euid=5), "n3": state()}, [deployment()])
    assert [text.partition(" the module ran")[0] for text in found] == [
        "host n1: not root:",
        "host n2: not root:",
    ]


@pytest.mark.parametrize(
    ("changes", "keys", "warning"),
    [
        (
            {"kfd_processes": [7, 8]},
            {"gpu_partition_compute": "CPX"},
            "processes use the GPUs (7, 8); the compute partition cannot change while they run",
        ),
        (
            {},
            {"gpu_partition_compute": "CPX"},
            "CPX with NPS1 works, but AMD lists only SPX with NPS1, DPX with NPS2, CPX with NPS4 as "
            "validated for MI300X",
        ),
        (
            {"gpus": gpus(count=7)},
            {"instinct_gpus": {"model": "MI300X", "count": 8}},
            "instinct_gpus declares 8 GPUs, but the driver shows 7: look for the missing ones with lspci -d 1002: "
            "and dmesg",
        ),
    ],
)
def test_warnings(changes: dict[str, Any], keys: dict[str, Any], warning: str) -> None:
    assert warning in planned(state(**changes), [], **keys)["warnings"]


def test_nothing_of_the_input_is_changed() -> None:
    found, wanted = state(), [deployment(engine_args={"limit_mm_per_prompt": {"image": 1}})]
    before = copy.deepcopy((found, wanted))
    planned(found, wanted)
    assert (found, wanted) == before


def test_text_for_people() -> None:
    states = {f"n{i}": state() for i in range(1, 65)}
    states["n64"] = settled([deployment(instances_per_host=2)])
    states["n65"] = None  # type: ignore[assignment]
    text = explain(plan(states, [deployment(instances_per_host=2)]))
    assert text == (
        "Plan: 64 hosts, 378 actions on 63 of them.\n"
        "\n"
        "n1, n2, n3, n4, n5, … n63 (63 hosts): 8 x MI300X, GPUs 2-7 free\n"
        "   1. automatic NUMA balancing: on now, as the kernel decides after a reboot → "
        "off now and after a reboot\n"
        "      because moving pages between sockets makes transfers between CPU, GPU and network vary\n"
        f"   2. image {IMAGE}: absent → pulled as sha256:111111111111, 4.0 GiB\n"
        "      because deployment llama uses it\n"
        "   3. download lab/tiny-llama@main: absent → commit cccccccccccc, 12.0 GiB in 3 files\n"
        "      because deployment llama serves it\n"
        "   4. record llama as generation 1, so it can be rolled back to\n"
        "      change: first deployment\n"
        "   5. serve llama-0 … llama-1 (2 instances), ports 8000-8001, GPUs 0-1: absent → running\n"
        "      because not deployed yet\n"
        "\n"
        "Terms of the downloads\n"
        "  lab/tiny-llama@main (model of llama)\n"
        "    licence unknown: no card was read yet\n"
        "\n"
        "Deployment llama on n1, n2, n3, n4, n5, … n63 (63 hosts): 2 instances per host, vLLM 0.11.1\n"
        "  memory   per GPU 4.8 GiB of weights and about 166.3 GiB of KV cache (164.7 to 166.8 GiB): 2,180,128 tokens\n"
        "           (2,158,688 to 2,186,688), 266.1 requests of 8,192 tokens at once; vLLM measures it when it starts\n"
        "  chosen   VLLM_ROCM_USE_AITER=1, VLLM_ROCM_USE_AITER_MHA=1, HIP_FORCE_DEV_KERNARG=1,\n"
        "           TORCH_BLAS_PREFER_HIPBLASLT=1, SAFETENSORS_FAST_GPU=1\n"
        "  advice   set max_model_len to your longest request; 8,192 tokens is the model's limit\n"
        "\n"
        "Warnings\n"
        "  n1, n2, n3, n4, n5, … n63 (63 hosts): each host fetches images and weights from their origin, as no IP "
        "address is known where others reach it (instinct_address, ansible_host, or distribution_interface)\n"
        "\n"
        "Excluded hosts\n"
        "  n65: it could not be reached"
    )
    done = {"n1": settled([deployment()])}
    assert explain(plan(done, [deployment()])) == "Plan: 1 host, nothing to do; 1 instance up to date."


def test_every_setting_has_a_reason_and_a_source() -> None:
    wanted = [
        deployment(
            engine_args={"max_model_len": 1, "quantization": "fp8"}, env={"A": "1"}, tensor_parallel_size=2
        )
    ]
    (instance,) = planned(state(), wanted)["instances"]
    settings = {reason["setting"] for reason in instance["reasons"]}
    flags = {word for word in instance["argv"] if word.startswith("--")}
    assert (
        flags
        | set(instance["env"])
        | {"model", "devices", "cpuset", "groups", "ipc", "capabilities", "dropped"}
        == settings
    )
    text = explain(plan({"n1": state()}, wanted), full=True)
    for reason in instance["reasons"]:
        assert f"{reason['reason']} [{reason['source']}]" in text


def test_a_pin_without_files_is_planned_as_unknown_size() -> None:
    lock = Lock({IMAGE: ImagePin(DIGEST, None, SOFTWARE)}, {model_key("", REPO, "main"): ModelPin(COMMIT)})
    host = planned(state(), [deployment()], lock=lock)
    assert host["models"][0]["files"] == {}
    assert [item["after"] for item in host["actions"][1:3]] == [
        "pulled as sha256:111111111111",
        f"commit {COMMIT[:12]}",
    ]


def test_a_group_that_misses_a_host_is_left_as_it_is() -> None:
    wanted = [deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)]
    both = plan({"n1": state(), "n2": state()}, wanted).to_json()["hosts"]
    there = {name: apply_to_state(state(), both[name]) for name in ("n1", "n2")}
    found = plan({"n1": there["n1"], "n2": None}, wanted).to_json()["hosts"]["n1"]
    assert (found["actions"], found["remove"]) == ([], [])
    assert "n2" in found["warnings"][0]
