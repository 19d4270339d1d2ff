# SPDX-License-Identifier: Apache-2.0
"""The simulated tools reproduce the recorded outputs byte for byte.

Every file of tests/data/rocm_samples is either reproduced here from a node in a known state, or listed
with the reason why not; a new file without a decision fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lab.gpusim.driver import faults
from lab.gpusim.machine import settings, topology
from lab.gpusim.machine.models import MODELS, Model
from lab.gpusim.machine.state import Gpu, Holder, Node, Sensors, make_node
from lab.gpusim.machine.store import MemoryStore
from lab.gpusim.tools import amd_smi, rocm_smi
from lab.gpusim.tools.smi import Lib, Terminal
from tests import ROOT

SAMPLES = ROOT / "tests/data/rocm_samples"
OTHER_TOOL = "output of a tool that is not simulated"
NOT_REPRODUCED = {
    "lspci_mi300x_8gpu.txt": OTHER_TOOL,
    "rvs_g_mi300x_8gpu.txt": OTHER_TOOL,
}


# ---------------------------------------------------------------- nodes


def node(count: int = 2, release: str = "7.0.0", *changes: str, **fields: Any) -> Node:
    """A node with settings (KEY=VALUE) and faults (fault:NAME=VALUE) made."""
    made = replace(make_node(count), release=release, **fields)
    for change in changes:
        kind, _, fault = change.partition(":")
        made = faults.add(made, fault) if kind == "fault" else settings.apply(made, settings.split([change]))
    return made


def named(made: Node, *gpus: dict[str, Any]) -> Node:
    """The node with its GPUs' fields replaced, one dict per GPU."""
    return replace(made, gpus=tuple(replace(g, **new) for g, new in zip(made.gpus, gpus, strict=True)))


FIRST = {"bdf": "0000:0c:00.0", "unique_id": 0x401C6FF31A25EBC0, "kfd_ids": (54300,)}
SECOND = {"bdf": "0000:22:00.0", "unique_id": 0x411D6FF31A25EBC0, "kfd_ids": (54307,)}
CAPTURED_BUSES = ("05", "27", "47", "65", "85", "a7", "c7", "e5")
PYTHON = Holder(4242, "/usr/bin/python3.12", vram=181464367104)


def two(*changes: str) -> Node:
    """The two GPUs of the amd-smi recordings."""
    return named(node(2, "6.3.0", *changes), FIRST, SECOND)


def one(*changes: str, **fields: Any) -> Node:
    return named(node(1, "6.3.0", *changes), {**FIRST, **fields})


def guest_gpu() -> Node:
    """The one GPU of the 7.0 examples: passed through into a machine with eight CPU nodes."""
    made = node(1, "7.0.0", "platform=passthrough", cpu_nodes=8)
    sensors = Sensors(power=124, hotspot=41)
    return named(made, {"bdf": "0003:00:03.0", "unique_id": 0xB56F3D3E7B684465, "kfd_ids": (31896,), "oam": 0,
                        "sensors": sensors})  # fmt: skip


def captured() -> Node:
    """The captured node: eight GPUs in CPX mode, a BMC's VGA driver holding one DRM minor."""
    made = node(8, "7.0.0", "ast=1")
    return named(made, *({"bdf": f"0000:{bus}:00.0", "compute": "CPX"} for bus in CAPTURED_BUSES))


def in_cpx(made: Node, memory: str = "NPS4") -> Node:
    made = replace(made, memory=memory)
    return named(made, *({"compute": "CPX"} for _ in made.gpus))


def halves() -> Node:
    """One GPU of two XCCs in CPX: the recording shows partitions 0 and 1 only."""
    return replace(one(compute="CPX", kfd_ids=()), model="two XCCs", memory="NPS4")


def doc(*changes: str, **fields: Any) -> Node:
    """The 8xMI300X of the 6.4 guide; the tool's log names its first GPU only."""
    made = node(8, "6.4.0", *changes, **fields)
    return made.gpu_set(0, bdf="0000:11:00.0")


def doc_in_nps4() -> Node:
    return replace(in_cpx(doc()), memory="NPS4")


def mi300a(mode: str, *guids: int) -> Node:
    """The four APUs of the 6.1.1 notes; guids of all logical GPUs, in order."""
    made, parts = replace(make_node(4, "MI300A"), release="6.1.1"), len(guids) // 4
    ids = [guids[k * parts : (k + 1) * parts] for k in range(4)]
    return named(made, *({"compute": mode, "kfd_ids": own} for own in ids))


def without_profiles(made: Node) -> Node:
    return replace(made, driver=replace(made.driver, partition_config=False))


