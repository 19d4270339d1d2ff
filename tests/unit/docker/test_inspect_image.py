# SPDX-License-Identifier: Apache-2.0
"""What an image says of itself: the script that its shell runs, and the program that its Python runs."""

from __future__ import annotations

import glob
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.module_utils.docker.inspect_image import SCRIPT, parse_answer
from ansible_collections.instinct.fleet.plugins.module_utils.programs import inspect_image
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script

from lab import layers
from lab.standin.knobs import Knobs

VERSIONS = f"{sys.version_info.major}.{sys.version_info.minor}."


class FakeImage:
    """Directories of commands and Python packages, in which the script runs as it does in an image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = [self.command("bin", "unrelated", "exit 1").parent]

    def command(self, place: str, name: str, text: str, shebang: str = "/bin/sh") -> Path:
        file = self.root / place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!{shebang}\n{text}\n")
        file.chmod(0o755)
        return file

    def python(self, place: str) -> Path:
        """A Python whose packages are beside it."""
        packages = self.root / place / "packages"
        packages.mkdir(parents=True)
        return self.command(place, "python3", f'exec env PYTHONPATH={packages} {sys.executable} -S "$@"')

    def package(self, place: str, name: str, release: str, **files: str) -> None:
        metadata = self.root / place / f"packages/{name}-{release}.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
        self.files(place, name, **files)

    def files(self, place: str, name: str, **files: str) -> None:
        for file, text in files.items():
            path = self.root / place / "packages" / name / f"{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def ask(self, *places: str, **env: str) -> ImageSoftware:
        path = ":".join(str(self.root / place) for place in (*places, "bin"))
        done = subprocess.run(
            ["/bin/sh", "-c", SCRIPT, "ask", script("inspect_image")],
            env={"PATH": path, **env}, capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
        return parse_answer(done.stdout + done.stderr)


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    found = FakeImage(tmp_path)
    for tool in ("env", "sh"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    return found


def test_the_metadata_of_packages(image: FakeImage) -> None:
    image.python("usr")
    explodes = "raise ImportError('libamdhip64.so')"
    image.package("usr", "vllm", "0.11.2+rocm700", __init__=explodes)
    image.package(
        "usr", "torch", "2.9.0a0+git1c57644", __init__=explodes, version="hip: str = '7.0.51831-x'\n"
    )
    found = image.ask("usr", PYTORCH_ROCM_ARCH="gfx90a;gfx942:xnack-;gfx950;gfx942")
    assert (found.vllm, found.platform, found.pytorch) == ("0.11.2+rocm700", "rocm", "2.9.0a0+git1c57644")
    assert found.gfx == ("gfx90a", "gfx942", "gfx950")
    assert found.python is not None
    assert found.python.startswith(VERSIONS)


def test_the_labs_stand_in_is_built_for_rocm(image: FakeImage) -> None:
    """As what is planned for Instinct GPUs alone is to be tried with it."""
    image.python("usr")
    layers._install_standin(image.root / "layer")
    shutil.copytree(
        image.root / "layer" / layers.DIST_PACKAGES, image.root / "usr/packages", dirs_exist_ok=True
    )
    found = image.ask("usr")
    assert (found.vllm, found.platform, found.rocm, found.pytorch) == (Knobs.version, "rocm", None, None)


def test_the_python_that_runs_vllm_is_asked(image: FakeImage) -> None:
    """Not the first one in PATH, which need not know it."""
    image.python("usr")
    python = image.python("opt/venv/bin")
    image.package("opt/venv/bin", "vllm", "0.12.0+cpu")
    image.command("usr", "vllm", "import vllm", shebang=str(python))
    assert image.ask("usr").vllm == "0.12.0+cpu"
    image.command("usr", "vllm", "import vllm", shebang="/opt/gone/bin/python")
    assert image.ask("usr", "opt/venv/bin").vllm == ""


@pytest.mark.parametrize("shebang", ["/usr/bin/env python3", "/bin/sh"])
def test_a_command_that_names_no_python(image: FakeImage, shebang: str) -> None:
    image.python("usr")
    image.package("usr", "vllm", "0.12.0")
    image.command("usr", "vllm", "exit 1", shebang=shebang)
    assert image.ask("usr").vllm == "0.12.0"


def test_without_metadata_the_file_of_its_build(image: FakeImage) -> None:
    image.python("usr")
    text = "__version__: str\n__version__ = version = '0.32.0+cpu'\n"
    image.files("usr", "vllm", __init__="raise ImportError", _version=text)
    found = image.ask("usr")
    assert (found.vllm, found.platform, found.pytorch, found.gfx) == ("0.32.0+cpu", "cpu", None, None)


def test_then_the_command(image: FakeImage) -> None:
    image.python("usr")
    image.command("usr", "vllm", "echo 'INFO 01-01 loading'; echo 0.6.3.post1")
    assert image.ask("usr").vllm == "0.6.3.post1"
    image.command("usr", "vllm", "echo 0.6.3; exit 1")
    assert image.ask("usr").vllm == ""


def test_an_image_without_python(image: FakeImage) -> None:
    assert image.ask() == ImageSoftware("")
    image.command("usr", "vllm", "echo 0.11.2+rocm700")
    assert image.ask("usr") == ImageSoftware("0.11.2+rocm700", "rocm")


HIP, CUDA = "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'\n", "cuda = '12.8'\nhip = None\n"


@pytest.mark.parametrize(
    ("vllm", "torch", "text", "kind"),
    [
        ("0.11.2+rocm700", "2.9.0+cpu", "", "rocm"),
        ("0.9.2.dev364+gb432b7a28.rocm641", "", "", "rocm"),
        ("0.9.2.dev364+gcpab7a28.d20250601.cpu", "", "", "cpu"),
        ("0.11.0+cu126", "", "", "cuda"),
        ("0.11.0", "2.8.0+cu128", "", "cuda"),
        ("0.11.0", "2.10.0+rocm7.15.0a20260716", "", "rocm"),
        ("0.11.0", "2.7.0+gitf717b2a", HIP, "rocm"),
        ("0.11.0", "2.7.0", CUDA, "cuda"),
        ("0.11.0", "2.7.0", "cuda = None\nhip = None\n", ""),
        ("0.11.0", "", "", ""),
    ],
)
def test_platforms(vllm: str, torch: str, text: str, kind: str) -> None:
    assert inspect_image.kind(vllm, torch, text) == kind


@pytest.mark.parametrize(
    ("files", "packages", "torch", "rocm"),
    [
        ({"rocm/.info/version": "7.0.0-38\n"}, {}, "2.9.0", "7.0.0"),
        ({"rocm-6.4.1/.info/version": "6.4.1-83"}, {}, "", "6.4.1"),
        (
            {"rocm/core/.info/version": "7.14.0\n", "rocm/core-7.14.0/.info/version": "7.14.0"},
            {},
            "",
            "7.14.0",
        ),
        ({}, {"rocm": "7.15.0a20260716"}, "2.10.0+rocm7.1", "7.15.0"),
        ({}, {"rocm-sdk-core": "7.12.0"}, "", "7.12.0"),
        ({}, {}, "2.5.1+rocm6.2", "6.2"),
        ({}, {}, "2.13.0+cpu", None),
        ({"rocm/.info/version": ""}, {}, "", None),
    ],
)
def test_rocm(
    files: dict[str, str], packages: dict[str, str], torch: str, rocm: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "opt" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    find = glob.glob
    monkeypatch.setattr(glob, "glob", lambda pattern: find(f"{tmp_path}{pattern}"))
    monkeypatch.setattr(inspect_image, "version", lambda package: packages.get(package, ""))
    assert inspect_image.rocm(torch) == rocm


def test_the_answer_is_the_last_line_with_the_mark() -> None:
    answer: dict[str, Any] = ImageSoftware("1.2.3", "rocm", None, None, "3.12.1", ("gfx942",)).to_json()
    log = f"warning\n{inspect_image.MARK}{json.dumps(answer)}\n9.9.9\n"
    assert parse_answer(log) == ImageSoftware("1.2.3", "rocm", None, None, "3.12.1", ("gfx942",))
    assert parse_answer("") == parse_answer("command not found") == ImageSoftware("")
