# SPDX-License-Identifier: Apache-2.0
"""Format the deployments of a plan: where they run, whether they fit, the settings, and the command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...base.text import join_names
from ...knowledge.sizing.fit import Fit
from ...knowledge.vllm.settings import flag_argv
from ..desired.actions import size
from ..desired.deployment import Deployment
from ..desired.reasons import Reason
from ..instances.compose import Instance
from ..instances.planned import PlannedInstance
from ..plan.host_plan import HostPlan
from .text import COUNTS, gpus_text, noun_with_numbers, titled_paragraph

ADDRESS = "--host"


@dataclass
class DeploymentText:
    """A deployment on one kind of host, or of groups of hosts that run an engine together.

    Attributes:
        groups: for the hosts of each group, the address and the ports where its servers meet.
        idle: GPUs without an instance.
        addresses: where instances listen, for hosts that use their own address.
        networks: the servers' variables for the networks of their hosts.
    """

    instance: Instance
    count: int
    idle: tuple[int, ...]
    hosts: list[str] = field(default_factory=list)
    groups: dict[tuple[str, ...], tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    networks: dict[str, dict[str, str]] = field(default_factory=dict)

    def lines(self, full: bool, once: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the deployment's block.

        full: include the command and every reason. once: warnings that are printed elsewhere.
        """
        instance, deployment = self.instance, self.instance.deployment
        many = f"{self.count} instances" if self.count > 1 else "1 instance"
        goal = f", tuned for {deployment.objective}" if deployment.objective else ""
        where = (
            "each group of hosts"
            if len(self.groups) > 1
            else "both hosts"
            if deployment.nodes == 2
            else "all hosts"
        )
        place = f"{many} over {where}" if self.groups else f"{many} per host"
        lines = [
            f"Deployment {deployment.name} on {join_names(self.hosts)}: {place}, "
            f"vLLM {instance.tuned.release.requested}{goal}"
        ]
        for hosts, (master, ports) in self.groups.items():
            meeting = f"they meet at {master}, {noun_with_numbers('port', ports)}"
            lines += titled_paragraph(
                "group", f"{hosts[0]} is the head, with {', '.join(hosts[1:])}; {meeting}"
            )
        if self.groups:
            own = gpus_text([gpu.index for gpu in instance.slot.gpus]) if self.count == 1 else ""
            parts = [_division(deployment), f"{own} on each host" if own else ""]
            parts += [f"{noun_with_numbers('GPU', self.idle)} on each host idle"] if self.idle else []
            lines += titled_paragraph("parallel", "; ".join(part for part in parts if part))
        fit = instance.verdict.fit
        if fit:
            lines += titled_paragraph("memory", _memory(fit, instance))
        if instance.tuned.chosen:
            lines += titled_paragraph(
                "chosen", ", ".join(filter(None, (_words(instance, n) for n in instance.tuned.chosen)))
            )
        for advice in instance.verdict.advice:
            lines += titled_paragraph("advice", advice.text)
        if fit and not deployment.objective and "--max-model-len" not in instance.tuned.args:
            text = f"set max_model_len to your longest request; {fit.max_model_len:,} tokens is the model's limit"
            lines += titled_paragraph("advice", text)
        for warning in instance.warnings:
            if warning not in once:
                lines += titled_paragraph("warning", warning)
        if not full:
            return lines
        return [*lines, *_command(instance, self._differing()), *_reasons(instance), *self._elsewhere()]

    def _elsewhere(self) -> list[str]:
        """Return the network variables whose values on other hosts differ from those of the first."""
        first = next(iter(self.networks.values()), {})
        lines = []
        for host, values in self.networks.items():
            other = [f"{name}={value}" for name, value in values.items() if first.get(name) != value]
            lines += titled_paragraph("network", f"{host} has {', '.join(other)}") if other else []
        return lines

    def _differing(self) -> str:
        """Return what differs in the commands of the other instances."""
        found = ["address"] if len(self.addresses) > 1 else []
        found += ["port"] if self.count > 1 else []
        found += ["rank"] if self.instance.deployment.nodes > 1 else []
        return ", ".join([*found[:-2], " and ".join(found[-2:])])


