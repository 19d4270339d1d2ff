# SPDX-License-Identifier: Apache-2.0
"""Describe the attention backends on ROCm: which one a release uses, its name, and the log line that proves it.

The data is catalog/vllm/backends.yml; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.engines.versions import Release, Timeline
from ...base.json_record import JsonRecord
from .findings import BAD_CHOICE, Finding
from .flag_values import Value

DENSE, MLA = "dense", "mla"
"""Kinds of attention, as backends.yml has them."""
MASTER, BLOCK = "aiter", "--block-size"
SWITCHES = (
    ("aiter", "VLLM_ROCM_USE_AITER", False),
    ("aiter_mha", "VLLM_ROCM_USE_AITER_MHA", True),
    ("aiter_mla", "VLLM_ROCM_USE_AITER_MLA", True),
    ("aiter_unified", "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", False),
    ("aiter_unified", "VLLM_USE_AITER_UNIFIED_ATTENTION", False),
    ("prefill_decode", "VLLM_V1_USE_PREFILL_DECODE_ATTENTION", False),
    ("v1", "VLLM_USE_V1", False),
)
"""Conditions of backends.yml, the variables that decide them, and their defaults in vllm.envs."""
_ALSO_DECIDE = ("--attention-config", "VLLM_ATTENTION_BACKEND", "VLLM_USE_AITER_UNIFIED_ATTENTION")
"""Settings that also decide in some releases, partly against the switches above; backends.yml has none of them."""
_REFUSED = (
    ("full_graphs", "cudagraph_mode FULL is not supported, and vLLM stops; PIECEWISE is supported"),
    ("block_one", "block_size 1 is not supported"),
)
"""Facts that a backend may refuse, and the text for each."""
_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Claim(JsonRecord):
    """The backend that a server is expected to take, and the log lines that prove each backend of its release.

    planned: as catalog/vllm/backends.yml names it. lines: by backend, texts of the log, each of which proves it.
    """

    planned: str
    lines: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Backends:
    """The attention backends of one release."""

    release: Release
    line: Timeline
    data: Mapping[str, Any]

    @property
    def era(self) -> Mapping[str, Any]:
        """Return the rules that apply to this release."""
        found: Mapping[str, Any] = next(
            item
            for item in self.data["eras"]
            if self.line.inside(item["since"], item["until"], self.release.index)
        )
        return found

    def expected(self, attention: str, facts: Mapping[str, bool]) -> str:
        """Return the backend that the release chooses by itself.

        facts: the conditions of backends.yml. A missing condition counts as false, so {} is vLLM without any variable
        set.
        """
        for candidate in self.era[attention]:
            if _hold(candidate.get("if", {}), facts):
                return str(candidate["backend"])
        return str(self.era[attention][-1]["backend"])

    def in_effect(
        self, attention: str, args: Mapping[str, Value], env: Mapping[str, str], facts: Mapping[str, bool]
    ) -> str:
        """Return the backend that flags ("--name" → value) and variables select.

        facts: of the model, as in expected().
        """
        by = self.named_by()
        given = str((args if by and by.startswith("-") else env).get(by or "", "")).upper()
        named = next(
            (str(name) for name in self.data["backends"] if given and self.vllm_name(name) == given), ""
        )
        known = {**self.switched(args, env), **facts}
        if not named:
            return self.expected(attention, known)
        if attention == DENSE and named != "flex" and self.era.get("name_last"):
            for candidate in self.era[attention]:
                if candidate["backend"] == named or _hold(candidate.get("if", {}), known):
                    return str(candidate["backend"])
        return named

    def switched(self, args: Mapping[str, Value], env: Mapping[str, str]) -> dict[str, bool]:
        """Return the conditions of backends.yml that flags and variables decide, or the defaults."""
        found = {fact: default for fact, _name, default in SWITCHES}
        found.update((fact, switched_on(env[name])) for fact, name, _default in SWITCHES if name in env)
        return {**found, "block_1": args.get(BLOCK) == 1}

    def claim(
        self, attention: str, args: Mapping[str, Value], env: Mapping[str, str], facts: Mapping[str, Any]
    ) -> Claim | None:
        """Return the backend to compare a log with; None where it is not certain, or no log line is known.

        facts: those of in_effect() and of misfits(). A backend that does not fit the model is not taken, and which
        one is then taken is not described.
        """
        if any(name.partition(".")[0] in _ALSO_DECIDE for name in (*args, *env)):
            return None
        given = str(args.get(self.named_by() or "", "auto")).upper()
        if given not in ("AUTO", *self.names()):
            return None
        planned = self.in_effect(attention, args, env, facts)
        lines = {name: texts for name in self.data["backends"] if (texts := self.log_lines(name))}
        if planned not in lines or self.misfits(planned, facts):
            return None
        return Claim(planned, lines)

    def named_by(self) -> str | None:
        """Return the flag or variable that selects a backend by name, or None if the release has neither."""
        by: str | None = next(self._spans(self.data["named_by"]))["by"]
        return by

    def vllm_name(self, backend: str) -> str | None:
        """Return vLLM's own name of a backend, or None if the release has no name for it."""
        entry = self.data["backends"][backend]
        if "name" not in entry or self.line.order[entry["named_since"]] > self.release.index:
            return None
        return str(entry["name"])

    def called(self, name: str) -> tuple[str, str] | None:
        """Return the backend with a name of vLLM's, and its kind of attention; None if it is not described."""
        return next(
            (
                (backend, str(entry["attention"]))
                for backend, entry in self.data["backends"].items()
                if name and self.vllm_name(backend) == name
            ),
            None,
        )

    def names(self) -> tuple[str, ...]:
        """Return vLLM's names of the backends that this release has on ROCm."""
        known = (self.vllm_name(backend) for backend in self.data["backends"])
        return tuple(name for name in known if name)

    def _spans(self, rules: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the entries that apply to this release."""
        for rule in rules:
            if self.line.inside(rule["since"], rule["until"], self.release.index):
                yield rule

    def log_lines(self, backend: str) -> tuple[str, ...]:
        """Return texts in the log of the starting server that each prove the backend; empty if none is known."""
        lines = {**self.era["lines"], **self.data["forks"].get(self.release.fork, {})}
        if backend in lines:
            return tuple(lines[backend])
        name = self.vllm_name(backend)
        return tuple(text.replace("{name}", name) for text in lines.get("any", ())) if name else ()

    def misfits(self, backend: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
        """Return why a model's shape or the configuration prevents the use of a backend; empty if nothing does.

        facts: head_size, block_size, dtype, kv_cache_dtype, sinks, kv_connector, full_graphs, block_one, and
        heads (of the whole model) with tp. Conditions on missing facts are not checked.
        """
        entry = self.data["backends"][backend]
        needs = dict(entry.get("needs", {}))
        for limit in self._spans(entry.get("limits", ())):
            needs.update(limit)
        found: list[str] = []
        for fact, key in (
            ("head_size", "head_sizes"),
            ("dtype", "dtypes"),
            ("kv_cache_dtype", "kv_cache_dtypes"),
        ):
            if key in needs and fact in facts and facts[fact] not in needs[key]:
                valid = ", ".join(str(item) for item in needs[key])
                found.append(f"{fact} {facts[fact]} is not among {valid}")
        multiple = needs.get("block_multiple")
        if multiple and "block_size" in facts and facts["block_size"] % multiple:
            found.append(f"block_size {facts['block_size']} is not a multiple of {multiple}")
        if "heads" in needs and facts.get("heads"):
            found += _wrong_heads(needs["heads"], facts["heads"], facts["tp"])
        found += [text for fact, text in _REFUSED if facts.get(fact, False) and not needs.get(fact, True)]
        for fact in ("sinks", "kv_connector"):
            if fact in needs and facts.get(fact, False) and not needs[fact]:
                found.append(
                    "attention sinks are not supported" if fact == "sinks" else "KV connectors are not"
                )
        return tuple(found)


def check_named(backends: Backends, name: str) -> Finding | None:
    """Check a backend's name, as in --attention-backend or VLLM_ATTENTION_BACKEND; None if it is valid on ROCm.

    vLLM's parser accepts names of backends for other GPUs, and then fails or ignores them when it loads the model.
    Releases without named backends are not checked.
    """
    by = backends.named_by()
    others = {text for rule in backends._spans(backends.data["others"]) for text in rule["names"]}
    if by is None or name.upper() in {*backends.names(), *others}:
        return None
    what = f"{name} is not an attention backend of vLLM {backends.release.requested} on ROCm"
    fix = f"Use one of {', '.join(backends.names())}, or leave it out."
    return Finding(by, BAD_CHOICE, what, fix, "vllm-rocm-platform", backends.release.exact)


def _wrong_heads(valid: Sequence[int], heads: int, tp: int) -> list[str]:
    """Return why this number of heads per GPU is not supported, with the tensor parallel sizes that are."""
    if heads % tp or heads // tp in valid:
        return []
    sizes = [str(size) for size in _SIZES if heads % size == 0 and heads // size in valid]
    right = (
        f"tensor_parallel_size {' or '.join(sizes)} gives a supported number"
        if sizes
        else "no tensor_parallel_size gives a supported number"
    )
    listed = ", ".join(map(str, valid))
    return [f"{heads // tp} attention heads per GPU are not among {listed}; {right}"]


def _hold(conditions: Mapping[str, bool], facts: Mapping[str, bool]) -> bool:
    return all(facts.get(key, False) == value for key, value in conditions.items())


def switched_on(text: str) -> bool:
    """Return whether vLLM reads a switch as on."""
    return text.lower() in ("1", "true")
