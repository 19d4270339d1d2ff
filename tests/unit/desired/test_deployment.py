# SPDX-License-Identifier: Apache-2.0
"""vllm_deployments: what is accepted, and the exact words for what is not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import (
    Deployment,
    parse_deployments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment_parts import (
    Build,
    Runtime,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.vaulted import VaultedText

from tests import ROOT
from tests.helpers.some import some
from tests.worlds.plan_world import IMAGE, REPO, deployment, problems, state

HEX = "0123456789abcdef" * 4


def one(**keys: Any) -> Deployment:
    deployments, found = parse_deployments([deployment(**keys)])
    assert found == ()
    return deployments[0]


def errors(value: Any) -> list[str]:
    return [problem.text() for problem in parse_deployments(value)[1]]


def test_defaults() -> None:
    found = one()
    assert found == Deployment(
        index=0,
        name="llama",
        model=REPO,
        revision="main",
        image=IMAGE,
        port=8000,
        listen="",
        instances_per_host=1,
        tensor_parallel_size=1,
        served_model_name=REPO,
        runtime=Runtime(),
    )
    assert (found.hosts, found.gpus, found.build) == (None, None, None)


def test_a_key_without_a_value_means_the_default() -> None:
    value = {**deployment(), "gpus": None, "env": None, "port": None, "runtime": None}
    deployments, found = parse_deployments([value])
    assert found == ()
    assert deployments == (one(),)


@pytest.mark.parametrize(
    "image",
    [
        "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024",
        "vllm/vllm-openai-rocm:v0.14.0",
        "ubuntu:24.04",
        "localhost/x:1",
        "registry.lab:5000/lab/vllm:1",
        f"registry.lab:5000/lab/vllm@sha256:{HEX}",
        f"registry.lab/lab/vllm:1@sha256:{HEX}",
        "REGISTRY.example/a__b/c-d.e:T_1.2-3",
    ],
)
def test_images_that_are_references(image: str) -> None:
    assert one(image=image).image == image


@pytest.mark.parametrize(
    ("written", "model", "served"),
    [
        (
            "amd/Llama-3.3-70B-Instruct-FP8-KV/",
            "amd/Llama-3.3-70B-Instruct-FP8-KV",
            "amd/Llama-3.3-70B-Instruct-FP8-KV",
        ),
        ("/srv/models/tiny/", "/srv/models/tiny/", "tiny"),
    ],
)
def test_a_slash_at_the_end_of_a_model(written: str, model: str, served: str) -> None:
    found = one(model=written)
    assert (found.model, found.served_model_name) == (model, served)


def test_everything_that_can_be_said() -> None:
    found = one(
        model="/srv/models/my model",
        hosts=["n1", "blue"],
        gpus=[4, 5],
        tensor_parallel_size=2,
        listen="10.0.0.1",
        engine_args={
            "max-model-len": 8192,
            "trust_remote_code": True,
            "api_server_count": None,
            "x": [1, "a"],
        },
        env={"VLLM_ROCM_USE_AITER": "1", "A": 5, "B": 0.5},
        runtime={
            "privileged": True,
            "shm_size": "64G",
            "ipc": "private",
            "memory": 1 << 30,
            "extra_mounts": ["/a:/b", "/c:/d:ro"],
            "ulimits": {"memlock": False, "stack": 67108864, "nofile": {"soft": 1024, "hard": 4096}},
            "restart": "on-failure",
            "stop_timeout": 10,
            "ready_timeout": 20,
            "hang_timeout": 0,
            "cap_add": ["NET_RAW", "IPC_LOCK", "NET_RAW"],
        },
    )
    assert found.local_model
    assert found.served_model_name == "my model"
    assert found.engine_args == (
        ("api_server_count", None),
        ("max_model_len", 8192),
        ("trust_remote_code", True),
        ("x", (1, "a")),
    )
    assert found.env == (("A", "5"), ("B", "0.5"), ("VLLM_ROCM_USE_AITER", "1"))
    assert found.runtime == Runtime(
        privileged=True,
        shm_size=64 << 30,
        ipc="private",
        memory=1 << 30,
        extra_mounts=("/a:/b", "/c:/d:ro"),
        ulimits=(("nofile", 1024, 4096), ("stack", 67108864, 67108864)),
        restart="on-failure",
        stop_timeout=10,
        ready_timeout=20,
        hang_timeout=0,
        cap_add=("IPC_LOCK", "NET_RAW"),
    )


def test_a_build_and_its_tag() -> None:
    build = {"repo": "https://github.com/vllm-project/vllm.git", "ref": "v0.11.1", "args": {"N": 1, "A": "x"}}
    found = one(image=None, build=build).build
    assert found == Build(
        repo="https://github.com/vllm-project/vllm.git",
        ref="v0.11.1",
        dockerfile="docker/Dockerfile.rocm",
        args=(("A", "x"), ("N", "1")),
        tag=found.tag if found else "",
    )
    assert found
    assert found.tag.startswith("instinct-fleet/llama:")
    # What is built decides the tag, so that a changed build is another image.
    other = one(image=None, build={**build, "args": {"N": 2, "A": "x"}}).build
    same = one(image=None, build={**build, "args": {"A": "x", "N": 1}}).build
    assert other
    assert other.tag != found.tag
    assert same == found


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"tensor_paralel_size": 2},
            "vllm_deployments[0].tensor_paralel_size: unknown key. Did you mean tensor_parallel_size?",
        ),
        ({"Port": 1}, "vllm_deployments[0].Port: unknown key. Did you mean port?"),
        (
            {"zzz": 1},
            "vllm_deployments[0].zzz: unknown key. Valid: build, data_parallel_balancing, data_parallel_size, "
            "endpoint, engine_args, env, exclude, gpus, hosts, image, include, instances_per_gpu, "
            "instances_per_host, listen, mixed_models, model, model_config, name, nodes, objective, "
            "… (34 in all).",
        ),
        (
            {"name": None},
            "vllm_deployments[0]: the key name is missing. Add name: to it.",
        ),
        (
            {"name": "Llama"},
            "vllm_deployments[0].name: 'Llama' is not valid. It must be lower-case letters, digits and "
            "hyphens, at most 41, not beginning with a hyphen.",
        ),
        (
            {"model": "a/b/c"},
            "vllm_deployments[0].model: 'a/b/c' is not valid. It must be organisation/name, as on the "
            "hub, or an absolute path on the node, without :.",
        ),
        ({"port": "8000"}, "vllm_deployments[0].port: must be a whole number, not text."),
        (
            {"instances_per_host": "all"},
            "vllm_deployments[0].instances_per_host: 'all' is not valid. It must be a whole number, or max for as "
            "many as fit.",
        ),
        ({"port": True}, "vllm_deployments[0].port: must be a whole number, not a boolean."),
        ({"port": 0}, "vllm_deployments[0].port: 0 is out of range. It must be from 1 to 65535."),
        ({"gpus": 3}, "vllm_deployments[0].gpus: must be a list, not a number. Write [ … ] around it."),
        ({"gpus": "0,1"}, "vllm_deployments[0].gpus: must be a list, not text. Write [ … ] around it."),
        (
            {"gpus": []},
            "vllm_deployments[0].gpus: must not be empty. Leave it out to use the host's GPUs in order.",
        ),
        ({"gpus": [0, 0]}, "vllm_deployments[0].gpus[1]: GPU 0 is named twice. Name each GPU once."),
        ({"gpus": [-1]}, "vllm_deployments[0].gpus[0]: -1 is out of range. It must be from 0 to 511."),
        (
            {"build": {"repo": "https://x/y", "ref": "v1"}},
            "vllm_deployments[0]: has both image and build. Keep one: image is pulled, build is built on "
            "one host.",
        ),
        (
            {"image": None},
            "vllm_deployments[0]: has neither image nor build. Add image: with the reference of a vLLM "
            "image.",
        ),
        (
            {"image": "rocm/vllm"},
            "vllm_deployments[0].image: 'rocm/vllm' is not valid. It must be a reference with a tag or a "
            "digest: registry/repository:tag or registry/repository@sha256:….",
        ),
        (
            {"image": "rocm/vllm@sha256:12"},
            "vllm_deployments[0].image: 'rocm/vllm@sha256:12' is not valid. It must be a reference with a "
            "tag or a digest: registry/repository:tag or registry/repository@sha256:….",
        ),
        (
            {"image": None, "build": {"repo": "https://x/y"}},
            "vllm_deployments[0].build: the key ref is missing. Add ref: to it.",
        ),
        (
            {"image": None, "build": {"repo": "https://me:secret@x/y", "ref": "v1"}},
            "vllm_deployments[0].build.repo: contains credentials. Write the URL without a user, password or token.",
        ),
        (
            {"image": None, "build": {"repo": "https://x/y", "ref": "v1", "dockerFile": "d"}},
            "vllm_deployments[0].build.dockerFile: unknown key. Did you mean dockerfile?",
        ),
        (
            {"image": None, "build": {"repo": "https://x/y", "ref": "v1", "args": {"A": True}}},
            "vllm_deployments[0].build.args.A: must be text or a number, not a boolean.",
        ),
        (
            {"pipeline_parallel_size": 3, "nodes": 2},
            "vllm_deployments[0].nodes: 3 GPUs of an instance cannot be divided over 2 nodes. "
            "tensor x pipeline x data parallel size must be a multiple of nodes.",
        ),
        (
            {"tensor_parallel_size": 2, "instances_per_gpu": 2},
            "vllm_deployments[0].instances_per_gpu: 2 instances cannot share GPUs when each of them has 2. "
            "Use it with one GPU per instance only.",
        ),
        (
            {"objective": "fast"},
            "vllm_deployments[0].objective: 'fast' is not valid. "
            "Valid: latency, interactive, streaming, throughput.",
        ),
        (
            {"vllm_version": 0.11},
            "vllm_deployments[0].vllm_version: must be text, not a number. Put it in quotes.",
        ),
        (
            {"model": "/srv/m", "exclude": ["*.bin"]},
            "vllm_deployments[0].exclude: has no meaning for a model that is a path on the node. Remove "
            "exclude.",
        ),
        (
            {"exclude": "original/*"},
            "vllm_deployments[0].exclude: must be a list, not text. Write [ … ] around it.",
        ),
        (
            {"engine_args": {"port": 1}},
            "vllm_deployments[0].engine_args.port: is set by the toolkit. Use the deployment's key port.",
        ),
        (
            {"engine_args": {"served-model-name": "x"}},
            "vllm_deployments[0].engine_args.served-model-name: is set by the toolkit. Use the "
            "deployment's key served_model_name.",
        ),
        (
            {"engine_args": {"tp": 2}},
            "vllm_deployments[0].engine_args.tp: is set by the toolkit. Use the deployment's key "
            "tensor_parallel_size.",
        ),
        (
            {"engine_args": {"--max-model-len": 1}},
            "vllm_deployments[0].engine_args.--max-model-len: is not a flag's name. Write it without "
            "dashes in front: max_model_len.",
        ),
        (
            {"engine_args": {"max_model_len": 1, "max-model-len": 2}},
            "vllm_deployments[0].engine_args.max-model-len: max_model_len is given twice. Keep one spelling.",
        ),
        (
            {"engine_args": {"no_enable_prefix_caching": True}},
            "vllm_deployments[0].engine_args.no_enable_prefix_caching: negates a flag in its name. Write "
            "enable_prefix_caching: false.",
        ),
        (
            {"engine_args": {"x": [True]}},
            "vllm_deployments[0].engine_args.x[0]: must be text, a number or a map, not a boolean.",
        ),
        (
            {"engine_args": {"x": []}},
            "vllm_deployments[0].engine_args.x: must not be an empty list. Remove the key to use vLLM's "
            "default.",
        ),
        (
            {"engine_args": {"x": float("nan")}},
            "vllm_deployments[0].engine_args.x: must be text, a number, true, false, a list or a map, not "
            "a number.",
        ),
        ({"engine_args": ["x"]}, "vllm_deployments[0].engine_args: must be a map, not a list."),
        (
            {"env": {"HF_TOKEN": "hf_x"}},
            "vllm_deployments[0].env.HF_TOKEN: is a secret, and would be readable in the instance's "
            "files. Put it in hf_model_token (vaulted) or hf_model_token_file, the host's variables.",
        ),
        (
            {"env": {"VLLM_API_KEY": "k"}},
            "vllm_deployments[0].env.VLLM_API_KEY: is a secret, and would be readable in the instance's "
            "files. Keep API keys in the proxy in front of vLLM.",
        ),
        (
            {"env": {"AWS_SECRET_ACCESS_KEY": "k"}},
            "vllm_deployments[0].env.AWS_SECRET_ACCESS_KEY: is a secret, and would be readable in the "
            "instance's files. Put it in the deployment's secrets, vaulted.",
        ),
        (
            {"env": {"HIP_VISIBLE_DEVICES": "0"}},
            "vllm_deployments[0].env.HIP_VISIBLE_DEVICES: is set by the toolkit. The container gets only "
            "the devices of its GPUs: choose them with the deployment's key gpus.",
        ),
        (
            {"env": {"VLLM_ROCM_USE_AITER": True}},
            "vllm_deployments[0].env.VLLM_ROCM_USE_AITER: is a boolean, and variables are text. Put it in "
            'quotes, as the variable wants it: "1", "0", "true" or "false".',
        ),
        ({"env": {"A-B": "1"}}, "vllm_deployments[0].env.A-B: is not the name of an environment variable."),
        ({"env": {"A": None}}, "vllm_deployments[0].env.A: must be text or a number, not empty."),
        (
            {"runtime": {"shm": "1g"}},
            "vllm_deployments[0].runtime.shm: unknown key. Did you mean shm_size?",
        ),
        (
            {"runtime": {"shm_size": "16 gigs"}},
            "vllm_deployments[0].runtime.shm_size: '16 gigs' is not a size. Write bytes, or a number with "
            "k, m, g or t: 16g.",
        ),
        (
            {"runtime": {"privileged": "yes"}},
            "vllm_deployments[0].runtime.privileged: must be true or false, not text. Write it without quotes.",
        ),
        (
            {"runtime": {"ipc": "shareable"}},
            "vllm_deployments[0].runtime.ipc: 'shareable' is not valid. Valid: host, private.",
        ),
        (
            {"runtime": {"extra_mounts": ["data:/data"]}},
            "vllm_deployments[0].runtime.extra_mounts[0]: 'data:/data' is not a mount. Write "
            "/path/on/node:/path/in/container or the same with :ro.",
        ),
        (
            {"runtime": {"cap_add": ["CAP_NET_RAW"]}},
            "vllm_deployments[0].runtime.cap_add[0]: 'CAP_NET_RAW' is not a Linux capability. Did you mean NET_RAW?",
        ),
        (
            {"runtime": {"ulimits": {"memlok": -1}}},
            "vllm_deployments[0].runtime.ulimits.memlok: unknown key. Did you mean memlock?",
        ),
    ],
)
def test_errors(keys: dict[str, Any], text: str) -> None:
    assert errors([deployment(**keys)]) == [text]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, "vllm_deployments: must be a list, not a map. Begin each entry with a dash: - …"),
        ("x", "vllm_deployments: must be a list, not text. Write [ … ] around it."),
        ([3], "vllm_deployments[0]: must be a map, not a number."),
        ([None], "vllm_deployments[0]: must be a map, not empty."),
        (
            [deployment(), deployment(port=8001)],
            "vllm_deployments[1].name: 'llama' is already the name of vllm_deployments[0]. Names must be "
            "unique.",
        ),
        (
            [{1: 2, **deployment()}],
            "vllm_deployments[0]: key 1 must be text, not a number. Put it in quotes.",
        ),
    ],
)
def test_errors_of_the_list(value: Any, text: str) -> None:
    assert errors(value) == [text]


HUB_TOKEN = "hf_" + "aB3" * 8
API_KEY = "sk-" + "proj-" + "x" * 20


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"env": {"FOO": HUB_TOKEN}}, "env.FOO"),
        ({"env": {"FOO": f"Bearer {API_KEY}"}}, "env.FOO"),
        ({"engine_args": {"chat_template": HUB_TOKEN}}, "engine_args.chat_template"),
        ({"engine_args": {"allowed_origins": ["x", API_KEY]}}, "engine_args.allowed_origins[1]"),
        ({"engine_args": {"hf_overrides": {"a": {"b": HUB_TOKEN}}}}, "engine_args.hf_overrides.a.b"),
        ({"engine_args": {"hf_overrides": {"a": ["x", HUB_TOKEN]}}}, "engine_args.hf_overrides.a[1]"),
        ({"engine_args": {"x": {"remote_password": "p"}}}, "engine_args.x.remote_password"),
        ({"engine_args": {"x": {"a": {"secret_access_key": "p"}}}}, "engine_args.x.a.secret_access_key"),
        ({"engine_args": {"x": {"a": [{"remote_password": "p"}]}}}, "engine_args.x.a[0].remote_password"),
        ({"engine_args": {"x": {"a": [["b", [HUB_TOKEN]]]}}}, "engine_args.x.a[0][1][0]"),
        ({"engine_args": {"x": '{"a": [{"remote_password": "p"}]}'}}, "engine_args.x"),
        ({"env": {"LMCACHE": '{"redis_pass": "p"}'}}, "env.LMCACHE"),
        ({"engine_args": {"x": {"accessKey": "p"}}}, "engine_args.x.accessKey"),
        ({"engine_args": {"x": {"url": "redis://:p@h:1/0"}}}, "engine_args.x.url"),
        ({"env": {"HTTPS_PROXY": "http://svc:PASS@proxy:3128"}}, "env.HTTPS_PROXY"),
        ({"settings": {"attention_backend": API_KEY}}, "settings.attention_backend"),
        (
            {"image": None, "build": {"repo": "https://x/y", "ref": "v1", "args": {"A": HUB_TOKEN}}},
            "build.args.A",
        ),
    ],
)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(keys: dict[str, Any], where: str) -> None:
    assert errors([deployment(**keys)]) == [
        f"vllm_deployments[0].{where}: looks like a token or a key, and would be readable in the plan, the instance's "
        "files and the process list. Put the hub's token in hf_model_token or hf_model_token_file, others in the "
        "deployment's secrets."
    ]


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"env": {"FOO": VaultedText("plain words")}}, "env.FOO"),
        ({"engine_args": {"chat_template": VaultedText("plain words")}}, "engine_args.chat_template"),
        ({"engine_args": {"x": {"a": ["b", VaultedText("plain words")]}}}, "engine_args.x.a[1]"),
        ({"engine_args": {"x": {"a": [{"b": VaultedText("plain words")}]}}}, "engine_args.x.a[0].b"),
        (
            {"engine_args": {"allowed_origins": [VaultedText("plain words")]}},
            "engine_args.allowed_origins[0]",
        ),
        ({"settings": {"attention_backend": VaultedText("plain words")}}, "settings.attention_backend"),
    ],
)
def test_what_comes_from_a_vault_is_refused_and_not_repeated(keys: dict[str, Any], where: str) -> None:
    (found,) = errors([deployment(**keys)])
    assert found.startswith(
        f"vllm_deployments[0].{where}: comes from a vault, and would be readable in the plan"
    )
    assert "plain words" not in found


def test_secrets_are_variables_that_no_representation_shows() -> None:
    found = one(secrets={"REDIS_URL": VaultedText("redis://:hunter22@h:1/0"), "A_PEM": "--\nline\n--"})
    assert found.secrets == (("A_PEM", "--\nline\n--"), ("REDIS_URL", "redis://:hunter22@h:1/0"))
    assert "hunter22" not in repr(found)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"secrets": {"A-B": "hunter2222"}}, "secrets.A-B: is not the name of an environment variable."),
        ({"secrets": {"A": "hunter2"}}, "secrets.A: is too short to be kept out of messages"),
        (
            {"secrets": {"A": "hunter2222\0"}},
            "secrets.A: is too short to be kept out of messages, or contains a NUL",
        ),
        ({"secrets": {"A": 12345678}}, "secrets.A: must be text, not a number. Put it in quotes."),
        (
            {"secrets": {"HF_TOKEN": "hunter2222"}},
            "secrets.HF_TOKEN: is set by the toolkit. Put it in hf_model",
        ),
        (
            {"secrets": {"VLLM_API_KEY": "hunter2222"}},
            "secrets.VLLM_API_KEY: is set by the toolkit. Keep API keys",
        ),
        ({"secrets": {"HF_HOME": "hunter2222"}}, "secrets.HF_HOME: is set by the toolkit."),
        ({"secrets": {"A": "hunter2222"}, "env": {"A": "1"}}, "secrets.A: is also in env. Remove it there."),
    ],
)
def test_errors_in_secrets(keys: dict[str, Any], text: str) -> None:
    (found,) = errors([deployment(**keys)])
    assert found.startswith(f"vllm_deployments[0].{text}")
    assert "hunter2" not in found


@pytest.mark.parametrize("text", ["hf_transfer", "disk-cache-of-a-node-with-a-long-name", "task-" + "x" * 30])
def test_what_only_begins_like_a_secret_is_not_one(text: str) -> None:
    assert one(env={"FOO": text}, engine_args={"chat_template": text}).env == (("FOO", text),)


@pytest.mark.parametrize(
    "name",
    [
        "LMCACHE_REDIS_PASS",
        "MYSERVICE_APIKEY",
        "VLLM_AUTH",
        "DB_PW",
        "DB_PWD",
        "SECRET_X",
        "CREDENTIALS_JSON",
    ],
)
def test_variables_with_secrets_are_refused_by_name(name: str) -> None:
    (found,) = errors([deployment(env={name: "hunter22"})])
    assert f"env.{name}: is a secret" in found
    assert "hunter22" not in found


def test_names_and_addresses_that_are_no_secrets() -> None:
    env = {
        "PASSWORD_FILE": "/run/p",
        "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD": "256",
        "PROXY": "http://h:80/@",
    }
    env["JSON"] = '{"pass_config": {"on": true}, "key": "", "n": [1], "x": "{broken"}'
    env["NO_JSON"] = "{not json" + "[" * 2000
    args = {"x": {"pass_config": {"on": True}, "sp_min_token_num": 4, "tokenizer_mode": "auto", "key": None}}
    assert one(env=env, engine_args=args).env == tuple(sorted(env.items()))


def test_all_errors_at_once_and_the_secret_in_none() -> None:
    found = errors(
        [
            deployment(port="x", env={"HF_TOKEN": "hf_very_secret", "MY_PASSWORD": "hunter22"}, typo=1),
            deployment(name="b", engine_args={"api_key": "sk-secret", "hf_token": "hf_very_secret"}),
        ]
    )
    assert len(found) == 6
    assert not [line for line in found if "very_secret" in line or "hunter22" in line or "sk-secret" in line]


# The schema is for editors: what it refuses the planner refuses too, and what the planner takes it takes.
SCHEMA = json.loads((ROOT / "catalog/schemas/deployment.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "value",
    [
        deployment(),
        deployment(
            gpus=[1], tensor_parallel_size=1, runtime={"ulimits": {"memlock": False, "stack": {"hard": 1}}}
        ),
        deployment(image=None, build={"repo": "https://x/y", "ref": "v1", "args": {"A": 1}}),
        deployment(engine_args={"a": {"b": 1}, "c-d": [1]}, env={"A": "1"}, exclude=["x/*"]),
        deployment(nme="x"),
        deployment(port=0),
        deployment(gpus=[0, 0]),
        deployment(gpus=[]),
        deployment(image=None),
        deployment(build={"repo": "https://x/y", "ref": "v1"}),
        deployment(runtime={"shm_size": "many"}),
        deployment(runtime={"restart": "always"}),
        deployment(env={"A": True}),
        deployment(pipeline_parallel_size=2),
        deployment(name="UPPER"),
    ],
)
def test_schema_and_planner_agree(value: dict[str, Any]) -> None:
    valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(value)
    assert valid is (errors([value]) == [])


def test_schema_knows_every_key() -> None:
    from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import KEYS
    from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment_parts import (
        BUILD_KEYS,
        RUNTIME_KEYS,
    )

    properties = SCHEMA["properties"]
    assert set(properties) == set(KEYS)
    assert set(properties["build"]["properties"]) == set(BUILD_KEYS)
    assert set(properties["runtime"]["properties"]) == set(RUNTIME_KEYS)


def test_the_example_inventory_is_valid() -> None:
    for path in some((ROOT / "inventory/example").rglob("*.yml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        if "vllm_deployments" in data:
            assert errors(data["vllm_deployments"]) == []
            return
    raise AssertionError("inventory/example has no vllm_deployments")


# Where an instance cannot go.
SPX8 = {"n1": state()}


SHARE = (
    "To share it, name it in the gpus of all, and set instances_per_gpu: 2 in each, or gpu_memory_utilization in each, "
    "at most 1 together (without it each takes about 0.9)."
)


@pytest.mark.parametrize(
    ("deployments", "text"),
    [
        (
            [deployment(), deployment(name="second", gpus=[1])],
            "vllm_deployments[1].port (host n1): instances llama-0 and second-0 would both listen on port "
            "8000. Choose another port; instance i of a deployment uses port + i.",
        ),
        (
            [deployment(), deployment(name="second", port=9000)],
            "vllm_deployments[1].gpus (host n1): instances llama-0 and second-0 would both use GPU 0. Name other "
            f"GPUs in gpus; free: 1-7. {SHARE}",
        ),
        (
            [deployment(instances_per_host=8), deployment(name="second", port=9000, gpus=[3])],
            "vllm_deployments[1].gpus (host n1): instances llama-3 and second-0 would both use GPU 3. Name other "
            f"GPUs in gpus; none is free. {SHARE}",
        ),
        (
            [deployment(gpus=[0, 1], tensor_parallel_size=4)],
            "vllm_deployments[0].tensor_parallel_size (host n1): tensor_parallel_size 4 needs 4 GPUs, and "
            "gpus names 2. Lower tensor_parallel_size, or name more GPUs.",
        ),
        (
            [deployment(instances_per_host=3, tensor_parallel_size=4)],
            "vllm_deployments[0].instances_per_host (host n1): 3 instances with tensor_parallel_size 4 "
            "need 12 GPUs, and the host has 8 GPUs (0 to 7) in SPX. Lower instances_per_host.",
        ),
        (
            [deployment(gpus=[7, 8])],
            "vllm_deployments[0].gpus[1] (host n1): GPU 8 does not exist: the host has 8 GPUs (0 to 7) in "
            "SPX.",
        ),
        (
            [deployment(port=65530, instances_per_host=8)],
            "vllm_deployments[0].port (host n1): 8 instances from port 65530 on would need ports beyond 65535. "
            "Choose a lower port.",
        ),
        (
            [deployment(hosts=["n2"])],
            "vllm_deployments[0].hosts[0] (host n1): there is no host or group 'n2' in the inventory. Valid: "
            "instinct, n1.",
        ),
    ],
)
def test_layout_errors(deployments: list[dict[str, Any]], text: str) -> None:
    assert problems(SPX8, deployments) == [text]


def test_one_problem_per_pair_and_hosts_together() -> None:
    found = problems(
        {"n1": state(), "n2": state(), "n10": state()},
        [deployment(instances_per_host=8), deployment(name="b", instances_per_host=8)],
    )
    assert found == [
        "vllm_deployments[1].port (hosts n1, n2, n10): instances llama-0 and b-0 would both listen on "
        "port 8000. Choose another port; instance i of a deployment uses port + i.",
        "vllm_deployments[1].gpus (hosts n1, n2, n10): instances llama-0 and b-0 would both use GPU 0. Name other "
        f"GPUs in gpus; none is free. {SHARE}",
    ]


def test_more_gpus_after_partitioning() -> None:
    wanted = [deployment(gpus=list(range(56, 64)), instances_per_host=8)]
    assert problems(SPX8, wanted, gpu_partition_compute="CPX") == []
    assert len(problems(SPX8, wanted)) == 8


def test_a_host_outside_the_fleet() -> None:
    found = problems({"n1": state()}, [deployment(hosts=["bastion"])], groups={"all": ["n1", "bastion"]})
    assert found == [
        "vllm_deployments[0].hosts[0] (host n1): host 'bastion' is not in the group instinct. Put the "
        "host into that group, or remove it here."
    ]
