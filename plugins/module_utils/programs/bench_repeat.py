# SPDX-License-Identifier: Apache-2.0
"""Runs inside the container of a benchmark: several runs of vLLM's client in one process.

Its text is sent there, and put into a file of a directory of its own, so that nothing else is imported from beside it.
The standard library of Python 3.8 is all there is. Importing vLLM takes longer than a short run does, so all runs
share a process: the command `vllm` is a small Python script, which is run again and again. Each run's JSON gets a name
of its own. The exit code is that of the first run that fails.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import traceback


def run(words: list[str]) -> int:
    """One run: the program's exit code. A program that is not in Python becomes a process of its own."""
    own = words[1:] if os.path.basename(words[0]).startswith("python") else words  # python3 SCRIPT …
    path = shutil.which(own[0]) or own[0]
    with open(path, "rb") as stream:
        head = stream.read(512)  # a path too long for a shebang is in its second line
    if b"python" not in head:
        return subprocess.call(words)
    sys.argv = [path, *own[1:]]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Arguments: directory and name of the result, seed, runs to throw away, runs, and the command's words."""
    directory, name = arguments[:2]
    seed, warmups, runs = (int(text) for text in arguments[2:5])
    result = os.path.join(directory, name)
    for number in range(warmups + runs):
        code = run([*arguments[5:], "--seed", str(seed + number)])
        sys.stdout.flush()
        if code:
            return code
        if os.path.exists(result):
            os.replace(result, f"{result}.{number - warmups}")  # .-1, .-2 … are not read
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
