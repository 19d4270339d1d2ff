# SPDX-License-Identifier: Apache-2.0
"""Put the pinned commits of drafts, adapters and tokenizers on a command line. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from ....module_utils.engines.mounts import snapshot_dir
from ...knowledge.vllm.flag_values import Value, token
from ..desired.deployment import Deployment
from ..desired.reasons import Reason
from .companion_models import ADAPTER, DRAFT, TOKENIZER, ModelRepository, adapter_of, companions, map_or_empty
from .tune import TunedSettings

CONFIG_FLAG, DRAFT_FLAG, LORA_FLAG = "--speculative-config", "--speculative-model", "--lora-modules"
TOKENIZER_FLAG = "--tokenizer-revision"
Pin = tuple[ModelRepository, str]
"""A repository and its commit."""


def with_pins(
    tuned: TunedSettings, deployment: Deployment, commit_of: Callable[[ModelRepository], str]
) -> TunedSettings:
    """Return the flags with the commits of the model's companions; those without a pin ("") stay as written.

    --speculative-config has a key for the commit and --tokenizer a flag. A repository with neither is replaced by the
    directory of its snapshot in the container.
    """
    pins = [(item, commit_of(item)) for item in companions(deployment)]
    args, reasons = dict(tuned.args), list(tuned.reasons)
    for pin in pins:
        if pin[1]:
            _put(pin, args, reasons)
    return replace(tuned, args=args, reasons=tuple(reasons))


def _put(pin: Pin, args: dict[str, Value], reasons: list[Reason]) -> None:
    """Put one commit in its place in the flags."""
    item, commit = pin
    place = snapshot_dir(item.repo, commit)
    if item.use == TOKENIZER:
        args[TOKENIZER_FLAG] = commit
        reasons[:] = [reason for reason in reasons if reason.setting != TOKENIZER_FLAG]
        reasons.append(_reason(TOKENIZER_FLAG, commit, pin))
    if item.use == ADAPTER:
        modules = args[LORA_FLAG]
        many = isinstance(modules, (list, tuple))
        placed = [_placed(entry, item.repo, place) for entry in (modules if many else (modules,))]
        args[LORA_FLAG] = placed if many else placed[0]
        if args[LORA_FLAG] != (list(modules) if many else modules):  # one adapter may have two names
            reasons.append(_reason(LORA_FLAG, place, pin))
    if item.use == DRAFT and args.get(DRAFT_FLAG) == item.repo:  # it has no flag for a revision
        args[DRAFT_FLAG] = place
        reasons.append(_reason(DRAFT_FLAG, place, pin))
    elif item.use == DRAFT and map_or_empty(args.get(CONFIG_FLAG)):
        own = {"revision": commit}
        args[CONFIG_FLAG] = dict(sorted({**map_or_empty(args[CONFIG_FLAG]), **own}.items()))
        reasons.append(_reason(CONFIG_FLAG, token(own), pin))


def _placed(entry: Value, repo: str, place: str) -> Value:
    """Return an entry of lora_modules, with the directory of the adapter if the entry is for this one."""
    if adapter_of(entry) != repo:
        return entry
    given = map_or_empty(entry)
    if not given:
        return f"{str(entry).partition('=')[0]}={place}"
    return {**given, "path": place}


def _reason(flag: str, value: str, pin: Pin) -> Reason:
    item, commit = pin
    text = f"the commit of {item.revision} of {item.repo} when it was pinned: every node loads the same"
    if commit == item.revision:
        text = f"the commit of {item.repo} that the deployment names"
    return Reason(flag, value, text, "fleet.lock.json")
