# SPDX-License-Identifier: Apache-2.0
"""Runs ansible-test where a package index is all that can be reached: python -m tests.ansible_test HOME FOLDER sanity …

ansible-test makes virtual environments for its checks. For their pip it fetches get-pip.py from a server of Ansible's,
and it hides from that pip which index the environment names. Here it gets a home directory of its own, with a
get-pip.py that takes the pip that came with Python, and with pip's settings in a file.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

# Called with the requirement pip==…, and options that only the real get-pip.py has.
GET_PIP = """\
import importlib
import runpy
import subprocess
import sys

# In a process of its own, as it turns pip's settings off.
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
importlib.invalidate_caches()
sys.argv[1:] = ["install", *(word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel"))]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
REACH = (
    "index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "cert", "client-cert", "proxy",
)  # fmt: skip
"""Settings of pip that say how packages are reached."""


def pip_version() -> str:
    """The pip that this ansible-test wants in its environments."""
    from ansible_test._internal.host_configs import NativePythonConfig
    from ansible_test._internal.python_requirements import get_venv_packages

    return get_venv_packages(NativePythonConfig())["pip"]


def pip_settings(listed: str) -> dict[str, str]:
    """What `pip config list` says of REACH; variables of the environment go before files."""
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in REACH:
            found[key] = str(ast.literal_eval(value))
    return found


def prepare(home: Path) -> None:
    """Fill the home directory."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    config = home / ".config/pip/pip.conf"
    script = home / f".ansible/test/cache/get_pip_{pip_version().replace('.', '_')}.py"
    for path in (config, script):
        path.parent.mkdir(parents=True, exist_ok=True)
    indented = {key: value.strip().replace("\n", "\n  ") for key, value in pip_settings(listed).items()}
    config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in indented.items()))
    script.write_text(GET_PIP)


def without_broken_pythons(path: str) -> str:
    """PATH without the folders of which a Python does not run: ansible-test gives up there, rather than look on.

    pyenv has one for every version that is installed, and only some are switched on.
    """

    def runs(python: Path) -> bool:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0

    folders = {
        folder: [file for file in Path(folder).glob("python3.*") if re.fullmatch(r"python3\.\d+", file.name)]
        for folder in path.split(os.pathsep)
    }
    return os.pathsep.join(folder for folder, pythons in folders.items() if all(map(runs, pythons)))


def main(home: Path, folder: Path, *words: str) -> int:
    """Run it in the collection's folder; its exit code, and 1 where it found nothing to test and thinks that right."""
    prepare(home)
    program = Path(sys.executable).parent
    path = f"{program}{os.pathsep}{without_broken_pythons(os.environ['PATH'])}"
    env = {**os.environ, "HOME": str(home), "PATH": path}
    run = subprocess.Popen(
        [program / "ansible-test", *words], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )
    assert run.stderr is not None
    nothing = False
    for line in run.stderr:
        sys.stderr.write(line)
        nothing = nothing or "All targets skipped" in line
    return run.wait() or int(nothing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]), *sys.argv[3:]))
