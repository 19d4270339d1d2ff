# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md answers a stranger's questions, and what it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests import ROOT
from tests.helpers.some import some

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
ADR = ROOT / "docs/adr"
AUDIT = "plugins/plugin_utils/operations/audit"
DECISIONS = sorted(path.name for path in ADR.glob("*.md") if path.name != "README.md")
NAME = re.compile(r"`([A-Za-z_]\w*)`(?!\])")
PLACED = re.compile(r"((?:`\w+`(?:, | and | or )?)+) (?:in|of) \[[^]]*\]\(([^)#\s]+)\)")
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")

# What a stranger asks; the section that answers; the files that it must name, each with what has to stand in it.
QUESTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "write a message": ("words", {"tests/words.py": "PARTICIPLES"}),
    "How do I run the tests?": ("set-up", {".pre-commit-config.yaml": "repo: local"}),
    "May my module import the planner?": ("where-code-goes", {".importlinter": "forbidden_modules"}),
    "How do I word a message?": ("words", {"tests/words.py": "def problems"}),
    "Where do I add the MI450X?": (
        "add-a-gpu-model",
        {
            "catalog/gpus.yml": "pci_ids",
            "lab/gpusim/machine/models.py": "MODELS",
            "tests/unit/observed/test_topology.py": "def test_declared",
        },
    ),
    "vLLM 0.34 is out. What now?": (
        "add-a-vllm-release",
        {
            "docs/catalogue.md": "## A new vLLM release",
            "catalog/vllm/replacements.yml": "use:",
            "catalog/vllm/settings.yml": "settings:",
            "catalog/vllm/backends.yml": "eras:",
            "catalog/vllm/defaults.yml": "until:",
        },
    ),
    "The plan gives a range for my model.": (
        "add-a-family-of-models",
        {
            "catalog/families.yml": "families:",
            "plugins/plugin_utils/knowledge/shapes/family.py": "Attributes:",
            "plugins/plugin_utils/knowledge/shapes/special.py": "READERS: ",
            "tests/oracles/held_out_shapes.py": "ADDED: ",
            "tests/unit/shapes/test_held_out.py": "def test_a_shape_that_nobody_chose",
        },
    ),
    "The plan does not know my image's tag.": (
        "add-an-image",
        {"catalog/images.yml": "families:", "tests/unit/catalog/test_images.py": "test_look_up"},
    ),
    "AMD published better flags for a model.": (
        "add-a-recipe",
        {
            "catalog/recipes/llama-3.3.yml": "reason:",
            "catalog/sources.yml": "url:",
            "tests/unit/catalog/test_recipes.py": "def test_what_the_documents_recommend",
        },
    ),
    "We have a load of our own to measure.": (
        "add-a-suite",
        {
            "catalog/suites/serving.yml": "groups:",
            "docs/suites.md": "## A suite of your own",
            "tests/unit/repository/test_rendered_suites.py": "CANNOT",
            "plugins/plugin_utils/measuring/suites/parse.py": "SUITE_KEYS",
        },
    ),
    "A crash is told as unknown.": (
        "recognize-a-failure-at-start-up",
        {"docs/runbooks/crash.md": "out_of_memory", "tests/unit/engines/test_failures.py": "classify"},
    ),
    "The planner needs a fact that node_state does not read.": (
        "read-something-new-on-every-node",
        {
            "plugins/module_utils/observe/network.py": "def ",
            "plugins/module_utils/observe/node_state.py": "network",
            "plugins/module_utils/programs/node_state.py": "DOCUMENTATION",
            "plugins/plugin_utils/planning/observed/node_state.py": "class NodeState",
        },
    ),
    "The audit should look at one more sysctl.": (
        "add-a-check-of-hosts",
        {
            "catalog/host_items.yml": "check: {kind: sysctl",
            "plugins/plugin_utils/operations/audit/kernel_checks.py": "def sysctl",
            "plugins/module_utils/observe/audit_facts.py": "def read_host",
        },
    ),
    "Where does a role's variable belong?": (
        "add-a-variable",
        {
            "roles/host_prep/meta/argument_specs.yml": "argument_specs:",
            "roles/fleet/meta/argument_specs.yml": "refresh:",
            "tests/unit/repository/test_roles.py": "argument_specs.yml",
        },
    ),
    "A deployment needs another key.": (
        "add-a-key-to-deployments",
        {
            "plugins/plugin_utils/planning/desired/deployment.py": "class Deployment",
            "catalog/schemas/deployment.schema.json": "properties",
            "docs/deployments.md": "tensor_parallel_size",
        },
    ),
    "How do I write a module?": (
        "add-a-module",
        {
            "plugins/modules/vllm_watch.py": "def argument_spec",
            "plugins/plugin_utils/actions/program_action.py": "class ProgramAction",
            "meta/runtime.yml": "action_groups:",
            "tests/sanity/ignore-2.19.txt": "missing-gplv3-license",
        },
    ),
    "Something has to run beside vLLM.": (
        "add-a-program-that-runs-in-a-container",
        {"plugins/plugin_utils/base/bundle.py": "PACKAGES"},
    ),
    "I want a playbook of my own in the tool.": (
        "add-an-operation",
        {"playbooks/stop.yml": "plan.yml", "tests/ACCEPTANCE.md": "promise"},
    ),
    "How do I make the lab break in a new way?": (
        "add-a-fault-to-the-lab",
        {
            "lab/gpusim/driver/faults.py": "FAULTS",
            "lab/gpusim/driver/kernel.py": "faults.",
            "lab/README.md": "gpusim fault",
        },
    ),
    "amd-smi prints something else now.": (
        "add-a-release-of-the-rocm-tools",
        {
            "plugins/module_utils/partition/smi_output.py": "def amd_smi_blocks",
            "lab/gpusim/machine/settings.py": "RELEASES",
            "tests/data/rocm_samples/INDEX.md": "amdsmi",
        },
    ),
    "How does another key get into plan.json?": (
        "change-what-planjson-or-summaryjson-has",
        {
            "plugins/plugin_utils/base/json_record.py": "class JsonRecord",
            "tests/schemas/plan.py": "class Plan",
            "tests/schemas/summary.py": "class Summary",
            "catalog/schemas/plan.schema.json": "properties",
        },
    ),
    "A test says that recorded plans differ.": (
        "change-plans-on-purpose",
        {"tests/unit/plan/test_recorded_plans.py": "RECORD", "tests/recorded/play.py": "RENAMED"},
    ),
    "May I use another Python package?": (
        "add-a-dependency",
        {
            "pyproject.toml": "dependencies = [",
            "requirements.txt": "huggingface_hub",
            "bindep.txt": "openssh",
        },
    ),
    "Why is it done like this?": ("record-a-decision", {"docs/adr/README.md": "Consequences"}),
    "What belongs into a commit?": ("commit", {"changelogs/config.yaml": "bugfixes"}),
    "How is it known what vLLM refuses after its parser?": (
        "what-vllm-refuses-after-its-parser",
        {
            "catalog/vllm/refusals/options.yml": "refusals:",
            "docs/catalogue.md": "## Refusals",
            "tests/oracles/real_engines_runner.py": "create_engine_config",
            "tests/oracles/engine_options.py": "GROUPS",
            "tests/oracles/engine_cases.py": "LEFT_OUT",
            "tests/unit/feasibility/test_engine_verdicts.py": "def test_",
        },
    ),
    "How is a version released?": (
        "release",
        {
            "galaxy.yml": "version:",
            "CHANGELOG.md": "Release Notes",
            "tests/unit/repository/test_collection.py": "def test_",
        },
    ),
}


