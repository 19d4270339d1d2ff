#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what a vLLM release accepts into catalog/vllm, or compare it with what is there.

    catalog/regenerate.py --image vllm/vllm-openai-rocm:v0.34.0   asks a container of the image
    catalog/regenerate.py --installed --python venv/bin/python    asks an installed vLLM
    catalog/regenerate.py --from-dir wheel/ --python PYTHON       asks an unpacked wheel, run by PYTHON
    catalog/regenerate.py --sources DIR --release 0.33.0          only reads DIR/vllm/**.py of a known release again
    … --check                                                     writes nothing, exits with 1 when it differs
    … --fork amd-0.9.1 --parent 0.9.2                             writes what a fork has otherwise than a release

Only generated files are written (versions, flags, env, configs, quantization, checks, registries, bench,
fork_differences). replacements.yml, parser.yml, settings.yml and backends.yml are written by hand; what they lack now
is named at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / ".collections")]

import yaml  # noqa: E402  (the two lines above make the imports below work from any directory)

from catalog.tools.checks import checks  # noqa: E402
from catalog.tools.forks import fork_tables, write_forks  # noqa: E402
from catalog.tools.packing import FLAG_DEFAULTS, read_json, unpack  # noqa: E402
from catalog.tools.probe import MARKER  # noqa: E402
from catalog.tools.registries import registries  # noqa: E402
from catalog.tools.sources import Sources, config_classes, quantization  # noqa: E402
from catalog.tools.store import PROBE, Store  # noqa: E402

PROBE_FILE = HERE / "tools" / "probe.py"
READERS = ("sources", "expressions", "alternatives", "objects", "values", "checks", "registries")
"""Read vLLM's sources; the probe takes them along."""
GPU_DEVICES = ("/dev/kfd", "/dev/dri")
HELP_OPTION = re.compile(r"^ {2}(-[-\w, ]+?)(?:\s{2,}| [A-Z{\[]|$)", re.MULTILINE)


class Failure(Exception):
    """Something that the user has to be told, and nothing more."""


def run(command: Sequence[str], stdin: str = "", env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command. Failure with the end of its standard error when it fails."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise Failure(f"{' '.join(command[:6])} … ended with {done.returncode}:\n{tail}")
    return done.stdout


def probe_output(text: str, origin: str) -> dict[str, Any]:
    """The probe's object out of everything that was printed."""
    lines = [line[len(MARKER) :] for line in text.splitlines() if line.startswith(MARKER)]
    if not lines:
        raise Failure(f"{origin} printed no answer; is vLLM installed in it?")
    found: dict[str, Any] = json.loads(lines[-1])
    if found["probe"] != PROBE:
        raise Failure(f"{origin} answered in form {found['probe']}, and this reads form {PROBE}")
    return found


def program() -> str:
    """The probe with what it imports: one text for any vLLM's Python, wherever that is."""
    parts = {f"catalog.tools.{name}": (HERE / "tools" / f"{name}.py").read_text() for name in READERS}
    return f"""
import sys, types
for name in ("catalog", "catalog.tools"):
    sys.modules[name] = types.ModuleType(name)
for name, text in {parts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({PROBE_FILE.read_text()!r}, "probe.py", "exec"))
"""


def from_python(python: str, directory: str = "") -> dict[str, Any]:
    """Ask a Python installation, with `directory` before its own libraries."""
    env = {"PYTHONPATH": directory} if directory else {}
    return probe_output(run([python, "-"], program(), env), directory or python)


def from_image(image: str, docker: str) -> dict[str, Any]:
    """Ask a container, and check the answer against the help text of `vllm serve` in it."""
    devices = [f"--device={path}" for path in GPU_DEVICES if os.path.exists(path)]
    base = [docker, "run", "--rm", "--network=none", *devices]
    probe = run([*base, "--interactive", "--entrypoint=python3", image, "-"], program())
    found = probe_output(probe, image)
    text = run([*base, "--entrypoint=vllm", image, "serve", "--help=all"])
    named = {
        name for line in HELP_OPTION.findall(text) for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)
    }
    known = {"--help", "-h"}
    for name, entry in found["serve"].items():
        known.update((name, *entry["aliases"], *entry["negatives"]))
    if named - known:
        raise Failure(
            f"`vllm serve --help=all` of {image} names options that its parser lacks: {sorted(named - known)}"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done or equal, 1 different (with --check), 2 failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--installed", action="store_true", help="ask the vLLM of --python")
    source.add_argument("--image", metavar="REF", help="ask a container of this image (docker run)")
    source.add_argument("--from-dir", metavar="DIR", help="ask the vLLM unpacked in DIR, run by --python")
    source.add_argument("--sources", metavar="DIR", help="read the Python files in DIR/vllm, with --release")
    parser.add_argument("--release", default="", metavar="VERSION", help="of --sources")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="default: the Python that runs this"
    )
    parser.add_argument("--docker", default="docker", metavar="PATH", help="default: docker")
    parser.add_argument("--check", action="store_true", help="only report")
    parser.add_argument("--fork", default="", metavar="NAME", help="what is asked is this fork of forks.yml")
    parser.add_argument("--parent", default="", metavar="RELEASE", help="the upstream release of --fork")
    parser.add_argument(
        "--force", action="store_true", help="replace an entry that was taken on another platform"
    )
    parser.add_argument(
        "--catalog", type=Path, default=HERE, metavar="DIR", help="default: the one of this file"
    )
    options = parser.parse_args(arguments)
    store = Store(options.catalog / "vllm")
    try:
        if options.sources:
            return read_sources(store, Path(options.sources), options.release)
        if options.image:
            probe, origin = from_image(options.image, options.docker), options.image
        else:
            directory = str(Path(options.from_dir).resolve()) if options.from_dir else ""
            probe, origin = from_python(options.python, directory), "installed"
        return report_fork(store, probe, options) if options.fork else report(store, probe, origin, options)
    except Failure as error:
        print(f"regenerate: {error}", file=sys.stderr)
        return 2


def report_fork(store: Store, probe: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Compare a fork with its parent, and write what differs unless told not to."""
    if options.parent not in store.line().order:
        raise Failure(f"--parent {options.parent or '(missing)'} is no release of the catalogue")
    path = store.root / "fork_differences.json"
    tables = fork_tables(store, probe, options.parent)
    count = {key: len(tables[key]) for key in ("flags", "env", "configs", "bench")}
    print(f"{options.fork}: {count} differ from {options.parent}")
    if options.check:
        return 0 if read_json(path)["forks"].get(options.fork) == tables else 1
    write_forks(path, options.fork, tables)
    return 0


def read_sources(store: Store, directory: Path, release: str) -> int:
    """Read one known release's sources into the catalogue, without its parsers and variables."""
    line = store.line()
    if release not in line.order or not (directory / "vllm").is_dir():
        raise Failure(
            f"--release is one of {', '.join(line.releases)}, and {directory} holds the directory vllm"
        )
    sources = Sources(directory / "vllm")
    flags = unpack(line, read_json(store.root / "flags.json")["flags"], release, FLAG_DEFAULTS)
    found = {
        "configs": config_classes(sources, store.json_flags()),
        "quantization": quantization(sources),
        "checks": checks(directory / "vllm", list(flags), store.json_flags()),
        "registries": registries(directory / "vllm"),
    }
    store.put_sources(release, found, line, line)
    print(
        f"wrote {release} into {store.root}: {len(found['configs'])} configuration classes, "
        f"{len(found['checks'])} checks"
    )
    return 0


def report(store: Store, probe: Mapping[str, Any], origin: str, options: argparse.Namespace) -> int:
    """Compare, and write unless told not to."""
    release, known = probe["version"], store.platform(probe["version"])
    built = f"vLLM {release} for {probe['platform']} (Python {probe['python']}, torch {probe['torch']})"
    print(f"{built}: {len(probe['serve'])} flags, {len(probe['env'])} variables")
    found = list(store.compare(probe)) if known else []
    if known:
        print(f"the catalogue has {release}, taken on {known}; {len(found)} differences")
    else:
        print(f"{release} is not in the catalogue")
    for item in found:
        print(f"  {item.text()}")
    if options.check:
        return 1 if found or not known else 0
    if known and known != probe["platform"] and not options.force:
        raise Failure(
            f"{release} was taken on {known}, and this vLLM is for {probe['platform']}; nothing was written. "
            "Use --force to replace it all the same."
        )
    store.put(probe, origin)
    print(f"wrote {release} into {store.root}")
    replacements = yaml.safe_load((store.root / "replacements.yml").read_text())
    missing = store.unexplained(release, replacements)
    if missing:
        print("no longer there, and without an entry in replacements.yml: " + ", ".join(missing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
