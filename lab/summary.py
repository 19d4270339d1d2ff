# SPDX-License-Identifier: Apache-2.0
"""The demo's closing text: the endpoints, their speed, and the next steps."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def closing_summary(root: Path = ROOT) -> str:
    """Return the text, from results/latest/summary.json and the lab's inventory.

    Raise FileNotFoundError if nothing has been measured yet.
    """
    summary = json.loads((root / "results/latest/summary.json").read_text(encoding="utf-8"))
    inventory = yaml.safe_load((root / "inventory/lab/hosts.yml").read_text(encoding="utf-8"))
    deployments = yaml.safe_load(
        (root / "inventory/lab/group_vars/instinct/deployments.yml").read_text("utf-8")
    )
    address = {name: host["ansible_host"] for name, host in inventory["instinct"]["hosts"].items()}
    port = {d["name"]: d.get("port", 8000) for d in deployments["vllm_deployments"]}

    served = [bench for bench in summary["benchmarks"] if bench["kind"] == "serve"]
    lines = [
        "",
        "The fleet serves: the real vLLM, on this machine's CPU. Only the GPUs are simulated, so these numbers",
        "say that the measuring works, and nothing about an MI300X:",
    ]
    for bench in served:
        lines.append(
            f"  {bench['host']}  {bench['instance']}  {bench['output_throughput']:.0f} output tokens/s,"
            f" TTFT {bench['median_ttft_ms']:.0f} ms, TPOT {bench['median_tpot_ms']:.1f} ms (medians);"
            f" {bench['completed']} requests, {bench['failed']} failed"
        )
    first = served[0]
    index = int(first["instance"].rsplit("-", 1)[1])
    url = f"http://{address[first['host']]}:{port[first['deployment']] + index}"
    body = json.dumps({"model": first["model"], "prompt": "Once upon a time", "max_tokens": 32})
    lines += [
        "",
        "Ask it something:",
        f"  curl -s {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'",
        "",
        "Look around:",
        f"  report     {root / 'results/latest/report.html'}",
        "  the plan   .venv/bin/ansible-playbook -i inventory/lab playbooks/plan.yml -e explain=true",
        "  a node     .venv/bin/python -m lab ssh lab-n1",
        "",
        "Stop and remove all of it:  make demo-down",
    ]
    return "\n".join(lines)