def anchor(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def sections(text: str) -> dict[str, str]:
    """A page's sections by anchor."""
    parts = re.split(r"^#{1,3} (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {anchor(heading): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


SECTIONS = sections(PAGE)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_leads_to_the_answer(question: str) -> None:
    section, files = QUESTIONS[question]
    named = {path for path, _ in LINK.findall(SECTIONS[section])}
    for file, term in files.items():
        assert file in named
        assert term in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {term}"


def test_every_section_is_asked_for() -> None:
    assert set(SECTIONS) - {"contributing"} == {section for section, _ in QUESTIONS.values()}


def test_every_link_leads_somewhere() -> None:
    for path, fragment in some(LINK.findall(PAGE), 50):
        target = ROOT / path if path else ROOT / "CONTRIBUTING.md"
        assert target.exists(), path
        if fragment:
            assert fragment[1:] in sections(target.read_text(encoding="utf-8")), path + fragment


def test_every_make_target_and_path_exists() -> None:
    for target in some(re.findall(r"`make ([a-z-]+)", PAGE)):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    folders = "catalog|docs|lab|library|playbooks|plugins|roles|templates|tests"
    for path in some(re.findall(rf"`((?:{folders})/[^`]*)`", PAGE)):
        known = re.sub(r"(NAME|ROLE).*", "", path)
        assert list(ROOT.glob(known.rstrip("/"))), path


def has(file: str, name: str) -> bool:
    """Whether a file has this word."""
    return bool(re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")))


def missing_names(page: str) -> Iterator[tuple[str, str]]:
    """Names in backticks that are not in the files that their sentence links.

    "`NAME` in [file](path)" has to be in that file, any other name in one of the sentence's files.
    """
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\d+\. |\* |\|)", text):
        for sentence in re.split(r"(?<=\.)\s+", " ".join(block.split())):
            files = [path for path, _ in LINK.findall(sentence) if path and (ROOT / path).is_file()]
            placed = {
                name: [file] for names, file in PLACED.findall(sentence) for name in NAME.findall(names)
            }
            for name in NAME.findall(sentence) if files else ():
                if not any(has(file, name) for file in placed.get(name, files)):
                    yield name, sentence


def test_names_are_in_the_files_that_are_linked_beside_them() -> None:
    assert list(missing_names(PAGE)) == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        # As it was: the variable had moved, and the page had not.
        ("`PLAYBOOKS` in [`u.py`](plugins/plugin_utils/planning/inventory/unknown_variables.py), for typos.",
         ["PLAYBOOKS"]),
        ("1. [`m.py`](lab/gpusim/machine/models.py): an entry in `MODELLS`, so that a fleet\n   can have it.",
         ["MODELLS"]),
        ("`VARIABLES` and `HostSetings` in [`h.py`](plugins/plugin_utils/planning/desired/host_settings.py).",
         ["HostSetings"]),
        (f"`CHECKS` of [`k.py`]({AUDIT}/kernel_checks.py), see [`j.py`]({AUDIT}/judge.py).", ["CHECKS"]),
        (f"`CHECKS`, see [`j.py`]({AUDIT}/judge.py). `ELSE` is of another sentence.", []),
    ],
)  # fmt: skip
def test_a_name_that_is_elsewhere_is_found(page: str, names: list[str]) -> None:
    assert [name for name, _ in missing_names(page)] == names


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_is_whole_and_its_links_lead_somewhere(name: str) -> None:
    page = (ADR / name).read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    for path, _ in LINK.findall(page):
        assert (ADR / path).exists(), path


def test_every_decision_is_listed() -> None:
    assert sorted(path for path, _ in LINK.findall((ADR / "README.md").read_text(encoding="utf-8"))) == some(
        DECISIONS
    )
