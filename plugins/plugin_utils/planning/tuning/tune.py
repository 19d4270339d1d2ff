# SPDX-License-Identifier: Apache-2.0
"""Decide the flags and variables of a deployment on one kind of GPU: first the operator's, then those of recipes.

Pure. The operator always takes precedence: a recipe's choice that would change one of the operator's flags or
variables, even in part, is omitted as a whole, as half of it may be worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....module_utils.common.errors import Path, Problem
from ....module_utils.engines.versions import Release
from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.catalog.past_choices import past_choices
from ...knowledge.catalog.recipes import (
    Advice,
    Context,
    RecipeChoice,
    RecipeSelection,
    select_recipes,
    speculative_pairs,
)
from ...knowledge.sizing.decode import PeakRates
from ...knowledge.vllm.attention_backends import Backends, check_named
from ...knowledge.vllm.canonical import canonical_flag
from ...knowledge.vllm.env_vars import check_env, meaning
from ...knowledge.vllm.findings import Finding
from ...knowledge.vllm.flag_values import Value, token
from ...knowledge.vllm.flags import FlagTable, check
from ...knowledge.vllm.recognize import recognize_settings
from ...knowledge.vllm.settings import SettingsBook, render_setting
from ..desired.deployment import Deployment
from ..desired.reasons import Reason, deployment_key
from ..desired.reserved_flags import ENGINE_OWNED
from ..placement.gpu_shares import SHARED_PART, UTILIZATION, own_instances_per_gpu
from .decisions import Decisions, value_text
from .switch_judge import SwitchJudge

SPLIT = "amd-vllm-v1-guide#configure-the-gpu-memory-utilization-parameter"
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Settings that are keys of a deployment, as the layout depends on them; recipes can only advise them."""
RANGES = {
    "--gpu-memory-utilization": (
        math.nextafter(0.0, 1.0),
        1.0,
        "the part of a GPU's memory, above 0 and at most 1",
    ),
    "--max-num-seqs": (1, None, "at least 1"),
    "--max-num-batched-tokens": (1, None, "at least 1"),
    "--block-size": (1, None, "at least 1"),
}
"""Limits that vLLM's configuration classes check after its parser; vllm/config of the releases."""
ATTENTION = "attention_backend"
STARTUP_PLAN = "VLLM_ENABLE_STARTUP_PLAN"
OTHER_PLATFORMS = ("cpu", "cuda")
"""Platforms to which statements about Instinct GPUs do not apply."""


@dataclass(frozen=True)
class TargetGpu:
    """The GPU, or partition, of an instance; memory in bytes, as the driver reports it.

    Attributes:
        name: of the product.
        compute, memory: the partition modes.
        memory_bytes: of one partition.
        gpu_bytes: of the whole GPU.
        driver: version of the amdgpu module, "" if unknown.
        peak: rates of one partition, None if unknown.
    """

    gfx: str
    name: str
    compute: str
    memory: str
    memory_bytes: int
    gpu_bytes: int
    driver: str = ""
    peak: PeakRates | None = None


@dataclass(frozen=True)
class TunedSettings:
    """The decided flags ("--name" → value) and variables, with a reason for each.

    known: all decided neutral settings, from any source. chosen: flags and variables that recipes added. omitted: what
    recipes would have added. recommended: keys of the deployment for which documents recommend other values.
    """

    release: Release
    table: FlagTable
    context: Context
    args: Mapping[str, Value]
    env: Mapping[str, str]
    known: Mapping[str, Value]
    reasons: tuple[Reason, ...]
    chosen: tuple[str, ...]
    omitted: tuple[Reason, ...]
    warnings: tuple[str, ...]
    advice: tuple[Advice, ...]
    recommended: tuple[Advice, ...]
    problems: tuple[Problem, ...]
    startup_plan: bool = False

    def inside(self, since: str, until: str | None = None) -> bool:
        """Return whether the release is `since` or later, and before `until`."""
        return self.table.line.inside(since, until, self.release.index)


