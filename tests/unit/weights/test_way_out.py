# SPDX-License-Identifier: Apache-2.0
"""Weights and sources through a forward proxy with an account, from servers whose CA is private."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.docker import build, build_plan
from ansible_collections.instinct.fleet.plugins.module_utils.weights import download as fetch_on_node
from ansible_collections.instinct.fleet.plugins.modules import hf_model
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script

from lab.hub import make, server
from tests.worlds.fake_docker import FakeContainer, FakeDocker
from tests.worlds.way_out import ACCOUNT, OUTSIDE, SECRET, ForwardProxy, with_private_ca
from tests.worlds.weights_world import CANARY, args, config_of, docker, download, failing, mounts_of

__all__ = ["args", "docker"]  # fixtures

Args = dict[str, Any]
PROXY = {"https_proxy": f"http://{ACCOUNT}@proxy.example:3128", "no_proxy": "localhost,.example"}


@pytest.fixture
def behind(args: Args, tmp_path: Path) -> Args:
    """A download of a node behind a proxy."""
    ca = tmp_path / "ca.pem"
    ca.write_text("# ours\n-----BEGIN CERTIFICATE-----\n")
    return {**args, "proxy": PROXY, "ca_file": str(ca)}


def test_the_container_gets_both_and_docker_shows_no_account(
    docker: FakeDocker, behind: Args, run_module: Any
) -> None:
    seen: dict[str, Any] = {}
    start = docker._run

    def run(container: FakeContainer) -> None:
        seen.update(mounts=mounts_of(container), body=json.dumps(container.body), config=config_of(container))
        source = Path(seen["mounts"]["/run/secrets/hf_proxy"])
        seen.update(proxy=json.loads(source.read_text()), mode=source.stat().st_mode & 0o777)
        start(container)

    docker._run = run  # type: ignore[method-assign]
    result, failed = run_module(hf_model.main, {**behind, "token": CANARY})
    assert not failed, result
    wanted = {**PROXY, "no_proxy": "localhost,.example,127.0.0.1,::1"}
    both = {
        name: value for key, value in wanted.items() for name, value in ((key, value), (key.upper(), value))
    }
    assert (seen["proxy"], seen["mode"], seen["config"]["proxy_file"]) == (
        both,
        0o600,
        "/run/secrets/hf_proxy",
    )
    assert seen["mounts"]["/run/secrets/ca.pem"] == behind["ca_file"]
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        assert f"{name}=/run/secrets/ca.pem" in seen["body"]
    assert "HF_HUB_DISABLE_XET=1" in seen["body"]
    assert os.listdir(fetch_on_node.SECRETS_DIR) == []
    for text in (seen["body"], json.dumps(result), *docker.requests):
        assert "ss-of-the-proxy" not in text


def test_messages_name_the_proxy_without_its_account(
    docker: FakeDocker, behind: Args, run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = failing(
        {"types": ["ProxyError"], "text": f"407 from {PROXY['https_proxy']} for {SECRET}"}
    )
    result, failed = run_module(hf_model.main, behind)
    assert failed
    assert "cannot be reached from this node through the proxy http://proxy.example:3128." in result["msg"]
    assert "instinct_proxy" in result["msg"]
    assert "ss-of-the-proxy" not in json.dumps(result)
    docker.programs["instinct-fetch-"] = download()
    wrong = {"config.json": "sha256:" + "0" * 64}
    result, failed = run_module(hf_model.main, {**behind, "hashes": wrong})
    assert failed
    assert (
        "from https://huggingface.co through the proxy http://proxy.example:3128: config.json"
        in result["msg"]
    )


def test_another_way_out_is_another_download() -> None:
    base = {name: option.get("default") for name, option in hf_model.argument_spec().items()}
    given = {**base, "repo": "a/b", "commit": "1" * 40, "image": "x", "files": {"a": 1}}
    made = [
        fetch_on_node.fetch_of({**given, "proxy": proxy})
        for proxy in ({}, PROXY, {"https_proxy": "http://x"})
    ]
    assert len({item.spec for item in made}) == 3


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), ("hello", "no certificate in PEM form")]
)
def test_a_bundle_that_is_none(
    content: str | None, why: str, docker: FakeDocker, args: Args, run_module: Any, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.pem"
    if content:
        path.write_text(content)
    result, failed = run_module(hf_model.main, {**args, "ca_file": str(path)})
    assert failed
    assert f"instinct_ca_file {path} cannot be used on this node: " in result["msg"]
    assert why in result["msg"]
    assert "update-ca-certificates" in result["msg"]
    assert docker.requests == []


@pytest.mark.parametrize(
    ("given", "no_proxy"),
    [
        ({"https_proxy": "http://p:1"}, "localhost,127.0.0.1,::1"),
        ({"https_proxy": "http://p:1", "no_proxy": " .corp , 127.0.0.1,"}, ".corp,127.0.0.1,localhost,::1"),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "*"),
        ({"https_proxy": "", "no_proxy": None}, None),
        ({}, None),
    ],
)
def test_the_node_itself_is_reached_without_a_proxy(given: Any, no_proxy: str | None) -> None:
    found = proxies.environment(given)
    assert (found.get("no_proxy"), found.get("NO_PROXY")) == (no_proxy, no_proxy)


def test_accounts_of_proxies() -> None:
    assert proxies.secrets({"http_proxy": "http://me@p:1", "https_proxy": f"http://{ACCOUNT}@p"}) == [
        "me", ACCOUNT, "p%40ss-of-the-proxy", SECRET,
    ]  # fmt: skip
    assert proxies.secrets({"no_proxy": "a,b", "http_proxy": None}) == proxies.secrets(None) == []
    assert proxies.through_proxy({"http_proxy": "http://me@p:1"}) == " through the proxy http://p:1"
    assert proxies.through_proxy(None) == ""
    with pytest.raises(NodeError, match="'ftp_proxy' is not one of"):
        proxies.environment({"ftp_proxy": "x"})


# ---- for real ----------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[server.Hub, Path, str]]:
    """The lab's hub behind a private CA, its CA, and a commit."""
    root = tmp_path / "hub"
    (commit,) = make.write_repo(
        root, make.OPEN, [make.Commit("one", {"config.json": b"{}", "a.bin": b"x" * 9})]
    )
    running = server.Hub(root)
    ca = with_private_ca(running, tmp_path)
    with running:
        yield running, ca, commit


