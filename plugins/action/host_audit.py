# SPDX-License-Identifier: Apache-2.0
"""Judge the fleet's hosts: reads hosts' variables and the catalogue; decides nothing itself.

Documentation: plugins/modules/host_audit.py (`ansible-doc -t module instinct.fleet.host_audit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import suggest
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import container_name
from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.audit.items import REQUIRED, View, parse_items
from ansible_collections.instinct.fleet.plugins.plugin_utils.audit.judge import (
    audit,
    counted,
    differences,
    todo,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.audit.serving_checks import RECORDS, drifts
from ansible_collections.instinct.fleet.plugins.plugin_utils.audit.text import Audited, Report, listed, text
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.gpus import parse_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.images import look_up
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import read_yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.actions import ALIVE
from ansible_collections.instinct.fleet.plugins.plugin_utils.generations.drift import Drift

ROOT = Path(__file__).resolve().parents[2]
GROUP = "instinct"
OPTIONS: dict[str, dict[str, Any]] = {
    "hosts": {"type": "list", "elements": "str"},
    "explain": {"type": "bool", "default": False},
    "audit_file": {"type": "path"},
}
VARIABLES = (
    "instinct_gpus",
    "vllm_deployments",
    "host_prep_skip",
    "host_prep_also",
    "host_prep_numa_balancing",
)


class ActionModule(ControllerAction):
    """host_audit."""

    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return hosts, failing, todo and text."""
        judge = Judge()
        owns = {name: _variables(facts["hostvars"], name) for name in _hosts(options["hosts"], facts)}
        reached = {name: own for name, own in owns.items() if "host_facts" in own["seen"]}
        differing = drifts({name: own["seen"]["node_state"] for name, own in reached.items()})
        views = {name: judge.view(own, differing[name]) for name, own in reached.items()}
        hosts = tuple(judge.audited(name, views.get(name), own) for name, own in owns.items())
        report = Report(hosts, differences(views), judge.bios)
        told = text(report, options["explain"])
        self._display.display(f"\n{told}")
        data = report.to_json()
        if options["audit_file"]:
            _write(Path(options["audit_file"]), data)
        waiting = {
            name: host["todo"]["waiting"] for name, host in data["hosts"].items() if host["todo"]["waiting"]
        }
        running = {name: _running(view) for name, view in views.items()}
        spanning = spans(running, owns, waiting)
        return {
            "changed": False,
            "hosts": data["hosts"],
            "failing": [host.name for host in hosts if counted(host.findings, REQUIRED)],
            "verdict": verdict(hosts),
            "waiting": waiting,
            "spanning": {name: stops(names) for name, names in spanning.items() if names},
            "todo": [
                item
                for host in hosts
                if host.name in views
                for item in _todo(
                    host, [name for name in running[host.name] if name not in spanning[host.name]]
                )
            ],
            "text": told,
        }


