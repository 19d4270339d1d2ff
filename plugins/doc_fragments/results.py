# SPDX-License-Identifier: Apache-2.0
"""Document the option of modules that read or write results of measurements."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation shared by modules: `instinct.fleet.results`."""

    DOCUMENTATION = r"""
options:
  results_dir:
    description: Where runs are kept. A relative path starts where ansible-playbook was started.
    type: path
    default: results
"""
