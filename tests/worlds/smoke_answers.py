# SPDX-License-Identifier: Apache-2.0
"""What engines answer to smoke prompts: good, dead, and exclamation marks."""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.module_utils.engines.smoke_prompts import PROMPTS, Reply

GOOD = [
    Reply(f" {prompt.right[0] if prompt.right else 'a girl'}, and that is what it is") for prompt in PROMPTS
]

BANGS = [Reply("!" * 32) for _ in PROMPTS]
DEAD = [Reply(error="HTTP 500: EngineCore encountered an issue.") for _ in PROMPTS]
