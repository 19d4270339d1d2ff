# SPDX-License-Identifier: Apache-2.0
"""Docker's restart policy of an instance's container, as a word; and the label that has the container's own one.

Docker starts a container whose policy is `always` again whenever its daemon starts, however that ended before; with
`unless-stopped` it does not after a SIGKILL, because the daemon that comes back stops what it finds as an operator
does. So an instance that serves has `always`, and before anything of this toolkit stops one, it gives it `no`
(docker/lifecycle.py). The label says what it gets back.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
RESTART_LABEL = "instinct-fleet.restart"
NEVER = "no"


def policy_word(policy: dict[str, Any] | None) -> str:
    """Return Docker's RestartPolicy as a word: always, no, on-failure:3."""
    name, count = (policy or {}).get("Name") or NEVER, (policy or {}).get("MaximumRetryCount")
    return f"{name}:{count}" if count else str(name)


def docker_policy(word: str) -> dict[str, Any]:
    """Return the RestartPolicy that a word stands for."""
    name, _unused, count = word.partition(":")
    return {"Name": name, **({"MaximumRetryCount": int(count)} if count else {})}
