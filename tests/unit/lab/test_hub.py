# SPDX-License-Identifier: Apache-2.0
"""The lab's hub, asked by the real huggingface_hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lab.hub import make, server
from lab.hub.faults import Fault
from tests.helpers.eventually import GENEROUS, eventually

TOKENS: dict[str | None, str | bool] = {None: False, "stranger": make.STRANGER_TOKEN, "nobody": "hf_wrong"}
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    root = tmp_path_factory.mktemp("hub")
    return root, make.make(root)


@pytest.fixture
def commits(written: tuple[Path, dict[str, list[str]]]) -> list[str]:
    return written[1][make.OPEN]


@pytest.fixture
def hub(
    written: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[server.Hub]:
    # The client asks its home for a list of harnesses otherwise, and waits a second before each retry.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    for limit in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setattr(huggingface_hub.constants, limit, GENEROUS)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr("huggingface_hub.file_download.time", clock)
    monkeypatch.setattr("huggingface_hub.utils._http.time", clock)
    with server.Hub(written[0]) as running:
        yield running


@pytest.fixture
def api(hub: server.Hub) -> HfApi:
    return HfApi(endpoint=hub.url, token=False)


def digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def source(hub: server.Hub, commit: str, repo: str = make.OPEN) -> Path:
    return hub.root / repo / "commits" / commit / "files"


def noted(hub: server.Hub) -> list[dict[str, Any]]:
    """All requests so far. The hub completes each entry after its answer."""
    eventually("the last answer", lambda: hub.answering == 0)
    return list(hub.requests)


def fetched(hub: server.Hub) -> list[str]:
    return [Path(r["path"]).name for r in noted(hub) if r["method"] == "GET" and "/resolve/" in r["path"]]


class TestDownload:
    def test_pinned_commit_without_excluded_files(
        self, hub: server.Hub, commits: list[str], tmp_path: Path
    ) -> None:
        snapshot = snapshot_download(
            make.OPEN,
            revision=commits[0],
            endpoint=hub.url,
            cache_dir=tmp_path,
            ignore_patterns=["original/*"],
            token=False,
        )
        expected = source(hub, commits[0])
        names = {p.relative_to(expected).as_posix() for p in expected.rglob("*") if p.is_file()}
        got = {p.relative_to(snapshot).as_posix() for p in Path(snapshot).rglob("*") if not p.is_dir()}
        assert Path(snapshot).name == commits[0]
        assert got == {name for name in names if not name.startswith("original/")}
        assert all(digest(Path(snapshot, name)) == digest(expected / name) for name in got)

    def test_a_second_commit_fetches_only_what_changed(
        self, hub: server.Hub, commits: list[str], tmp_path: Path
    ) -> None:
        for commit in commits:
            noted(hub)
            hub.requests.clear()
            snapshot_download(make.OPEN, revision=commit, endpoint=hub.url, cache_dir=tmp_path, token=False)
        assert sorted(fetched(hub)) == ["README.md", "model-00002-of-00002.safetensors"]

    def test_offline_afterwards(
        self, hub: server.Hub, commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"endpoint": hub.url, "cache_dir": tmp_path, "token": False}
        online = snapshot_download(make.OPEN, revision="v1", **options)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        noted(hub)
        hub.requests.clear()
        assert snapshot_download(make.OPEN, revision="v1", **options) == online
        assert snapshot_download(make.OPEN, revision=commits[0], **options) == online
        with pytest.raises(LocalEntryNotFoundError):
            snapshot_download(make.OPEN, revision="v2", **options)
        assert not noted(hub)

    def test_a_dropped_connection_is_resumed(
        self, hub: server.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The library forgets what it has of a chunk, and its chunks are larger than the file.
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
        hub.faults.set(Fault(match=f"*/{SHARD}", method="GET", drop_after=1_000_000, count=2))
        path = hf_hub_download(make.OPEN, SHARD, endpoint=hub.url, cache_dir=tmp_path, token=False)
        ranges = [r["range"] for r in noted(hub) if r["method"] == "GET" and r["path"].endswith(SHARD)]
        assert ranges == [None, "bytes=1000000-", "bytes=2000000-"]
        assert Path(path).stat().st_size == sum(
            r["bytes"] for r in noted(hub) if r["method"] == "GET" and "/resolve/" in r["path"]
        )
        commit = hub.repository(make.OPEN).commit("main")  # type: ignore[union-attr]
        assert digest(path) == digest(source(hub, commit) / SHARD)

    def test_rate_limit_is_waited_for(self, hub: server.Hub, tmp_path: Path) -> None:
        hub.faults.set(Fault(match="*/resolve/*", method="GET", status=429, retry_after=1, count=2))
        path = hf_hub_download(make.OPEN, "config.json", endpoint=hub.url, cache_dir=tmp_path, token=False)
        assert json.loads(Path(path).read_text())["model_type"] == "llama"
        assert [r["status"] for r in noted(hub) if r["method"] == "GET"] == [429, 429, 200]

    def test_rate_limit_without_end_is_reported(self, hub: server.Hub, api: HfApi) -> None:
        hub.faults.set(Fault(match="/api/*", status=429, retry_after=60))
        with pytest.raises(HfHubHTTPError, match="429") as caught:
            api.model_info(make.OPEN)
        assert caught.value.response.headers["Retry-After"] == "60"

    def test_requests_are_listed_as_they_come(self, hub: server.Hub) -> None:
        hub.faults.set(Fault(match="*/config.json", delay=0.5, count=1))
        files = f"{hub.url}/{make.OPEN}/resolve/main"
        slow = threading.Thread(target=lambda: urllib.request.urlopen(f"{files}/config.json").close())
        slow.start()
        eventually("the slow request", lambda: len(hub.requests) == 1)
        urllib.request.urlopen(f"{files}/tokenizer_config.json").close()
        slow.join()
        assert [Path(r["path"]).name for r in noted(hub)] == ["config.json", "tokenizer_config.json"]

    def test_slow_transfer(self, hub: server.Hub) -> None:
        hub.faults.set(Fault(match="*/tokenizer.json", bytes_per_second=100_000))
        begun = time.monotonic()
        with urllib.request.urlopen(f"{hub.url}/{make.OPEN}/resolve/main/tokenizer.json") as answer:
            size = len(answer.read())
        assert size / 100_000 - 0.06 < time.monotonic() - begun


class TestRevisions:
    @pytest.mark.parametrize(("revision", "index"), [("main", 1), ("v1", 0), ("v2", 1), (None, 1)], ids=str)
    def test_names(self, api: HfApi, commits: list[str], revision: str | None, index: int) -> None:
        assert api.model_info(make.OPEN, revision=revision).sha == commits[index]

    def test_commit_ids(self, api: HfApi, commits: list[str]) -> None:
        assert api.model_info(make.OPEN, revision=commits[0]).sha == commits[0]
        assert api.model_info(make.OPEN, revision=commits[0][:10]).sha == commits[0]

    def test_refs_and_history(self, api: HfApi, commits: list[str]) -> None:
        refs = api.list_repo_refs(make.OPEN)
        assert {ref.name: ref.target_commit for ref in refs.tags} == {"v1": commits[0], "v2": commits[1]}
        assert [ref.target_commit for ref in refs.branches] == [commits[1]]
        assert [c.commit_id for c in api.list_repo_commits(make.OPEN)] == commits[::-1]

    @pytest.mark.parametrize("revision", ["nope", "0" * 40, "main2", "../.."])
    def test_missing(self, hub: server.Hub, api: HfApi, tmp_path: Path, revision: str) -> None:
        with pytest.raises(RevisionNotFoundError):
            api.model_info(make.OPEN, revision=revision)
        with pytest.raises(RevisionNotFoundError):
            snapshot_download(make.OPEN, revision=revision, endpoint=hub.url, cache_dir=tmp_path, token=False)

    def test_missing_file(self, hub: server.Hub, tmp_path: Path) -> None:
        with pytest.raises(RemoteEntryNotFoundError) as caught:
            hf_hub_download(make.OPEN, "nope.json", endpoint=hub.url, cache_dir=tmp_path, token=False)
        assert caught.value.response.headers["X-Repo-Commit"]

    def test_missing_repository(self, hub: server.Hub, api: HfApi) -> None:
        with pytest.raises(RepositoryNotFoundError) as stranger:
            api.model_info("lab/nope")
        with pytest.raises(RepositoryNotFoundError) as user:
            api.model_info("lab/nope", token=make.TOKEN)
        assert (stranger.value.response.status_code, user.value.response.status_code) == (401, 404)


class TestMetadata:
    def test_sizes_and_lfs(self, hub: server.Hub, api: HfApi, commits: list[str]) -> None:
        info = api.model_info(make.OPEN, revision=commits[0], files_metadata=True)
        assert info.gated is False
        for sibling in info.siblings or []:
            path = source(hub, commits[0]) / sibling.rfilename
            assert sibling.size == path.stat().st_size
            if path.suffix in (".safetensors", ".pth"):
                assert sibling.lfs is not None
                assert (sibling.lfs.sha256, sibling.lfs.size) == (digest(path), sibling.size)
            else:
                content = path.read_bytes()
                assert sibling.lfs is None
                assert sibling.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def test_sizes_only_when_asked_for(self, api: HfApi) -> None:
        assert {sibling.size for sibling in api.model_info(make.OPEN).siblings or []} == {None}

    def test_tree(self, api: HfApi) -> None:
        flat = {entry.path for entry in api.list_repo_tree(make.OPEN)}
        deep = {entry.path for entry in api.list_repo_tree(make.OPEN, recursive=True)}
        below = {entry.path for entry in api.list_repo_tree(make.OPEN, "original")}
        assert "original" in flat
        assert below == {"original/params.json", "original/consolidated.00.pth"} == deep - flat
        assert flat < deep

    def test_paths_info(self, api: HfApi) -> None:
        found = api.get_paths_info(make.OPEN, ["config.json", "original", "nope"])
        assert [entry.path for entry in found] == ["config.json", "original"]

    def test_head(self, hub: server.Hub, commits: list[str]) -> None:
        request = urllib.request.Request(f"{hub.url}/{make.OPEN}/resolve/v1/{SHARD}", method="HEAD")
        with urllib.request.urlopen(request) as answer:
            headers = answer.headers
        path = source(hub, commits[0]) / SHARD
        assert headers["X-Repo-Commit"] == commits[0]
        assert headers["X-Linked-ETag"] == headers["ETag"] == f'"{digest(path)}"'
        assert headers["X-Linked-Size"] == headers["Content-Length"] == str(path.stat().st_size)
        assert headers["X-Xet-Hash"] is None

    @pytest.mark.parametrize(("wanted", "status"), [("bytes=5-9", 206), ("bytes=9999999-", 416)])
    def test_ranges(self, hub: server.Hub, commits: list[str], wanted: str, status: int) -> None:
        url = f"{hub.url}/{make.OPEN}/resolve/v1/{SHARD}"
        request = urllib.request.Request(url, headers={"Range": wanted})
        if status == 206:
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 206
                assert answer.read() == (source(hub, commits[0]) / SHARD).read_bytes()[5:10]
        else:
            with pytest.raises(urllib.error.HTTPError, match="416"):
                urllib.request.urlopen(request)

    def test_a_model_too_large_for_any_disk(self, hub: server.Hub, api: HfApi, tmp_path: Path) -> None:
        info = api.model_info(make.HUGE, files_metadata=True)
        assert sum(sibling.size or 0 for sibling in info.siblings or []) > 40 * 10**12
        path = hf_hub_download(make.HUGE, "config.json", endpoint=hub.url, cache_dir=tmp_path, token=False)
        assert json.loads(Path(path).read_text())["num_hidden_layers"] == 4


class TestGated:
    def test_what_it_contains_is_public(self, api: HfApi) -> None:
        assert api.model_info(make.GATED, files_metadata=True).gated == "manual"

    @pytest.mark.parametrize(
        ("user", "status", "error"),
        [(None, 401, GatedRepoError), ("stranger", 403, GatedRepoError), ("nobody", 401, HfHubHTTPError)],
    )
    def test_files_are_refused(
        self,
        hub: server.Hub,
        api: HfApi,
        tmp_path: Path,
        user: str | None,
        status: int,
        error: type[HfHubHTTPError],
    ) -> None:
        token = TOKENS[user]
        with pytest.raises(error) as caught:
            api.auth_check(make.GATED, token=token)
        assert caught.value.response.status_code == status
        # The library looks into its cache instead when a token is unknown, and says why.
        with pytest.raises((GatedRepoError, LocalEntryNotFoundError, HfHubHTTPError), match=str(status)):
            hf_hub_download(make.GATED, "config.json", endpoint=hub.url, cache_dir=tmp_path, token=token)
        assert not fetched(hub)

    def test_those_who_were_let_in_get_everything(
        self, hub: server.Hub, api: HfApi, commits: list[str], tmp_path: Path
    ) -> None:
        token = make.TOKEN
        api.auth_check(make.GATED, token=token)
        assert api.whoami(token=token)["name"] == "lab"
        snapshot = snapshot_download(make.GATED, endpoint=hub.url, cache_dir=tmp_path, token=token)
        assert digest(Path(snapshot, SHARD)) == digest(source(hub, commits[1], make.GATED) / SHARD)

    def test_an_unknown_token_is_refused_everywhere(self, api: HfApi) -> None:
        with pytest.raises(HfHubHTTPError, match=r"401[^$]*Invalid credentials"):
            api.model_info(make.OPEN, token="hf_wrong")
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            api.whoami(token="hf_wrong")

    def test_requests_are_listed_without_tokens(self, hub: server.Hub, api: HfApi) -> None:
        api.model_info(make.GATED, token=make.TOKEN)
        assert make.TOKEN not in json.dumps(noted(hub))


class TestControl:
    def call(self, hub: server.Hub, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(hub.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def test_faults_are_set_counted_and_taken_away(self, hub: server.Hub, api: HfApi) -> None:
        rules = [{"match": "/api/*", "status": 500, "count": 2}]
        assert self.call(hub, "PUT", "/_lab/faults", rules)[0] == 200
        assert self.call(hub, "GET", "/api/models/lab/tiny-llama")[0] == 500
        assert self.call(hub, "GET", "/_lab/faults")[1][0]["count"] == 1
        self.call(hub, "DELETE", "/_lab/faults")
        assert self.call(hub, "GET", "/api/models/lab/tiny-llama")[0] == 200

        def statuses() -> list[int]:
            return [entry["status"] for entry in self.call(hub, "GET", "/_lab/requests")[1]]

        # A request is noted after its answer.
        eventually("both requests", lambda: statuses() == [500, 200])

    def test_one_fault_and_none(self, hub: server.Hub) -> None:
        self.call(hub, "PUT", "/_lab/faults", {"status": 429})
        assert [rule.status for rule in hub.faults.list()] == [429]
        self.call(hub, "PUT", "/_lab/faults", {})
        assert hub.faults.list() == []

    @pytest.mark.parametrize(
        ("body", "message"),
        [([{"statuss": 500}], "did you mean 'status'"), (5, "list"), (["x"], "is not a fault")],
    )
    def test_a_rule_that_means_nothing_is_refused(self, hub: server.Hub, body: Any, message: str) -> None:
        status, answer = self.call(hub, "PUT", "/_lab/faults", body)
        assert (status, hub.faults.list()) == (400, [])
        assert message in answer["error"]

    def test_files_outside_the_root_are_not_served(self, hub: server.Hub) -> None:
        for path in (
            "/lab/tiny-llama/resolve/main/../../../../hub.json",
            "/lab/../hub.json",
            "/lab/%2e%2e/x",
        ):
            assert self.call(hub, "GET", path)[0] in (401, 404)


def test_make_writes_the_same_again(written: tuple[Path, dict[str, list[str]]], tmp_path: Path) -> None:
    root, commits = written
    assert make.make(root) == commits == make.make(tmp_path)
    files = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert all((root / path).read_bytes() == (tmp_path / path).read_bytes() for path in files)


def test_it_starts_from_a_copied_directory(written: tuple[Path, dict[str, list[str]]], root: Path) -> None:
    """As in the services container: python3 and the directory, nothing installed."""
    command = [sys.executable, "-I", str(root / "lab" / "hub"), "--help"]
    assert "--root" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