def group_deployments(hosts: Sequence[HostPlan], full: bool) -> list[DeploymentText]:
    """Return each deployment on each kind of host; without `full`, only those with an instance to start."""
    seen: dict[tuple[object, ...], DeploymentText] = {}
    for host in hosts:
        composed = [item.instance for item in host.instances if isinstance(item, PlannedInstance)]
        counts = Counter(item.deployment.name for item in composed)
        new = {name.rpartition("-")[0] for name in host.start}
        first = {item.deployment.name: item for item in reversed(composed)}
        used = {node for item in host.instances for node in item.member.render_nodes}
        idle = tuple(gpu.index for gpu in host.layout.gpus if gpu.render_node not in used)
        for name, instance in sorted(first.items()):
            if not (full or name in new):
                continue
            spans = instance.deployment.nodes > 1
            # Servers of one engine differ in their ranks; the head, which comes first, represents them.
            same = (instance.tuned.chosen, idle) if spans else tuple(map(_alike, instance.reasons))
            reported = seen.setdefault(
                (name, counts[name], same, instance.verdict.fit), DeploymentText(instance, counts[name], idle)
            )
            reported.hosts.append(host.host.name)
            reported.addresses |= {item.value for item in instance.reasons if item.setting == ADDRESS}
            if instance.slot.network:
                env = dict(instance.env)
                names = [item.setting for item in instance.slot.network.env if item.setting in env]
                reported.networks[host.host.name] = {name: env[name] for name in names}
            rank = instance.slot.rank
            if spans and rank:
                ranks = [item.slot.rank for item in composed if item.deployment.name == name]
                ports = tuple(sorted({item.master_port for item in ranks if item}))
                reported.groups[rank.hosts] = (rank.master, ports)
    return list(seen.values())


def _alike(reason: Reason) -> Reason:
    """Return the reason without the address, which differs between hosts."""
    return replace(reason, value="") if reason.setting == ADDRESS else reason


def shared_warnings(deployments: Iterable[DeploymentText]) -> dict[str, list[str]]:
    """Return warnings that several deployments share, such as those of their image, with the deployments' names."""
    names: dict[str, dict[str, None]] = {}
    for item in deployments:
        for warning in item.instance.warnings:
            names.setdefault(warning, {})[item.instance.deployment.name] = None
    return {text: list(found) for text, found in names.items() if len(found) > 1}


def _division(deployment: Deployment) -> str:
    """Return how an engine over hosts is divided: within each, and between them."""
    tensor, pipeline, data = (
        deployment.tensor_parallel_size,
        deployment.pipeline_parallel_size,
        deployment.data_parallel_size,
    )
    if data == 1 and tensor > deployment.gpus_per_node:
        return f"tensor parallel {tensor} across hosts" + (
            f", pipeline parallel {pipeline}" if pipeline > 1 else ""
        )
    within = [f"tensor parallel {tensor}"]
    within += [f"pipeline parallel {pipeline}"] if data > 1 and pipeline > 1 else []
    parts, noun, between = (data, "ranks", "data") if data > 1 else (pipeline, "stages", "pipeline")
    here = parts // deployment.nodes
    each = f" ({here} {noun} on each)" if here > 1 else ""
    return f"{' and '.join(within)} within each host, {between} parallel {parts} between them{each}"


