# SPDX-License-Identifier: Apache-2.0
"""Plan the fleet: reads hosts' variables and states, the catalogue and the pins; decides nothing itself.

Documentation: plugins/modules/fleet_plan.py (`ansible-doc -t module instinct.fleet.fleet_plan`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem, natural
from ansible_collections.instinct.fleet.plugins.module_utils.common.generations import (
    DEPLOY,
    OPERATIONS,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    Wishes,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.instance_key import NO_KEY
from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.bundle import script
from ansible_collections.instinct.fleet.plugins.plugin_utils.canary.verdict import Rules
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.gpus import GpuCatalog, parse_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import Knowledge, read_yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.fleet import Fleet, build_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.lockfile import (
    Lock,
    model_key,
    parse_lock,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.public_variables import public_variables
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.unknown_variables import misspelt
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.variables import GROUP, Reader, plain
from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.plan import BalancerPlan, Endpoint, Kit
from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.secrets import instance_key, materials
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.factory import ModelSource, Workshop
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.render import (
    FILES,
    Render,
    drawer,
    renderer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.pins import (
    absent_images,
    absent_models,
    missing_pins,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.plan import (
    FleetPlan,
    check_fleet,
    plan_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.batches import parse_terms
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.plan import (
    RolloutPlan,
    Wanted,
    plan_steps,
    replaced,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.text import explain_rollout
from ansible_collections.instinct.fleet.plugins.plugin_utils.tuning.image_software import learned

ROOT = Path(__file__).resolve().parents[2]
CANARY_TERMS = ("canary_tolerance", "canary_latency_tolerance", "canary_runs", "canary_max_runs")
VARIABLES = {
    **{name: name for name in ("offline", "explain", "refresh", "plan_file")},
    **{name: name for name in ("deployment", "instance", "generation", "why", "canary")},
    "retry": "again",
    "serial": "upgrade_serial",
    "min_in": "upgrade_min_in",
    "soak": "upgrade_soak",
    "drain_timeout": "load_balancer_drain_timeout",
}
"""Options that are given a variable of the operator, which says their type and default."""
OPTIONS: dict[str, dict[str, Any]] = {
    "hosts": {"type": "list", "elements": "str"},
    "again": {"type": "list", "elements": "str"},
    "lock_file": {"type": "path"},
    "operation": {"type": "str", "choices": list(OPERATIONS), "default": DEPLOY},
    "canary_terms": {
        "type": "dict",
        "default": {},
        "options": {name: public_variables()[name].option for name in CANARY_TERMS},
    },
    **{option: public_variables()[name].option for option, name in VARIABLES.items()},
}


class ActionModule(ControllerAction):
    """fleet_plan."""

    options: ClassVar = OPTIONS
    expected: ClassVar = (FleetError,)

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return plan, todo, changes and text; or fail with every problem of the input."""
        return self._plan(options, Reader(facts))

    def told(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Every problem of the input, with the place where it was written."""
        assert isinstance(error, FleetError)
        reader = Reader(facts)
        lines = [
            problem.text(reader.origin(problem), reader.deployment(problem)) for problem in error.problems
        ]
        count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        return f"The plan has {count}; nothing was changed.\n" + "\n".join(f"* {line}" for line in lines)

    def _plan(self, options: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        offline = options["offline"]
        names = reader.hosts(options["hosts"])
        catalog = load_catalog()
        inputs = {name: reader.host(name, offline) for name in names}
        fleet = build_fleet(inputs, reader.groups(), catalog, offline)
        wishes = wished(options)
        terms = bad_terms(options)
        if terms:
            raise FleetError(terms)
        checked = check_fleet(fleet, wishes)
        asked = checked.composed
        again = options["again"]
        lock_file = Path(options["lock_file"] or reader.beside_inventory(names) / "fleet.lock.json")
        kept = lock = read_lock(lock_file)
        newer = Lock()
        if not offline:
            newer = resolve(asked, lock, options["refresh"] and again is None, reader)
            lock = learned(asked, lock.merged(newer))
            if lock != kept and not self._task.check_mode:
                write_json(lock_file, lock.to_json())
        knowledge = Knowledge(ROOT / "catalog")
        models = read_models(asked, reader.beside_inventory(names))
        endpoint = self._endpoint(reader, offline, reader.beside_inventory(names))
        key = endpoint.kit.instance_key if endpoint else NO_KEY
        plan = plan_fleet(checked, Workshop(knowledge, lock, load_renderer(), models, key), endpoint)
        if again is None:
            found = access(asked, lock, newer, reader) if not offline else ()
            typos = misspelt(reader.names(names), public_variables())
            plan = replace(plan, warnings=(*plan.warnings, *typos, *found))
        news = plan if again is None else only(plan, again)
        text = explain(news, options["explain"])
        data = plan.to_json()
        rollout = roll_out(options, plan, endpoint)
        if rollout:
            data["rollout"] = rollout.to_json()
        text = "\n".join([text, *told(options, plan, data, rollout)])
        self._display.display(f"\n{text}")
        if options["plan_file"]:
            # Also in check mode: it is what was asked for, and no change of the fleet.
            write_json(Path(options["plan_file"]), data)
        return {
            "changed": False,
            "plan": data,
            # What was not looked at is not acted on.
            "todo": [] if offline else todo(news, plan.balancers, data, rollout),
            "rollout": rollout.to_json() if rollout else None,
            "partial": list(news.partial),
            "changes": news.changes,
            "text": text,
        }

    def _endpoint(self, reader: Reader, offline: bool, base: Path) -> Endpoint | None:
        """The load balancers with their keys and certificates, which are made where they are missing."""
        hosts = reader.balancers(offline)
        if not hosts:
            return None
        loader = self._loader

        def load(path: Path) -> str:
            try:
                return str(loader.get_text_file_contents(str(path)))
            except AnsibleError:
                raise ValueError(path) from None

        def parse(text: str) -> Any:
            try:
                return plain(loader.load(text), templates=True)
            except AnsibleError:  # its message would show the line
                raise ValueError from None

        make = not offline and not self._task.check_mode
        kit = Kit(
            drawer((ROOT / "templates" / "haproxy.cfg.j2").read_text(encoding="utf-8")),
            script("haproxy_agent"),
            materials(hosts, base, make, load, parse),
            instance_key(hosts, base, make, load),
            script("router"),
            drawer((ROOT / "templates" / "keepalived.conf.j2").read_text(encoding="utf-8")),
            script("keepalived_check"),
        )
        return Endpoint(hosts, frozenset(reader.groups().get(GROUP, ())), kit)


def wished(options: Mapping[str, Any]) -> Wishes:
    """What the run is about."""
    deployment = options["deployment"]
    return Wishes(
        operation=options["operation"],
        deployments=frozenset([deployment]) if deployment else None,
        generation=options["generation"],
        retry=options["retry"],
        why=options["why"] or "",
    )


def bad_terms(options: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What makes no sense in the variables of upgrades; told before a host is asked, and by every plan."""
    given = options["canary_terms"] or {}
    rules = Rules(*(given.get(name, public_variables()[name].default) for name in CANARY_TERMS))
    _, problems = parse_terms({f"upgrade_{key}": options[key] for key in ("serial", "min_in", "soak")})
    found = list(problems)
    operation = options.get("operation")
    if options.get("instance") and operation in (UPGRADE, ROLLBACK):
        what = f"an {UPGRADE} or {ROLLBACK} is of whole deployments."
        found.append(Problem(("instance",), what, "Leave it out; upgrade_serial=1 changes one at a time."))
    if options.get("generation") is not None and operation in (UPGRADE, RESTART, STOP):
        what = "only rollback.yml goes to a generation."
        found.append(Problem(("generation",), what, "Leave it out, or run rollback.yml."))
    if options.get("offline") and operation in (UPGRADE, ROLLBACK, RESTART, STOP):
        what = f"{operation}.yml begins with what runs, which only the hosts know."
        found.append(Problem(("offline",), what, "Leave it out and add --check; plan.yml plans offline."))
    fix = "See docs/canary.md."
    return (*found, *(Problem((name,), what, fix) for name, what in rules.wrong()))


def only(plan: FleetPlan, hosts: Iterable[str]) -> FleetPlan:
    """The plan of some hosts; what was to be told of the others was told."""
    return replace(
        plan, hosts=tuple(item for item in plan.hosts if item.host.name in set(hosts)), unreachable=()
    )


def roll_out(options: Mapping[str, Any], plan: FleetPlan, endpoint: Endpoint | None) -> RolloutPlan | None:
    """The batches of a run that changes what serves a few at a time. Raises FleetError."""
    if options["operation"] == DEPLOY or options["offline"] or plan.partial:
        return None
    planned, problems = batches(options, plan, endpoint)
    if problems:
        raise FleetError(problems)
    return planned


def batches(
    options: Mapping[str, Any],
    plan: FleetPlan,
    endpoint: Endpoint | None = None,
    operation: str = "",
) -> tuple[RolloutPlan, tuple[Problem, ...]]:
    """The plan by batches, and why that cannot be."""
    absent = [(host.name, host.absent) for host in endpoint.hosts if host.absent] if endpoint else []
    wanted = Wanted(
        operation=operation or options["operation"],
        values={f"upgrade_{key}": options[key] for key in ("serial", "min_in", "soak")},
        deployment=options["deployment"],
        instance=options["instance"],
        canary=options["canary"],
        absent=tuple(absent),
    )
    return plan_steps(plan, wanted)


def told(
    options: Mapping[str, Any], plan: FleetPlan, data: Mapping[str, Any], rollout: RolloutPlan | None
) -> list[str]:
    """The batches; of a plan that replaces at once what serves, those that upgrade.yml would make of it."""
    count = replaced(plan) if rollout is None and not options["offline"] else 0
    if rollout is None and count:
        rollout, problems = batches(options, plan, operation=UPGRADE)
        if problems:
            return []
        text = f"site.yml replaces {count} that serve at once on all hosts; upgrade.yml goes by batches:"
        return ["", text, *explain_rollout(rollout, waits(options, data))]
    return explain_rollout(rollout, waits(options, data)) if rollout else []


def waits(options: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, int]:
    """Seconds at most that a unit's requests, its stop and its start may take."""
    servers = [item["server"] for host in data["hosts"].values() for item in host["instances"]]
    longest = {
        key: max((int(server.get(f"{key}_timeout") or 0) for server in servers), default=0)
        for key in ("stop", "ready")
    }
    return {
        "drain": options["drain_timeout"],
        "stop": longest["stop"] or 120,
        "start": longest["ready"] or 1800,
    }


def todo(
    plan: FleetPlan,
    balancers: Iterable[BalancerPlan],
    data: Mapping[str, Any],
    rollout: RolloutPlan | None = None,
) -> list[dict[str, Any]]:
    """Hosts with something to do, for add_host. Those that are planned again afterwards are in fleet_partial."""
    groups: dict[str, list[str]] = {}
    for host in plan.hosts:
        if host.actions:
            groups[host.host.name] = [f"todo_{role}" for role in host.todo]
            groups[host.host.name] += ["fleet_partial"] if host.partial else []
    for balancer in balancers:
        if balancer.actions:
            groups.setdefault(balancer.host.name, []).append("todo_load_balancer")
    for name in rollout.hosts if rollout else ():
        groups.setdefault(name, []).append("todo_rollout")
    found = []
    for name, names in groups.items():
        mine = dict(data["hosts"].get(name, {}))
        if rollout:
            mine["rollout"] = rollout.host(name)
            mine["bindings"] = [*(mine.get("bindings") or ()), *rollout.trials.get(name, ())]
        if name in data["balancers"]:
            mine["balancer"] = data["balancers"][name]
        found.append({"name": name, "groups": names, "plan": {**mine, **drained(balancers, name)}})
    return found


def drained(balancers: Iterable[BalancerPlan], host: str) -> dict[str, list[dict[str, Any]]]:
    """The servers of a host that leave each load balancer before it is touched (out), and come back (into)."""
    states = [(balancer.host.name, balancer.out(host)) for balancer in balancers]
    out = [{"balancer": name, "servers": item["drain"]} for name, item in states if item["drain"]]
    into = [{"balancer": name, "servers": item["undrain"]} for name, item in states if item["undrain"]]
    return {**({"out": out} if out else {}), **({"into": into} if into else {})}


def load_catalog() -> GpuCatalog:
    """The GPU models of catalog/gpus.yml."""
    return parse_gpus(read_yaml(ROOT / "catalog" / "gpus.yml"))


def load_renderer() -> Render:
    """A renderer with the templates of templates/."""
    names = [f"{name}.j2" for name in FILES]
    return renderer({name: (ROOT / "templates" / name).read_text(encoding="utf-8") for name in names})


def read_models(fleet: Fleet, base: Path) -> dict[str, ModelSource]:
    """What the deployments' model_config name, seen from the inventory's directory. Raises FleetError."""
    found: dict[str, ModelSource] = {}
    problems: list[Problem] = []
    for host in fleet.hosts:
        for deployment in host.deployments:
            name = deployment.model_config
            if not name or name in found:
                continue
            path = base / os.path.expanduser(name)
            try:
                found[name] = _model_source(path)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not a JSON object"
                what = f"{path} cannot be read: {why}."
                fix = "Name a config.json, or a directory with one, on this machine."
                problems.append(Problem((*deployment.path, "model_config"), what, fix, (host.name,)))
    if problems:
        raise FleetError(problems)
    return found


def _model_source(path: Path) -> ModelSource:
    files = None
    if path.is_dir():
        inside = sorted(item for item in path.rglob("*") if item.is_file())
        files = tuple((str(item.relative_to(path)), item.stat().st_size) for item in inside)
        path = path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(path)
    return ModelSource(config, files)


def read_lock(path: Path) -> Lock:
    """The pins of a lock file; none when there is no file. Raises FleetError for a damaged one."""
    try:
        return parse_lock(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Lock()
    except (OSError, ValueError) as error:
        what = f"{path} cannot be used: {error}."
        raise FleetError([Problem((), what, "Restore it, or remove it to pin everything anew.")]) from None


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file whole or not at all. Raises FleetError."""
    text = json.dumps(data, indent=2, sort_keys=True) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        what = f"{path} cannot be written: {error.strerror}."
        raise FleetError([Problem((), what, "Make its directory, or choose another place.")]) from None


def resolve(fleet: Fleet, lock: Lock, refresh: bool, reader: Reader) -> Lock:
    """Pins that are missing, or all with `refresh`. Raises FleetError with the problems of all of them."""
    images, models = missing_pins(fleet, lock, refresh)
    if not images and not models:
        return Lock()
    from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.registry import (
        ResolveError,
        image_pin,
        model_pin,
    )

    problems: list[Problem] = []
    found_images = {}
    found_models = {}
    for need in images:
        try:
            found_images[need.ref] = image_pin(need.ref, need.path, need.host.settings.registries)
        except ResolveError as error:
            problems.append(_on(error.problem, need.host.name))
    tokens: dict[str, str | None] = {}
    for item in models:
        name, endpoint = item.host.name, item.host.settings.endpoint
        try:
            if name not in tokens:
                tokens[name] = reader.token(name)
            pin = model_pin(item.repo, item.revision, item.path, endpoint, tokens[name])
            found_models[model_key(endpoint, item.repo, item.revision)] = pin
        except ResolveError as error:
            problems.append(_on(error.problem, name))
        except FleetError as error:
            problems.extend(_on(problem, name) for problem in error.problems)
    if problems:
        raise FleetError(
            sorted(set(problems), key=lambda problem: [natural(str(part)) for part in problem.path])
        )
    return Lock(found_images, found_models)


def access(fleet: Fleet, lock: Lock, fresh: Lock, reader: Reader) -> tuple[str, ...]:
    """Whether what hosts lack may be fetched; `fresh` was resolved by this run. Raises FleetError."""
    images = [need for need in absent_images(fleet, lock) if need.ref not in fresh.images]
    models = [
        need
        for need in absent_models(fleet, lock)
        if model_key(need.host.settings.endpoint, need.repo, need.revision) not in fresh.models
    ]
    if not images and not models:
        return ()
    from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.access import check_access

    return check_access(images, models, lock, reader.token)


def _on(problem: Problem, host: str) -> Problem:
    return Problem(problem.path, problem.what, problem.fix, (host,))
