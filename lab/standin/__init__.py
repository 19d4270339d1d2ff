# SPDX-License-Identifier: Apache-2.0
"""Stand-in for vLLM: its command line, endpoints, metrics and log lines, and an instant engine."""
