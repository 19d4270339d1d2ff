# SPDX-License-Identifier: Apache-2.0
"""Writes docs/commands.md out of tests/data/commands and what the planner makes of it.

python -m tests.commands_table > docs/commands.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tests.commands import Entry, compare, documents, entries, own, recipes_add, with_reasons
from tests.worlds.catalogue import knowledge

WIDTH = 116
HEAD = """\
# Commands of AMD's documents, as deployments

For operators who come from AMD's pages: each command there, the entry of `vllm_deployments` that gives the same flags
and variables, and what differs, with the reason. `make unit` plans every entry for the command's own vLLM release and
compares; this page is generated from the same data (`make docs`).

* `recipes: false` reproduces a command as it is written. Leave it out, and the plan adds what the documents recommend
  for the model, the GPU and the `objective`, listed under *Recipes add* with their source; they turn nothing that the
  command decides. `plan.yml -e explain=true` shows the reasons.
* `settings` are names that all releases share; the planner translates them for the image's vLLM. Flags and variables
  without such a name go into `engine_args` and `env`. [catalogue.md](catalogue.md) explains both.
* A benchmark is a deployment plus variables of the role `benchmark`. `benchmark.yml` measures what runs; with
  `--tags latency` or `--tags throughput` it runs vLLM's offline benchmarks with the deployment's own engine flags.
* `image` is left out of the entries; each document has it at its head.
"""
KINDS = {
    "serve": "Every server",
    "docker": "Every container",
    "bench": "Every benchmark",
}


class Dumper(yaml.SafeDumper):
    """YAML as people write it: no aliases, lists indented."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def page() -> str:
    """docs/commands.md."""
    parts = [HEAD, "\n".join(["| document | vLLM | commands |", "|---|---|---|", *map(_row, documents())])]
    parts.append("## Always different")
    parts += [_always(kind, title) for kind, title in KINDS.items()]
    for document in documents():
        parts += _document(document)
    parts.append("## Not expressed")
    parts.append("\n".join(f"* `{name}`: {reason}" for name, reason in own()["left_out"].items()))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _row(document: Mapping[str, Any]) -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", document["document"].lower()).replace(" ", "-")
    count = len(document["commands"])
    return f"| [{document['document']}](#{anchor}) | {document['vllm']} | {count} |"


def _always(kind: str, title: str) -> str:
    added, replaced = own()["added"], own()["replaced"]
    known = {} if kind == "serve" else {**added["serve"], **replaced["serve"]}
    reasons: dict[str, list[str]] = {}
    for name, reason in {**added[kind], **replaced[kind]}.items():
        if name not in known:
            reasons.setdefault(reason, []).append(name)
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {text} |" for text, names in reasons.items()]
    return "\n".join([f"| {title} | |", "|---|---|", *lines])


def _document(document: Mapping[str, Any]) -> Iterable[str]:
    source = knowledge().sources[document["source"]]
    yield f"## {document['document']}"
    yield f"[{source['title']}]({source['url']}), {source['date']}. Image: `{document['image']}`."
    yield document["note"].strip()
    for entry in (item for item in entries() if item.document is document):
        yield from _entry(entry)


def _entry(entry: Entry) -> Iterable[str]:
    where = entry.data["section"].replace("-", " ")
    special = [f"{key} `{entry.data[key]}`" for key in ("gpu", "vllm", "image") if key in entry.data]
    yield f"### {entry.data['title']}"
    yield f"{', '.join([f'Section *{where}*', *special])}."
    yield "```bash\n" + "\n".join(_wrapped(text) for text in entry.commands) + "\n```"
    yield "```yaml\n" + _variables(entry) + "```"
    if entry.refused:
        yield f"Refused before anything is pulled: *{entry.refused} …*"
    elif entry.on_the_host is None:
        found = {
            item.key: item for compared in compare(entry) for item in with_reasons(entry, compared.found)
        }
        yield "\n".join(_difference(item) for item in found.values()) if found else "No difference."
        plain = all(item.get("recipes") is False for item in entry.deployments)
        if plain and not entry.benchmark and not entry.commands[0].startswith("docker"):
            added = recipes_add(entry)
            if added:
                yield "*Recipes add* " + "; ".join(_added(*item) for item in added.items()) + "."


def _added(source: str, items: Iterable[str]) -> str:
    return ", ".join(f"`{item}`" for item in items) + f" ({source})"


def _difference(item: Any) -> str:
    if item.toolkit is None:
        what = f"`{_said(item.what, item.document)}` is left out"
    elif item.document is None:
        what = f"`{_said(item.what, item.toolkit)}` is added"
    else:
        what = f"`{_said(item.what, item.toolkit)}` instead of `{_text(item.document)}`"
    return f"* {what}. {item.reason}"


def _said(name: str, value: Any) -> str:
    if value is True:
        return name
    if name in ("program", "model", "docker image"):
        return _text(value)
    sign = " " if name.startswith("-") or not name.isupper() else "="
    return f"{name}{sign}{_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _variables(entry: Entry) -> str:
    """The inventory's part, as it would be written."""
    given = entry.data.get("deployments") or [entry.data["deployment"]]
    found: dict[str, Any] = {**entry.host, "vllm_deployments": given}
    if entry.benchmark:
        kind, arguments = entry.benchmark
        found[f"benchmark_{kind}_args"] = arguments
    return yaml.dump(found, Dumper=Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)


def _wrapped(text: str) -> str:
    """A command line on several lines; a flag stays with its value, and what is in quotes is one word."""
    parts = [""]
    for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+", text):
        if parts[-1].startswith("-") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = [""]
    for part in parts[1:]:
        if lines[-1] and len(lines[-1]) + len(part) > WIDTH - 3:
            lines.append("   ")
        lines[-1] += (" " if lines[-1] else "") + part
    return " \\\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
