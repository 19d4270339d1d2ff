# SPDX-License-Identifier: Apache-2.0
"""Parsers of rocm-smi's and amd-smi's output, over captured samples and over malformed text."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition import (
    smi_modes,
    smi_output,
    smi_set_output,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_modes import Modes
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_output import SmiError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_set_output import (
    BROKEN,
    BUSY,
    DONE,
    REFUSED,
)
from hypothesis import given
from hypothesis import strategies as st

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "rocm_samples"


def sample(name: str, suffix: str = ".txt") -> str:
    """A captured output; empty when the tool printed nothing there."""
    path = SAMPLES / f"{name}{suffix}"
    return path.read_text() if path.exists() else ""


def verdicts(result: smi_set_output.SetResult) -> dict[int, str]:
    return {index: verdict for index, (verdict, _) in result.verdicts.items()}


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("rocmsmi_6.0_set_compute_ok", "CPX", dict.fromkeys(range(2), DONE)),
        ("rocmsmi_6.0_set_compute_busy", "CPX", dict.fromkeys(range(2), BUSY)),
        ("rocmsmi_7.0_set_compute_ok", "CPX", dict.fromkeys(range(8), DONE)),
        ("rocmsmi_7.0_set_compute_one_device", "DPX", {3: DONE}),
        ("rocmsmi_7.0_set_compute_busy", "CPX", dict.fromkeys(range(2), BUSY)),
        ("rocmsmi_7.0_set_compute_busy_loglevel_error", "CPX", dict.fromkeys(range(2), BUSY)),
        ("rocmsmi_7.0_set_compute_permission", "CPX", dict.fromkeys(range(2), REFUSED)),
        ("rocmsmi_7.0_set_compute_unavailable", "TPX", dict.fromkeys(range(2), REFUSED)),
        ("rocmsmi_7.0_set_compute_einval", "SPX", dict.fromkeys(range(2), REFUSED)),
        ("rocmsmi_7.0_set_compute_notsupported", "CPX", dict.fromkeys(range(2), BROKEN)),
        ("rocmsmi_7.0_set_compute_unknown", "SPX", {0: BROKEN}),
    ],
)
def test_rocm_smi_set(name: str, mode: str, expected: dict[int, str]) -> None:
    result = smi_set_output.rocm_smi_set(sample(name), sample(name, ".stderr.txt"), mode)
    assert verdicts(result) == expected
    assert result.failure is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rocmsmi_7.0_set_compute_badchoice", "invalid choice: 'XPX'"),
        ("rocmsmi_7.0_removed_reset_option", "unrecognized arguments"),
        ("rocmsmi_7.0_no_such_device", "No such device card9"),
        ("rocmsmi_7.0_set_compute_json", "No JSON data to report"),
        ("rocmsmi_7.0_set_compute_busy_json", "No JSON data to report"),
        ("rocmsmi_7.0_show_compute", "Current Compute Partition"),
    ],
)
def test_rocm_smi_set_that_did_not_happen(name: str, says: str) -> None:
    result = smi_set_output.rocm_smi_set(sample(name), sample(name, ".stderr.txt"), "CPX")
    assert not result.verdicts
    assert result.failure is not None
    assert result.failure[0] == BROKEN
    assert says in result.failure[1]


def test_rocm_smi_success_of_another_mode_is_no_success() -> None:
    result = smi_set_output.rocm_smi_set(sample("rocmsmi_7.0_set_compute_ok"), "", "SPX")
    assert DONE not in verdicts(result).values()
    assert result.failure is not None


def test_rocm_smi_contradiction_is_not_understood() -> None:
    text = sample("rocmsmi_7.0_set_compute_busy").replace("GPU[1]", "GPU[0]", 1)
    text = text.replace("Device is currently busy, try again later", "Permission denied", 1)
    result = smi_set_output.rocm_smi_set(text, "", "CPX")
    assert result.failure == (BROKEN, "rocm-smi said two things about device 0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (sample("rocmsmi_6.0_show_compute"), dict.fromkeys(range(8), Modes("SPX", None))),
        (sample("rocmsmi_6.0_show_mem"), dict.fromkeys(range(8), Modes(None, "NPS1"))),
        (sample("rocmsmi_7.0_show_compute"), dict.fromkeys(range(8), Modes("SPX", None))),
        (sample("rocmsmi_7.0_show_compute_cpx_json"), {0: Modes("CPX", "NPS4")}),
        (
            sample("rocmsmi_7.0_show_compute_cpx_secondaries_notsupported"),
            {0: Modes("CPX", None), **dict.fromkeys((1, 2, 3), Modes(None, None))},
        ),
    ],
)
def test_rocm_smi_modes(text: str, expected: dict[int, Modes]) -> None:
    assert smi_modes.rocm_smi_modes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        sample("rocmsmi_7.0_show_error_other"),
        sample("rocmsmi_7.0_show_notsupported_json"),
        sample("rocmsmi_7.0_show_compute").replace("SPX", "XPX", 1),
        sample("rocmsmi_7.0_show_compute")[:-200],
        '{"card0": {"Compute Partition": "SPX"}',
        '{"card0": "SPX"}',
        '{"system": {"Compute Partition": "SPX"}}',
        '{"card0": {"Compute Partition": 1}}',
        '{"card0": {}} {"card1": {}}',
    ],
)
def test_rocm_smi_modes_that_are_none(text: str) -> None:
    with pytest.raises(SmiError):
        smi_modes.rocm_smi_modes(text)


@pytest.mark.parametrize(
    ("name", "mode", "expected", "failure"),
    [
        ("amdsmi_6.3dev_set_compute_ok", "CPX", {0: DONE, 1: DONE}, None),
        ("amdsmi_6.4_doc_set_compute_cpx", "CPX", dict.fromkeys(range(8), DONE), None),
        ("amdsmi_6.3dev_set_compute_busy", "CPX", {0: BUSY}, BUSY),
        ("amdsmi_6.4_doc_err_busy", "SPX", {0: BUSY}, BUSY),
        ("amdsmi_6.3dev_set_compute_noperm", "CPX", {}, REFUSED),
        ("amdsmi_6.4_doc_err_noperm", "SPX", {}, REFUSED),
        ("amdsmi_6.4_doc_err_setting_unavailable", "SPX", {0: REFUSED}, REFUSED),
        ("amdsmi_6.3dev_set_bad_choice", "CPX", {}, BROKEN),
        ("amdsmi_6.3dev_set_compute_in_guest", "CPX", {}, BROKEN),
        ("amdsmi_6.3dev_bad_gpu", "CPX", {}, BROKEN),
        ("amdsmi_6.3dev_bad_command", "CPX", {}, BROKEN),
        ("amdsmi_6.3dev_set_mem_notsupp", "CPX", {0: BROKEN}, BROKEN),
        ("nothing at all", "CPX", {}, BROKEN),
        # a success of another mode, or of another command, is none
        ("amdsmi_6.4_doc_set_compute_cpx", "SPX", dict.fromkeys(range(8), BROKEN), None),
        ("amdsmi_6.3dev_set_mem_ok", "CPX", {0: BROKEN, 1: BROKEN}, None),
    ],
)
def test_amd_smi_set(name: str, mode: str, expected: dict[int, str], failure: str | None) -> None:
    result = smi_set_output.amd_smi_set(sample(name), sample(name, ".stderr.txt"), mode)
    assert verdicts(result) == expected
    assert (result.failure[0] if result.failure else None) == failure


def test_amd_smi_set_of_7_goes_on_after_a_failing_gpu() -> None:
    text = (
        "GPU: 0\n    ACCELERATOR_PARTITION: Successfully set accelerator partition to CPX (profile #3)\n\n"
        "GPU: 1\n    ACCELERATOR_PARTITION: [AMDSMI_STATUS_BUSY] Unable to set accelerator partition to CPX "
        "(profile #3)\n\n\n"
    )
    result = smi_set_output.amd_smi_set(text, "", "CPX")
    assert verdicts(result) == {0: DONE, 1: BUSY}


def test_amd_smi_warning_before_success_is_kept() -> None:
    text = "WARNING: User is missing the following required groups: render\n" + sample(
        "amdsmi_6.4_doc_set_compute_cpx"
    )
    result = smi_set_output.amd_smi_set(text, "", "CPX")
    assert set(verdicts(result).values()) == {DONE}
    assert result.failure == (BROKEN, "WARNING: User is missing the following required groups: render")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (sample("amdsmi_6.3dev_static_partition"), dict.fromkeys(range(2), Modes("CPX", "NPS4"))),
        (
            sample("amdsmi_6.3dev_static_partition_json", ".json"),
            dict.fromkeys(range(2), Modes("CPX", "NPS4")),
        ),
        (sample("amdsmi_6.3dev_partition_json", ".json"), dict.fromkeys(range(2), Modes(None, "NPS1"))),
        (
            sample("amdsmi_6.4_doc_static_partition_cpx_nps4_64gpu"),
            dict.fromkeys(range(64), Modes("CPX", "NPS4")),
        ),
        # 7.2: an object around the list; a warning before it
        (
            "WARNING: [groups] render\n"
            + json.dumps(
                {
                    "gpu_data": [
                        {"gpu": 0, "partition": {"compute_partition": "SPX", "memory_partition": "N/A"}}
                    ]
                }
            ),
            {0: Modes("SPX", None)},
        ),
        (
            '[{"gpu_id": 0, "memory": "NPS1", "accelerator_type": "SPX*"}]\n[{"gpu_id": 0}]',
            {0: Modes("SPX", "NPS1")},
        ),
    ],
)
def test_amd_smi_modes(text: str, expected: dict[int, Modes]) -> None:
    assert smi_modes.amd_smi_modes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        sample("amdsmi_6.3dev_bad_gpu_json", ".json"),
        sample("amdsmi_6.3dev_bad_gpu"),
        sample("amdsmi_6.3dev_list"),
        sample("amdsmi_6.3dev_list_json", ".json"),
        sample("amdsmi_6.3dev_static_partition_json", ".json")[:-2],
        sample("amdsmi_6.3dev_static_partition_json", ".json").replace("CPX", "cpx"),
        sample("amdsmi_6.3dev_static_partition").replace("CPX", "Traceback"),
        sample("amdsmi_6.3dev_static_partition").replace("GPU: 1", "GPU: 0"),
        sample("amdsmi_6.3dev_static_partition_json", ".json") + "OSError: [Errno 24] Too many open files",
        '[{"gpu": true, "partition": {"compute_partition": "SPX"}}]',
        "",
    ],
)
def test_amd_smi_modes_that_are_none(text: str) -> None:
    with pytest.raises(SmiError):
        smi_modes.amd_smi_modes(text)


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("amdsmi_6.3dev_partition_json", 3),
        ("amdsmi_6.3dev_list_json", 1),
        ("amdsmi_6.3dev_list_cpx_json", 1),
        ("amdsmi_6.3dev_process_json", 1),
        ("amdsmi_6.3dev_process_none_json", 1),
        ("amdsmi_6.3dev_version_json", 1),
        ("amdsmi_6.3dev_set_compute_ok_json", 1),
        ("amdsmi_6.3dev_static_partition_json", 1),
    ],
)
def test_json_documents(name: str, documents: int) -> None:
    text = sample(name, ".json")
    assert len(smi_modes.json_documents(text)) == documents
    assert smi_modes.json_documents(f"[WARNING] not in group render\n\n{text}") == smi_modes.json_documents(
        text
    )


def test_amd_smi_records_of_a_cpx_list() -> None:
    records = smi_modes.amd_smi_records(sample("amdsmi_6.3dev_list_cpx_json", ".json"))
    assert [(record["gpu"], record["partition_id"]) for record in records] == [(n, n) for n in range(8)]


@pytest.mark.parametrize(
    ("name", "gpus", "key", "value"),
    [
        ("amdsmi_6.3dev_list", 2, "BDF", "0000:0c:00.0"),
        ("amdsmi_7.0_list_one_gpu", 1, "KFD_ID", "31896"),
        ("amdsmi_6.3dev_process", 1, "PROCESS_INFO.MEMORY_USAGE.VRAM_MEM", "169.0 GB"),
        ("amdsmi_6.3dev_process_none", 2, "PROCESS_INFO", "No running processes detected"),
    ],
)
def test_amd_smi_blocks(name: str, gpus: int, key: str, value: str) -> None:
    blocks, others = smi_output.amd_smi_blocks(sample(name))
    assert not others
    assert len(blocks) == gpus
    assert blocks[0][key] == value


def test_amd_smi_blocks_keep_what_is_around_them() -> None:
    blocks, others = smi_output.amd_smi_blocks(sample("amdsmi_6.4_doc_set_memory_nps4_toomanyfiles"))
    assert list(blocks) == list(range(15))
    assert others[-1] == "OSError: [Errno 24] Too many open files"


# --- malformed text never yields a mode -------------------------------------------------------------------

SHOWN = [sample("rocmsmi_7.0_show_compute"), sample("rocmsmi_7.0_show_compute_cpx_json")]
STATIC = [
    sample("amdsmi_6.3dev_static_partition"),
    sample("amdsmi_6.3dev_static_partition_json", ".json"),
    sample("amdsmi_6.3dev_partition_json", ".json"),
]
MODE = re.compile(r"[SDTQC]PX|NPS[1248]")


def damaged(texts: list[str]) -> st.SearchStrategy[str]:
    """A sample cut off, or with something put in or taken out."""

    def damage(text: str, start: int, length: int, inserted: str, cut: bool) -> str:
        start %= len(text)
        return text[:start] if cut else text[:start] + inserted + text[start + length :]

    return st.builds(
        damage,
        st.sampled_from(texts),
        st.integers(0, 1 << 16),
        st.integers(0, 40),
        st.text(max_size=8),
        st.booleans(),
    )


def check_modes(found: dict[int, Modes], text: str) -> None:
    """Whatever was found is written in the text, as a mode."""
    for device, modes in found.items():
        assert device >= 0
        for mode in (modes.compute, modes.memory):
            assert mode is None or (MODE.fullmatch(mode) and mode in text)


@given(st.one_of(st.text(), damaged(SHOWN)))
def test_rocm_smi_modes_fuzz(text: str) -> None:
    with contextlib.suppress(SmiError):
        check_modes(smi_modes.rocm_smi_modes(text), text)


@given(st.one_of(st.text(), damaged(STATIC)))
def test_amd_smi_modes_fuzz(text: str) -> None:
    with contextlib.suppress(SmiError):
        check_modes(smi_modes.amd_smi_modes(text), text)


@given(st.text(), st.text())
def test_random_text_is_no_success(stdout: str, stderr: str) -> None:
    for judge in (smi_set_output.rocm_smi_set, smi_set_output.amd_smi_set):
        result = judge(stdout, stderr, "CPX")
        assert result.failure is not None or DONE not in verdicts(result).values()


@given(damaged([sample("rocmsmi_7.0_set_compute_busy"), sample("rocmsmi_7.0_set_compute_unavailable")]))
def test_damaged_rocm_smi_failure_is_no_success(text: str) -> None:
    assert DONE not in verdicts(smi_set_output.rocm_smi_set(text, "", "CPX")).values()


@given(damaged([sample("rocmsmi_7.0_set_compute_ok")]))
def test_cut_rocm_smi_success_names_no_more_than_it_shows(text: str) -> None:
    done = [
        index
        for index, verdict in verdicts(smi_set_output.rocm_smi_set(text, "", "CPX")).items()
        if verdict == DONE
    ]
    assert all(f"GPU[{index}]" in text for index in done)


@given(damaged([sample("amdsmi_6.3dev_set_compute_busy", ".stderr.txt")]))
def test_damaged_amd_smi_failure_is_no_success(text: str) -> None:
    result = smi_set_output.amd_smi_set("", text, "CPX")
    assert DONE not in verdicts(result).values()
    assert result.failure is not None
