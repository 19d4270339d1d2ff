# SPDX-License-Identifier: Apache-2.0
"""Load the catalogue. This is the only module that reads its files; everything that it returns is pure data.

It runs on the control node, where PyYAML comes with Ansible. Each file is read once, on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, suggest
from ....module_utils.engines.versions import Release, Timeline, timeline
from ..rules.refusals import RefusalRule, parse_refusals
from ..shapes.family import Families, parse_families
from ..vllm.config_keys import ConfigKeys
from ..vllm.engine_checks import Check, engine_checks
from ..vllm.env_vars import EnvTable, env_table
from ..vllm.flags import FlagTable, flag_table
from ..vllm.forks import Fork, Forks, parse_forks, renamed_settings
from ..vllm.replacements import Replacements, parse_replacements
from ..vllm.settings import SettingsBook
from ..vllm.switches import Switches, switches_of
from .files import CATALOG, read_json, read_yaml
from .gpus import GpuCatalog, parse_gpus
from .licenses import LicenseBook
from .quantization import QuantizationTable, quantization
from .recipes import Recipe, parse_recipe


def load_gpus() -> GpuCatalog:
    """Return the GPU models of catalog/gpus.yml."""
    return parse_gpus(read_yaml(CATALOG / "gpus.yml"))


def load_baselines() -> list[Any]:
    """Return the published results: the files of catalog/baselines."""
    return [read_json(path) for path in sorted((CATALOG / "baselines").glob("*.json"))]


def load_acceptance() -> Mapping[str, Any]:
    """Return what a healthy GPU reaches, by model (gpu_acceptance.yml)."""
    found: Mapping[str, Any] = read_yaml(CATALOG / "gpu_acceptance.yml")
    return found


def load_quantization() -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the schemes of quantization, and the packages of each backend (catalog/quantization)."""
    root = CATALOG / "quantization"
    found: Mapping[str, Any] = read_yaml(root / "schemes.yml")
    names = {name: item["requirements"] for name, item in found["backends"].items()}
    return found, {name: (root / file).read_text(encoding="utf-8") for name, file in names.items()}