def tune(
    deployment: Deployment, machine: TargetGpu, software: ImageFacts, model: ModelFacts, knowledge: Knowledge
) -> TunedSettings:
    """Decide flags and variables. Raise ValueError if the vLLM version is malformed, or older than the catalogue."""
    book = knowledge.book(software.vllm or "")
    backends = None
    if software.platform not in OTHER_PLATFORMS:
        backends = Backends(book.release, book.line, knowledge.backends)
    resolver = SettingsResolver(deployment, book, backends)
    resolver.take_engine_args()
    resolver.take_env()
    resolver.take_settings()
    given = {
        **recognize_settings(book, resolver.decisions.args, resolver.decisions.env),
        **dict(deployment.settings),
        **{name: getattr(deployment, name) for name in SIZES},
    }
    context = _context(deployment, machine, software, book, given, knowledge)
    judge = None
    if backends:
        judge = SwitchJudge.of(
            resolver.decisions, context, model, backends, knowledge.switches(software.vllm or "")
        )
    selection = _select(deployment, knowledge, model, context, given)
    shared = _shared_gpu_choice(deployment, given)
    forced = resolver.backend_instead((*shared, *selection.choices), judge)
    if forced:  # settings that go with a backend are chosen for the one in effect
        selection = _select(deployment, knowledge, model, context, {**given, **forced})
    resolver.take_choices((*shared, *selection.choices), judge)
    resolver.take_rules(selection.advice)
    resolver.check_switches(judge)
    resolver.check_sequences(knowledge)
    resolver.check_share(knowledge)
    if book.release.note:
        resolver.warnings.insert(0, book.release.note)
    offer = _draft_advice(deployment, knowledge, model, context)
    known = {**{choice.setting: choice.value for choice in selection.choices}, **given}
    return TunedSettings(
        book.release,
        book.flags,
        context,
        resolver.decisions.args,
        resolver.decisions.env,
        known,
        tuple(resolver.decisions.reasons),
        resolver.chosen,
        (*resolver.omitted, *_past(deployment, knowledge, model, context, {**known, **forced})),
        tuple(dict.fromkeys(resolver.warnings)),
        (*(item for item in selection.advice if item.say == "advise"), *offer),
        _recommended(deployment, knowledge, model, context, given),
        tuple(resolver.problems),
        book.env.knows(STARTUP_PLAN),
    )