def mi350x() -> Node:
    sensors = Sensors(power=251, hotspot=55, memory=43, gfx_clock=144, memory_clock=1900)
    return named(replace(node(1), model="MI350X"), {"sensors": sensors})


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A command line, the node it runs on, and how the recording is to be compared."""

    command: str
    node: Callable[[], Node]
    code: int = 0
    stdin: str = ""
    euid: int = 0
    compare: str = "bytes"


def rsmi(command: str, made: Callable[[], Node], code: int = 0, stdin: str = "") -> Case:
    return Case(f"rocm-smi {command}", made, code, stdin)


def asmi(command: str, made: Callable[[], Node], code: int = 0, **more: Any) -> Case:
    return Case(f"amd-smi {command}", made, code, **more)


SET_CPX, SET_NPS4 = "--setcomputepartition CPX", "--setmemorypartition NPS4"
CLI_CASES: dict[str, Case] = {
    "rocmsmi_6.0_show_compute": rsmi("--showcomputepartition", lambda: node(8, "6.0.0")),
    "rocmsmi_6.0_show_mem": rsmi("--showmemorypartition", lambda: node(8, "6.0.0")),
    "rocmsmi_6.0_set_compute_ok": rsmi("--setcomputepartition cpx", lambda: node(2, "6.0.0")),
    "rocmsmi_6.0_set_compute_busy": rsmi(SET_CPX, lambda: node(2, "6.0.0", "fault:holder=7:rdc")),
    "rocmsmi_6.0_reset_compute_ok": rsmi("--resetcomputepartition", lambda: node(2, "6.0.0")),
    "rocmsmi_6.0_reset_mem_ok": rsmi("--resetmemorypartition", lambda: node(2, "6.0.0")),
    "rocmsmi_6.0_set_mem_ok": rsmi(SET_NPS4, lambda: node(2, "6.0.0")),
    "rocmsmi_6.1.1_showhw_mi300a_tpx": replace(
        rsmi(
            "--showhw",
            lambda: mi300a(
                "TPX", 3877, 54196, 36891, 28397, 45692, 61907, 52404, 4133, 21386, 10876, 63213, 46402
            ),
        ),
        compare="words",
    ),
    "rocmsmi_6.1.1_showid_mi300a": replace(
        rsmi("-i", lambda: mi300a("SPX", 60294, 35406, 10263, 52959)), compare="words"
    ),
    "rocmsmi_7.0_show_compute": rsmi("--showcomputepartition", lambda: node(8)),
    "rocmsmi_7.0_show_compute_cpx_secondaries_notsupported": rsmi(
        "--showcomputepartition", lambda: named(replace(node(1), model="MI308X"), {"compute": "CPX"})
    ),
    "rocmsmi_7.0_show_compute_cpx_json": rsmi(
        "--showcomputepartition --showmemorypartition --json", lambda: in_cpx(node(1))
    ),
    "rocmsmi_7.0_show_notsupported_json": rsmi(
        "--showcomputepartition --json", lambda: node(2, "7.0.0", "driver=old")
    ),
    "rocmsmi_7.0_show_error_other": rsmi(
        "--showcomputepartition", lambda: node(1, "7.0.0", "fault:read-errno=ENXIO")
    ),
    "rocmsmi_7.0_set_compute_ok": rsmi(SET_CPX, lambda: node(8)),
    "rocmsmi_7.0_set_compute_one_device": rsmi("-d 3 --setcomputepartition DPX", lambda: node(8)),
    "rocmsmi_7.0_set_compute_busy": rsmi(SET_CPX, lambda: node(2, "7.0.0", "fault:holder=7:rdc")),
    "rocmsmi_7.0_set_compute_permission": rsmi(
        SET_CPX, lambda: node(2, "7.0.0", "fault:compute-errno=EACCES")
    ),
    "rocmsmi_7.0_set_compute_unavailable": rsmi("--setcomputepartition TPX", lambda: node(2)),
    "rocmsmi_7.0_set_compute_notsupported": rsmi(SET_CPX, lambda: node(2, "7.0.0", "driver=old")),
    "rocmsmi_7.0_set_compute_einval": rsmi(
        "--setcomputepartition SPX",
        lambda: node(2, "7.0.0", "fault:compute-errno=EINVAL", "fault:read-errno=ENXIO"),
    ),
    "rocmsmi_7.0_set_compute_unknown": rsmi(
        "--setcomputepartition SPX",
        lambda: node(1, "7.0.0", "fault:compute-errno=ENOMEM", "fault:read-errno=ENXIO"),
    ),
    "rocmsmi_7.0_set_compute_json": rsmi(f"{SET_CPX} --json", lambda: node(2)),
    "rocmsmi_7.0_set_compute_busy_json": rsmi(
        f"{SET_CPX} --json", lambda: node(2, "7.0.0", "fault:holder=7:rdc")
    ),
    "rocmsmi_7.0_set_compute_busy_loglevel_error": rsmi(
        f"{SET_CPX} --loglevel error", lambda: node(2, "7.0.0", "fault:holder=7:rdc"), 16
    ),
    "rocmsmi_7.0_set_compute_badchoice": rsmi("--setcomputepartition XPX", lambda: node(2), 2),
    "rocmsmi_7.0_set_mem_autorespond_y": rsmi(f"{SET_NPS4} --autorespond y", lambda: node(2)),
    "rocmsmi_7.0_set_mem_prompt_no": rsmi(SET_NPS4, lambda: node(2), 1, "n\n"),
    "rocmsmi_7.0_set_mem_prompt_eof": rsmi(SET_NPS4, lambda: node(2), 1),
    "rocmsmi_7.0_set_mem_invalid_mode": rsmi("--setmemorypartition NPS8 --autorespond y", lambda: node(2)),
    "rocmsmi_7.0_set_mem_restart_err": rsmi(
        f"{SET_NPS4} --autorespond y", lambda: node(2, "7.0.0", "fault:holder=7:rdc")
    ),
    "rocmsmi_7.0_set_mem_busy": rsmi(
        f"{SET_NPS4} --autorespond y", lambda: node(2, "7.0.0", "fault:memory-errno=EBUSY")
    ),
    "rocmsmi_7.0_set_mem_json": rsmi(f"{SET_NPS4} --autorespond y --json", lambda: node(2)),
    "rocmsmi_7.0_no_such_device": rsmi("-d 9 --showcomputepartition", lambda: node(8)),
    "rocmsmi_7.0_removed_reset_option": rsmi("--resetcomputepartition", lambda: node(2), 2),
    "amdsmi_6.3dev_list": asmi("list", two),
    "amdsmi_6.3dev_list_json": asmi("list --json", two),
    "amdsmi_6.3dev_list_cpx_json": asmi(
        "list --json", lambda: one(compute="CPX", kfd_ids=tuple(range(54300, 54350, 7)))
    ),
    "amdsmi_6.3dev_version": asmi("version", two),
    "amdsmi_6.3dev_version_json": asmi("version --json", two),
    "amdsmi_6.3dev_process_none_json": asmi("process --json", two),
    "amdsmi_6.3dev_process_none": asmi("process", two),
    "amdsmi_6.3dev_process_json": asmi("process --json", lambda: replace(one(), holders=(PYTHON,))),
    "amdsmi_6.3dev_process": asmi("process", lambda: replace(one(), holders=(PYTHON,))),
    "amdsmi_6.3dev_bad_gpu": asmi("list --gpu 99", two),
    "amdsmi_6.3dev_bad_gpu_json": asmi("list --gpu 99 --json", two),
    "amdsmi_6.3dev_bad_command": asmi("frobnicate", two),
    "amdsmi_6.3dev_static_partition": asmi("static --partition", halves),
    "amdsmi_6.3dev_static_partition_json": asmi("static --partition --json", halves),
    "amdsmi_6.3dev_partition": asmi("partition", lambda: without_profiles(two())),
    "amdsmi_6.3dev_partition_json": asmi("partition --json", lambda: without_profiles(two())),
    "amdsmi_6.3dev_set_compute_ok": asmi("set --gpu all --compute-partition CPX", two),
    "amdsmi_6.3dev_set_compute_ok_json": asmi("set --gpu all --compute-partition CPX --json", two),
    "amdsmi_6.3dev_set_compute_busy": asmi(
        "set --gpu all --compute-partition CPX", lambda: two("fault:holder=7:rdc"), 1
    ),
    "amdsmi_6.3dev_set_compute_busy_json": asmi(
        "set --gpu all --compute-partition CPX --json", lambda: two("fault:holder=7:rdc"), 1
    ),
    "amdsmi_6.3dev_set_compute_noperm": asmi("set --gpu all --compute-partition CPX", two, 1, euid=1000),
    "amdsmi_6.3dev_set_mem_ok": asmi("set --gpu all --memory-partition NPS4", two),
    "amdsmi_6.3dev_set_mem_notsupp": asmi(
        "set --gpu all --memory-partition NPS4", lambda: two("driver=old"), 1
    ),
    "amdsmi_6.3dev_set_bad_choice": asmi("set --gpu all --compute-partition XPX", two, 2),
    "amdsmi_6.3dev_set_compute_in_guest": asmi(
        "set --gpu all --compute-partition CPX", lambda: two("platform=guest")
    ),
    "amdsmi_6.4_doc_set_compute_cpx": asmi("set --gpu all --compute-partition CPX", doc, compare="page"),
    "amdsmi_6.4_doc_static_partition_cpx_nps4_64gpu": asmi("static --partition", doc_in_nps4, compare="page"),
    "amdsmi_6.4_doc_err_busy": asmi(
        "set --gpu all --compute-partition SPX",
        lambda: named(doc("fault:holder=7:rdc"), *({"compute": "CPX"} for _ in range(8))),
        1,
        compare="session",
    ),
    "amdsmi_6.4_doc_err_noperm": asmi(
        "set --gpu all --compute-partition SPX", doc, 1, euid=1000, compare="session"
    ),
    "amdsmi_6.4_doc_err_setting_unavailable": asmi(
        "set --gpu all --compute-partition SPX", doc_in_nps4, 1, compare="session"
    ),
    "amdsmi_6.4_doc_set_memory_nps4_toomanyfiles": asmi(
        "set --memory-partition NPS4",
        lambda: in_cpx(doc("fault:reload=fail-once", "fault:slow-reload=50"), "NPS1"),
        1,
        stdin="Y\n",
        compare="session",
    ),
    "amdsmi_6.4_doc_version_greps": asmi("version", doc, compare="fields"),
    "amdsmi_7.0_default_view_mi300x_spx_passthrough": asmi("", guest_gpu),
    "amdsmi_7.0_list_one_gpu": asmi("list", guest_gpu, compare="page"),
    "amdsmi_7.0_set_M_prompt_notsupported": asmi(
        "set -M NPS2", lambda: node(2, "7.0.0", "driver=old"), stdin="y\n", compare="terminal"
    ),
    "amdsmi_7.x_doc_monitor_putm_idle_mi350x": asmi("monitor -putm", mi350x, compare="words"),
    "DERIVED_amdsmi_7.x_partition_mi300x_spx_nps1": asmi(
        "partition", lambda: node(8, "7.0.0", "memory_modes=NPS1,NPS2,NPS4"), compare="without-resources"
    ),
}


def kfd_property(path: str) -> Callable[[], str]:
    """A file of the captured node's /sys/class/kfd/kfd/topology, from the simulated tree."""
    from lab.gpusim.files.entries import File
    from lab.gpusim.files.sysfs import View

    def read() -> str:
        entry = View(captured(), lambda: []).find(f"devices/virtual/kfd/kfd/topology/{path}")
        assert isinstance(entry, File), path
        return entry.data().decode()

    return read