def _memory(fit: Fit, instance: Instance) -> str:
    # The reserve for activations and graphs is an estimate in any case.
    unit, sharing = "per GPU", instance.deployment.instances_per_gpu
    part = instance.tuned.args.get("--gpu-memory-utilization")
    if instance.slot.share < 1 and isinstance(part, (int, float)):
        many = f"{COUNTS[sharing]} on each GPU, each with" if sharing > 1 else "on a GPU that it shares, with"
        unit = (
            f"per instance, {many} {part:.0%} of it ({size(int(part * instance.slot.gpus[0].memory_bytes))}):"
        )
    if fit.between is not None:
        low, high = fit.between.max_concurrency
        return (
            f"{unit} {_span(*map(size, fit.between.weights_bytes_per_gpu))} of weights and "
            f"{_span(*map(size, fit.between.kv_cache_bytes))} of KV cache: "
            f"{_span(*(f'{tokens:,}' for tokens in fit.between.kv_cache_tokens))} tokens, "
            f"{_span(f'{low:.1f}', f'{high:.1f}')} requests of {fit.max_model_len:,} tokens at once. It is a range, as "
            f"{fit.between.unsure} is not known here"
        )
    weights = f"{unit} {size(fit.weights_bytes_per_gpu)} of weights and"
    requests = f"{fit.max_concurrency:.1f} requests of {fit.max_model_len:,} tokens at once"
    if fit.measured:
        text = f"{weights} {size(fit.kv_cache_bytes)} of KV cache: {fit.kv_cache_tokens:,} tokens, {requests}"
        return f"{text}; measured on {fit.measured.host} at {fit.measured.at}"
    guess = "" if fit.basis == "exact" else ", as far as config.json says it"
    if fit.predicted is None:
        text = f"{weights} about {size(fit.kv_cache_bytes)} of KV cache{guess}"
        return f"{text}: {fit.kv_cache_tokens:,} tokens, {requests}"
    (low_bytes, high_bytes), (least, most) = fit.predicted.kv_cache_bytes, fit.predicted.kv_cache_tokens
    unit_of = size(high_bytes).rpartition(" ")[2]
    sizes = f"{size(low_bytes).removesuffix(unit_of).rstrip()} to {size(high_bytes)}"
    text = f"{weights} about {size(fit.kv_cache_bytes)} of KV cache ({sizes}){guess}: {fit.kv_cache_tokens:,} tokens"
    return f"{text} ({least:,} to {most:,}), {requests}; vLLM measures it when it starts"


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _words(instance: Instance, name: str) -> str:
    """Return a flag or variable as it appears in the command; "" if it does not."""
    if not name.startswith("-"):
        return f"{name}={shlex.quote(dict(instance.env)[name])}"
    return shlex.join(flag_argv(instance.tuned.table, name, instance.tuned.args[name]))


def _command(instance: Instance, differing: str) -> list[str]:
    """Return the whole command with its variables, ready to copy; serve.sh runs the same."""
    others = f"; the others differ in {differing}" if differing else ""
    words = [f"{name}={shlex.quote(value)}" for name, value in instance.env]
    words += [shlex.join(group) for group in instance.argv]
    lines = [f"    {word} \\" for word in words[:-1]]
    return [f"  Command of {instance.name}, inside its container{others}:", *lines, f"    {words[-1]}"]


def _reasons(instance: Instance) -> list[str]:
    """Return every setting with its reason and source, then statements of documents about such a deployment."""
    lines = []
    width = min(32, max(len(reason.setting) for reason in instance.reasons))
    for reason in instance.reasons:
        lines.append(f"  {reason.setting:{width}}  {reason.value}".rstrip())
        lines.append(f"  {'':{width}}    {reason.reason} [{reason.source}]")
    for item in instance.tuned.omitted:
        lines += titled_paragraph("left out", f"{item.setting} {item.value}: {item.reason} [{item.source}]")
    for item in instance.not_taken:
        lines += titled_paragraph("left out", f"{item.setting} {item.value}: {item.reason} [{item.source}]")
    for note in instance.verdict.notes:
        lines += titled_paragraph("note", note)
    for hint in instance.hints:
        lines += titled_paragraph("hint", f"{hint.text} [{hint.source}]")
    return lines
