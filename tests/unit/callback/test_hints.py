# SPDX-License-Identifier: Apache-2.0
"""Errors of Ansible and of Python that operators meet without a word on what to do."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.callback.fleet import message, short
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.hints import cause
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import why_unreached
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.failures import failure_of

# As a node with a full disk answers, recorded in the lab.
TRACEBACK = """Traceback (most recent call last):
  File "<stdin>", line 266, in <module>
  File "<stdin>", line 249, in _ansiballz_main
  File "/usr/lib/python3.11/tempfile.py", line 512, in mkdtemp
    prefix, suffix, dir, output_type = _sanitize_params(prefix, suffix, dir)
  File "/usr/lib/python3.11/tempfile.py", line 362, in _get_default_tempdir
    raise FileNotFoundError(_errno.ENOENT,
FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/home/ops']"""
NO_ANSWER = "Module result deserialization failed: No start of json char found"
FULL: dict[str, Any] = {"failed": True, "msg": NO_ANSWER, "module_stderr": TRACEBACK}
WORDS = "No space left on this host's disk"


@pytest.mark.parametrize(
    "result",
    [
        FULL,
        {**FULL, "msg": f"Task failed: {NO_ANSWER}"},
        {
            "failed": True,
            "msg": NO_ANSWER,
            "module_stdout": "OSError: [Errno 28] No space left on device: '/tmp/x'",
        },
    ],
)
def test_a_full_disk_is_told_in_one_line_wherever_it_is_met(result: dict[str, Any]) -> None:
    for text in (
        short(message(result)),
        message({"results": [{"failed": False}, result]}),
        failure_of("instinct.fleet.vllm_server", result).text,
        why_unreached(result),
    ):
        assert text.startswith(WORDS)
        assert "\n" not in text
    assert not failure_of("instinct.fleet.vllm_server", result).release


@pytest.mark.parametrize(
    "result",
    [
        {"failed": True, "msg": NO_ANSWER, "module_stderr": "Could not chdir to home directory /home/ops"},
        # A module that began says itself which disk is full.
        {"failed": True, "msg": "The disk of /var/lib/instinct-fleet is full.", "exception": "[Errno 28]"},
        {"failed": True},
    ],
)
def test_other_errors_keep_their_own_words(result: dict[str, Any]) -> None:
    assert cause(result) == ""