def digest() -> str:
    """One line per KFD node of the captured machine, as the digest has it."""
    made = captured()
    parts = topology.partitions(made)
    texts = [topology.cpu_properties(made, parts, i) for i in range(made.cpu_nodes)]
    texts += [topology.gpu_properties(made, parts, p) for p in parts]
    keys = ("cpu_cores_count", "simd_count", "location_id", "domain", "drm_render_minor", "hive_id",
            "unique_id", "num_xcc")  # fmt: skip
    lines = []
    for number, text in enumerate(texts):
        values = dict(line.split(" ") for line in text.splitlines())
        lines.append(f"node={number} " + "".join(f"{k} {values[k]} " for k in keys if k in values))
    return "".join(f"{line}\n" for line in lines)


TREE_CASES: dict[str, Callable[[], str]] = {
    "kfd_mi300x_cpx_system_properties.txt": kfd_property("system_properties"),
    "kfd_mi300x_cpx_node0_cpu_properties.txt": kfd_property("nodes/0/properties"),
    "kfd_mi300x_cpx_node2_gpu0_part0_properties.txt": kfd_property("nodes/2/properties"),
    "kfd_mi300x_cpx_node3_gpu0_part1_properties.txt": kfd_property("nodes/3/properties"),
    "kfd_mi300x_cpx_node64_last_properties.txt": kfd_property("nodes/64/properties"),
    "kfd_mi300x_cpx_node2_iolink0_to_cpu.txt": kfd_property("nodes/2/io_links/0/properties"),
    "kfd_mi300x_cpx_node2_iolink1_intra_gpu.txt": kfd_property("nodes/2/io_links/1/properties"),
    "kfd_mi300x_cpx_node2_iolink20_other_gpu.txt": kfd_property("nodes/2/io_links/20/properties"),
    "kfd_mi300x_cpx_all_nodes_digest.txt": digest,
}


