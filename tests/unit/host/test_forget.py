# SPDX-License-Identifier: Apache-2.0
"""host_forget: what the toolkit made goes, weights and images only when asked, and what others made stays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_data import ForgetRequest
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_node import ForgottenHost, converge
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_parts import tree_parts
from ansible_collections.instinct.fleet.plugins.module_utils.host.forget_settings import SettingsFiles
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.observe.sysctl import HEADER, TURNED_OFF
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.fake_docker import FakeDocker, serve_until_stopped
from tests.worlds.pruned_node import MADE, OTHERS, PrunedNode, commit

NOTHING_MORE, ALL = ForgetRequest(), ForgetRequest(weights=True, images=True)
SETTINGS = {
    "etc/systemd/system/instinct-partition.service": "[Unit]\n",
    "etc/systemd/system/instinct-fleet-host.service": HEADER,
    "etc/systemd/system/docker.service.d/60-instinct-fleet.conf": HEADER,
    "etc/systemd/system/docker.service.d/60-instinct-fleet-proxy.conf": HEADER,
    "etc/systemd/system/docker.service.d/mine.conf": "[Service]\n",
    "etc/systemd/system/ssh.service": "[Unit]\n",
    "etc/tmpfiles.d/instinct-fleet.conf": HEADER,
    "etc/security/limits.d/60-instinct-fleet.conf": HEADER,
    "etc/security/limits.d/mine.conf": "* - nofile 9\n",
    "etc/sysctl.d/60-instinct-fleet.conf": f"{HEADER}kernel.numa_balancing = 0\n",
    "etc/sysctl.d/99-mine.conf": f"vm.swappiness = 1\n{TURNED_OFF}kernel.numa_balancing = 1\n",
    "etc/default/grub.d/60-instinct-fleet.cfg": "GRUB_CMDLINE_LINUX=x\n",
}
OTHERS_SETTINGS = {
    "etc/systemd/system/docker.service.d/mine.conf": "[Service]\n",
    "etc/systemd/system/ssh.service": "[Unit]\n",
    "etc/security/limits.d/mine.conf": "* - nofile 9\n",
    "etc/sysctl.d/99-mine.conf": "vm.swappiness = 1\nkernel.numa_balancing = 1\n",
}


class Leaving:
    """A host with seven generations, settings, a stopped container of the toolkit, and one of another tool."""

    def __init__(self, top: Path, docker: FakeDocker) -> None:
        self.top, self.docker, self.programs = top, docker, list[list[str]]()
        self.stored = PrunedNode(top / "node", docker)
        self.root = top / "root"
        for name, text in SETTINGS.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        self.container = docker.add_container(
            "instinct-llama-7",
            {"Image": f"r.example/vllm:{MADE}", "Labels": {"instinct-fleet.instance": "llama-7"}},
            "exited",
        )
        docker.add_container("db", {"Image": OTHERS, "Labels": {"maintainer": "x"}}, "exited")
        self.host = ForgottenHost(
            replace(self.stored.node, state_dir=str(top / "node/etc")),
            SettingsFiles(str(self.root), self.ran, lambda name: None if name == "grubby" else name),
        )

    def ran(self, words: Sequence[str], _seconds: float) -> None:
        self.programs.append(list(words))

    def forget(self, wanted: ForgetRequest = NOTHING_MORE, check: bool = False) -> dict[str, Any]:
        return converge(DockerClient(self.docker.path), self.host, wanted, check)

    def settings(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def files(self) -> list[str]:
        """All that is left of the toolkit's directories."""
        return sorted(
            os.path.relpath(os.path.join(at, name), self.top / "node")
            for part in ("etc", "var", "hf")
            for at, _unused, names in os.walk(self.top / "node" / part)
            for name in names
        )


@pytest.fixture
def leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaving]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    (tmp_path / "node").mkdir()
    with FakeDocker(tmp_path) as docker:
        yield Leaving(tmp_path, docker)


def test_check_mode_then_once(leaving: Leaving) -> None:
    before = (leaving.settings(), leaving.files())
    would = leaving.forget(ALL, check=True)
    assert (leaving.settings(), leaving.files()) == before
    assert leaving.docker.changes() == []
    done = leaving.forget(ALL)
    assert done["actions"] == would["actions"]
    assert "remove container instinct-llama-7" in done["actions"]
    assert leaving.settings() == OTHERS_SETTINGS
    assert leaving.files() == []
    assert not os.path.exists(leaving.host.node.state_dir)
    assert not os.path.exists(leaving.host.node.data_dir)
    assert list(leaving.docker.containers) == ["db"]
    assert OTHERS in leaving.docker.images
    assert not any(name.startswith("r.example/") for name in leaving.docker.images)
    assert leaving.programs == [["systemctl", "daemon-reload"], ["update-grub"]]
    again = leaving.forget(ALL)
    assert (again["changed"], again["actions"]) == (False, [])
    assert len(leaving.programs) == 2


