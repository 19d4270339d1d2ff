# SPDX-License-Identifier: Apache-2.0
"""blob_swarm: starts a node's part in a transfer, waits for it, and says why it did not come whole."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.module_utils.swarm import swarm_job, swarm_member
from ansible_collections.instinct.fleet.plugins.modules import blob_swarm

from tests.helpers.module_docs import documented_by

Args = dict[str, Any]
KEY = "5a" * 32
GOOD, OTHER = b"weights" * 1000, b"config"
MANIFEST = manifest_of(
    "model lab/m@1 x",
    [ManifestFile(name, len(item), sha256(item).hexdigest()) for name, item in (("w", GOOD), ("c", OTHER))],
)
# Stands in for the program: receives what a test put beside it, and says how it ended.
PROGRAM = """
import json, os, shutil, sys, time
job = json.load(open(sys.argv[1]))
here = os.path.dirname(sys.argv[1])
wish = json.load(open(os.path.join(here, "..", "wish.json")))
def say(phase, **more):
    with open(here + "/state.new", "w") as file:
        json.dump({"phase": phase, "pid": os.getpid(), **more}, file)
    os.replace(here + "/state.new", here + "/state.json")
say("running")
incoming = os.path.join(job["root"], "incoming", job["manifest_id"]) if "manifest_id" in job else wish["incoming"]
os.makedirs(incoming, exist_ok=True)
for name, text in wish["come"].items():
    with open(os.path.join(incoming, name), "w") as file:
        file.write(text)
if wish["stay"]:
    time.sleep(60)
say("ended", error=wish["error"], received=7, slow=wish["slow"])
"""


def _archive(text: str) -> str:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as opened:
        opened.writestr("__main__.py", text)
    return base64.b64encode(stream.getvalue()).decode()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setattr(swarm_job, "RUN_DIR", str(run))
    monkeypatch.setattr(swarm_member, "PYTHON", sys.executable)
    monkeypatch.setattr(swarm_member, "_require_engine", lambda: None)
    monkeypatch.setattr(swarm_member, "_POLL_SECONDS", 0.05)
    yield run
    swarm_member._stop(str(run / MANIFEST.id))


@pytest.fixture
def args(world: Path, tmp_path: Path) -> Args:
    members = [
        {"name": "n1", "address": "10.0.0.1", "port": 29870, "serves": True},
        {"name": "n2", "address": "10.0.0.2", "port": 29870},
    ]
    return {
        "state": "started",
        "manifest": MANIFEST.to_json(),
        "own": "n2",
        "members": members,
        "key": KEY,
        "store": str(tmp_path / "store"),
        "program": _archive(PROGRAM),
    }


def _wish(world: Path, args: Args, *come: bytes, **more: Any) -> None:
    wish = {
        "incoming": f"{args['store']}/incoming/{MANIFEST.id}",
        "come": {sha256(item).hexdigest(): item.decode() for item in come},
        "stay": False,
        "error": "",
        "slow": [],
        **more,
    }
    (world / "wish.json").write_text(json.dumps(wish))


def test_what_comes_is_recorded_and_the_key_is_gone(args: Args, world: Path, run_module: Any) -> None:
    _wish(world, args, GOOD, OTHER, slow=["n7"])
    predicted, _unused = run_module(blob_swarm.main, args, check=True)
    assert not (world / MANIFEST.id).exists()
    started, failed = run_module(blob_swarm.main, args)
    assert not failed, started
    assert (
        started["actions"]
        == predicted["actions"]
        == ["receive model lab/m@1 x (2 blobs, 6.8 KiB) at 10.0.0.2:29870"]
    )
    job = world / MANIFEST.id / "job.json"
    assert job.stat().st_mode & 0o777 == 0o600
    assert KEY in job.read_text()
    result, failed = run_module(blob_swarm.main, {**args, "state": "finished"})
    assert not failed, result
    assert Store(args["store"]).manifests() == [MANIFEST]
    assert not job.exists()
    assert KEY not in str([started, result])
    assert result["warnings"] == ["model lab/m@1 x: n7: slow, so look at its network and disk."]
    for state in ("started", "finished"):
        again, failed = run_module(blob_swarm.main, {**args, "state": state})
        assert (failed, again["changed"]) == (False, False)


def test_what_did_not_come_whole_says_why_and_keeps_the_rest(
    args: Args, world: Path, run_module: Any
) -> None:
    _wish(world, args, OTHER, error="No content arrived for 180 s.")
    run_module(blob_swarm.main, args)
    result, failed = run_module(blob_swarm.main, {**args, "state": "finished"})
    assert failed
    assert (
        "model lab/m@1 x did not arrive completely from other nodes: No content arrived for 180 s."
        in result["msg"]
    )
    store = Store(args["store"])
    assert (store.manifests(), store.blobs()) == ([], [sha256(OTHER).hexdigest()])


def test_what_was_not_started_is_not_waited_for(args: Args, run_module: Any) -> None:
    result, failed = run_module(blob_swarm.main, {**args, "state": "finished"})
    assert failed
    assert "its program was not started on this host; the previous task says why" in result["msg"]


def test_a_program_that_dies_is_not_waited_for(args: Args, world: Path, run_module: Any) -> None:
    result, failed = run_module(
        blob_swarm.main, {**args, "program": _archive("raise SystemExit('no such port')")}
    )
    assert failed
    assert "did not start: no such port" in result["msg"]


def test_an_earlier_runs_program_is_ended(args: Args, world: Path, run_module: Any) -> None:
    _wish(world, args, stay=True)
    run_module(blob_swarm.main, args)
    first = json.loads((world / MANIFEST.id / "state.json").read_text())["pid"]
    _wish(world, args, GOOD, OTHER)
    assert not run_module(blob_swarm.main, args)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert not run_module(blob_swarm.main, {**args, "state": "finished"})[1]


def test_who_has_it_all_offers_and_waits_for_nobody(args: Args, world: Path, run_module: Any) -> None:
    store = Store(args["store"])
    for item in (GOOD, OTHER):
        store.put(item, sha256(item).hexdigest())
    store.record(MANIFEST)
    _wish(world, args)
    started, failed = run_module(blob_swarm.main, {**args, "own": "n1"})
    assert not failed, started
    assert started["actions"][0].startswith("offer model lab/m@1 x")
    job = world / MANIFEST.id / "job.json"
    assert json.loads(job.read_text())["serve"] == sorted(MANIFEST.blobs)
    result, failed = run_module(blob_swarm.main, {**args, "own": "n1", "state": "finished"})
    assert (failed, result["changed"], job.exists()) == (False, False, False)


def test_without_the_engine(args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(swarm_member, "PYTHON", "/bin/false")
    result, failed = run_module(blob_swarm.main, args)
    assert failed
    assert "Install python3-libtorrent, or set fetch_from: origin" in result["msg"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"own": "n9"}, "n9 is not among them"),
        ({"key": "12"}, "32 random bytes"),
        ({"members": [{"name": "n2", "address": "n2.example", "port": 1}]}, "not an IP address"),
        ({"manifest": {"name": "x", "files": []}}, "no files"),
    ],
)
def test_what_is_wrong_is_refused(args: Args, run_module: Any, change: Args, said: str) -> None:
    result, failed = run_module(blob_swarm.main, {**args, **change})
    assert failed
    assert said in result["msg"]


def test_documentation_is_the_argument_spec() -> None:
    documented, spec = documented_by(blob_swarm)["options"], blob_swarm.argument_spec()
    assert set(documented) == set(spec)
    assert set(documented["members"]["suboptions"]) == set(spec["members"]["options"])
