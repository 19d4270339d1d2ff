# SPDX-License-Identifier: Apache-2.0
"""The demo's closing text: the endpoints, their speed, and the next steps."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def closing_summary(root: Path = ROOT) -> str:
    """Return the text, from results/latest/summary.json in `root`.

    Raise FileNotFoundError if nothing has been measured yet.
    """
    summary = json.loads((root / "results/latest/summary.json").read_text(encoding="utf-8"))
    deployments = yaml.safe_load(
        (ROOT / "inventory/lab/group_vars/instinct/deployments.yml").read_text(encoding="utf-8")
    )
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
    where = f"{first['host']}:{port[first['deployment']] + index}"
    lines += [
        "",
        "Ask it something (without a load balancer, instances listen on their own node only):",
        f'  .venv/bin/python -m lab ask {where} "Once upon a time"',
        "",
        "Look around:",
        f"  report     {root / 'results/latest/report.html'}",
        "  the plan   .venv/bin/ansible-playbook -i inventory/lab playbooks/plan.yml -e explain=true",
        "  a node     .venv/bin/python -m lab ssh lab-n1",
        "",
        "Stop and remove all of it:  make demo-down",
    ]
    return "\n".join(lines)
