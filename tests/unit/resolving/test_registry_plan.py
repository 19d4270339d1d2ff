# SPDX-License-Identifier: Apache-2.0
"""Resolving what is private, half told or out of order: registries with accounts over TLS, and hubs of a few lines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import requests
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import parse_ref
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.host_settings import Registry
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, ModelPin
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.model_card import (
    CardTerms,
    ModelCard,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.registry import (
    NOT_FOUND,
    REFUSED,
    RETRY_PAUSES,
    UNREACHABLE,
    ResolveError,
    _cause,
    image_access,
    image_pin,
    model_access,
    model_pin,
)

from tests.worlds.fake_registry import IMAGE, INDEX, Doors, digest, private_registry, running_registry

PATH = ("vllm_deployments", 0, "image")
MODEL = ("vllm_deployments", 0, "model")
ACCOUNTS = {"me": "hunter2222", "you": "correct-horse"}
PIN = ImagePin(digest(IMAGE), 5800)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "registry.pem"
    path.write_text(self_signed(["127.0.0.1"]), encoding="ascii")
    return path


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate whose maker this machine trusts."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    return certificate


# ---- registries that want a log-in -------------------------------------------------------------------

REFUSES = "registry {r} refuses access to lab/vllm {who}. Check the name, and set username and password in"
LOGINS: dict[str, tuple[str, str, str]] = {
    # user, password, what is told; "" when the log-in is right
    "right": ("me", "hunter2222", ""),
    "another one's": ("you", "correct-horse", ""),
    "wrong password": ("me", "hunter3333", "for user me"),
    "password of another": ("me", "correct-horse", "for user me"),
    "unknown user": ("nobody", "hunter2222", "for user nobody"),
    "none": ("", "", "without a login"),
    "no password": ("me", "", "for user me"),
}


@pytest.mark.parametrize("tokens", [False, True], ids=["by password", "by token"])
@pytest.mark.parametrize("case", LOGINS)
def test_a_private_registry(trusted: Path, case: str, tokens: bool) -> None:
    user, password, who = LOGINS[case]
    doors = Doors(ACCOUNTS, tokens)
    with private_registry(trusted, doors) as host:
        access = [Registry("elsewhere:1"), Registry(host, username=user, password=password)]
        if not who:
            assert image_pin(f"{host}/lab/vllm:1", PATH, access) == PIN
            # An image of several platforms is two questions, each with its log-in.
            assert image_pin(f"{host}/lab/vllm:multi", PATH, access) == ImagePin(digest(INDEX), 5800)
        else:
            with pytest.raises(ResolveError) as caught:
                image_pin(f"{host}/lab/vllm:1", PATH, access)
            assert caught.value.kind == REFUSED
            assert REFUSES.format(r=host, who=who) in str(caught.value)
            assert password not in str(caught.value) or not password
    # First without a log-in, as not every image needs one; no more is asked for than to pull.
    assert doors.asked[0] == "/v2/lab/vllm/manifests/1 nothing"
    assert set(doors.scopes) == ({"repository:lab/vllm:pull"} if tokens else set())


def test_access_to_a_pinned_image_is_asked_for(trusted: Path) -> None:
    doors = Doors(ACCOUNTS, tokens=True)
    with private_registry(trusted, doors) as host:
        ref = parse_ref(f"{host}/lab/vllm:1")
        image_access(ref, PIN.digest, PATH, Registry(host, username="me", password="hunter2222"))
        with pytest.raises(ResolveError) as caught:
            image_access(ref, PIN.digest, PATH, Registry(host))
    assert caught.value.kind == REFUSED
    assert doors.asked[-1].startswith(f"/v2/lab/vllm/manifests/{PIN.digest} ")


def test_a_certificate_that_nobody_trusts(certificate: Path) -> None:
    with private_registry(certificate, Doors(ACCOUNTS)) as host, pytest.raises(ResolveError) as caught:
        image_pin(f"{host}/lab/vllm:1", PATH, [Registry(host, username="me", password="hunter2222")])
    assert caught.value.kind == UNREACHABLE
    assert f"registry {host} does not offer TLS that this machine trusts." in str(caught.value)


# ---- manifests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running_registry() as host:
        yield host


def test_entries_of_an_index_that_are_of_no_platform(registry: str) -> None:
    access = [Registry(registry, insecure=True)]
    pin = image_pin(f"{registry}/lab/vllm:mixed", PATH, access)
    assert pin.bytes == 5800
    with pytest.raises(ResolveError, match="has no manifest for linux/amd64"):
        image_pin(f"{registry}/lab/vllm:nowhere", PATH, access)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lab/vllm:2", NOT_FOUND),
        ("lab/none:1", NOT_FOUND),
        ("lab/vllm:refused", REFUSED),
        ("lab/vllm:closed", REFUSED),
        ("lab/vllm:limited", UNREACHABLE),
        ("lab/vllm:broken", UNREACHABLE),
        ("lab/vllm:text", UNREACHABLE),
        ("lab/vllm:odd", UNREACHABLE),
        ("lab/vllm:arm", UNREACHABLE),
    ],
)
def test_whose_word_a_refusal_is(registry: str, name: str, kind: str) -> None:
    """What the registry itself says holds for nodes too; what this machine could not ask does not."""
    with pytest.raises(ResolveError) as caught:
        image_pin(f"{registry}/{name}", PATH, [Registry(registry, insecure=True)])
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("[Errno 111] Connection refused: https://me:secret@host/"), "connection refused"),
        (requests.ConnectionError("Read TIMED OUT"), "timed out"),
        (OSError("Errno -3] Temporary failure in name resolution"), "temporary failure in name resolution"),
        (OSError("Network is unreachable, Connection refused"), "connection refused"),
        (requests.ConnectionError("https://me:secret@host/ went away"), "ConnectionError"),
        (KeyError("secret"), "KeyError"),
    ],
)
def test_causes_name_no_url(error: Exception, text: str) -> None:
    assert _cause(error) == text


# ---- hubs --------------------------------------------------------------------------------------------

SHA = "c" * 40
CONFIG = {"model_type": "llama"}


CARD = ModelCard(CardTerms("a/b"))  # of a hub that says nothing of it


@dataclass
class Hub:
    """A hub that says of a/b what it is told to, and answers some requests with a status first."""

    info: dict[str, Any]
    config: bytes = b'{"model_type": "llama"}'
    first: list[int] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    moved: bool = False
    code: str = ""  # of an error, as the hub names it

    def answer(self, http: BaseHTTPRequestHandler) -> None:
        self.asked.append((http.path.partition("?")[0], http.headers.get("Authorization") or ""))
        status = self.first.pop(0) if self.first else 200
        data = self.config if "/resolve/" in http.path else json.dumps(self.info).encode()
        if self.moved and "/resolve/" in http.path and not http.path.startswith("/moved/"):
            status, data = 302, b""
        http.send_response(status)
        http.send_header("Location", f"/moved{http.path}")
        if status >= 400 and self.code:
            http.send_header("X-Error-Code", self.code)
        http.send_header("ETag", '"1"')
        http.send_header("X-Repo-Commit", SHA)
        http.send_header("Content-Length", str(len(data)))
        http.end_headers()
        if http.command != "HEAD":
            http.wfile.write(data)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that lies in the user's home, and must not decide anything."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)
    (tmp_path / "token").write_text("hf_of_the_home_directory")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    quick = SimpleNamespace(sleep=lambda seconds: None, time=lambda: 0.0, monotonic=lambda: 0.0)
    monkeypatch.setattr("huggingface_hub.utils._http.time", quick)


def listing(sha: str | None = SHA, **files: int | None) -> dict[str, Any]:
    siblings = [
        {"rfilename": name.replace("__", "."), **({} if size is None else {"size": size})}
        for name, size in files.items()
    ]
    return {"id": "a/b", "modelId": "a/b", **({"sha": sha} if sha else {}), "siblings": siblings}


WHOLE = listing(config__json=7, b__bin=5, a__bin=3)


@pytest.mark.parametrize("token", [None, "hf_given_by_the_operator"])
def test_a_model(token: str | None) -> None:
    with serving(Hub(WHOLE)) as hub:
        pin = model_pin("a/b", "main", MODEL, hub.url, token)
    assert pin == ModelPin(SHA, (("a.bin", 3), ("b.bin", 5), ("config.json", 7)), CONFIG, card=CARD)
    assert [path for path, _ in hub.asked] == [
        "/api/models/a/b/revision/main",
        f"/a/b/resolve/{SHA}/config.json",
    ]
    # The operator's token or none: what lies in the home must not decide what a fleet can fetch.
    assert {sent for _, sent in hub.asked} == {f"Bearer {token}" if token else ""}


def test_a_hub_that_keeps_files_elsewhere() -> None:
    with serving(Hub(WHOLE, moved=True)) as hub:
        assert model_pin("a/b", "main", MODEL, hub.url, None).config == CONFIG
    assert hub.asked[-1][0] == f"/moved/a/b/resolve/{SHA}/config.json"


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({}, ()),
        ({"blobId": "ab" * 20}, (("a.bin", "git-sha1:" + "ab" * 20),)),
        # Of a large file the hub's id is that of git's pointer, not of its content.
        (
            {"blobId": "ab" * 20, "lfs": {"sha256": "cd" * 32, "size": 3, "pointerSize": 9}},
            (("a.bin", "sha256:" + "cd" * 32),),
        ),
        ({"blobId": 'W/"etag"'}, ()),
        ({"lfs": {"sha256": "?", "size": 3, "pointerSize": 9}}, ()),
    ],
)
def test_the_hashes_that_a_hub_states(said: dict[str, Any], known: tuple[tuple[str, str], ...]) -> None:
    info = listing(a__bin=3)
    info["siblings"][0].update(said)
    with serving(Hub(info)) as hub:
        assert model_pin("a/b", "main", MODEL, hub.url, None).hashes == known


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (listing(None, a__bin=3), "does not report the commit. Use a hub with the API of huggingface.co."),
        (listing(a__bin=3, b__bin=None), "does not report the size of b.bin. Use a hub with"),
        (listing(b__bin=None, c__bin=None), "does not report the size of b.bin. Use a hub with"),
    ],
)
def test_a_hub_that_tells_too_little(info: dict[str, Any], text: str) -> None:
    with serving(Hub(info)) as hub, pytest.raises(ResolveError) as caught:
        model_pin("a/b", "main", MODEL, hub.url, None, sleep=lambda _: None)
    assert f"vllm_deployments[0].model: the hub at {hub.url} {text}" in str(caught.value)
    assert len(hub.asked) == 1  # asking again would not help


@pytest.mark.parametrize("siblings", [{}, {"siblings": []}, {"siblings": None}])
def test_a_repository_without_files(siblings: dict[str, Any]) -> None:
    with serving(Hub({"id": "a/b", "sha": SHA, **siblings})) as hub:
        assert model_pin("a/b", "main", MODEL, hub.url, None) == ModelPin(SHA, (), None, card=CARD)


@pytest.mark.parametrize(
    ("config", "expected"), [(b"{}", {}), (b"[1]", None), (b"<html>", None), (b"", None), (b"null", None)]
)
def test_a_config_that_is_none(config: bytes, expected: Any) -> None:
    with serving(Hub(WHOLE, config)) as hub:
        assert model_pin("a/b", "main", MODEL, hub.url, None).config == expected


def test_a_repository_without_config_is_asked_for_its_first_file() -> None:
    """A listing does not show whether a gated model may be had."""
    with serving(Hub(listing(b__bin=5, a__bin=3))) as hub:
        assert model_pin("a/b", "main", MODEL, hub.url, "hf_given").config is None
    assert hub.asked[1:] == [(f"/a/b/resolve/{SHA}/a.bin", "Bearer hf_given")]


@pytest.mark.parametrize(
    ("answers", "pauses", "problem", "kind"),
    [
        ([], 0, "", ""),
        ([429], 1, "", ""),
        ([429] * 3, 3, "", ""),
        ([429] * 9, 3, "still limits requests (429) after 3 pauses", UNREACHABLE),
        ([200, 429], 1, "", ""),
        ([403], 0, "refuses access to model a/b without a token (403)", REFUSED),
        ([404], 0, "returned status 404 for model a/b. Try again later.", NOT_FOUND),
        ([503] * 9, 0, "returned status 503 for model a/b. Try again later.", UNREACHABLE),
    ],
)
def test_only_a_limit_is_waited_for(answers: list[int], pauses: int, problem: str, kind: str) -> None:
    slept: list[float] = []
    with serving(Hub(WHOLE, first=answers)) as hub:
        if not problem:
            assert model_pin("a/b", "main", MODEL, hub.url, None, sleep=slept.append).commit == SHA
        else:
            with pytest.raises(ResolveError) as caught:
                model_pin("a/b", "main", MODEL, hub.url, None, sleep=slept.append)
            assert problem.format(hub=hub.url) in str(caught.value)
            assert caught.value.kind == kind
    assert slept == list(RETRY_PAUSES[:pauses])


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (MODEL, "vllm_deployments[0].revision"),
        (("vllm_deployments", 0, "tokenizer"), "vllm_deployments[0].tokenizer"),
    ],
)
def test_a_revision_is_told_at_its_key(path: tuple[str | int, ...], key: str) -> None:
    with (
        serving(Hub(WHOLE, first=[404], code="RevisionNotFound")) as hub,
        pytest.raises(ResolveError) as caught,
    ):
        model_pin("a/b", "v9", path, hub.url, None)
    assert str(caught.value).startswith(f"{key}: model a/b has no revision v9 on {hub.url}.")
    assert caught.value.kind == NOT_FOUND


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub reads this when it is imported, and otherwise tells huggingface.co of its use."""
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    with serving(Hub(WHOLE)) as hub:
        model_pin("a/b", "main", MODEL, hub.url, None)
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_access_to_a_pinned_model_waits_for_nobody() -> None:
    pin = ModelPin(SHA, (("a.bin", 3), ("config.json", 7)))
    with serving(Hub(WHOLE)) as hub:
        model_access("a/b", pin, MODEL, hub.url, "hf_given")
        assert hub.asked == [(f"/a/b/resolve/{SHA}/config.json", "Bearer hf_given")]
        hub.first = [429]
        with pytest.raises(ResolveError) as caught:
            model_access("a/b", pin, MODEL, hub.url, None)
    assert "limits requests (429)" in str(caught.value)
    assert len(hub.asked) == 2


def test_access_to_a_model_of_which_nobody_knows_the_files() -> None:
    """Nothing can be asked for: that is no problem."""
    with serving(Hub(WHOLE)) as hub:
        model_access("a/b", ModelPin(SHA), MODEL, hub.url, None)
    assert hub.asked == []


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:9"])
def test_the_hub_that_is_asked(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface.co, unless another one is named; nothing leaves this machine here."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    pin = ModelPin(SHA, (("config.json", 7),))
    for ask in (
        lambda: model_access("a/b", pin, MODEL, endpoint, None),
        lambda: model_pin("a/b", "main", MODEL, endpoint, None),
    ):
        with pytest.raises(ResolveError) as caught:
            ask()
        assert (
            f"the hub at {endpoint or 'https://huggingface.co'} cannot be reached from this machine"
            in str(caught.value)
        )
