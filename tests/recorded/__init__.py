# SPDX-License-Identifier: Apache-2.0
"""Recorded runs of fleet_plan: fleets as plain data, and what the action returned for them.

A change that is meant to change no plan is held against the record by tests/unit/plan/test_recorded.py. Where plans or
texts are meant to change, `python -m tests.recorded --write` shows the differences and records them.
"""