class Judge:
    """The catalogue, read once."""

    def __init__(self) -> None:
        catalog = ROOT / "catalog"
        items = read_yaml(catalog / "host_items.yml")
        gpus = read_yaml(catalog / "gpus.yml")
        self.items = (*parse_items(items), *RECORDS)
        self.bios = items["bios"]
        self.images = read_yaml(catalog / "images.yml")
        self.gpus = parse_gpus(gpus)
        self.per_node = {name: model["gpus_per_node"] for name, model in gpus["models"].items()}

    def view(self, own: Mapping[str, Any], differing: tuple[Drift, ...] = ()) -> View:
        """A host as the checks see it."""
        seen, declared = own["seen"], own.get("instinct_gpus") or {}
        return View(
            facts=seen["host_facts"],
            state=seen["node_state"],
            catalog=self.gpus,
            images=self.images,
            gpu_model=declared.get("model"),
            gpu_count=int(declared.get("count") or 0),
            rocms=self._rocms(own, seen["node_state"]),
            per_node=self.per_node,
            drift=differing,
        )

    def _rocms(self, own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, str]:
        """ROCm of the images that the deployments name: as the image said on this host, else by its tag."""
        asked = {
            name: (image.get("software") or {}).get("rocm")
            for image in state["images"]
            for name in (*image["tags"], *image["digests"])
        }
        refs = [item.get("image") for item in own.get("vllm_deployments") or () if isinstance(item, Mapping)]
        found = {ref: asked.get(ref) or look_up(self.images, ref).rocm for ref in refs if ref}
        return {ref: rocm for ref, rocm in found.items() if rocm}

    def audited(self, name: str, view: View | None, own: Mapping[str, Any]) -> Audited:
        """The host's findings. Raises AnsibleActionFail for an id that no item has."""
        if view is None:
            why = str(own["seen"].get("msg") or "it could not be reached").strip()
            return Audited(name, why=why.partition("\n")[0])
        known = [item.id for item in self.items]
        for key in ("host_prep_skip", "host_prep_also"):
            for unknown in set(own.get(key) or ()) - set(known):
                raise AnsibleActionFail(
                    f"{key} (host {name}): there is no item {unknown}. {suggest(unknown, known)}"
                )
        # Who wants NUMA balancing on has said so in a variable that is older than host_prep_skip.
        skip = [
            *(own.get("host_prep_skip") or ()),
            *(["numa-balancing"] if own.get("host_prep_numa_balancing") else []),
        ]
        found = audit(self.items, view, skip, own.get("host_prep_also") or ())
        models = " and ".join(model.name for model in view.models) or "GPU"
        system = view.state["os"]["pretty_name"] or "unknown system"
        gpus = f"{len(view.gpus)} {models}" if view.gpus else "no GPU"
        return Audited(name, f"{gpus}, {system}", found)


def verdict(hosts: Sequence[Audited]) -> str:
    """What is wrong, in one line; empty when no required item is."""
    failing = {host.name: [item.item.id for item in counted(host.findings, REQUIRED)] for host in hosts}
    failing = {name: ids for name, ids in failing.items() if ids}
    if len(failing) > 1:
        return f"Required items are wrong on {len(failing)} of {len(hosts)} hosts: {listed(list(failing))}."
    return "".join(f"Wrong on {name}: {', '.join(ids)}." for name, ids in failing.items())


def _running(view: View) -> dict[str, str]:
    """Deployments of the host's live instances, by instance."""
    return {item["name"]: item["deployment"] for item in view.state["instances"] if item["state"] in ALIVE}


def spans(
    running: Mapping[str, Mapping[str, str]], owns: Mapping[str, Mapping[str, Any]], reboot: Iterable[str]
) -> dict[str, list[str]]:
    """Live instances of deployments that span hosts of which one reboots, by host: all of their parts stop."""
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


def stops(names: Iterable[str]) -> list[dict[str, Any]]:
    """Servers for vllm_server to stop, which needs no more of them than names."""
    return [{"name": name, "container_name": container_name(name), "stop_timeout": 120} for name in names]


def _todo(host: Audited, instances: Iterable[str]) -> list[dict[str, Any]]:
    """For add_host; `instances` run on this host alone."""
    work = todo(host.findings)
    groups = [
        name for name, wanted in (("todo_prepare", work.anything), ("todo_reboot", work.reboot)) if wanted
    ]
    told = {**work.to_json(), "instances": stops(instances)}
    return [{"name": host.name, "groups": groups, "todo": told}] if groups else []


def _hosts(given: Iterable[str] | None, facts: Mapping[str, Any]) -> list[str]:
    if given:
        return [str(host) for host in given]
    members = [str(host) for host in facts["groups"].get(GROUP, [])]
    # Those that --limit leaves, with those that could not be reached.
    play = {str(host) for host in facts.get("ansible_play_hosts_all", [])}
    return [host for host in members if host in play] or members


def _variables(hostvars: Any, name: str) -> dict[str, Any]:
    """What was registered, as it is, and the variables that are set, evaluated. Raises AnsibleError."""
    raw = hostvars.raw_get(name)
    own: dict[str, Any] = {"seen": raw.get("host_facts_result") or {}}
    for key in VARIABLES:
        if raw.get(key) is not None:
            try:
                own[key] = json.loads(json.dumps(hostvars[name][key]))
            except AnsibleError as error:
                raise AnsibleActionFail(
                    f"{key} (host {name}) cannot be evaluated: {error.message}"
                ) from error
    return own


def _write(path: Path, data: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise AnsibleActionFail(f"audit_file: {path} cannot be written: {error.strerror}.") from error