def fetch(hub: tuple[server.Hub, Path, str], directory: Path, proxy: str, trust: bool) -> dict[str, Any]:
    """Run the real program with the real huggingface_hub, and return its report."""
    running, ca, commit = hub
    port = running.server_address[1]
    (directory / "proxy").write_text(json.dumps(proxies.environment({"https_proxy": proxy})))
    config = {"repo": make.OPEN, "commit": commit, "cache_dir": str(directory / "hf/hub"), "include": [], "exclude": [],
              "max_workers": 2, "token_file": "", "proxy_file": str(directory / "proxy")}  # fmt: skip
    trusted = {
        name: str(ca) if value.startswith("/") else value for name, value in fetch_on_node._TRUST.items()
    }
    kept = {
        name: text for name, text in os.environ.items() if "proxy" not in name.lower() and name not in trusted
    }
    env = {
        **kept,
        "HF_HOME": str(directory / "hf"),
        "HF_ENDPOINT": f"https://{OUTSIDE}:{port}",
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", script("download").replace("ATTEMPTS = 5", "ATTEMPTS = 1"), json.dumps(config)],
        env={**env, **(trusted if trust else {})}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("INSTINCT-FETCH"))
    return json.loads(line.partition(" ")[2])


def test_the_program_gets_weights_through_a_proxy_and_a_private_ca(
    hub: tuple[server.Hub, Path, str], tmp_path: Path
) -> None:
    with ForwardProxy(hub[0].server_address[1]) as proxy:
        report = fetch(hub, tmp_path, proxy.url, trust=True)
        assert report["ok"], report
        assert set(proxy.asked) == {f"{OUTSIDE}:{hub[0].server_address[1]}"}
        assert Path(report["path"], "a.bin").read_bytes() == b"x" * 9
        refused = fetch(hub, tmp_path, proxy.url, trust=False)
        assert "CERTIFICATE_VERIFY_FAILED" in json.dumps(refused)
        assert not fetch(hub, tmp_path, "http://127.0.0.1:9", trust=True)["ok"]


def test_git_gets_sources_through_a_proxy_and_a_private_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if "proxy" in name.lower():
            monkeypatch.delenv(name)
    for words in (
        ["init", "-q", "source"],
        [
            "-C",
            "source",
            "-c",
            "user.name=x",
            "-c",
            "user.email=x",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "x",
        ],
        ["clone", "-q", "--bare", "source", "www/r.git"],
        ["-C", "www/r.git", "update-server-info"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    ca = with_private_ca(running, tmp_path)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    port = running.server_address[1]
    plan = build_plan.build_plan({"repo": f"https://{OUTSIDE}:{port}/r.git", "ref": "main"}, None)
    try:
        with ForwardProxy(port) as proxy:
            way = proxies.environment({"https_proxy": proxy.url})
            there = replace(plan, proxy=way, ca_file=str(ca))
            build._run(
                ["git", "clone", "--quiet", plan.repo, str(tmp_path / "got")], 60, "clone", there.environment
            )
            assert (tmp_path / "got/.git").is_dir()
            assert proxy.asked
            untrusted = replace(there, ca_file="").environment
            with pytest.raises(NodeError, match="certificate"):
                build._run(["git", "clone", plan.repo, str(tmp_path / "not")], 60, "clone", untrusted)
    finally:
        running.shutdown()
        running.server_close()
    assert there.hash == plan.hash  # the way makes no other image
    command = there.docker_command("/src", "c0")
    given = [name for flag, name in pairwise(command) if flag == "--build-arg" and "roxy" in name.lower()]
    assert given == ["https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"]
    assert command[-1] == "/src"
    assert "ss-of-the-proxy" not in " ".join([*command, *there.commands("/d"), repr(there)])
