# SPDX-License-Identifier: Apache-2.0
"""Parsers of rocm-smi's and amd-smi's output, over captured samples and over malformed text."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition import smi_output, smi_set_output
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_set_output import (
    BROKEN,
    BUSY,
    DONE,
    REFUSED,
    UNEXPLAINED,
)
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT

SAMPLES = ROOT / "tests/data/rocm_samples"


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


def test_what_rocm_smi_writes_to_stderr_explains_a_log_without_a_device() -> None:
    name = "rocmsmi_7.0_set_compute_unknown"
    result = smi_set_output.rocm_smi_set(sample(name), sample(name, ".stderr.txt"), "SPX")
    assert not result.verdicts
    assert result.failure is not None
    verdict, message = result.failure
    assert verdict == BROKEN
    assert message.startswith("rocm-smi named no device (ERROR: GPU[0]")
    assert "Failed to retrieve compute partition" in message


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ('[\n    {\n        "gpu": 0,\n        "error": "Device busy"\n    }\n]\n', '"error": "Device busy"'),
        ("first\n\n=======\n", "first"),
        ("]\n", "no output"),
    ],
)
def test_an_excerpt_has_a_word(text: str, last: str) -> None:
    assert smi_output.excerpt(text) == last


@pytest.mark.parametrize("in_a_block", [True, False])
def test_amd_smi_without_a_status_does_not_say_why(in_a_block: bool) -> None:
    said = "Unable to set memory partition to NPS4 on GPU ID: 0 BDF:0000:05:00.0"
    block = f"GPU: 0\n    MEMORY_PARTITION: {said}\n\n"
    out, err = (block, "") if in_a_block else ("", f"ValueError: {said}\n")
    result = smi_set_output.amd_smi_set(out, err, "NPS4")
    assert verdicts(result) == {0: UNEXPLAINED}


def test_rocm_smi_success_of_another_mode_is_no_success() -> None:
    result = smi_set_output.rocm_smi_set(sample("rocmsmi_7.0_set_compute_ok"), "", "SPX")
    assert DONE not in verdicts(result).values()
    assert result.failure is not None


def test_rocm_smi_contradiction_is_not_understood() -> None:
    text = sample("rocmsmi_7.0_set_compute_busy").replace("GPU[1]", "GPU[0]", 1)
    text = text.replace("Device is currently busy, try again later", "Permission denied", 1)
    result = smi_set_output.rocm_smi_set(text, "", "CPX")
    assert result.failure == (BROKEN, "rocm-smi gave two answers for device 0")


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


# --- damaged text never becomes a success -----------------------------------------------------------------


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
