# SPDX-License-Identifier: Apache-2.0
"""List the formats in which a run can be exported, and write a run in some of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ....module_utils.common.errors import FleetError, Problem, suggest
from . import github_action, inferencex, llm_d, mad, pytorch_hud, sweep, tables
from .export import Export
from .run_results import RunResults

FORMATS: Mapping[str, Callable[[RunResults], Export]] = {
    "csv": tables.export_csv,
    "github-action-benchmark": github_action.export,
    "inferencex": inferencex.export,
    "llm-d": llm_d.export,
    "mad": mad.export,
    "markdown": tables.export_markdown,
    "pytorch-hud": pytorch_hud.export,
    "vllm-sweep": sweep.export,
}
"""Each format by its name, which is also the name of its directory."""


def check_formats(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without repetition. Raise FleetError for an unknown one, or for none."""
    wanted = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    problems = [
        Problem(("format",), f"{name!r} is not an export format.", suggest(name, FORMATS))
        for name in wanted
        if name not in FORMATS
    ]
    if not wanted:
        problems = [Problem(("format",), "no format is named.", f"Valid: {', '.join(FORMATS)}.")]
    if problems:
        raise FleetError(problems)
    return wanted


def export_run(results: RunResults, formats: Iterable[str]) -> Export:
    """Return the files of all formats, each below a directory of its name, and what they leave out."""
    files: dict[str, str] = {}
    omitted: list[str] = []
    for name in check_formats(formats):
        made = FORMATS[name](results)
        files.update({f"{name}/{path}": text for path, text in made.files.items()})
        omitted += [f"{name}: {sentence}" for sentence in made.omitted]
    return Export(files, tuple(omitted))
