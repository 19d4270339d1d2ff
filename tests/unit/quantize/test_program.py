# SPDX-License-Identifier: Apache-2.0
"""The program in the container, without its backends: texts of calibration data, what an output keeps, its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.probe_output import REPORT
from ansible_collections.instinct.fleet.plugins.module_utils.programs import quantize as program
from ansible_collections.instinct.fleet.plugins.module_utils.quantize.tensor_check import BadCheckpoint

from tests.worlds.quantize_world import DATA, quantized_tensors, write_model, write_tensors


def job(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    scheme = DATA["schemes"]["ptpc_fp8"]
    return {
        "backend": "quark", "source": str(tmp_path / "source"), "output": str(tmp_path / "output"),
        "exclude": ["lm_head"],
        "tensors": scheme["tensors"], "relative_error": scheme["relative_error"], "quant_method": "quark",
        "kv_layers": [], "packed": False, "remote_code": False, **changes,
    }  # fmt: skip


def backend(given: dict[str, Any]) -> dict[str, str]:
    """Stands for Quark: it copies too much, as file-to-file does."""
    output = Path(given["output"])
    (output / "original").mkdir(parents=True)
    (output / "original/params.pth").write_bytes(b"a pickle")
    (output / "config.json").write_text('{"quantization_config": {"quant_method": "quark"}}')
    (output / "modeling.py").write_text("import os")
    write_tensors(output / "model.safetensors", quantized_tensors("ptpc_fp8"))
    return {"amd-quark": "0.13"}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(program.BACKENDS, "quark", backend)
    monkeypatch.setattr(
        program, "value_errors", lambda _job, _before, _after, names: dict.fromkeys(names, 0.02)
    )
    path = write_model(tmp_path / "source")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    (path / "pytorch_model.bin").write_bytes(b"a pickle")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / ".gitattributes").write_text("")
    return path


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, Any]:
    (tmp_path / "job.json").write_text(json.dumps(job(tmp_path, **changes)))
    code = program.main(["", str(tmp_path / "job.json")])
    last = capsys.readouterr().out.splitlines()[-1]
    report: dict[str, Any] = json.loads(last.removeprefix(REPORT))
    assert code == (0 if report["ok"] else 1)
    return report


def test_the_output_has_tokenizer_template_and_licence_and_no_code_or_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path, capsys)
    assert (report["ok"], report["quantized"], report["versions"]) == (True, 8, {"amd-quark": "0.13"})
    names = {path.name for path in (tmp_path / "output").iterdir()}
    assert names == {"LICENSE", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"}


def test_code_stays_where_the_operator_trusts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, capsys, remote_code=True)["ok"]
    assert (tmp_path / "output/modeling.py").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "compressed-tensors"}, "has the quant_method 'quark'"),
        ({"kv_layers": ["*k_proj"]}, "the scale of the KV cache"),
        ({"relative_error": 0.01}, "is off by 2.0% of its source"),
        ({"exclude": ["lm_head", "*q_proj"]}, "is excluded, but was changed"),
    ],
)
def test_an_output_that_is_not_what_was_promised_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    report = run(tmp_path, capsys, **changes)
    assert (report["ok"], report["kind"]) == (False, "check")
    assert words in report["error"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("HIP out of memory. Tried to"), "memory"),
        (ValueError("x"), "job"),
    ],
)
def test_a_backend_that_fails_is_reported_with_the_kind(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: str,
) -> None:
    def fails(_job: dict[str, Any]) -> dict[str, str]:
        raise error

    monkeypatch.setitem(program.BACKENDS, "quark", fails)
    assert run(tmp_path, capsys)["kind"] == kind


def test_texts_come_from_all_usual_files_in_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a.txt").write_text("one")
    (data / "b.jsonl").write_text('{"text": "two"}\n\n{"content": "three"}\n')
    (data / "c.json").write_text(
        json.dumps(["four", {"messages": [{"content": "five"}, {"content": "six"}]}])
    )
    (data / "sub/d.txt").write_text("seven")
    assert list(program.texts(str(data))) == ["one", "two", "three", "four", "five\nsix", "seven"]
    (data / "e.jsonl").write_text('{"label": 3}\n')
    with pytest.raises(BadCheckpoint, match=r"e\.jsonl of the calibration data has a row without a text"):
        list(program.texts(str(data)))
