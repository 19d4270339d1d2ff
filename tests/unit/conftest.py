# SPDX-License-Identifier: Apache-2.0
"""Fixtures for unit tests: run a module's main() in this process, as Ansible would, and playbooks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ansible.module_utils._internal
import pytest
from ansible.module_utils.common import warnings
from ansible.module_utils.testing import patch_module_args
from hypothesis import HealthCheck, Phase, settings

from tests import ROOT
from tests.helpers.playbooks import Playbooks

# How long an example takes, or its data takes to be drawn, is the machine's affair. A failure is reported as it was
# drawn: shrinking takes up to five minutes where an example starts processes. HYPOTHESIS_PROFILE=shrink shrinks it.
settings.register_profile(
    "unit",
    max_examples=50,
    deadline=None,
    derandomize=False,
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("shrink", settings.get_profile("unit"), phases=tuple(Phase))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))

RunModule = Callable[..., tuple[dict[str, Any], bool]]


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def playbooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playbooks]:
    """ansible-playbook in this checkout, imported once."""
    running = Playbooks(tmp_path_factory.mktemp("home"))
    yield running
    running.close()


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunModule:
    """Call main() with args; return its result, warnings as texts, and whether it failed."""
    # A test that loaded Ansible's controller code would otherwise send a module's warnings to the terminal.
    monkeypatch.setattr(ansible.module_utils._internal, "is_controller", False)

    def run(
        main: Callable[[], None], args: dict[str, Any], *, check: bool = False, diff: bool = False
    ) -> tuple[dict[str, Any], bool]:
        warnings._global_warnings.clear()  # of earlier runs in this process
        args = {**args, "_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args(args), pytest.raises(SystemExit):
            main()
        shown = capsys.readouterr()
        sys.stderr.write(shown.err)  # for a test that looks into it
        result = json.loads(shown.out)
        if "warnings" in result:
            result["warnings"] = [warning["event"]["msg"] for warning in result["warnings"]]
        return result, bool(result.get("failed"))

    return run