def test_weights_images_and_store_stay_unless_asked(leaving: Leaving) -> None:
    before = leaving.files()
    done = leaving.forget()
    assert leaving.files() == [
        name for name in before if name.startswith(("hf/", "var/store/", "var/images/"))
    ]
    assert leaving.stored.store.verify() == {}
    assert f"r.example/vllm:{MADE}" in leaving.docker.images
    left = "\n".join(done["left"])
    assert f"weights in {leaving.top}/node/hf (" in left
    assert "var/store (" in left
    assert f"{MADE} images of the toolkit (" in left
    assert left.count("-e forget_weights=true") == 2
    assert left.count("-e forget_images=true") == 1
    assert "until a reboot" in left
    assert (leaving.forget()["changed"], leaving.forget(ForgetRequest(images=True))["changed"]) == (
        False,
        True,
    )
    # By what was read of images, a later run still knows which are the toolkit's.
    assert not any(name.startswith("r.example/") for name in leaving.docker.images)


def test_nothing_goes_while_a_container_runs(leaving: Leaving) -> None:
    leaving.docker.programs["instinct-fetch"] = serve_until_stopped
    leaving.docker.add_container("instinct-fetch", {"Labels": {"instinct-fleet.fetch": "1"}})
    before = (leaving.settings(), leaving.files())
    assert leaving.forget(ALL, check=True)["actions"]
    with pytest.raises(
        NodeError, match=r"Nothing was removed, because these containers run: instinct-fetch\."
    ):
        leaving.forget(ALL)
    assert (leaving.settings(), leaving.files()) == before
    assert leaving.docker.changes() == []


def test_weights_of_others_stay(leaving: Leaving) -> None:
    theirs = leaving.top / "node/hf/hub/models--c--d/snapshots" / commit(1) / "config.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    done = leaving.forget(ALL)
    assert leaving.files() == [os.path.relpath(theirs, leaving.top / "node")]
    assert [text for text in done["left"] if "of another tool, or incomplete" in text]


def test_weights_that_a_container_of_another_tool_mounts_stay(leaving: Leaving) -> None:
    mounts = [{"Source": f"{leaving.top}/node/hf"}]
    leaving.docker.add_container("reader", {"Image": OTHERS, "HostConfig": {"Mounts": mounts}}, "exited")
    before = [name for name in leaving.files() if name.startswith("hf/")]
    done = leaving.forget(ALL)
    assert leaving.files() == before
    assert [text for text in done["left"] if "is mounted by a container of another tool" in text]


def test_no_link_is_followed(leaving: Leaving) -> None:
    outside = leaving.top / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    for place in (
        "node/var/cache/llama-7/out",
        "node/var/bench/out",
        "node/var/models",
    ):
        (leaving.top / place).symlink_to(outside)
    leaving.forget(ALL)
    assert (outside / "kept").read_text() == "kept"
    assert leaving.forget(ALL)["changed"] is False


def test_a_link_in_a_cache_of_weights_is_named_before_anything_goes(leaving: Leaving) -> None:
    (leaving.top / "node/hf/hub/models--x--y").symlink_to(leaving.top)
    before = (leaving.settings(), leaving.files())
    with pytest.raises(NodeError, match=r"models--x--y is not a directory of its own"):
        leaving.forget(ALL)
    assert (leaving.settings(), leaving.files()) == before


def test_a_linked_data_directory_is_emptied_and_stays_linked(tmp_path: Path) -> None:
    (tmp_path / "disk/cache/llama-0").mkdir(parents=True)
    (tmp_path / "disk/cache/llama-0/x").write_text("x")
    (tmp_path / "var").symlink_to(tmp_path / "disk")
    for part in list(tree_parts(str(tmp_path / "var"), ())):
        part.remove()
    assert (os.listdir(tmp_path / "disk"), (tmp_path / "var").is_symlink()) == ([], True)
    assert list(tree_parts(str(tmp_path / "var"), ())) == []


def test_a_failure_names_the_part_and_what_was_done(leaving: Leaving) -> None:
    def broken(_words: Sequence[str], _seconds: float) -> None:
        raise NodeError("systemctl daemon-reload failed: no bus")

    host = replace(leaving.host, settings=replace(leaving.host.settings, run=broken))
    with pytest.raises(NodeError, match=r"systemctl daemon-reload: .* no bus") as caught:
        converge(DockerClient(leaving.docker.path), host, ALL, False)
    done = caught.value.result["actions"]
    assert done[0] == "remove container instinct-llama-7"
    assert not any("update-grub" in text for text in done)
    assert caught.value.result["changed"] is True


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@settings(max_examples=60)
@given(files=st.lists(PATHS, max_size=8), kept=st.lists(PATHS, max_size=3))
def test_of_a_tree_only_what_is_kept_stays(
    files: list[str], kept: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("tree")
    for name in files:
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(name)
    before = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    for part in list(tree_parts(str(top), kept)):
        part.remove()
    after = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert after == {name for name in before if any(f"{name}/".startswith(f"{one}/") for one in kept)}
    assert list(tree_parts(str(top), kept)) == []
