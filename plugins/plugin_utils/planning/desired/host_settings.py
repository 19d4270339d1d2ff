# SPDX-License-Identifier: Apache-2.0
"""Validate a host's variables other than its deployments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.content.image_names import FROM_STORE, Override
from ...base.checker import Checker
from ...knowledge.catalog.gpus import GpuCatalog
from ..inventory.public_variables import HostVariables
from ..pins.registry_override import parse_overrides
from .deployment import REPO
from .fetch_window import EXAMPLE, FetchWindow, parse_window

ADDRESS = ("instinct_address", "ansible_host")
"""Variables with the address at which other hosts reach a host; the first one that is set applies."""
VARIABLES = (
    "vllm_deployments",
    "hf_model_endpoint",
    "hf_model_cache_dir",
    "gpu_partition_compute",
    "gpu_partition_memory",
    "gpu_partition_backend",
    "host_prep_numa_balancing",
    "vllm_image_registries",
    "instinct_gpus",
    "gpu_clean",
    "verify",
    "instinct_proxy",
    "instinct_ca_file",
    "fetch_from",
    "distribution_interface",
    "distribution_port",
    "distribution_rates",
    "licenses_accepted",
    "registry_override",
    "fetch_window",
    "fetch_now",
    "air_gap",
    "store_quota",
    *ADDRESS,
)


RATES = ("uplink", "interface", "disk")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Registry:
    """How to reach an image registry."""

    host: str
    username: str = ""
    password: str = field(default="", repr=False)
    insecure: bool = False


@dataclass(frozen=True)
class HostSettings:
    """The validated variables of a host; compute, memory and numa_balancing are None to leave them unchanged.

    clean: the driver may be reloaded to free VRAM that no process holds. verify: weights are hashed again. fetch_from:
    auto, peers or origin. distribution_rates: of uplink and interface in Mb/s, of the disk in MB/s, where declared.
    licenses: the accepted ones, by identifier or as repo:NAME. window: when it may fetch; None: at any time, as with
    fetch_now. no_proxy: None without a proxy. air_gap: no registry or hub is contacted; content stores have everything.
    quota: bytes of images, weights and content store; 0: no limit.
    """

    endpoint: str
    cache_dir: str
    compute: str | None
    memory: str | None
    backend: str
    numa_balancing: bool | None
    registries: tuple[Registry, ...]
    gpu_model: str | None
    gpu_count: int
    clean: bool
    verify: bool
    fetch_from: str = "auto"
    distribution_interface: str = ""
    distribution_port: int = 29870
    distribution_rates: tuple[tuple[str, int], ...] = ()
    licenses: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    window: FetchWindow | None = None
    fetch_now: bool = False
    no_proxy: str | None = None
    air_gap: bool = False
    quota: int = 0


def parse_settings(
    variables: Mapping[str, Any], catalog: GpuCatalog
) -> tuple[HostSettings, tuple[Problem, ...]]:
    """Validate the variables named in VARIABLES and ignore others; a variable that is None counts as not set."""
    own = HostVariables(variables)
    air_gap = own.boolean("air_gap")
    rules = parse_overrides(own.check, own["registry_override"])
    no_proxy = _way_out(own)
    model, count = _declared(own.check, own["instinct_gpus"], catalog)
    settings = HostSettings(
        endpoint=_endpoint(own).rstrip("/"),
        cache_dir=own.text("hf_model_cache_dir", r"/[^:\0]+", "an absolute path without : in it").rstrip("/"),
        compute=own.choice("gpu_partition_compute", catalog.modes) or None,
        memory=own.choice("gpu_partition_memory", catalog.memory_modes) or None,
        backend=own.choice("gpu_partition_backend"),
        numa_balancing=own.boolean("host_prep_numa_balancing"),
        registries=_registries(own.check, own["vllm_image_registries"]),
        gpu_model=model,
        gpu_count=count,
        clean=own.boolean("gpu_clean"),
        verify=own.boolean("verify"),
        fetch_from=own.choice("fetch_from"),
        distribution_interface=own.text(
            "distribution_interface", r"[^\s/]{1,15}", "the name of an interface"
        ),
        distribution_port=own.integer("distribution_port", 1024, 65000),
        distribution_rates=_rates(own),
        licenses=_licenses(own),
        overrides=(FROM_STORE,) if air_gap else rules,
        window=_window(own),
        fetch_now=own.boolean("fetch_now"),
        no_proxy=no_proxy,
        air_gap=air_gap,
        quota=own.integer("store_quota", 0, 1 << 60),
    )
    return settings, tuple(own.check.problems)


def parse_address(variables: Mapping[str, Any], name: str) -> tuple[str, tuple[Problem, ...]]:
    """Return the address where other hosts reach this one: instinct_address, ansible_host or the host's name."""
    check = Checker()
    for key in ADDRESS:
        value = variables.get(key)
        if value not in (None, ""):
            return check.text(value, (key,), name, r"[0-9A-Za-z.:_-]+", "an address"), tuple(check.problems)
    return name, ()


