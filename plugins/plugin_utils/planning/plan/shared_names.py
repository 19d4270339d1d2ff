# SPDX-License-Identifier: Apache-2.0
"""Compare deployments that share a model name: whether they serve one model, and how clients see they differ. Pure.

A load balancer sends a request for a shared name to whichever instance has the fewest requests, so two answers to one
client may come from two deployments.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ....module_utils.common.errors import Problem, natural
from ....module_utils.common.hashing import text_hash
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet
from ..instances.backend_instance import served_models
from ..instances.planned import PlannedInstance, Serving
from .stages import HostStages

CONTEXT, ADAPTERS = "--max-model-len", "--lora-modules"
NOTICED = {
    CONTEXT: ("context length", ""),
    "--chat-template": ("chat template", "the model's"),
    "--chat-template-content-format": ("format of chat messages", "auto"),
    "--tool-call-parser": ("tool parser", "none"),
    "--enable-auto-tool-choice": ("automatic tool choice", "no"),
    "--reasoning-parser": ("reasoning parser", "none"),
    ADAPTERS: ("LoRA adapters", "none"),
    "--task": ("task", "auto"),
    "--runner": ("runner", "auto"),
    "--convert": ("conversion", "auto"),
    "--quantization": ("quantization", "the model's"),
    "--dtype": ("data type", "auto"),
    "--tokenizer": ("tokenizer", "the model's"),
    "--generation-config": ("sampling defaults", "auto"),
    "--override-generation-config": ("overridden sampling defaults", "none"),
    "--max-logprobs": ("most log probabilities", "the release's"),
    "--limit-mm-per-prompt": ("media per prompt", "the release's"),
}
"""Flags that change what clients may send or what they get, each with a title and the value without the flag.

Flags that choose how an answer is computed are not among them.
"""
COMMIT = 12
LONGEST = 40
"""How many characters of a commit, and of any other value, are shown: a template may be a whole file."""


# ---- other models ------------------------------------------------------------------------------------


def mixed_models(fleet: Fleet, composed: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for model names under which clients would get one of several models, unless all allow that.

    composed: deployments whose definitions this run applies; a name that none of them serves stays as it is.
    """
    users: dict[str, list[tuple[Deployment, tuple[str, str]]]] = {}
    every = {id(item): item for host in fleet.hosts for item in host.deployments if item.endpoint}
    for deployment in every.values():
        for name, model in served_models(deployment).items():
            users.setdefault(name, []).append((deployment, model))
    found: dict[tuple[tuple[str, tuple[str, str]], ...], list[str]] = {}
    for name, there in users.items():
        several = len({model for _unused, model in there}) > 1
        here = any(deployment.name in composed for deployment, _model in there)
        if several and here and not all(deployment.mixed_models for deployment, _model in there):
            pairs = dict.fromkeys((deployment.name, model) for deployment, model in there)
            found.setdefault(tuple(pairs), []).append(name)
    for pairs_of, names in found.items():
        by_model: dict[tuple[str, str], list[str]] = {}
        for deployment_name, model in pairs_of:
            by_model.setdefault(model, []).append(deployment_name)
        lacking = {item.name: item for item, _model in users[names[0]] if not item.mixed_models}
        given = " or ".join(f"{_model(*model)} ({' and '.join(some)})" for model, some in by_model.items())
        yield Problem(
            (*list(lacking.values())[-1].path, "served_model_name"),
            f"clients that request {', '.join(names)} would get {given}, whichever has the fewest requests.",
            f"Serve each model under a name of its own, or set mixed_models: true in {' and '.join(lacking)}.",
        )


def _model(model: str, adapter: str) -> str:
    return f"{model} with adapter {adapter}" if adapter else model


# ---- what differs ------------------------------------------------------------------------------------


def differences(hosts: Iterable[HostStages]) -> list[str]:
    """Return the differences that clients notice between deployments with a common model name, a text for each set."""
    users: dict[str, dict[str, dict[int, Serving]]] = {}
    for stages in hosts:
        for item in stages.serve.instances:
            backend = item.backend
            for name in backend.models if backend.endpoint and not backend.headless else ():
                users.setdefault(name, {}).setdefault(item.deployment_name, {})[_variant(item)] = item
    sets: dict[tuple[str, ...], list[str]] = {}
    for name, there in users.items():
        if len(there) > 1:
            sets.setdefault(tuple(sorted(there, key=natural)), []).append(name)
    texts = []
    for deployments, names in sets.items():
        parts = _differing({name: tuple(users[names[0]][name].values()) for name in deployments})
        if parts:
            texts.append(
                f"{', '.join(names)}: requests go to {' or '.join(deployments)}, which differ in {', '.join(parts)}"
            )
    return texts


def _variant(item: Serving) -> int:
    """Return a number that is the same for instances that clients cannot tell apart."""
    return id(item.instance.tuned if isinstance(item, PlannedInstance) else item.generation)


def _differing(deployments: Mapping[str, Sequence[Serving]]) -> list[str]:
    """Return each trait that is not the same everywhere, with the deployments of each value.

    A trait that is unknown for one of them is left out.
    """
    traits = [(name, _traits(item)) for name, items in deployments.items() for item in items]
    found = []
    for trait in traits[0][1]:
        users: dict[str, dict[str, None]] = {}
        for name, values in traits:
            users.setdefault(values[trait], {})[name] = None
        if len(users) > 1 and "" not in users:
            each = ", ".join(f"{' and '.join(names)} {_short(value)}" for value, names in users.items())
            found.append(f"{trait} ({each})")
    return found


def _traits(item: Serving) -> dict[str, str]:
    """Return what clients notice of an instance, by the names of traits; "" for unknown values."""
    described, flags = item.described, _flags(_command(item))
    found = {"model": str(described["model"])}
    found["revision"] = str(described["commit"] or "")[:COMMIT] or " ".join(flags.get("--revision", ()))
    for flag, (title, absent) in NOTICED.items():
        found[title] = (" ".join(flags[flag]) or "yes") if flag in flags else absent
    if CONTEXT not in flags:
        fit = item.instance.verdict.fit if isinstance(item, PlannedInstance) else None
        found[NOTICED[CONTEXT][0]] = str(fit.max_model_len) if fit else ""
    if ADAPTERS in flags:
        found[NOTICED[ADAPTERS][0]] = " and ".join(map(_adapter, flags[ADAPTERS]))
    return found


def _command(item: Serving) -> Sequence[str]:
    """Return the words with which vLLM is started."""
    if isinstance(item, PlannedInstance):
        return [word for group in item.instance.argv for word in group]
    return shlex.split(item.generation.command)


def _flags(words: Iterable[str]) -> dict[str, list[str]]:
    """Return the flags of a command with the words that follow them; "no" follows one that is switched off."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--no-"):
            values = found.setdefault(f"--{word[5:]}", ["no"])
        elif word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values.append(word)
    return found


def _adapter(word: str) -> str:
    """Return the name in name=path or {"name": …, "path": …}."""
    return str(json.loads(word)["name"]) if word.startswith("{") else word.partition("=")[0]


def _short(value: str) -> str:
    """Return a value as it is shown: digits in groups, a long text by its beginning and its hash."""
    if value.isdecimal() and len(value) <= LONGEST:
        return f"{int(value):,}"
    text = " ".join(value.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}… ({text_hash(value)[:8]})"
