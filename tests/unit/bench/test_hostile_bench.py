# SPDX-License-Identifier: Apache-2.0
"""The container of a benchmark writes into its directory as root: nothing there is followed, or believed unseen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.modules import vllm_bench

from tests.helpers.hostile_tree import outside_of, state
from tests.worlds.bench_world import IMAGE, args, client, instance, job, result_dir
from tests.worlds.fake_docker import FakeContainer, FakeDocker

RECORD = "0.1.json"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        fake.add_container("instinct-llama-0", {"Image": IMAGE})
        yield fake


def put(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def altered(**changes: Any) -> Callable[[Path, Path], None]:
    def alter(place: Path, _outside: Path) -> None:
        put(place / RECORD, json.dumps({**json.loads((place / RECORD).read_text()), **changes}))

    return alter


def without(key: str) -> Callable[[Path, Path], None]:
    def alter(place: Path, _outside: Path) -> None:
        data = json.loads((place / RECORD).read_text())
        del data[key]
        put(place / RECORD, json.dumps(data))

    return alter


RECORDS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda place, outside: link(place / RECORD, outside / "secret"),
    "a link to a directory": lambda place, outside: link(place / RECORD, outside / "directory"),
    "a pipe": lambda place, _outside: pipe(place / RECORD),
    "no JSON": lambda place, _outside: put(place / RECORD, "{"),
    "a list": lambda place, _outside: put(place / RECORD, "[]"),
    "nested": lambda place, _outside: put(place / RECORD, "[" * 100000),
    "without its log": without("log"),
    "with another type": altered(block="1"),
    "with errors that are a number": altered(
        result={"completed": 5, "failed": 5, "num_prompts": 10, "errors": 5}
    ),
    "with lists that are none": altered(result={"completed": 5, "ttfts": [1], "itls": [1]}),
    "of no cell": lambda place, _outside: (place / RECORD).rename(place / "7.1.json") and None,
}


def left_by(leave: Callable[[Path, Path], None], outside: Path) -> Callable[[FakeContainer], int]:
    """A benchmark that works, and then leaves something."""
    works = client()

    def program(container: FakeContainer) -> int:
        code = works(container)
        leave(result_dir(container), outside)
        return code

    return program


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", RECORDS)
def test_what_is_no_record_is_named_and_measured_again(
    what: str, docker: FakeDocker, run_module: Any, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)
    docker.programs["instinct-bench-"] = left_by(RECORDS[what], outside)
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert failed
    assert "Internal error" not in result["msg"]
    name = "7.1.json" if what == "of no cell" else RECORD
    assert f"/llama-0-serve/{name} " in result["msg"], result["msg"]
    assert "$6$secret" not in json.dumps(result)
    docker.programs["instinct-bench-"] = client()
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert not failed, result["msg"]
    assert state(outside) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
@pytest.mark.parametrize("name", ["output.log", "job.json", "client.env", "client.pem"])
def test_files_of_the_host_are_neither_read_nor_written_through_what_is_left(
    name: str, kind: str, docker: FakeDocker, run_module: Any, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)

    def leave(place: Path, _outside: Path) -> None:
        if kind == "link":
            link(place / name, outside / "secret")
        elif kind == "pipe":
            pipe(place / name)
        else:
            (place / name).unlink(missing_ok=True)
            (place / name).mkdir()
            (place / name / "deep").symlink_to(outside / "directory")

    def fails(container: FakeContainer) -> int:
        leave(result_dir(container), outside)
        return 1

    endpoint = {"url": "https://lb:8443", "key": "sk-key-Zq81-secret", "ca": "CERTIFICATE"}
    given = args(docker, instance(endpoint=endpoint), work=job(blocks=2, most=2))
    for program in (fails, left_by(leave, outside), client()):
        docker.programs["instinct-bench-"] = program
        result, failed = run_module(vllm_bench.main, given)
        assert failed is (program is fails), result.get("msg")
        assert "Internal error" not in result.get("msg", "")
        assert "$6$secret" not in json.dumps(result)
        assert state(outside) == before
    (place,) = (tmp_path / "var/bench").glob("*/*")
    assert not {"client.env", "client.pem"} & set(os.listdir(place))


@pytest.mark.parametrize(
    "change", [{"seed": "7"}, {"seed": None}, {"order": []}, {"order": [["x"]]}, {"blocks": 0}, {"cells": []}]
)
def test_a_job_that_a_container_altered_is_begun_anew(
    change: dict[str, Any], docker: FakeDocker, run_module: Any, tmp_path: Path
) -> None:
    def leave(place: Path, _outside: Path) -> None:
        put(place / "job.json", json.dumps({**json.loads((place / "job.json").read_text()), **change}))

    docker.programs["instinct-bench-"] = left_by(leave, tmp_path)
    assert not run_module(vllm_bench.main, args(docker, instance()))[1]
    docker.programs["instinct-bench-"] = client()
    result, failed = run_module(vllm_bench.main, args(docker, instance()))
    assert not failed, result["msg"]
    assert result["benchmarks"][0]["runs"][0]["seed"] == 7


def test_the_whole_directory_is_removed_without_leaving_it(
    docker: FakeDocker, run_module: Any, tmp_path: Path
) -> None:
    outside = outside_of(tmp_path)
    before = state(outside)

    def leave(place: Path, _outside: Path) -> None:
        shutil.rmtree(place / "deep", ignore_errors=True)
        (place / "deep").mkdir()
        (place / "deep/link").symlink_to(outside / "directory")

    docker.programs["instinct-bench-"] = left_by(leave, outside)
    run_module(vllm_bench.main, args(docker, instance()))
    run_module(vllm_bench.main, args(docker, instance(spec_hash="other")))
    assert state(outside) == before