class SettingsResolver:
    """Applies decisions in order of precedence, and collects their problems."""

    def __init__(self, deployment: Deployment, book: SettingsBook, backends: Backends | None) -> None:
        self.deployment = deployment
        self.book = book
        self.backends = backends
        self.decisions = Decisions(partial(meaning, book.env))
        self.chosen: tuple[str, ...] = ()
        self.omitted: list[Reason] = []
        self.silent: list[str] = []
        self.warnings: list[str] = []
        self.problems: list[Problem] = []

    def take_engine_args(self) -> None:
        """Apply the operator's flags, each checked against the release."""
        table, path = self.book.flags, (*self.deployment.path, "engine_args")
        for key, given in self.deployment.engine_args:
            option, value = canonical_flag(table, key, given)
            hit = table.get(option)
            name = hit[0].name if hit else option
            owned = ENGINE_OWNED.get(name[2:].replace("-", "_"))
            if owned:
                self.problems.append(Problem((*path, key), "is set by the toolkit.", owned))
                continue
            self.judge((*path, key), check(table, option, value))
            self.check_range((*path, key), name, value)
            self.check_backend((*path, key), name, value)
            if value is not None:
                source = deployment_key(self.deployment, "engine_args", key)
                self.decisions.add({name: value}, {}, "set by the deployment", source)

    def take_env(self) -> None:
        """Apply the operator's variables."""
        for key, text in self.deployment.env:
            path: Path = (*self.deployment.path, "env", key)
            finding = check_env(self.book.env, key, text)
            self.judge(path, finding)
            if finding.is_warning:
                self.silent.append(key)
            self.check_backend(path, key, text)
            source = deployment_key(self.deployment, "env", key)
            self.decisions.add({}, {key: text}, "set by the deployment", source)

    def take_settings(self) -> None:
        """Apply the operator's neutral settings."""
        for key, value in self.deployment.settings:
            path: Path = (*self.deployment.path, "settings", key)
            if key in SIZES:
                fix = f"Use the deployment's key {key}."
                self.problems.append(Problem(path, "is set by the toolkit.", fix))
                continue
            found = render_setting(self.book, key, value)
            for finding in found.findings:
                self.judge(path, finding)
            for name, part in found.args.items():
                self.check_range(path, name, part)
            clash = self.decisions.conflict(found.args, found.env)
            if clash:
                what = f"needs {clash.subject} to be {token(clash.wanted)}, but it is set to {token(clash.held)}."
                self.problems.append(Problem(path, what, "Keep one of the two."))
                continue
            source = deployment_key(self.deployment, "settings", key)
            reason = f"the setting {key} in vLLM {self.book.release.requested}"
            self.decisions.add(found.args, found.env, reason, source)

    def backend_instead(self, choices: Iterable[RecipeChoice], judge: SwitchJudge | None) -> dict[str, Value]:
        """Return the attention backend that is in effect where the recommended one is left out, as a setting."""
        trial = copy(self)
        trial.decisions, trial.omitted = self.decisions.copy(), []
        trial.take_choices(choices, judge)
        backend = ATTENTION in {item.setting for item in trial.omitted} and judge
        self.omitted += [item for item in trial.omitted if item.setting == ATTENTION]
        return {ATTENTION: backend.selected(trial.decisions)} if backend else {}

    def take_choices(self, choices: Iterable[RecipeChoice], judge: SwitchJudge | None) -> None:
        """Apply recommendations of recipes, unless the operator has decided otherwise."""
        before = len(self.decisions.reasons)
        for choice in choices:
            found = render_setting(self.book, choice.setting, choice.value)
            if any(finding.is_error for finding in found.findings):
                continue
            clash = self.decisions.conflict(found.args, found.env)
            if clash:
                self.leave_out(
                    choice.setting, choice.value, f"{clash.subject} is {token(clash.held)}", choice.source
                )
                continue
            voided = judge.overruled(self.decisions, found.args, found.env) if judge else ""
            if voided:
                why = f"with it {voided}, which the deployment sets, would have no effect"
                self.leave_out(choice.setting, choice.value, why, choice.source)
                continue
            reason = choice.reason
            if choice.overridden:
                others = ", ".join(f"{item.recipe} says {token(item.value)}" for item in choice.overridden)
                reason += f" ({others})"
            self.decisions.add(found.args, found.env, reason, choice.source)
        names = dict.fromkeys(item.setting for item in self.decisions.reasons[before:])
        for name, finding in judge.idle(self.decisions, names) if judge else ():
            text = self.decisions.env[name]
            self.decisions.drop(name)
            self.leave_out(name, text, finding.what, finding.source)
        self.chosen = tuple(
            name for name in names if name in self.decisions.args or name in self.decisions.env
        )

    def leave_out(self, setting: str, value: Value, why: str, source: str) -> None:
        """Record a recommendation that is not followed, and why."""
        self.omitted.append(Reason(setting, value_text(value), why, source))

    def check_switches(self, judge: SwitchJudge | None) -> None:
        """Warn of the operator's switches that have no effect next to the others."""
        if not judge:
            return
        named = [name for name, _text in self.deployment.env if name not in self.silent]
        own = [name for part in judge.own for name in part if name not in self.silent]
        for name, finding in (*judge.idle(self.decisions, own), *judge.unselected(self.decisions, named)):
            flag, _dot, inner = name.partition(".")
            (source,) = [item.source for item in self.decisions.reasons if item.setting == flag][:1]
            key = source.partition(": ")[2]
            if not key.endswith(flag):  # a part of a map, or what a setting stands for
                key += f": {inner or flag}"
            self.warnings.append(f"{key}: {finding.what}. {finding.fix} [{finding.source}]")

    def take_rules(self, rules: Iterable[Advice]) -> None:
        """Report what documents refuse or warn about."""
        for rule in rules:
            if rule.say == "refuse":
                self.problems.append(Problem(self.deployment.path, rule.text, f"Source: {rule.source}."))
            elif rule.say == "warn":
                self.warnings.append(f"{rule.text} [{rule.source}]")

    def check_sequences(self, knowledge: Knowledge) -> None:
        """Report a step with fewer tokens than sequences, with which vLLM stops."""
        args = self.decisions.args
        tokens, seqs = (
            args.get(f"--{name.replace('_', '-')}", knowledge.default(name, self.book.release))
            for name in ("max_num_batched_tokens", "max_num_seqs")
        )
        if isinstance(tokens, int) and isinstance(seqs, int) and tokens < seqs:
            if "max_num_seqs" not in dict(self.deployment.engine_args):
                reason = "no more sequences than tokens in a step, or vLLM stops"
                self.decisions.put("--max-num-seqs", tokens, reason, "vllm-source")
                return
            what = f"max_num_batched_tokens is {tokens}, and max_num_seqs {seqs}; vLLM stops."
            path = (*self.deployment.path, "engine_args")
            self.problems.append(Problem(path, what, "Make it at least as large as max_num_seqs."))

    def check_range(self, path: Path, name: str, value: Value) -> None:
        """Report a number that the parser accepts but vLLM then refuses."""
        low, high, meaning = RANGES.get(name, (None, None, ""))
        if low is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        if not (low <= value and (high is None or value <= high)):  # as nan is neither below nor above
            hint = f" Did you mean {value / 100:g}?" if high == 1.0 and 1 < value <= 100 else ""
            self.problems.append(Problem(path, f"{value} is out of range.", f"It is {meaning}.{hint}"))

    def check_backend(self, path: Path, name: str, value: Value) -> None:
        """Report an attention backend that does not exist for these GPUs."""
        if self.backends is not None and name == self.backends.named_by():
            finding = check_named(self.backends, str(value))
            if finding is not None:
                self.judge(path, finding)

    def check_share(self, knowledge: Knowledge) -> None:
        """Report instances on one GPU that together request more than its memory."""
        count, name = own_instances_per_gpu(self.deployment), UTILIZATION
        part = self.decisions.args.get("--gpu-memory-utilization", knowledge.default(name, self.book.release))
        if count > 1 and isinstance(part, (int, float)) and part * count > 1:
            what = (
                f"{count} instances per GPU with {name} {part:g} each want {part * count:.0%} of its memory."
            )
            fix = f"Leave {name} out, or set it to at most {int(SHARED_PART * 100 / count) / 100:g}."
            self.problems.append(Problem((*self.deployment.path, "instances_per_gpu"), what, fix))

    def judge(self, path: Path, finding: Finding) -> None:
        """Record a finding as a problem or a warning."""
        what, source = f"{finding.what}.", f" [{finding.source}]" if finding.source else ""
        if finding.is_error:
            self.problems.append(Problem(path, what, finding.fix))
        elif finding.is_warning:
            key = ".".join(str(part) for part in path[2:])
            self.warnings.append(f"{key}: {what} {finding.fix}".rstrip() + source)