# ---------------------------------------------------------------- tests


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    base = MODELS["MI300X"]
    pairs = (("SPX", ("NPS1",)), ("CPX", ("NPS1", "NPS4")))
    small: Model = replace(base, name="two XCCs", xcc=2, pairs=pairs)
    monkeypatch.setitem(MODELS, small.name, small)


def run(case: Case) -> tuple[str, str, int]:
    """(stdout, stderr, exit code) of a case's command."""
    terminal = Terminal.buffers(case.stdin)
    lib = Lib(MemoryStore(case.node()), lambda: [], case.euid)
    lib.sleep = lambda seconds: None
    tool, *argv = case.command.split()
    module = rocm_smi if tool == "rocm-smi" else amd_smi
    code = module.tool_for(lib.start)(lib, terminal).run(argv)
    return terminal.out.getvalue(), terminal.err.getvalue(), code  # type: ignore[attr-defined]


def as_recorded(text: str, case: Case) -> str:
    """What a recording of this kind keeps of the output."""
    if case.compare == "words":
        return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
    if case.compare == "without-resources":
        return re.sub(r"\nACCELERATOR_PARTITION_RESOURCES:\n(.+\n)+", "", text)
    if case.compare == "terminal":  # a terminal shows what was typed
        text = text.replace("[Y/N] ", f"[Y/N] {case.stdin}")
    return text if case.compare == "bytes" else text.rstrip("\n")


