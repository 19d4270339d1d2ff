# SPDX-License-Identifier: Apache-2.0
"""Find the run to compare with among earlier ones. Pure; the action plugin reads the files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ....module_utils.common.errors import suggest
from .pairing import AccuracyError
from .results import SCHEMA, DeploymentRun

PREVIOUS, NONE = "previous", "none"
"""Names of a baseline that are not runs: the newest good one, and none."""


def check_baseline(wanted: str, runs: Collection[str]) -> None:
    """Raise AccuracyError if a named baseline is not one of the earlier runs."""
    if wanted not in (PREVIOUS, NONE, *runs):
        raise AccuracyError(
            f"accuracy_baseline: there is no accuracy run {wanted}. {suggest(wanted, [PREVIOUS, NONE, *runs])}"
        )


def baseline_of(
    deployment: str, run: DeploymentRun, runs: Mapping[str, Mapping[str, Any]], wanted: str = PREVIOUS
) -> tuple[str, DeploymentRun] | None:
    """Return (name, run) of the baseline of a deployment; None if there is none.

    run: what is compared with it. runs: the contents of accuracy.json of earlier runs. If none is named, it is the
    newest without a problem of the deployment, so that a bad release is not compared with itself; one that asked as
    much is preferred. Raise AccuracyError if the named run does not exist, or does not have the deployment.
    """
    if wanted == NONE:
        return None
    check_baseline(wanted, runs)
    if wanted != PREVIOUS:
        found = _read(runs[wanted], deployment)
        if found is None:
            raise AccuracyError(
                f"accuracy_baseline: the run {wanted} has no results of the deployment {deployment} that this version "
                "of the toolkit can read. Name another run, or none."
            )
        return wanted, found
    newest = sorted(runs, key=lambda name: (str(runs[name].get("finished") or ""), name), reverse=True)
    good = [
        (name, found)
        for name in newest
        if (found := _read(runs[name], deployment)) is not None
        and not runs[name]["deployments"][deployment].get("problems")
    ]
    asked = [
        (name, found)
        for name, found in good
        if set(run.tasks) <= set(found.tasks) and bool(run.passages) <= bool(found.passages)
    ]
    return next(iter(asked or good), None)


def _read(run: Mapping[str, Any], deployment: str) -> DeploymentRun | None:
    if run.get("schema") != SCHEMA or deployment not in (run.get("deployments") or {}):
        return None
    try:
        return DeploymentRun.from_json(run["deployments"][deployment]["run"])
    except (KeyError, TypeError, ValueError):
        return None