def _select(
    deployment: Deployment,
    knowledge: Knowledge,
    model: ModelFacts,
    context: Context,
    given: Mapping[str, Value],
) -> RecipeSelection:
    recipes = knowledge.recipes
    if not deployment.recipes:  # what cannot work is still refused
        recipes = tuple(replace(recipe, settings=()) for recipe in recipes)
    return select_recipes(recipes, model, context, given)


def _recommended(
    deployment: Deployment,
    knowledge: Knowledge,
    model: ModelFacts,
    context: Context,
    given: Mapping[str, Value],
) -> tuple[Advice, ...]:
    """Return recommended sizes for this model where the deployment has other values."""
    if not deployment.recipes:
        return ()
    open_sizes = {name: value for name, value in given.items() if name not in SIZES}
    found = select_recipes(knowledge.recipes, model, context, open_sizes)
    return tuple(
        Advice(choice.setting, "advise", f"{choice.setting} {choice.value} is recommended: {choice.reason}.",
               choice.source, choice.recipe)
        for choice in found.choices
        if choice.setting in SIZES and choice.value != given[choice.setting]
    )  # fmt: skip


def _past(
    deployment: Deployment,
    knowledge: Knowledge,
    model: ModelFacts,
    context: Context,
    known: Mapping[str, Value],
) -> tuple[Reason, ...]:
    """Return what documents recommended for older releases only."""
    if not deployment.recipes:
        return ()
    return tuple(
        Reason(item.setting, value_text(item.value), f"only before vLLM {until}: {item.reason}", item.source)
        for item, until in past_choices(knowledge.recipes, model, context, known)
    )