def on_screen(out: str, err: str, stdin: str) -> str:
    """What a terminal shows of a session: the input, only the last of bars drawn over each other, no layout."""
    text = out.replace("[Y/N] ", f"[Y/N] {stdin}") + err
    shown = (line.rsplit("\r", 1)[-1] for line in text.split("\n"))
    return " ".join(" ".join(shown).split())


def recorded(name: str) -> tuple[str, str]:
    """(stdout, stderr) as recorded under a case's name."""
    found = [SAMPLES / f"{name}{suffix}" for suffix in (".txt", ".json")]
    out = next((path.read_text() for path in found if path.exists()), "")
    err = SAMPLES / f"{name}.stderr.txt"
    return out, err.read_text() if err.exists() else ""


@pytest.mark.parametrize("name", CLI_CASES)
def test_tool_prints_what_was_recorded(name: str) -> None:
    case = CLI_CASES[name]
    out, err, code = run(case)
    wanted_out, wanted_err = recorded(name)
    assert code == case.code
    if case.compare == "session":
        assert on_screen(out, err, case.stdin) == on_screen(wanted_out, wanted_err, "")
        return
    if case.compare == "fields":
        assert set(wanted_out.splitlines()) <= set(out.strip().split(" | "))
        return
    assert as_recorded(out, case) == as_recorded(wanted_out, replace(case, stdin=""))
    assert err == wanted_err


@pytest.mark.parametrize("name", TREE_CASES)
def test_sysfs_has_what_was_captured(name: str) -> None:
    assert TREE_CASES[name]() == (SAMPLES / name).read_text()


def test_every_sample_has_a_decision() -> None:
    decided = set(NOT_REPRODUCED) | set(TREE_CASES)
    for name in CLI_CASES:
        decided |= {f"{name}{suffix}" for suffix in (".txt", ".json", ".stderr.txt")}
    files = {path.name for path in SAMPLES.iterdir()} - {"INDEX.md"}
    assert files - decided == set(), "decide: a case that reproduces it, or NOT_REPRODUCED with the reason"
    assert set(NOT_REPRODUCED) <= files, "listed as not reproduced, but not there"


def test_all_samples_of_7_0_are_reproduced_byte_for_byte() -> None:
    """7.0 is the release that is simulated fully; only what a page dropped may be missing."""
    loose = {"amdsmi_7.0_list_one_gpu": "page", "amdsmi_7.0_set_M_prompt_notsupported": "terminal"}
    samples = [path for path in SAMPLES.iterdir() if "smi_7.0_" in path.name]
    assert len(samples) > 20
    for path in samples:
        name = re.sub(r"(\.stderr)?\.(txt|json)$", "", path.name)
        assert CLI_CASES[name].compare == loose.get(name, "bytes")


def test_gpus_of_the_examples_are_the_default_node() -> None:
    """BDFs and gpu_ids of the lspci and rvs examples are those of a fresh node."""
    text = (SAMPLES / "rvs_g_mi300x_8gpu.txt").read_text()
    rows = re.findall(r"^(\S+) - GPU\[ *(\d+) - (\d+)\]", text, re.M)
    made = make_node()
    gpus: tuple[Gpu, ...] = made.gpus
    simulated = [(gpus[p.gpu].bdf, str(p.kfd_node), str(p.gpu_id)) for p in topology.partitions(made)]
    assert simulated == rows