def _endpoint(own: HostVariables) -> str:
    value = own["hf_model_endpoint"]
    if value == "":
        return ""
    return own.check.url(value, ("hf_model_endpoint",), r"https?://\S+", "an http:// or https:// URL")


def _window(own: HostVariables) -> FetchWindow | None:
    text = own["fetch_window"]
    if text == "":
        return None
    found = parse_window(text) if isinstance(text, str) else None
    if found is None:
        # YAML reads 22:00 without quotes as a number of minutes.
        own.check.wrong(("fetch_window",), "is not a window of hours.", f"Write {EXAMPLE}, in quotes.")
    return found


def _way_out(own: HostVariables) -> str | None:
    """Check the proxies and the CA bundle, which only nodes use; return no_proxy, or None without a proxy.

    No message repeats a URL, which may contain a secret.
    """
    path = ("instinct_proxy",)
    given = own.check.mapping(own["instinct_proxy"], path, PROXIES)
    for name, value in given.items():
        usable = isinstance(value, str) and (name == "no_proxy" or re.fullmatch(r"(https?://\S+)?", value))
        if not usable:
            own.check.wrong(
                (*path, name), "is not a proxy's URL.", "Write http://HOST:PORT, or leave it out."
            )
    if own["instinct_ca_file"] != "":
        own.text("instinct_ca_file", r"/[^:\0]+", "an absolute path without : in it")
    around = given.get("no_proxy")
    text = around if isinstance(around, str) else ""
    return text if any(given.get(name) for name in PROXIES[:2]) else None


def _licenses(own: HostVariables) -> tuple[str, ...]:
    path = ("licenses_accepted",)
    given = own.check.texts(own["licenses_accepted"], path)
    for index, key in enumerate(given):
        if not re.fullmatch(rf"repo:{REPO}|[A-Za-z0-9][A-Za-z0-9.+-]*", key):
            fix = "Write an identifier of the hub, such as llama3.1, or repo:ORGANISATION/NAME."
            own.check.wrong((*path, index), f"{key!r} is not a licence.", fix)
    return given


def _rates(own: HostVariables) -> tuple[tuple[str, int], ...]:
    path = ("distribution_rates",)
    given = own.check.mapping(own["distribution_rates"], path, RATES)
    found = {name: own.check.integer(value, (*path, name), 0, 1, 10_000_000) for name, value in given.items()}
    return tuple((name, rate) for name, rate in sorted(found.items()) if rate)


def _declared(check: Checker, value: Any, catalog: GpuCatalog) -> tuple[str | None, int]:
    if value is None:
        return None, 0
    gpus = check.mapping(value, ("instinct_gpus",), ("model", "count"))
    names = tuple(model.name for model in catalog.models)
    model = check.choice(gpus.get("model"), ("instinct_gpus", "model"), "", names)
    return model or None, check.integer(gpus.get("count", 8), ("instinct_gpus", "count"), 8, 1, 64)


def _registries(check: Checker, value: Any) -> tuple[Registry, ...]:
    found = []
    for host, item in check.mapping(value, ("vllm_image_registries",)).items():
        path = ("vllm_image_registries", host)
        entry = check.mapping(item or {}, path, ("username", "password", "insecure"))
        if "/" in host:
            check.wrong(path, "is not a registry.", "Write host or host:port, without a scheme or a path.")
        if ("username" in entry) != ("password" in entry):
            check.wrong(path, "has only one of username and password.", "Add the other one.")
        found.append(
            Registry(
                host=host,
                username=check.text(entry["username"], (*path, "username")) if "username" in entry else "",
                password=check.text(entry["password"], (*path, "password")) if "password" in entry else "",
                insecure=check.boolean(entry.get("insecure", False), (*path, "insecure"), False),
            )
        )
    return tuple(sorted(found, key=lambda registry: registry.host))
