# SPDX-License-Identifier: Apache-2.0
"""An instance's files: what an operator reads, what bash runs, and what Docker gets."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash, text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.engines.restart_policy import (
    RESTART_LABEL,
    policy_word,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.instances import artefact
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import bundle
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reserved_flags import (
    holds_secret,
    secret_place,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.plan_world import COMMIT, IMAGE, PULL, REPO, deployment, gpus, plan, state

SUPERVISOR = bundle("supervisor")


def instance(**keys: Any) -> dict[str, Any]:
    """The first instance of a deployment on a bare host, as plan.json has it; recipes add nothing."""
    data: dict[str, Any] = plan({"n1": state()}, [deployment(**{"recipes": False, **keys})]).to_json()
    return data["hosts"]["n1"]["instances"][0]


def text(found: dict[str, Any], name: str) -> str:
    return str(found["server"]["files"][name]["text"])


def test_serve_sh() -> None:
    found = instance(
        tensor_parallel_size=2,
        gpus=[4, 5],
        engine_args={
            "max_model_len": 8192,
            "enable_prefix_caching": False,
            "trust_remote_code": True,
            "limit_mm_per_prompt": {"video": 0, "image": 2},
            "middleware": ["a.b", "c d"],
            "swap_space": None,
        },
    )
    assert text(found, "serve.sh") == (
        "#!/bin/bash\n# Instance llama-0 of deployment llama. Written by instinct-fleet: change the "
        "deployment, not this file.\n"
        f"# model  {REPO} at main = commit {COMMIT}\n"
        f"# image  {IMAGE}\n"
        "# GPUs   4 (renderD160), 5 (renderD168)\n"
        "set -euo pipefail\n"
        "set -o allexport\n"
        "source /instinct/env\n"
        "set +o allexport\n"
        "python=$(command -v python3 || command -v python) || "
        """{ echo "exec: python3: not found in the image" >&2; exit 127; }\n"""
        "# exec: the container's stop signal goes to this program, which runs the server and hands it on.\n"
        """exec "$python" /instinct-lib/supervise.py \\\n"""
        "  --gpu renderD160 \\\n"
        "  --gpu renderD168 \\\n"
        f"  -- vllm serve {REPO} \\\n"
        f"  --revision {COMMIT} \\\n"
        f"  --served-model-name {REPO} \\\n"
        "  --host 127.0.0.1 \\\n"
        "  --port 8000 \\\n"
        "  --tensor-parallel-size 2 \\\n"
        "  --no-enable-prefix-caching \\\n"
        """  --limit-mm-per-prompt '{"image":2,"video":0}' \\\n"""
        "  --max-model-len 8192 \\\n"
        "  --middleware a.b --middleware 'c d' \\\n"
        "  --trust-remote-code \\\n"
        "  --middleware instinct_guard.Guard\n"
    )


@pytest.mark.parametrize(
    ("keys", "mode", "waits"),
    [
        ({}, "SPX", ["renderD128"]),
        ({"tensor_parallel_size": 2}, "SPX", ["renderD128", "renderD136"]),
        ({"instances_per_gpu": 2}, "SPX", []),  # the other one's memory is in use rightly
        ({}, "CPX", []),  # the driver counts a physical GPU's memory, and others have partitions of it
    ],
)
def test_it_waits_for_the_memory_of_gpus_that_are_its_own(
    keys: dict[str, Any], mode: str, waits: list[str]
) -> None:
    made = plan({"n1": state(gpus=gpus(mode))}, [deployment(recipes=False, **keys)]).to_json()
    script = text(made["hosts"]["n1"]["instances"][0], "serve.sh")
    assert [line.split()[1] for line in script.splitlines() if line.startswith("  --gpu ")] == waits


def test_env() -> None:
    assert text(instance(env={"A": "it's", "VLLM_NO_USAGE_STATS": "0"}), "env") == (
        "# Environment of instance llama-0, read by serve.sh. Written by instinct-fleet. Secrets do not "
        "belong here.\n"
        """A='it'"'"'s'\n"""
        "HF_HOME=/cache/hf\n"
        "HF_HUB_CACHE=/hf/hub\n"
        "HF_HUB_OFFLINE=1\n"
        "TRITON_CACHE_DIR=/cache/triton\n"
        "VLLM_CACHE_ROOT=/cache/vllm\n"
        "VLLM_NO_USAGE_STATS=0\n"
    )


def test_container() -> None:
    found = instance(instances_per_host=2)
    body = found["server"]["container"]
    assert json.loads(text(found, "container.json")) == body
    assert body == {
        "Image": PULL,
        "Entrypoint": ["/bin/bash", "/instinct/serve.sh"],
        "Labels": {
            "instinct-fleet.instance": "llama-0",
            "instinct-fleet.deployment": "llama",
            "instinct-fleet.restart": "always",
        },
        "StopTimeout": 120,
        "HostConfig": {
            "Binds": [
                "/etc/instinct-fleet/instances/llama-0:/instinct:ro",
                "/var/lib/instinct-fleet/cache/llama-0:/cache:rw",
                f"/etc/instinct-fleet/lib/{SUPERVISOR.version}:/instinct-lib:ro",
                "/var/lib/instinct-fleet/hf:/hf:ro",
            ],
            "CapAdd": ["SYS_PTRACE"],
            "CapDrop": [
                "AUDIT_WRITE",
                "FSETID",
                "MKNOD",
                "NET_BIND_SERVICE",
                "NET_RAW",
                "SETFCAP",
                "SETPCAP",
                "SYS_CHROOT",
            ],
            "CpusetCpus": "0-95,192-287",
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                for path in ("/dev/kfd", "/dev/dri/renderD128")
            ],
            "GroupAdd": ["44", "109"],
            "Init": True,
            "IpcMode": "host",
            "LogConfig": {"Type": "json-file", "Config": {"max-file": "3", "max-size": "50m"}},
            "NetworkMode": "host",
            "RestartPolicy": {"Name": "always"},
            "SecurityOpt": ["no-new-privileges", "seccomp=unconfined"],
            "Ulimits": [
                {"Name": "memlock", "Soft": -1, "Hard": -1},
                {"Name": "nofile", "Soft": 1048576, "Hard": 1048576},
            ],
        },
    }


@pytest.mark.parametrize(
    ("runtime", "key", "value"),
    [
        ({"privileged": True}, "Privileged", True),
        ({"ipc": "private", "shm_size": "8g"}, "ShmSize", 8 << 30),
        ({"ipc": "private"}, "ShmSize", 16 << 30),
        ({"memory": "64g"}, "Memory", 64 << 30),
        ({"restart": "on-failure"}, "RestartPolicy", {"Name": "on-failure", "MaximumRetryCount": 3}),
        ({"ulimits": {"memlock": False, "nofile": False}}, "Ulimits", []),
    ],
)
def test_what_runtime_changes(runtime: dict[str, Any], key: str, value: Any) -> None:
    usual = instance()["server"]["container"]["HostConfig"]
    assert usual.get(key) != value
    assert instance(runtime=runtime)["server"]["container"]["HostConfig"][key] == value


@pytest.mark.parametrize(
    ("restart", "label"), [("unless-stopped", "always"), ("on-failure", "on-failure:3"), ("no", "no")]
)
def test_the_label_has_the_policy_that_a_stopped_instance_gets_back(restart: str, label: str) -> None:
    body = instance(runtime={"restart": restart})["server"]["container"]
    assert body["Labels"][RESTART_LABEL] == label == policy_word(body["HostConfig"]["RestartPolicy"])


@pytest.mark.parametrize(
    ("listen", "probe"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3")]
)
def test_where_the_node_reaches_the_server(listen: str, probe: str) -> None:
    found = instance(listen=listen)
    assert found["server"]["host"] == probe
    assert found["argv"][found["argv"].index("--host") + 1] == listen


def test_the_hash_is_that_of_the_files() -> None:
    found = instance()
    files = {name: file["text"] for name, file in found["server"]["files"].items()}
    assert found["spec_hash"] == found["server"]["spec_hash"] == spec_hash(files)
    assert found["spec_hash"] == spec_hash(dict(reversed(files.items())))


def test_observe_and_planner_hash_alike(tmp_path: Path) -> None:
    """observe/instances.py repeats the rule, as it imports hashlib only where it must."""
    found = instance(env={"A": "ü 'quoted'"})
    for name, file in found["server"]["files"].items():
        (tmp_path / name).write_text(file["text"], encoding="utf-8")
    whole, each = artefact(str(tmp_path))
    assert whole == found["spec_hash"]
    assert each == {name: text_hash(file["text"]) for name, file in found["server"]["files"].items()}


def run(found: dict[str, Any], place: Path) -> tuple[list[str], dict[str, str]]:
    """Run serve.sh with a vllm that says what it was given."""
    for name in ("serve.sh", "env"):
        content = text(found, name).replace("/instinct/env", str(place / "env"))
        content = content.replace("/instinct-lib", f"{place}/lib").replace(
            "\n  -- vllm", f"\n  --state {place} -- vllm"
        )
        (place / name).write_text(content, encoding="utf-8")
    for path, program in SUPERVISOR.files.items():
        (place / "lib" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "lib" / path).write_text(program, encoding="utf-8")
    (place / "state.json").unlink(missing_ok=True)
    vllm = place / "vllm"
    vllm.write_text('#!/bin/bash\nprintf "%s\\0" vllm "$@" > args\nenv -0 > environ\n', encoding="utf-8")
    vllm.chmod(0o755)
    subprocess.run(
        ["bash", str(place / "serve.sh")],
        cwd=place,
        env={"PATH": f"{place}:{os.environ['PATH']}"},
        check=False,  # a server that ends is a failure
    )
    arguments = (place / "args").read_bytes().decode().split("\0")[:-1]
    lines = (place / "environ").read_bytes().decode().split("\0")[:-1]
    return arguments, dict(line.split("=", 1) for line in lines)


def may_be_given(name: str, value: str) -> bool:
    """Whether a plan accepts an argument: it refuses secrets, which everybody on the node could read."""
    return not (holds_secret(value) or secret_place(name))


@pytest.mark.parametrize("name", ["size", "TOKEN", "apiKey", "key_file"])
@pytest.mark.parametrize("value", ["a", "hf_" + "a" * 30, "redis://:pass@host", '{"key": "a"}', "sk-short"])
def test_a_plan_refuses_only_secrets(name: str, value: str) -> None:
    given = {"engine_args": {"mm_processor_kwargs": {name: value}}}
    if may_be_given(name, value):
        assert name in " ".join(instance(**given)["argv"])
    else:
        with pytest.raises(FleetError, match="looks like a token or a key"):
            instance(**given)


# What bash and a process's arguments can carry: anything but NUL, and no lone surrogates.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
WORDS = TEXTS.filter(lambda text: may_be_given("size", text))
NAMES = TEXTS.filter(lambda text: may_be_given(text, "a"))


@given(value=WORDS, items=st.lists(WORDS, min_size=1, max_size=3), mapping=st.dictionaries(NAMES, WORDS))
@settings(max_examples=10)
def test_bash_hands_on_exactly_what_was_asked(
    tmp_path_factory: pytest.TempPathFactory, value: str, items: list[str], mapping: dict[str, str]
) -> None:
    found = instance(
        engine_args={"chat_template": value, "middleware": items, "mm_processor_kwargs": mapping},
        env={"A": value, "B": "$HOME `id`"},
    )
    arguments, environment = run(found, tmp_path_factory.mktemp("run"))
    assert arguments == found["argv"]
    assert environment["A"] == value
    assert environment["B"] == "$HOME `id`"
    assert json.loads(arguments[arguments.index("--mm-processor-kwargs") + 1]) == mapping
