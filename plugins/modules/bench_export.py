#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bench_export; the work is done on the control node, by plugins/action/bench_export.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_export
short_description: Write a run of the benchmarks in formats of other tools
version_added: "0.1.0"
description:
  - Reads a run that M(instinct.fleet.bench_report) wrote, and writes it as files of other tools, each format in a
    directory of its name. docs/exports.md describes the formats.
  - A value that was not measured is an empty cell or a missing key, never 0. Headers of requests and values of secret
    options and variables are masked.
  - Nothing at all is written if a file has different content, unless O(overwrite=true). The same export again changes
    nothing.
  - Runs on the control node only, once for the whole play, and connects to nothing.
options:
  run:
    description: Name of the run, or C(latest).
    type: str
    default: latest
  formats:
    description:
      - Any of C(csv), C(github-action-benchmark), C(inferencex), C(llm-d), C(mad), C(markdown), C(pytorch-hud) and
        C(vllm-sweep).
    type: list
    elements: str
    required: true
  to:
    description: Directory to write into; default is C(exports/RUN). It is created if it is missing.
    type: path
  overwrite:
    description: Replace files that have different content.
    type: bool
    default: false
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
  - instinct.fleet.results
attributes:
  check_mode:
    support: full
    details: Says what would be written, and which files have different content.
  diff_mode:
    support: none
    details: The files are made for other programs.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.bench_report
"""

EXAMPLES = r"""
- name: Write the newest run as AMD's report and as a table
  instinct.fleet.bench_export:
    formats: [mad, markdown]
    to: /srv/reports/january
  run_once: true
"""

RETURN = r"""
run:
  description: Name of the run.
  returned: success
  type: str
  sample: 20260131T101500Z
directory:
  description: Where the files are.
  returned: success
  type: str
  sample: /srv/reports/january
files:
  description: All files of the export, relative to RV(directory), also those that were there already.
  returned: success
  type: list
  elements: str
  sample: [mad/perf.csv, markdown/benchmarks.md]
omitted:
  description: What a format cannot express, one sentence each.
  returned: success
  type: list
  elements: str
  sample: ["inferencex: n1/llama-0 latency: InferenceX has rows of serving benchmarks only."]
"""
