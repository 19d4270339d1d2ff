# SPDX-License-Identifier: Apache-2.0
"""What moving files to many nodes takes, as a ratio to one node, and what their source sends, as a ratio to the files.

Nodes are network namespaces on links of a few Mbit/s both ways (net.py), so that the links decide and not this machine.
Needs root and python3-libtorrent. The exit code is 1 if a figure missed its target; a busy machine lengthens all.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.fanout.net import ShapedNet
from tests.fanout.swarm import Fleet, content, image_sizes, weight_sizes

KINDS = {"image": image_sizes, "weights": weight_sizes}
TARGETS = {8: 1.15, 32: 1.3}
SOURCE = 1.05
MBIT = 20.0  # dozens of programs on two cores can do no more
SECONDS = {8: 30.0, 32: 60.0}  # what does not grow with the content, such as hashes of pieces, is per host


def once(receivers: int, mbit: float, files: dict[str, bytes]) -> tuple[float, float]:
    """Return the seconds until the last receiver is complete, and the bytes that the source sends ÷ the files."""
    with (
        tempfile.TemporaryDirectory(prefix="fanout-", dir="/dev/shm") as tmp,
        ShapedNet(receivers + 1, mbit) as net,
    ):
        fleet = Fleet(net, Path(tmp), files)
        nodes = range(receivers + 1)
        before = net.sent(0)
        begun = fleet.start(nodes)
        fleet.wait(nodes, 900)
        seconds = time.monotonic() - begun
        sent = net.sent(0) - before
        fleet.check(nodes)
        return seconds, sent / sum(map(len, files.values()))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--mbit", type=float, default=MBIT, help="of each link")
    parser.add_argument(
        "--seconds",
        type=float,
        help="that the files take over one link; by default 30 for 8 nodes, 60 for 32",
    )
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed
    missed = []
    print()
    print("Transfers  nodes  Mbit/s     MB  seconds  one node  ratio  target  source  target")
    for kind, count in itertools.product(args.kind, args.nodes):
        files = content(KINDS[kind](int(args.mbit * 1e6 / 8 * (args.seconds or SECONDS[count]))))
        one, _ = once(1, args.mbit, files)
        seconds, sent = once(count, args.mbit, files)
        size, ratio = sum(map(len, files.values())) / 1e6, seconds / one
        print(
            f"{kind:9}  {count:5d}  {args.mbit:6g}  {size:5.1f}  {seconds:7.1f}  {one:8.1f}  {ratio:5.2f}  "
            f"{TARGETS[count]:6.2f}  {sent:6.3f}  {SOURCE:6.2f}",
            flush=True,
        )
        if ratio > TARGETS[count] or sent > SOURCE:
            missed.append(f"{kind} to {count} nodes")
    if missed:
        print(f"Targets missed: {', '.join(missed)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
