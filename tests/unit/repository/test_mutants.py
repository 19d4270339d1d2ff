# SPDX-License-Identifier: Apache-2.0
"""The sampler of mutants: what it changes, what it leaves alone, and that the changes named as equivalent exist."""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import pytest

from tests import mutants
from tests.helpers.eventually import eventually


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a == b", ["a == b -> a != b"]),
        ("a < b <= c", ["a < b <= c -> a <= b <= c", "a < b <= c -> a < b < c"]),
        ("a is None", ["a is None -> a is not None"]),
        ("a and b", ["a and b -> a or b", "a and b -> b", "a and b -> a"]),
        ("not a", ["not a -> a"]),
        ("x[1]", ["x[1] -> x[2]"]),
        ("a + 1.5", ["a + 1.5 -> a - 1.5", "a + 1.5 -> a + 2.5"]),
        ("True", ["True -> False"]),
        ("'text'", []),
        ("f'{a == b}'", []),
        ("f(a, b)", ["f(a, b) -> f(b, a)"]),
        ("f(a, a)", []),
        ("f(*a, b)", []),
        ("min(a, b)", ["min -> max"]),
        ("any(a)", ["any -> all"]),
        ("a if b else c", ["b -> True", "b -> False"]),
        ("[a for a in b if c]", ["c -> True"]),
    ],
)
def test_changes_of_an_expression(source: str, expected: list[str]) -> None:
    assert named(f"x = {source}") == [f"m.f: {text}" for text in expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("g()", ["g() -> pass"]),
        ("x += a", ["x += a -> pass"]),
        ("raise ValueError(a == b)", ["raise ValueError(a == b) -> pass"]),
        ("return a", ["return a -> return None"]),
        ("return None", []),
        ("'''Text.'''", []),
        ("assert a == b", []),
        ("x: Literal[1] = a", []),
        ("if a: pass", ["a -> True", "a -> False"]),
        ("def g(a: X[1] = 2) -> Y[3]: pass", ["2 -> 3"]),
    ],
)
def test_changes_of_a_statement(source: str, expected: list[str]) -> None:
    found = [name.replace("m.f.g:", "m.f:") for name in named(source)]
    assert [name for name in found if "x = " not in name] == [f"m.f: {text}" for text in expected]


def named(statement: str) -> list[str]:
    """The mutants of a statement in a function, without the deletion of an assignment."""
    body = statement.replace("\n", "\n    ")
    return [
        one.name
        for one in made(f"def f():\n    {body}\n")
        if "-> pass" not in one.name or "x = " not in one.name
    ]


def made(text: str) -> list[mutants.Mutant]:
    """The mutants of a file of this text."""
    return list(mutants.mutants(Path("m.py"), text.encode()))


def test_a_mutant_is_the_text_with_one_change_and_no_other() -> None:
    text = 'X = dict[str, int]\n\ndef f(a):  # ü\n    """Text."""\n    return "é" if (a and\n        not a) else a\n'
    found = made(text)
    for mutant in found:
        changed = mutant.text.decode()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
        assert changed.startswith(text[: text.index("return")])
        assert mutant.line in (5, 6)
    assert "m.f: a and not a -> a or not a" in [mutant.name for mutant in found]
    (dropped,) = (mutant for mutant in found if mutant.name == "m.f: not a -> a")
    assert dropped.text.decode() == text.replace("not a)", "(a))")


def test_the_same_change_in_two_places_has_two_names() -> None:
    assert [mutant.name for mutant in made("def f():\n    g()\n    g()\n")] == [
        "m.f: g() -> pass",
        "m.f: g() -> pass #2",
    ]


def test_what_is_named_as_equivalent_exists_and_has_a_reason() -> None:
    lines = mutants.EQUIVALENT.read_text(encoding="utf-8").splitlines()
    for before, line in itertools.pairwise(lines):
        if line and not line.startswith("#"):
            assert before, f"{line}: without a reason"
    listed = [line for line in lines if line and not line.startswith("#")]
    assert len(set(listed)) == len(listed)
    for path in {module_file(line.partition(":")[0]) for line in listed}:
        names = {one.name for one in mutants.mutants(path.relative_to(mutants.ROOT), path.read_bytes())}
        module = mutants.module_of(path.relative_to(mutants.ROOT))
        assert {line for line in listed if line.startswith(f"{module}.")} <= names


def module_file(name: str) -> Path:
    """The file of a dotted name that ends in a class and a function."""
    while True:
        try:
            return mutants.path_of(name)
        except StopIteration:
            name = name.rpartition(".")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def test_it(): assert True\n", ""),
        ("def test_it(): assert True\n\ndef test_that(): assert False\n", "test_m.py::test_that"),
        ("import nothing_of_this_name\n", "test_m.py"),
        ("import time\ndef test_it(): time.sleep(60)\n", "over time"),
        ("import os\ndef test_it(): os.kill(os.getpid(), 11)\n", "a crash of Python"),
    ],
)
def test_what_fails_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "test_m.py").write_text(text)
    assert mutants.failure(tmp_path, ["test_m.py"], 3 if expected == "over time" else None) == expected


@pytest.mark.parametrize("text", ["", "import os\ndef test_it(): os.kill(os.getpid(), 9)\n"])
def test_an_end_of_another_kind_is_no_failure_of_a_test(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_m.py").write_text(text)
    with pytest.raises(RuntimeError, match="pytest ended with"):
        mutants.failure(tmp_path, ["test_m.py"], None)


def test_what_a_test_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    alone = "setsid " * bool(mutants.CONTAINED)
    left = f"{alone}sh -c 'while :; do date > still; sleep 0.05; done'"
    begin = f'subprocess.Popen("{left}", shell=True)'
    begun = 'while not os.path.exists("still"): time.sleep(0.05)'
    (tmp_path / "test_m.py").write_text(
        f"import os, subprocess, time\ndef test_it():\n    {begin}\n    {begun}\n"
    )
    assert mutants.failure(tmp_path, ["test_m.py"], None) == ""
    assert (tmp_path / "still").exists()

    def quiet() -> bool:
        """What was being written when it was killed may still come, and nothing after it."""
        (tmp_path / "still").unlink(missing_ok=True)
        time.sleep(0.3)
        return not (tmp_path / "still").exists()

    eventually("its end", quiet)


def test_a_module_is_tested_by_what_is_listed_or_imports_it() -> None:
    assert mutants.tests_of("planning.pins.lockfile")[0] == "tests/unit/pins/test_lockfile.py"
    assert mutants.tests_of("partition.node") == [
        "tests/unit/partition/test_partition_node.py", "tests/unit/partition/test_rocm_partition.py",
    ]  # fmt: skip
    for names in mutants.TESTS.values():
        assert all((mutants.ROOT / f"tests/unit/{name}.py").is_file() for name in names)
