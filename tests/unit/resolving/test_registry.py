# SPDX-License-Identifier: Apache-2.0
"""Resolving references, over real HTTP: a registry of a few lines, and the lab's hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dxf
import dxf.exceptions
import huggingface_hub.constants
import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.host_settings import Registry
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, ModelPin
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.model_card import (
    CardTerms,
    ModelCard,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.registry import (
    RETRY_PAUSES,
    ResolveError,
    image_pin,
    model_pin,
)

from lab.hub import make, server
from lab.hub.faults import Fault
from tests.helpers.eventually import eventually
from tests.helpers.ports import free_port
from tests.worlds.fake_registry import IMAGE, INDEX, digest, running_registry

PATH = ("vllm_deployments", 0, "image")
MODEL_PATH = ("vllm_deployments", 0, "model")


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running_registry() as host:
        yield host


@pytest.mark.parametrize(
    ("name", "pin"),
    [
        (":1", ImagePin(digest(IMAGE), 5800)),
        # The list's own digest is what the engine keeps; the bytes are those of one platform.
        (":multi", ImagePin(digest(INDEX), 5800)),
        (f"@{digest(IMAGE)}", ImagePin(digest(IMAGE), 5800)),
        (f":gone@{digest(IMAGE)}", ImagePin(digest(IMAGE), 5800)),
    ],
)
def test_images(registry: str, name: str, pin: ImagePin) -> None:
    access = [Registry("other:1", insecure=False), Registry(registry, insecure=True)]
    assert image_pin(f"{registry}/lab/vllm{name}", PATH, access) == pin


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "lab/vllm:2",
            "registry {r} has no such tag: {r}/lab/vllm:2. Check the repository and the tag, or push the "
            "image.",
        ),
        (
            "lab/none:1",
            "registry {r} has no such tag: {r}/lab/none:1. Check the repository and the tag, or push the "
            "image.",
        ),
        (
            "lab/vllm@sha256:" + "0" * 64,
            "registry {r} has no such digest: {r}/lab/vllm@sha256:"
            + "0" * 64
            + ". Check the repository and the tag, "
            "or push the image.",
        ),
        ("lab/vllm:arm", "image {r}/lab/vllm:arm has no manifest for linux/amd64. Choose another tag."),
        (
            "lab/vllm:odd",
            "the manifest of {r}/lab/vllm:odd has an unknown format "
            "(application/vnd.docker.distribution.manifest.v1+json). Push the image again with a current "
            "Docker release.",
        ),
        (
            "lab/vllm:text",
            "registry {r} returned something that is not a manifest. Check the registry's name and port.",
        ),
        (
            "lab/vllm:closed",
            "registry {r} requires a login, but is configured without TLS. Serve it over https, and remove "
            "insecure from vllm_image_registries: {{{r}: …}}.",
        ),
        (
            "lab/vllm:refused",
            "registry {r} refuses access to lab/vllm. Set username and password in vllm_image_registries: "
            "{{{r}: …}}.",
        ),
        (
            "lab/vllm:limited",
            "registry {r} limits requests (429). Wait, or log in: set username and password in "
            "vllm_image_registries: {{{r}: …}}.",
        ),
        ("lab/vllm:broken", "registry {r} returned status 500. Check the registry's log."),
    ],
)
def test_images_that_cannot_be_had(registry: str, name: str, text: str) -> None:
    access = [Registry(registry, insecure=True, username="me", password="hunter2222")]
    with pytest.raises(ResolveError) as error:
        image_pin(f"{registry}/{name}", PATH, access)
    assert str(error.value) == f"vllm_deployments[0].image: {text.format(r=registry)}"
    # The planner reports it together with the other problems of the input, each with its place.
    assert error.value.problem.path == PATH
    assert error.value.problem.text() == str(error.value)


def test_a_plain_registry_that_is_not_declared_so(registry: str) -> None:
    with pytest.raises(ResolveError) as error:
        image_pin(f"{registry}/lab/vllm:1", PATH, [])
    assert str(error.value) == (
        f"vllm_deployments[0].image: registry {registry} does not offer TLS that this machine trusts. "
        f"If it uses plain http, set insecure: true in vllm_image_registries: {{{registry}: …}}; "
        "otherwise install its CA."
    )


def test_a_registry_that_is_not_there() -> None:
    host = f"127.0.0.1:{free_port()}"
    with pytest.raises(ResolveError) as error:
        image_pin(f"{host}/lab/vllm:1", PATH, [])
    assert str(error.value) == (
        f"vllm_deployments[0].image: registry {host} cannot be reached from this machine (connection "
        "refused). Check "
        "the registry's name and port in the image's reference, and the network."
    )


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ("", "refuses access to rocm/vllm without a login."),
        ("me", "refuses access to rocm/vllm for user me."),
    ],
)
def test_a_registry_that_refuses(monkeypatch: pytest.MonkeyPatch, user: str, text: str) -> None:
    seen: list[str] = []

    def refuse(client: Any, name: str) -> None:
        seen.append(f"{client._base_url}{client._repo_path}{name}")
        raise dxf.exceptions.DXFUnauthorizedError

    monkeypatch.setattr(dxf.DXF, "get_manifest_and_response", refuse)
    access = [Registry("docker.io", username=user, password="hunter2222" if user else "")]
    with pytest.raises(ResolveError) as error:
        image_pin("rocm/vllm:1", PATH, access)
    assert str(error.value) == (
        f"vllm_deployments[0].image: registry docker.io {text} Check the name, and set username and "
        "password in "
        "vllm_image_registries: {docker.io: …}."
    )
    # Docker Hub's API is not at the name by which people know it.
    assert seen == ["https://registry-1.docker.io/v2/rocm/vllm/1"]


CONFIG = b'{"model_type": "llama"}'


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("hub")
    commits = [
        make.Commit("one", {"config.json": b"{}"}),
        make.Commit("two", {"config.json": CONFIG, "a/b.bin": b"12345"}, declared={"c.safetensors": 1 << 40}),
    ]
    ids = make.write_repo(root, make.OPEN, commits)
    make.write_repo(root, make.GATED, commits[1:], gated=True)
    make.write_repo(root, "lab/no-config", [make.Commit("one", {"x.gguf": b"x"})], gated=True)
    users = {
        make.TOKEN: {"name": "lab", "gated": [make.GATED]},
        make.STRANGER_TOKEN: {"name": "stranger", "gated": []},
    }
    (root / "hub.json").write_text(json.dumps({"tokens": users}), encoding="utf-8")
    return root, ids


@pytest.fixture
def hub(
    written: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[server.Hub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)
    # A token in the home of whoever runs the tool must not be used.
    home = tmp_path / "token"
    home.write_text(make.TOKEN, encoding="utf-8")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(home))
    monkeypatch.setenv("HF_TOKEN", make.TOKEN)
    quick = SimpleNamespace(sleep=lambda seconds: None, time=lambda: 0.0, monotonic=lambda: 0.0)
    monkeypatch.setattr("huggingface_hub.utils._http.time", quick)
    with server.Hub(written[0]) as running:
        yield running


def pin(hub: server.Hub, repo: str, revision: str = "main", token: str | None = None) -> ModelPin:
    return model_pin(repo, revision, MODEL_PATH, hub.url, token, sleep=lambda seconds: None)


def test_a_model(hub: server.Hub, written: tuple[Path, list[str]]) -> None:
    _, commits = written
    assert pin(hub, make.OPEN) == ModelPin(
        commits[1],
        (("a/b.bin", 5), ("c.safetensors", 1 << 40), ("config.json", len(CONFIG))),
        {"model_type": "llama"},
        (
            ("a/b.bin", "git-sha1:bd41cba781d8349272bf3eb92568285b411c027c"),
            ("c.safetensors", "sha256:9c269dbd16d120d7a51e55cece96d3ea4bc7dd4ac5166f2ceec4f3c65d353d69"),
            ("config.json", "git-sha1:230d5f4da0da586aad26ead694ea67cd15bd6df1"),
        ),
        ModelCard(CardTerms(make.OPEN)),
    )
    assert pin(hub, make.OPEN, commits[0]).config == {}
    # Nothing but the listing and config.json was asked for.
    eventually("the last note", lambda: hub.answering == 0)
    assert {Path(item["path"]).name for item in hub.requests} == {"main", commits[0], "config.json"}


def test_a_model_without_config_is_still_probed(hub: server.Hub) -> None:
    with pytest.raises(ResolveError, match="is gated"):
        pin(hub, "lab/no-config")


def test_a_gated_model_with_a_token(hub: server.Hub) -> None:
    assert pin(hub, make.GATED, token=make.TOKEN).config


@pytest.mark.parametrize(
    ("repo", "revision", "token", "text"),
    [
        (
            "lab/none",
            "main",
            None,
            "model: there is no model lab/none on {hub}, or it is private. Check the name; for a private "
            "model set hf_model_token.",
        ),
        (
            "lab/none",
            "main",
            make.TOKEN,
            "model: there is no model lab/none on {hub} for this token. Check the name, and that the "
            "token of hf_model_token is valid and has access to it.",
        ),
        (
            make.OPEN,
            "v99",
            None,
            "revision: model lab/tiny-llama has no revision v99 on {hub}. Use a branch, tag or "
            "commit that exists there.",
        ),
        (
            make.GATED,
            "main",
            None,
            "model: model lab/tiny-llama-gated is gated on {hub}, and there is no token. Ask for access at "
            "{hub}/lab/tiny-llama-gated, and set hf_model_token or hf_model_token_file.",
        ),
        (
            make.GATED,
            "main",
            make.STRANGER_TOKEN,
            "model: model lab/tiny-llama-gated is gated on {hub}, and the token of hf_model_token has no "
            "access to it. Ask for access at {hub}/lab/tiny-llama-gated with the token's account, or use "
            "another token.",
        ),
        (
            make.GATED,
            "main",
            "hf_wrong_but_long_enough",
            "model: the hub at {hub} refuses the token of hf_model_token for model lab/tiny-llama-gated "
            "(401). Set a valid token in hf_model_token or hf_model_token_file.",
        ),
    ],
)
def test_models_that_cannot_be_had(
    hub: server.Hub, repo: str, revision: str, token: str | None, text: str
) -> None:
    with pytest.raises(ResolveError) as error:
        pin(hub, repo, revision, token)
    assert str(error.value) == f"vllm_deployments[0].{text.format(hub=hub.url)}"


def test_a_hub_that_limits_requests_for_a_while(hub: server.Hub) -> None:
    hub.faults.set(Fault("*/api/models/*", count=2, status=429))
    assert pin(hub, make.OPEN).commit


def test_a_hub_that_limits_requests_for_long(hub: server.Hub) -> None:
    hub.faults.set(Fault(status=429))
    with pytest.raises(ResolveError) as error:
        pin(hub, make.OPEN)
    assert str(error.value) == (
        f"vllm_deployments[0].model: the hub at {hub.url} still limits requests (429) after "
        f"{len(RETRY_PAUSES)} pauses. "
        "Wait some minutes, or set hf_model_token: limits are higher with a token."
    )


def test_a_hub_that_fails(hub: server.Hub) -> None:
    hub.faults.set(Fault(status=503))
    with pytest.raises(ResolveError) as error:
        pin(hub, make.OPEN)
    assert str(error.value) == (
        f"vllm_deployments[0].model: the hub at {hub.url} returned status 503 for model "
        "lab/tiny-llama. Try again later."
    )


def test_a_hub_that_is_not_there(hub: server.Hub) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ResolveError) as error:
        model_pin("a/b", "main", MODEL_PATH, url, "hf_secret_secret")
    assert str(error.value) == (
        f"vllm_deployments[0].model: the hub at {url} cannot be reached from this machine (connection "
        "refused). Check "
        "hf_model_endpoint and the network; HF_HUB_OFFLINE must not be set."
    )


def test_a_hub_whose_answers_are_cut(hub: server.Hub) -> None:
    """It is reached, so name resolution and network are not what to look at."""
    hub.faults.set(Fault("*/config.json", drop_after=5))
    with pytest.raises(ResolveError) as error:
        pin(hub, make.OPEN)
    hub.faults.set()
    assert str(error.value) == (
        f"vllm_deployments[0].model: the hub at {hub.url} answers, but its answers end before they are complete. "
        "Something on the way cuts them: check proxy, mirror and firewall, or set hf_model_endpoint."
    )
