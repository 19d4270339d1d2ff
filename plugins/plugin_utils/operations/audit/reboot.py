# SPDX-License-Identifier: Apache-2.0
"""What prepare.yml changes on hosts, and the instances that stop where it reboots one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....module_utils.common.paths import container_name
from ...planning.desired.actions import ALIVE
from .items import HostView
from .judge import host_work
from .text import HostReport

STOP_TIMEOUT = 120  # seconds


def running_deployments(view: HostView) -> dict[str, str]:
    """Return the deployments of the host's live instances, by instance."""
    return {item["name"]: item["deployment"] for item in view.state["instances"] if item["state"] in ALIVE}


def spanning_instances(
    running: Mapping[str, Mapping[str, str]], owns: Mapping[str, Mapping[str, Any]], reboot: Iterable[str]
) -> dict[str, list[str]]:
    """Return live instances that span hosts one of which reboots, by host: all of their parts stop."""
    wide = {
        item["name"]
        for own in owns.values()
        for item in own.get("vllm_deployments") or ()
        if isinstance(item, Mapping) and item.get("nodes", 1) != 1
    }
    touched = wide & {deployment for name in reboot for deployment in running[name].values()}
    return {
        host: [name for name, deployment in found.items() if deployment in touched]
        for host, found in running.items()
    }


def stopped_servers(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return servers for vllm_server to stop; it only needs their names."""
    return [
        {"name": name, "container_name": container_name(name), "stop_timeout": STOP_TIMEOUT} for name in names
    ]


def todo_host(host: HostReport, instances: Iterable[str]) -> list[dict[str, Any]]:
    """Return a host with something to do, for add_host; `instances` run on this host alone."""
    work = host_work(host.findings)
    groups = [
        name for name, wanted in (("todo_prepare", work.anything), ("todo_reboot", work.reboot)) if wanted
    ]
    reported = {**work.to_json(), "instances": stopped_servers(instances)}
    return [{"name": host.name, "groups": groups, "todo": reported}] if groups else []