def _draft_advice(
    deployment: Deployment, knowledge: Knowledge, model: ModelFacts, context: Context
) -> tuple[Advice, ...]:
    """Return drafts that documents name for the model; they speed up few requests, and slow down many."""
    if not deployment.recipes or context.speculative or deployment.objective == "throughput":
        return ()
    found = []
    for pair in speculative_pairs(knowledge.recipes, model, context):
        settings = {"speculative": pair["speculative"], **pair["settings"]}
        listed = ", ".join(f"{name}: {token(value)}" for name, value in settings.items())
        text = (
            f"{pair['draft']} can serve as its draft model, which speeds up small numbers of concurrent requests: "
            f"{listed}. {pair['reason']}."
        )
        found.append(Advice("speculative-pair", "advise", text, pair["source"], "speculative"))
    return tuple(found)


def _shared_gpu_choice(deployment: Deployment, given: Mapping[str, Value]) -> tuple[RecipeChoice, ...]:
    """Return the share of a GPU's memory for each of several instances on it."""
    count = deployment.instances_per_gpu
    if count < 2 or "gpu_memory_utilization" in given:
        return ()
    value = int(SHARED_PART * 100 / count) / 100
    reason = f"{count} instances share the GPU"
    return (RecipeChoice("gpu_memory_utilization", value, reason, SPLIT, "general"),)


def _context(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    book: SettingsBook,
    given: Mapping[str, Value],
    knowledge: Knowledge,
) -> Context:
    engine = given.get("engine")
    if engine is None:
        engine = knowledge.default("engine", book.release)
        if knowledge.rules("engine", book.release)["falls_back"] and _needs_v0_engine(given):
            engine = "V0"
    gpu = software.platform not in OTHER_PLATFORMS
    return Context(
        release=book.release,
        line=book.line,
        gfx=machine.gfx if gpu else "",
        gpu=machine.name if gpu else "",
        objective=deployment.objective,
        compute=machine.compute,
        memory=machine.memory,
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dp=deployment.data_parallel_size,
        nodes=deployment.nodes,
        instances_per_gpu=deployment.instances_per_gpu,
        kv_cache=str(given.get("kv_cache_dtype", "auto")),
        engine=str(engine),
        speculative="speculative" in given,
        speculative_tokens=_draft_tokens(given.get("speculative")),
        workload=deployment.workload,
        balancing=deployment.data_parallel_balancing,
    )


def _draft_tokens(speculative: Any) -> int:
    """Return the number of draft tokens per step; 0 if it is not configured."""
    count = speculative.get("num_speculative_tokens") if isinstance(speculative, Mapping) else 0
    return count if isinstance(count, int) else 0


def _needs_v0_engine(given: Mapping[str, Value]) -> bool:
    """Return whether vLLM falls back to the V0 engine because V1 does not have a configured feature.

    If VLLM_USE_V1 is set, vLLM stops instead.
    """
    speculative = given.get("speculative")
    draft = isinstance(speculative, Mapping) and "method" not in speculative and "model" in speculative
    return draft or given.get("scheduler_steps") not in (None, 1)
