#!/usr/bin/env bash
# The main job on a lab of simulated nodes, and what to do with it afterwards. Called by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/python -m lab up
$bin/ansible-playbook -i inventory/lab playbooks/site.yml
$bin/python -m lab summary
