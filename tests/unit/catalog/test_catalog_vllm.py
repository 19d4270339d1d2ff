# SPDX-License-Identifier: Apache-2.0
"""The vLLM data: complete, quick to load, and extended by a probe without touching what was there."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.engines.versions import timeline, version_key
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog import load

from catalog import regenerate
from catalog.tools.forks import fork_tables
from catalog.tools.packing import (
    CHECK_DEFAULTS,
    CHECKPOINT_DEFAULTS,
    ENV_DEFAULTS,
    FIELD_DEFAULTS,
    FLAG_DEFAULTS,
    QUANTIZATION_DEFAULTS,
    REGISTRY_DEFAULTS,
    pack,
    read_json,
    unpack,
)
from catalog.tools.probe import MARKER, plain
from catalog.tools.store import Store
from tests.helpers.some import some
from tests.worlds.catalogue import CATALOG, knowledge

NEWEST = knowledge().line.releases[-1]


def test_releases() -> None:
    line = knowledge().line
    assert (line.releases[0], len(line.releases) >= 61) == ("0.6.3", True)
    assert list(line.releases) == sorted(line.releases, key=version_key)


@pytest.mark.parametrize(
    ("asked", "name", "exact"),
    [
        ("0.11.1", "0.11.1", True),
        ("0.6.3.post1", "0.6.3.post1", True),
        ("v0.20.0", "0.20.0", True),
        ("0.18.0+rocm700", "0.18.0", True),
        ("0.9.2.dev364+gb432b7a28.rocm641", "0.9.2", True),  # a fork
        ("0.9.2.dev321+g8fe7fc863.rocm641", "0.9.1", False),
        ("0.11.0rc2", "0.10.2", False),
        ("0.8.5.post2", "0.8.5.post1", False),
        ("99.0.0", NEWEST, False),
    ],
)
def test_versions_find_their_release(asked: str, name: str, exact: bool) -> None:
    found = knowledge().release(asked)
    assert (found.name, found.exact, bool(found.note)) == (name, exact, not exact)


@pytest.mark.parametrize("asked", ["", "main", "0.6", "0.5.4", "latest"])
def test_versions_that_are_none_or_too_old(asked: str) -> None:
    with pytest.raises(ValueError, match=r"version|older"):
        knowledge().release(asked)


def test_every_release_has_what_a_server_needs() -> None:
    for release in some(knowledge().line.releases):
        table = knowledge().flags(release)
        assert len(table.flags) > 100
        for flag in ("model_tag", "--max-model-len", "--tensor-parallel-size", "--kv-cache-dtype", "--port"):
            assert flag in table.flags, f"{release} lacks {flag}"
        names = [
            name for flag in table.flags.values() for name in (flag.name, *flag.aliases, *flag.negatives)
        ]
        assert len(names) == len(set(names)), f"{release} has an option twice"


def test_defaults_that_changed() -> None:
    def default(release: str, flag: str) -> Any:
        return knowledge().flags(release).flags[flag].default

    assert default("0.19.1", "--gpu-memory-utilization") == 0.9
    assert default("0.20.0", "--gpu-memory-utilization") == 0.92
    assert default("0.13.0", "--async-scheduling") is False
    assert default("0.14.0", "--async-scheduling") is None
    assert knowledge().env("0.32.0").variables["VLLM_ROCM_USE_AITER_FP8BMM"].default is True
    assert knowledge().env("0.33.0").variables["VLLM_ROCM_USE_AITER_FP8BMM"].default is False


def test_everything_that_ended_has_a_replacement_or_a_word_about_it() -> None:
    found = knowledge()
    flags = read_json(CATALOG / "vllm" / "flags.json")["flags"]
    variables = read_json(CATALOG / "vllm" / "env.json")["variables"]
    for table, known in ((flags, found.replacements.flags), (variables, found.replacements.env)):
        ended = {name for name, entry in table.items() if entry["present"][-1][1] is not None}
        assert sorted(ended - set(known)) == []
        assert sorted(set(known) - set(table)) == []


def test_replacements_exist() -> None:
    found = knowledge()
    flags = read_json(CATALOG / "vllm" / "flags.json")["flags"]
    variables = read_json(CATALOG / "vllm" / "env.json")["variables"]
    for entry in some((*found.replacements.flags.values(), *found.replacements.env.values())):
        assert all(name in flags or name in variables for name in entry.use), entry.name
    for flag, _ in some(found.replacements.choices):
        assert flag in flags


def test_what_a_plan_needs_of_one_release_takes_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: what is read, once each, and calls of Python functions, which are some 36,000."""
    read: list[str] = []
    calls = 0

    def noting(reader: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def note(path: Path) -> Any:
            read.append(path.name)
            return reader(path)

        return note

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    for name in ("read_json", "read_yaml"):
        monkeypatch.setattr(load, name, noting(getattr(load, name)))
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        load.Knowledge(CATALOG).book("0.11.2")
    finally:
        sys.setprofile(before)
    assert sorted(read) == [
        "configs.json", "env.json", "flags.json", "parser.yml", "replacements.yml", "runtime_env.yml",
        "settings.yml", "versions.json",
    ]  # fmt: skip
    assert 1000 < calls < 80_000


@pytest.mark.parametrize(
    ("name", "table", "inner", "defaults"),
    [
        ("flags", "flags", "", FLAG_DEFAULTS),
        ("env", "variables", "", ENV_DEFAULTS),
        ("configs", "classes", "fields", FIELD_DEFAULTS),
        ("bench", "commands", "flags", FLAG_DEFAULTS),
        ("quantization", "methods", "", QUANTIZATION_DEFAULTS),
        ("checkpoints", "checkpoints", "", CHECKPOINT_DEFAULTS),
        ("architectures", "architectures", "", {}),
        ("checks", "checks", "", CHECK_DEFAULTS),
        ("registries", "names", "", REGISTRY_DEFAULTS),
    ],
)
def test_packing_loses_nothing(name: str, table: str, inner: str, defaults: dict[str, Any]) -> None:
    """Unpacked release by release and packed again, the generated files come out as they are."""
    line = knowledge().line
    data = read_json(CATALOG / "vllm" / f"{name}.json")
    assert data["defaults"] == defaults
    for packed in [item[inner] for item in data[table].values()] if inner else [data[table]]:
        again = pack(line, {r: unpack(line, packed, r, defaults) for r in line.releases}, defaults)
        assert again == packed


def probe_of(root: Path, release: str) -> dict[str, Any]:
    """What a probe of a release would say, had it what the catalogue has of it."""
    line = Store(root).line()
    bench = read_json(root / "bench.json")["commands"]
    return {
        "probe": 2,
        "version": release,
        "platform": "rocm",
        "python": "3.12.0",
        "torch": "2.13.0",
        "rocm": "10.0",
        "serve": unpack(line, read_json(root / "flags.json")["flags"], release, FLAG_DEFAULTS),
        "env": unpack(line, read_json(root / "env.json")["variables"], release, ENV_DEFAULTS),
        "configs": {
            name: {"flags": item["flags"], "fields": fields}
            for name, item in read_json(root / "configs.json")["classes"].items()
            if (fields := unpack(line, item["fields"], release, FIELD_DEFAULTS))
        },
        "quantization": unpack(
            line, read_json(root / "quantization.json")["methods"], release, QUANTIZATION_DEFAULTS
        ),
        "checkpoints": unpack(
            line, read_json(root / "checkpoints.json")["checkpoints"], release, CHECKPOINT_DEFAULTS
        ),
        "architectures": unpack(line, read_json(root / "architectures.json")["architectures"], release, {}),
        "checks": unpack(line, read_json(root / "checks.json")["checks"], release, CHECK_DEFAULTS),
        "registries": unpack(line, read_json(root / "registries.json")["names"], release, REGISTRY_DEFAULTS),
        "bench": {
            name: {
                "engine_args": item["engine_args"],
                "flags": unpack(line, item["flags"], release, FLAG_DEFAULTS),
            }
            for name, item in bench.items()
            if name.startswith("vllm ") and line.within(item["present"], line.order[release])
        },
    }


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(CATALOG / "vllm", tmp_path / "vllm")
    return tmp_path


def texts(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(root.iterdir()) if path.is_file()}


def test_the_files_are_as_the_tool_writes_them(copied: Path) -> None:
    """Writing the newest release again changes no byte but its own line in versions.json."""
    before = texts(copied / "vllm")
    Store(copied / "vllm").put(probe_of(copied / "vllm", NEWEST), "again")
    after = texts(copied / "vllm")
    assert {name for name in before if before[name] != after[name]} == {"versions.json"}


def test_a_new_release_adds_only_what_is_new(copied: Path) -> None:
    root = copied / "vllm"
    probe = probe_of(root, NEWEST)
    probe = {**copy.deepcopy(probe), "version": "99.0.0"}
    probe["serve"]["--new-thing"] = {"kind": "switch", "default": False}
    del probe["serve"]["--enforce-eager"]
    probe["serve"]["--port"]["default"] = 9000
    probe["env"]["VLLM_ROCM_NEW"] = {"type": "flag", "default": True}
    probe["bench"]["vllm bench new"] = {"engine_args": False, "flags": {"--x": {"type": "int"}}}
    before = texts(root)
    Store(root).put(probe, "test")
    after = texts(root)
    for name, text in before.items():
        old, new = text.splitlines(), after[name].splitlines()
        gone = [
            line for line in old if line not in new and line.rstrip(",") not in [x.rstrip(",") for x in new]
        ]
        assert len(gone) <= {"flags.json": 2}.get(name, 0), f"{name}: {gone}"
    table = load.Knowledge(copied).flags("99.0.0")
    assert table.flags["--new-thing"].kind == "switch"
    assert "--enforce-eager" not in table.flags
    assert table.flags["--port"].default == 9000
    assert load.Knowledge(copied).flags(NEWEST).flags["--port"].default == 8000
    assert Store(root).unexplained("99.0.0", {"flags": {}, "env": {}}) == ["--enforce-eager"]
    assert list(Store(root).compare(probe)) == []


def test_a_release_put_in_the_middle_leaves_its_neighbours_alone(copied: Path) -> None:
    root = copied / "vllm"
    line = Store(root).line()
    probe = {**probe_of(root, "0.10.2"), "version": "0.10.3"}
    probe["serve"]["--only-here"] = {"kind": "switch"}
    before = {r: probe_of(root, r) for r in ("0.10.2", "0.11.0")}
    Store(root).put(probe, "test")
    assert {r: probe_of(root, r) for r in ("0.10.2", "0.11.0")} == before
    flags = read_json(root / "flags.json")["flags"]
    assert flags["--only-here"]["present"] == [["0.10.3", "0.11.0"]]
    assert len(Store(root).line().releases) == len(line.releases) + 1


def run(copied: Path, probe: dict[str, Any], tmp_path: Path, *options: str) -> int:
    """regenerate.py with a Python that prints this probe."""
    python = tmp_path / "python"
    answer = tmp_path / "answer"
    answer.write_text("a warning\n" + MARKER + json.dumps(probe) + "\n")
    python.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {answer}\n")
    python.chmod(0o755)
    return regenerate.main(["--installed", "--python", str(python), "--catalog", str(copied), *options])


def test_regenerate_reports_and_writes(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = probe_of(copied / "vllm", NEWEST)
    assert run(copied, probe, tmp_path, "--check") == 0
    probe["serve"]["--port"]["default"] = 9000
    assert run(copied, probe, tmp_path, "--check") == 1
    assert "serve --port: default is 8000 here, 9000 in this vLLM" in capsys.readouterr().out
    assert run(copied, probe, tmp_path) == 0
    assert load.Knowledge(copied).flags(NEWEST).flags["--port"].default == 9000


def test_regenerate_keeps_what_was_taken_on_a_gpu(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {**probe_of(copied / "vllm", NEWEST), "platform": "cpu"}
    before = texts(copied / "vllm")
    assert run(copied, probe, tmp_path) == 2
    assert "nothing was written" in capsys.readouterr().err
    assert texts(copied / "vllm") == before
    assert run(copied, probe, tmp_path, "--force") == 0


def test_regenerate_says_what_went_wrong(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--installed", "--python", "/nowhere/python", "--catalog", str(copied)]
    assert regenerate.main(arguments) == 2
    assert "/nowhere/python cannot be run" in capsys.readouterr().err
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\necho no vllm here >&2\nexit 3\n")
    python.chmod(0o755)
    assert regenerate.main(["--installed", "--python", str(python), "--catalog", str(copied)]) == 2
    assert "no vllm here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("inf"), "inf"),
        ({1: {"b"}}, {"1": ["b"]}),
        ("bench-0b6d0dce-", "bench-<random>-"),
        (str(Path.home() / ".cache/vllm"), "~/.cache/vllm"),
        (object(), None),
    ],
)
def test_defaults_are_the_same_on_every_machine(value: object, text: object) -> None:
    assert plain(value) == text


def test_a_timeline_is_in_order() -> None:
    with pytest.raises(ValueError, match="in order"):
        timeline(["0.2.0", "0.1.0"])


def test_hand_written_files_are_not_touched(copied: Path) -> None:
    Store(copied / "vllm").put({**probe_of(copied / "vllm", NEWEST), "version": "99.0.0"}, "test")
    for path in some((CATALOG / "vllm").glob("*.yml")):
        assert (copied / "vllm" / path.name).read_text() == path.read_text()
        assert yaml.safe_load(path.read_text())["schema"] == 1


def test_what_a_fork_has_otherwise_is_found() -> None:
    """Names on one side, changed defaults; not what depends on how a release was asked."""
    store = Store(CATALOG / "vllm")
    line, release = store.line(), "0.9.2"
    serve = unpack(line, read_json(store.root / "flags.json")["flags"], release, FLAG_DEFAULTS)
    env = unpack(line, read_json(store.root / "env.json")["variables"], release, ENV_DEFAULTS)
    same = {"serve": serve, "env": env, "configs": {}, "bench": {}}
    untouched = fork_tables(store, same, release)
    assert (untouched["flags"], untouched["env"], untouched["bench"]) == ({}, {}, {})
    serve.pop("--swap-space")
    serve["--own"] = {**FLAG_DEFAULTS, "type": "int", "default": 3}
    serve["--dtype"] = {**serve["--dtype"], "deprecated": True}
    env["VLLM_USE_V1"] = {**env["VLLM_USE_V1"], "type": "text", "default": False}
    found = fork_tables(store, same, release)
    assert found["flags"] == {"--own": {"type": "int", "default": 3}, "--swap-space": None}
    assert found["env"] == {"VLLM_USE_V1": {"default": False}}
