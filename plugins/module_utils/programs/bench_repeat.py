# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's benchmark client several times in one process, inside a benchmark's container.

Its text is sent there and put into a file in a directory of its own, so that no neighbouring file can be imported. Only
the standard library of Python 3.8 is available. Importing vLLM takes longer than a short run, so all runs share a
process: the command `vllm` is a small Python script, which is executed repeatedly. Each run's JSON gets its own name.
The exit code is that of the first run that fails.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import traceback


def run(words: list[str]) -> int:
    """Run the program once and return its exit code. A program that is not Python runs as a separate process."""
    own = words[1:] if os.path.basename(words[0]).startswith("python") else words  # python3 SCRIPT …
    path = shutil.which(own[0]) or own[0]
    with open(path, "rb") as stream:
        head = stream.read(512)  # if a path is too long for the shebang, it is in the second line
    if b"python" not in head:
        return subprocess.call(words)
    sys.argv = [path, *own[1:]]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Run all repetitions.

    Arguments: result directory and name, seed, warm-up runs, measured runs, the command's words.
    """
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
    raise SystemExit(main(sys.argv[1:]))
