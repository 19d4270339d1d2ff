# SPDX-License-Identifier: Apache-2.0
"""Simulated AMD Instinct GPUs of a lab node: one state behind sysfs, device nodes and the SMI tools."""

from __future__ import annotations
