# SPDX-License-Identifier: Apache-2.0
"""Write the repositories that the lab's hub serves: `python -m lab.hub.make DIR`.

The same call writes the same bytes and the same commit ids.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lab import models

OPEN = "lab/tiny-llama"
GATED = "lab/tiny-llama-gated"
HUGE = "lab/huge-llama"

# Access tokens of the lab, made up: one has access to the gated repository, the other has not.
TOKEN = "hf_lab_Qk7Zr2Xw9Tn4Vb8Lm3Jp6"
STRANGER_TOKEN = "hf_lab_Wd5Gh1Rs8Yc3Ke6Nf9Ja2"

_FIRST_DATE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Commit:
    """The whole content of a repository at one commit.

    `declared` files are listed with this size (bytes) but do not exist: a model too large for any disk costs nothing.
    `tags` point at this commit; the branch main points at the last one.
    """

    title: str
    files: dict[str, bytes]
    tags: Sequence[str] = ()
    declared: dict[str, int] = field(default_factory=dict)


def write_repo(
    root: Path,
    name: str,
    commits: Sequence[Commit],
    gated: bool = False,
    card: dict[str, Any] | None = None,
    security: dict[str, Any] | None = None,
) -> list[str]:
    """Write (or rewrite) one repository; return its commit ids, oldest first.

    card: the metadata of its card. security: the hub's scan, {"scansDone": …, "filesWithIssues": […]}.
    """
    directory = root / name
    ids: list[str] = []
    tags: dict[str, str] = {}
    for index, commit in enumerate(commits):
        parent = ids[-1] if ids else None
        ids.append(_commit_id(commit, parent))
        tags.update(dict.fromkeys(commit.tags, ids[-1]))
        date = (_FIRST_DATE + timedelta(days=index)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        _write_commit(
            directory / "commits" / ids[-1], commit, {"title": commit.title, "date": date, "parent": parent}
        )
    about: dict[str, Any] = {"gated": "manual" if gated else False}
    about |= {"card": card} if card else {}
    _write_json(directory / "meta.json", {**about, **({"security": security} if security else {})})
    _write_json(directory / "refs.json", {"branches": {"main": ids[-1]}, "tags": tags})
    return ids


def _commit_id(commit: Commit, parent: str | None) -> str:
    digest = hashlib.sha1(f"{parent}\n{commit.title}\n".encode())
    for path, content in sorted(commit.files.items()):
        digest.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    for path, size in sorted(commit.declared.items()):
        digest.update(f"{path} declared {size}\n".encode())
    return digest.hexdigest()


def _write_commit(directory: Path, commit: Commit, about: dict[str, Any]) -> None:
    if directory.exists():
        return
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for path, content in commit.files.items():
        file = partial / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    if commit.declared:
        declared = {
            path: {"size": size, "sha256": hashlib.sha256(path.encode()).hexdigest()}
            for path, size in commit.declared.items()
        }
        _write_json(partial / "declared.json", declared)
    _write_json(partial / "commit.json", about)
    partial.rename(directory)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def make(root: Path) -> dict[str, list[str]]:
    """Write the lab's three repositories and its tokens; return the commit ids of each.

    lab/tiny-llama is open and lab/tiny-llama-gated gated, with the tags v1 and v2 = main; lab/huge-llama is listed as
    40 TB, to show what happens if the disk is too small.
    """
    both = [
        Commit("Add the model", models.tiny_llama(0), ["v1"]),
        Commit("Train once more", models.tiny_llama(1), ["v2"]),
    ]
    small = {
        path: data
        for path, data in models.tiny_llama().items()
        if not path.endswith((".safetensors", ".pth"))
    }
    shards = {f"model-{n:05d}-of-00008.safetensors": 5 * 10**12 for n in range(1, 9)}
    written = {
        OPEN: write_repo(root, OPEN, both),
        GATED: write_repo(root, GATED, both, gated=True),
        HUGE: write_repo(root, HUGE, [Commit("Add the model", small, declared=shards)]),
    }
    users = {TOKEN: {"name": "lab", "gated": [GATED]}, STRANGER_TOKEN: {"name": "stranger", "gated": []}}
    _write_json(root / "hub.json", {"tokens": users})
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the repositories that the lab's hub serves.")
    parser.add_argument("directory", type=Path)
    for repo, commit_ids in make(parser.parse_args().directory).items():
        print(repo, *commit_ids)
