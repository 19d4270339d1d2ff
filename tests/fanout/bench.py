# SPDX-License-Identifier: Apache-2.0
"""What moving files to many nodes takes, as a ratio to one node, and what their source sends, as a ratio to the files.

Nodes are network namespaces on links of a few Mbit/s both ways (net.py), so that the links decide and not this machine.
Needs root and python3-libtorrent. The exit code is 1 if a figure missed its target; a busy machine lengthens all.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--nodes", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--mbit", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed
    missed = []
    print(f"Fan-out at {args.mbit:g} Mbit/s, {args.mbit * args.seconds / 8:.1f} MB")
    print("files    nodes  seconds  ÷ one node  target  source ÷ files  target", flush=True)
    for kind in args.kind:
        files = content(KINDS[kind](int(args.mbit * 1e6 / 8 * args.seconds)))
        one, sent = once(1, args.mbit, files)
        print(f"{kind:7}  {1:5d}  {one:7.1f}  {1:10.2f}          {sent:14.3f}", flush=True)
        for count in args.nodes:
            seconds, sent = once(count, args.mbit, files)
            target = TARGETS.get(count, TARGETS[max(TARGETS)])
            print(
                f"{kind:7}  {count:5d}  {seconds:7.1f}  {seconds / one:10.2f}  {target:6.2f}  {sent:14.3f}  {SOURCE:.2f}",
                flush=True,
            )
            if seconds / one > target or sent > SOURCE:
                missed.append(f"{kind} to {count} nodes")
    print(f"Missed: {', '.join(missed)}." if missed else "All within their targets.")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
