# SPDX-License-Identifier: Apache-2.0
"""What is asked of the real engine, in the Python that has it, where it is not a matter of a whole transfer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_engine import (
    SwarmEngine,
    queue_depth,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_job import SwarmJob, SwarmMember

from tests import ROOT
from tests.fanout.swarm import PYTHON, manifest

RESTARTED = """
import json, os, sys, threading, time
from ansible_collections.instinct.fleet.plugins.module_utils.swarm import swarm_engine, swarm_job, swarm_pieces
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_hashes import hash_blob
job = swarm_job.parse_job(json.load(open(sys.argv[1])))
cut = swarm_pieces.layout(job.manifest)
places = {slot.sha256: os.path.join(job.root, slot.sha256) for slot in cut.slots}
hashes = {key: hash_blob(place, cut.piece_size, threading.Event()).pieces for key, place in places.items()}
engine = swarm_engine.SwarmEngine(job, cut, hashes, places)
whole, other = cut.slots
have = [piece in whole.pieces for piece in range(cut.count)]
asked = [7 if piece in other.pieces else 1 for piece in range(cut.count)]
engine.start(have, asked)
os.rename(places[whole.sha256], places[whole.sha256] + ".moved")
engine.moved(whole.sha256, places[whole.sha256] + ".moved")
engine.banned.add(job.others[0].address)
engine.before = (5, 7)
engine.restart()
time.sleep(2)
print(json.dumps({
    "kept": engine.have() == have,
    "asked": list(engine.handle.get_piece_priorities()) == asked,
    "place": engine.handle.torrent_file().files().file_path(whole.file),
    "totals": engine.totals(),
    "admitted": [member.name for member in engine.admitted],
    "hangs": engine.hangs(),
    "errors": engine.errors(),
}))
engine.close()
"""


@pytest.mark.deep
def test_a_restart_keeps_what_is_whole(tmp_path: Path) -> None:
    files = {"a": b"a" * 100_000, "b": b"b" * 200_000}
    made = manifest(files)
    for item in made.files:
        (tmp_path / item.sha256).write_bytes(files[item.path])
    members = [
        {"name": f"n{number}", "address": f"127.0.0.{number + 71}", "port": 28620} for number in range(3)
    ]
    job = {
        "manifest": made.to_json(),
        "root": str(tmp_path),
        "own": "n0",
        "members": members,
        "serve": [],
        "key": "5a" * 32,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [PYTHON, "-c", RESTARTED, str(tmp_path / "job.json")],
        env={"PYTHONPATH": str(ROOT / ".collections"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    place = found.pop("place")
    assert place.endswith(".moved"), place
    assert found == {
        "kept": True, "asked": True, "totals": [5, 7], "admitted": ["n0", "n2"], "hangs": False, "errors": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("states", "hangs"),
    [
        ([], False),
        ([[0, 0], [1, 2]], False),  # free, asked for, being written
        ([[3, 3, 1]], False),
        ([[3, 2]], False),
        ([[1], [3, 3]], True),
        ([[3]], True),
    ],
)
def test_a_piece_that_is_here_and_was_not_compared(states: list[list[int]], hangs: bool) -> None:
    engine: Any = SwarmEngine.__new__(SwarmEngine)
    queue = [{"blocks": [{"state": state} for state in piece]} for piece in states]
    engine.handle = SimpleNamespace(get_download_queue=lambda: queue)
    assert engine.hangs() is hangs


@pytest.mark.parametrize(
    ("amount", "receivers", "of_source", "of_receiver"),
    [
        (75_000_000, 8, 2, 8),  # where 1/200 of the content is next to nothing
        (20_000_000_000, 32, 190, 190),
        (20_000_000_000, 1, 2000, 2000),
        (700_000_000_000, 128, 1668, 1668),
        (0, 1, 2, 8),
    ],
)
def test_what_others_may_ask_for_at_a_time(
    amount: int, receivers: int, of_source: int, of_receiver: int
) -> None:
    files = (ManifestFile("weights", amount, "a" * 64),)
    members = [SwarmMember("source", "10.0.0.1", 1, serves=True)]
    members += [SwarmMember(f"host{number}", "10.0.0.2", 1) for number in range(receivers)]
    depths = [
        queue_depth(SwarmJob(manifest_of("model", files), "/store", own, tuple(members), (), "00"))
        for own in ("source", "host0")
    ]
    assert depths == [of_source, of_receiver]