class Knowledge:
    """The catalogue in a directory. Methods raise the errors of open() and of the parsers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._flags: dict[str, FlagTable] = {}
        self._env: dict[str, EnvTable] = {}
        self._checks: dict[str, tuple[Check, ...]] = {}
        self._quantization: dict[int, QuantizationTable] = {}

    @functools.cached_property
    def line(self) -> Timeline:
        """Return the vLLM releases."""
        return timeline([item["version"] for item in self._json("vllm/versions.json")["versions"]])

    @functools.cached_property
    def replacements(self) -> Replacements:
        """Return the replacements of what was removed."""
        return parse_replacements(self._yaml("vllm/replacements.yml"))

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """Return the neutral settings."""
        found: Mapping[str, Any] = self._yaml("vllm/settings.yml")["settings"]
        return found

    @functools.cached_property
    def sources(self) -> Mapping[str, Any]:
        """Return the documents that entries refer to."""
        found: Mapping[str, Any] = self._yaml("sources.yml")["sources"]
        return found

    @functools.cached_property
    def forks(self) -> Forks:
        """Return the forks of vLLM that are releases of their own."""
        return parse_forks(self._yaml("vllm/forks.yml"))

    def release(self, version: str) -> Release:
        """Return a vLLM version's place among the releases. Raise ValueError if it is malformed or too old."""
        fork = None if version in self.line.order else self.forks.of_version(version)
        return fork.place(self.line) if fork else self.line.find(version)

    def _fork(self, release: Release) -> Fork | None:
        fork = self.forks.named(release.fork) if release.fork else None
        return fork and replace(fork, tables=self._json("vllm/fork_differences.json")["forks"][fork.name])

    def flags(self, version: str) -> FlagTable:
        """Return what `vllm serve` of a version accepts."""
        if version not in self._flags:
            release = self.release(version)
            fork = self._fork(release)
            parser = self._yaml("vllm/parser.yml")
            classes = self._json("vllm/configs.json")["classes"]
            changes = fork.changes("configs") if fork else {}
            configs = ConfigKeys(
                release, self.line, classes, parser["unknown_keys"], parser["json_types_since"], changes
            )
            self._flags[version] = flag_table(
                self._json("vllm/flags.json"), self.line, release, parser, configs, self.replacements, fork
            )
        return self._flags[version]

    def env(self, version: str) -> EnvTable:
        """Return the variables that a version reads."""
        if version not in self._env:
            release = self.release(version)
            self._env[version] = env_table(
                self._json("vllm/env.json"),
                self.line,
                release,
                self._yaml("vllm/runtime_env.yml"),
                self.replacements,
                frozenset(self.flags(version).flags),
                self._fork(release),
            )
        return self._env[version]

    def engine_checks(self, version: str) -> tuple[Check, ...]:
        """Return what a version checks when it configures its engine."""
        if version not in self._checks:
            self._checks[version] = engine_checks(self._json("vllm/checks.json"), self.flags(version))
        return self._checks[version]

    def quantization(self, release: Release) -> QuantizationTable:
        """Return the quantization methods of a release, and which of them run which checkpoints."""
        if release.index not in self._quantization:
            data = (self._json("vllm/quantization.json"), self._json("vllm/checkpoints.json"))
            self._quantization[release.index] = quantization(*data, self.line, release.index)
        return self._quantization[release.index]

    @functools.cached_property
    def architectures(self) -> Mapping[str, Any]:
        """Return the model architectures, with the releases that have each."""
        found: Mapping[str, Any] = self._json("vllm/architectures.json")["architectures"]
        return found

    def registered(self, kind: str, release: Release) -> frozenset[str]:
        """Return the names that a release registers: of a kv_connector, ec_connector, reasoning_parser, tool_parser."""
        return frozenset(
            name.partition(".")[2]
            for name, entry in self._json("vllm/registries.json")["names"].items()
            if name.startswith(f"{kind}.") and self.line.within(entry["present"], release.index)
        )

    def book(self, version: str) -> SettingsBook:
        """Return the neutral settings for a version."""
        fork = self._fork(self.flags(version).release)
        settings = renamed_settings(self.settings, fork, self.line) if fork else self.settings
        return SettingsBook(settings, self.flags(version), self.env(version))

    def switches(self, version: str) -> Switches:
        """Return what switches of a version need to have an effect (vllm/switches.yml)."""
        return switches_of(self._yaml("vllm/switches.yml"), self.flags(version), self.env(version))

    @functools.cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """Return the recipes, general ones first."""
        paths = sorted((self.root / "recipes").glob("*.yml"))
        found = [parse_recipe(read_yaml(path)) for path in paths]
        return tuple(sorted(found, key=lambda recipe: not recipe.match.get("all")))

    # One object per run holds the catalogue for its whole life. pylint: disable=method-cache-max-size-none
    @functools.cache  # noqa: B019
    def refusals(self, name: str) -> tuple[RefusalRule, ...]:
        """Return the rules of a file of vllm/refusals."""
        return parse_refusals(self._yaml(f"vllm/refusals/{name}.yml"))

    @functools.cached_property
    def families(self) -> Families:
        """Return the families of models whose layers are known (families.yml)."""
        return parse_families(self._yaml("families.yml"))

    @property
    def models(self) -> Mapping[str, Any]:
        """Return the shapes of well-known models (models.yml)."""
        found: Mapping[str, Any] = self._yaml("models.yml")
        return found

    @functools.cached_property
    def licenses(self) -> LicenseBook:
        """Return the licences of models (licenses.yml), and those of well-known models."""
        return LicenseBook(self._yaml("licenses.yml"), self.models)

    @property
    def hubs(self) -> Mapping[str, Any]:
        """Return the limits of hubs (hubs.yml)."""
        found: Mapping[str, Any] = self._yaml("hubs.yml")
        return found

    @property
    def images(self) -> Mapping[str, Any]:
        """Return the container images and drivers (images.yml)."""
        found: Mapping[str, Any] = self._yaml("images.yml")
        return found

    @property
    def backends(self) -> Mapping[str, Any]:
        """Return the attention backends on ROCm (vllm/backends.yml)."""
        found: Mapping[str, Any] = self._yaml("vllm/backends.yml")
        return found

    def default(self, name: str, release: Release) -> Any:
        """Return the default of a release (vllm/defaults.yml), or None if the catalogue does not have it."""
        fork = self._fork(release)
        if fork and name in fork.defaults:
            return fork.defaults[name]
        return self._at(self._yaml("vllm/defaults.yml")["defaults"].get(name, ()), release)

    def rules(self, part: str, release: Release) -> dict[str, Any]:
        """Return the rules that differ between releases (vllm/rules.yml).

        part: kv_cache or engine.
        """
        histories = self._yaml("vllm/rules.yml")[part]
        return {name: self._at(history, release) for name, history in histories.items()}

    def _at(self, history: Iterable[Mapping[str, Any]], release: Release) -> Any:
        for entry in history:
            if self.line.inside(entry["since"], entry["until"], release.index):
                return entry["value"]
        return None

    @property
    def accuracy(self) -> Mapping[str, Any]:
        """Return the tasks of accuracy measurements, and published scores (accuracy.yml)."""
        found: Mapping[str, Any] = self._yaml("accuracy.yml")
        return found

    def accuracy_set(self, name: str) -> str:
        """Return the text of one of its sets: JSON, an object a line."""
        path: Path = self.root / self.accuracy["sets"][name]["file"]
        return path.read_text(encoding="utf-8")

    @property
    def bench(self) -> Mapping[str, Any]:
        """Return the flags of the benchmark clients (bench.json)."""
        found: Mapping[str, Any] = self._json("vllm/bench.json")
        return found

    @property
    def bench_book(self) -> Mapping[str, Any]:
        """Return the neutral arguments of the benchmark clients."""
        found: Mapping[str, Any] = self._yaml("vllm/bench_settings.yml")
        return found

    @property
    def suite_names(self) -> tuple[str, ...]:
        """Return the names of the benchmark suites."""
        return tuple(sorted(path.stem for path in (self.root / "suites").glob("*.yml")))

    def suite(self, name: str) -> Any:
        """Return the document of a benchmark suite: one of the catalogue's, or the file of a path.

        Raise FleetError if there is none, with the nearest name or the path where it was looked for.
        """
        if "/" not in name and not name.endswith((".yml", ".yaml")):
            if name not in self.suite_names:
                raise FleetError(
                    [Problem((f"suite {name}",), "unknown suite.", suggest(name, self.suite_names))]
                )
            return self._yaml(f"suites/{name}.yml")
        path = Path(name).expanduser().absolute()
        try:
            return read_yaml(path)
        except (OSError, ValueError) as error:
            why = f"cannot be read: {getattr(error, 'strerror', None) or error}."
        except Exception as error:  # PyYAML is imported on use, and so is the class of its errors
            why = f"is not YAML: {' '.join(str(error).split())}."
        fix = f"Write a path, or a suite of the catalogue: {', '.join(self.suite_names)}."
        raise FleetError([Problem((f"suite {path}",), why, fix)])

    # One object per run holds the catalogue for its whole life. pylint: disable=method-cache-max-size-none
    @functools.cache  # noqa: B019
    def _json(self, name: str) -> Any:
        return read_json(self.root / name)

    @functools.cache  # noqa: B019
    def _yaml(self, name: str) -> Any:
        return read_yaml(self.root / name)
