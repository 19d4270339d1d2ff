# SPDX-License-Identifier: Apache-2.0
"""What moving files to many nodes takes, as a ratio to one node: on shaped links, both ways (`make bench`)."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fanout.net import ShapedNet
from tests.fanout.swarm import Fleet, content, image_sizes, weight_sizes

KINDS = {"image": image_sizes, "weights": weight_sizes}


def once(receivers: int, mbit: float, files: dict[str, bytes]) -> tuple[float, float]:
    """Return the seconds until the last receiver is complete, and what the source sent, as a ratio to the files."""
    with tempfile.TemporaryDirectory(prefix="fanout-") as tmp, ShapedNet(receivers + 1, mbit) as net:
        fleet = Fleet(net, Path(tmp), files)
        nodes = range(receivers + 1)
        before = net.sent(0)
        begun = fleet.start(nodes)
        fleet.wait(nodes, 900)
        seconds = time.monotonic() - begun
        sent = net.sent(0) - before
        if "-v" in sys.argv:
            for node in nodes:
                print(
                    node,
                    fleet.state(node).seconds,
                    fleet.state(node).sent / 1e6,
                    fleet.state(node).received / 1e6,
                )
        import os

        if os.environ.get("FO_TRACE"):
            os.system(f"cp {tmp}/log* /tmp/fo-trace/")
        fleet.check(nodes)
        return seconds, sent / sum(map(len, files.values()))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--mbit", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kind", nargs="+", default=list(KINDS))
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    total = int(args.mbit * 1e6 / 8 * args.seconds)
    for kind in args.kind:
        files = content(KINDS[kind](total))
        one, _ = once(1, args.mbit, files)
        print(f"{kind} one {one:.1f} s")
        for count in args.nodes:
            seconds, sent = once(count, args.mbit, files)
            print(
                f"{kind} {count}: {seconds:.1f} s, ratio {seconds / one:.3f}, source {sent:.3f} x", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
