# SPDX-License-Identifier: Apache-2.0
"""The program inside the download container, with stand-ins for old and new huggingface_hub."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs import download
from ansible_collections.instinct.fleet.plugins.module_utils.weights.download_errors import parse_report

CONFIG = {
    "repo": "lab/tiny-llama",
    "commit": "0" * 40,
    "cache_dir": "/hf/hub",
    "include": [],
    "exclude": ["original/*"],
    "max_workers": 4,
    "token_file": "",
    "proxy_file": "",
}


class Hub(types.ModuleType):
    """huggingface_hub, as far as the program uses it."""

    def __init__(self, errors: list[Exception | None], refuse: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.calls: list[dict[str, Any]] = []
        self.asked: list[tuple[Any, str, str]] = []
        hub = self

        class HfApi:
            def __init__(self, token: Any) -> None:
                self.token = token

            def model_info(self, repo: str, revision: str) -> None:
                hub.asked.append((self.token, repo, revision))
                if refuse:
                    raise refuse

        def snapshot_download(**options: Any) -> str:
            hub.calls.append(options)
            error = errors.pop(0) if errors else None
            if error:
                raise error
            return "/hf/hub/snapshot"

        self.HfApi = HfApi
        self.snapshot_download = snapshot_download


def old(hub: Hub) -> Hub:
    """As before 0.23: resuming has to be asked for."""
    inner = hub.snapshot_download

    def snapshot_download(*, resume_download: bool = False, **options: Any) -> str:
        return inner(resume_download=resume_download, **options)

    hub.snapshot_download = snapshot_download
    return hub


def run(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **config: Any
) -> tuple[int, dict[str, Any]]:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(download.time, "sleep", lambda _seconds: None)
    code = download.main(["-c", json.dumps({**CONFIG, **config})])
    report = parse_report("noise\n" + capsys.readouterr().out)
    assert report is not None
    return code, report


class ConnectionBroken(ConnectionError):
    pass


def http_error(status: int) -> Exception:
    error = RuntimeError(f"HTTP {status}")
    error.response = types.SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


def test_a_download(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hub = Hub([])
    assert run(hub, monkeypatch, capsys) == (0, {"ok": True, "path": "/hf/hub/snapshot"})
    assert hub.asked == [(False, "lab/tiny-llama", "0" * 40)]
    assert hub.calls == [
        {
            "repo_id": "lab/tiny-llama",
            "revision": "0" * 40,
            "cache_dir": "/hf/hub",
            "allow_patterns": None,
            "ignore_patterns": ["original/*"],
            "max_workers": 4,
            "token": False,
        }
    ]


def test_resuming_is_asked_for_where_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = old(Hub([]))
    run(hub, monkeypatch, capsys)
    assert hub.calls[0]["resume_download"] is True


def test_the_token_comes_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("the-token\n")
    hub = Hub([])
    run(hub, monkeypatch, capsys, token_file=str(tmp_path / "t"))
    assert hub.asked[0][0] == hub.calls[0]["token"] == "the-token"


@pytest.mark.parametrize(
    "error", [ConnectionBroken("reset"), TimeoutError("slow"), http_error(503), http_error(429)]
)
def test_a_broken_network_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub([error, error])
    assert run(hub, monkeypatch, capsys)[0] == 0
    assert len(hub.calls) == 3


@pytest.mark.parametrize(
    ("error", "calls"), [(http_error(403), 1), (ValueError("x"), 1), (http_error(500), 5)]
)
def test_gives_up(
    error: Exception, calls: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub([error] * 9)
    code, report = run(hub, monkeypatch, capsys)
    assert (code, report["ok"], len(hub.calls)) == (1, False, calls)


def test_a_hub_that_only_answers_with_errors_is_left_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own client asks again for half a minute at each attempt, and nobody sees anything of that."""
    clock = iter(range(0, 10**9, 31))
    monkeypatch.setattr(download.time, "monotonic", lambda: float(next(clock)))
    hub = Hub([http_error(500)] * 9)
    assert run(hub, monkeypatch, capsys)[0] == 1
    assert len(hub.calls) == 2


def test_a_refusal_is_reported_with_its_causes_before_any_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = LookupError("no access")
    refusal.__cause__ = http_error(403)
    refusal.__cause__.__cause__ = OSError(28, "No space left on device")
    hub = Hub([], refusal)
    code, report = run(hub, monkeypatch, capsys)
    assert code == 1
    assert hub.calls == []
    assert [(link["types"][0], link["status"], link["errno"]) for link in report["causes"]] == [
        ("LookupError", None, None),
        ("RuntimeError", 403, None),
        ("OSError", None, 28),
    ]


def test_an_image_without_the_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert download.main(["-c", json.dumps(CONFIG)]) == 1
    report = parse_report(capsys.readouterr().out)
    assert report is not None
    assert "ImportError" in report["causes"][0]["types"]


class Limited(Exception):
    """A hub's 429."""

    def __init__(self, headers: dict[str, str], status: int = 429) -> None:
        super().__init__("limited")
        self.response = types.SimpleNamespace(status_code=status, headers=headers)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Limited({"Retry-After": "120"}), 120.0),
        (
            Limited({"RateLimit": '"resolvers";r=0;t=42', "RateLimit-Policy": '"fixed window";q=3000;w=300'}),
            42.0,
        ),
        (Limited({"Retry-After": "Wed, 25 Nov 2026 10:00:00 GMT"}), None),
        (Limited({}), None),
        (Limited({"Retry-After": "9"}, 503), None),
        (ValueError("x"), None),
    ],
)
def test_how_long_a_hub_wants_to_be_left_alone(error: Exception, seconds: float | None) -> None:
    assert download.asked_pause(error) == seconds
    outer = RuntimeError("outer")
    outer.__cause__ = error
    assert download.asked_pause(outer) == seconds


def test_a_limit_that_names_its_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than any number of short pauses, and not in the same moment as other nodes."""
    pauses: list[float] = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    hub = Hub([Limited({"Retry-After": "100"}) for _unused in range(8)])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert download.download(CONFIG, False) == "/hf/hub/snapshot"
    assert len(pauses) == 8
    assert all(100 <= pause <= 125 for pause in pauses)
    assert len(set(pauses)) > 1
    assert len(hub.asked) == 1  # the listing is not asked for again


def test_a_limit_of_an_hour_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    monkeypatch.setitem(
        sys.modules, "huggingface_hub", Hub([Limited({"Retry-After": "3600"}) for _unused in range(9)])
    )
    with pytest.raises(Limited):
        download.download(CONFIG, False)
    assert pauses == [2.0, 4.0, 8.0, 16.0]


def test_all_files_share_the_bandwidth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(download.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(download.time, "sleep", sleep)
    monkeypatch.setattr(download.LimitedFile, "free_at", 0.0)
    module = types.ModuleType("huggingface_hub.file_download")

    def http_get(url: str, temp_file: Any, *, proxies: Any = None) -> str:
        temp_file.write(b"x" * 1000)
        return f"{url} {temp_file.tell()}"

    module.http_get = http_get  # type: ignore[attr-defined]
    package = types.ModuleType("huggingface_hub")
    package.file_download = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.file_download", module)
    download.limit_bandwidth(500)
    with open(tmp_path / "a", "wb") as first, open(tmp_path / "b", "wb") as second:
        assert module.http_get("u", first) == "u 1000"  # type: ignore[attr-defined]
        assert module.http_get("u", temp_file=second, proxies=None) == "u 1000"  # type: ignore[attr-defined]
    assert slept == [2.0, 4.0]
