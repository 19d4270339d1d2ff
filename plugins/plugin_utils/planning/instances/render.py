# SPDX-License-Identifier: Apache-2.0
"""Render an instance's files. Control node only: it needs Jinja, which nodes may not have."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.common.hashing import canonical
from ....module_utils.credentials.secret_files import MOUNT as SECRETS_MOUNT
from .compose import Instance, container, supervise_args

TEMPLATES = Path(__file__).resolve().parents[4] / "templates"
FILES = ("serve.sh", "env", "container.json")
Render = Callable[[Instance], dict[str, str]]
_CONTROL = re.compile("[\\x00-\\x1f\\x7f]")


def _environment(finalize: Callable[[Any], Any] | None = None) -> Any:
    import jinja2  # imported on use: importing this module does not require Jinja

    return jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
        autoescape=False,  # shell, JSON and HAProxy's format, not HTML: the filters below quote
    )


def template_renderer(template: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that renders haproxy.cfg from this template's text.

    It raises FleetError for a value with a control character, which could end a line and begin another.
    """
    environment = _environment(finalize=_of_one_line)
    environment.filters["json"] = canonical
    environment.filters["word"] = haproxy_word
    compiled = environment.from_string(template)
    return lambda data: str(compiled.render(data))


def _of_one_line(value: Any) -> Any:
    if _CONTROL.search(str(value)):
        what = (
            f"{value!r} contains a control character, and cannot be part of a load balancer's configuration."
        )
        fix = (
            "Search the inventory for it, then the instances' records on the GPU hosts (plan.yml shows them)."
        )
        raise FleetError([Problem((), what, fix)])
    return value


def haproxy_word(text: str) -> str:
    """Return a text as one word of HAProxy's configuration. Source: its manual, Quoting and escaping."""
    for char in '\\"$':
        text = text.replace(char, "\\" + char)
    return f'"{text}"'


def renderer(templates: Mapping[str, str]) -> Render:
    """Return a function that renders an instance from these template texts ("serve.sh.j2" → text)."""
    environment = _environment()
    environment.filters["quote"] = shlex.quote
    environment.filters["words"] = shlex.join
    texts: dict[str, str] = {}

    def indented(value: Any) -> str:
        """Return JSON for people. With an indent, json is ten times as slow, and hosts have equal containers."""
        key = canonical(value)
        if key not in texts:
            texts[key] = json.dumps(value, indent=2, sort_keys=True)
        return texts[key]

    environment.filters["json"] = indented
    compiled = {name: environment.from_string(templates[f"{name}.j2"]) for name in FILES}

    def render(instance: Instance) -> dict[str, str]:
        context = _context(instance)
        return {name: template.render(context) for name, template in compiled.items()}

    return render


def template_text(name: str) -> str:
    """Return the text of a file of templates/."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def load_renderer() -> Render:
    """Return a renderer of instances with the templates of templates/."""
    return renderer({f"{name}.j2": template_text(f"{name}.j2") for name in FILES})


def _context(instance: Instance) -> dict[str, Any]:
    deployment = instance.deployment
    return {
        "name": instance.name,
        "deployment": deployment.name,
        "model": deployment.model,
        "revision": "" if deployment.local_model else deployment.revision,
        "commit": instance.commit,
        "image": deployment.image_ref,
        "gpus": [f"{gpu.index} ({gpu.render_node})" for gpu in instance.slot.gpus],
        "options": (*supervise_args(instance.slot), *instance.group),
        "key": instance.key_mark,
        "argv": instance.argv,
        "env": instance.env,
        "secrets": f"{SECRETS_MOUNT}/{instance.secrets_mark}" if instance.secrets_mark else "",
        "container": container(instance),
    }
