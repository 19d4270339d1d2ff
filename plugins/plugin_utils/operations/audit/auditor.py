# SPDX-License-Identifier: Apache-2.0
"""Judge hosts: compare what each one registered, and its variables, with the items of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, suggest
from ...knowledge.catalog.files import CATALOG, read_yaml
from ...knowledge.catalog.gpus import parse_gpus
from ...knowledge.catalog.images import look_up
from ...planning.desired.variables import why_unreached
from ...planning.generations.drift import Drift
from .items import HostView, parse_items
from .judge import audit
from .serving_checks import RECORDS
from .text import HostReport

VARIABLES = (
    "instinct_gpus",
    "vllm_deployments",
    "host_prep_skip",
    "host_prep_also",
    "host_prep_numa_balancing",
)
"""Variables of hosts that an audit takes into account."""


class HostAuditor:
    """The catalogue, read once.

    A host is given as `seen`, what host_facts registered for it, and `own`, those of VARIABLES that are set.
    """

    def __init__(self) -> None:
        items = read_yaml(CATALOG / "host_items.yml")
        gpus = read_yaml(CATALOG / "gpus.yml")
        self.items = (*parse_items(items), *RECORDS)
        self.bios = items["bios"]
        self.images = read_yaml(CATALOG / "images.yml")
        self.gpus = parse_gpus(gpus)
        self.per_node = {name: model["gpus_per_node"] for name, model in gpus["models"].items()}

    def view(
        self, seen: Mapping[str, Any], own: Mapping[str, Any], differing: tuple[Drift, ...] = ()
    ) -> HostView:
        """Return a host as the checks see it."""
        declared = own.get("instinct_gpus") or {}
        return HostView(
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
        """Return the ROCm of the images that deployments name: as the image reported on this host, else by its tag."""
        asked = {
            name: (image.get("software") or {}).get("rocm")
            for image in state["images"]
            for name in (*image["tags"], *image["digests"])
        }
        refs = [item.get("image") for item in own.get("vllm_deployments") or () if isinstance(item, Mapping)]
        found = {ref: asked.get(ref) or look_up(self.images, ref).rocm for ref in refs if ref}
        return {ref: rocm for ref, rocm in found.items() if rocm}

    def audited(
        self, name: str, view: HostView | None, seen: Mapping[str, Any], own: Mapping[str, Any]
    ) -> HostReport:
        """Return the host's findings; view None: it was not reached. Raise FleetError for an id that no item has."""
        if view is None:
            return HostReport(name, why=why_unreached(seen))
        known = [item.id for item in self.items]
        for key in ("host_prep_skip", "host_prep_also"):
            for unknown in set(own.get(key) or ()) - set(known):
                what = f"there is no item {unknown}."
                raise FleetError([Problem((key,), what, suggest(unknown, known), (name,))])
        # An operator who wants NUMA balancing on says so in a variable that is older than host_prep_skip.
        skip = [
            *(own.get("host_prep_skip") or ()),
            *(["numa-balancing"] if own.get("host_prep_numa_balancing") else []),
        ]
        found = audit(self.items, view, skip, own.get("host_prep_also") or ())
        models = " and ".join(model.name for model in view.models) or "GPU"
        system = view.state["os"]["pretty_name"] or "unknown system"
        gpus = f"{len(view.gpus)} {models}" if view.gpus else "no GPU"
        return HostReport(name, f"{gpus}, {system}", found)
