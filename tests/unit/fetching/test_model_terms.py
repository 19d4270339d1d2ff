# SPDX-License-Identifier: Apache-2.0
"""Licences, gates, scans, pickles and remote code, before anything is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.model_card import (
    CardTerms,
    ModelCard,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import registry
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.registry import model_pin

from lab.hub import make, server
from tests.helpers.eventually import GENEROUS
from tests.worlds.plan_world import COMMIT, CONFIG, LOCK, REPO, apply_to_state, deployment, plan, state

HASHES = (("config.json", "git-sha1:" + "1" * 40), ("modeling_x.py", "git-sha1:" + "2" * 40))
FILES = (("config.json", 1), ("model.safetensors", 4 << 30), ("modeling_x.py", 9))
PICKLED = (("config.json", 1), ("pytorch_model.bin", 4 << 30))
BOTH = (*FILES, ("pytorch_model.bin", 4 << 30), ("original/a.pth", 1 << 30))
BASE = CardTerms("org/base", ("llama3.1",), gate="manual")


def locked(card: ModelCard | None, files: Any = FILES, repo: str = REPO, config: Any = CONFIG) -> Lock:
    pin = ModelPin(COMMIT, files, config, HASHES, card)
    return Lock(LOCK.images, {model_key("", repo, "main"): pin})


def card(*licenses: str, base: tuple[CardTerms, ...] = (), **keys: Any) -> ModelCard:
    own = {key: keys.pop(key) for key in ("name", "link", "gate", "eu") if key in keys}
    return ModelCard(CardTerms(REPO, licenses, **own), base, **keys)


def refused(
    lock: Lock, wanted: dict[str, Any] | None = None, found: Any = None, **variables: Any
) -> list[str]:
    try:
        plan({"n1": found or state()}, [wanted or deployment()], lock, **variables)
    except FleetError as error:
        return [problem.text() for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("found", "accepts", "needs"),
    [
        (card("apache-2.0"), [], ""),
        (card(), [], ""),  # none is stated
        (card("llama3.1"), [], "[llama3.1]"),
        (card("llama3.1"), ["llama3.1"], ""),
        (card("llama3.1"), ["gemma"], "[gemma, llama3.1]"),
        (card("other", name="acme"), ["llama3.1"], '[llama3.1, "repo:lab/tiny-llama"]'),
        (card("other", name="acme"), [f"repo:{REPO}"], ""),
        (card("mit", base=(BASE,)), [], "[llama3.1]"),
        (card(base=(BASE,)), ["repo:org/base"], ""),
        (card("llama9"), ["llama9"], ""),
        (card("cc-by-nc-4.0", base=(BASE,)), [], "[cc-by-nc-4.0, llama3.1]"),
        (card("mit", unread=("meta-llama/Llama-3.1-8B",)), [], "[llama3.1]"),  # known by its name
        (card("mit", unread=("org/else",)), [], ""),
    ],
)
def test_licences(found: ModelCard, accepts: list[str], needs: str) -> None:
    texts = refused(locked(found), licenses_accepted=accepts)
    assert bool(texts) == bool(needs)
    if needs:
        assert texts[0].startswith(
            "vllm_deployments[0].model (host n1): lab/tiny-llama would be downloaded, but the"
        )
        assert texts[0].endswith(f"write in the inventory: licenses_accepted: {needs}")


def test_weights_that_are_there_need_no_acceptance() -> None:
    """An upgrade of the toolkit, or a lost acceptance, stops nothing that serves."""
    lock = locked(card("llama3.1", scanned=True, issues=(("model.safetensors", "unsafe"),)), PICKLED)
    there = apply_to_state(state(), plan({"n1": state()}, [deployment()]).to_json()["hosts"]["n1"])
    assert refused(lock, found=there) == []
    assert plan({"n1": there}, [deployment()], lock).downloads == ()


def test_a_pin_of_an_earlier_release_warns_until_it_is_read_again() -> None:
    repo = "amd/Llama-3.1-8B-Instruct-FP8-KV"
    lock, wanted = locked(None, repo=repo), deployment(model=repo)
    made = plan({"n1": state()}, [wanted], lock)
    (warning,) = [text for text in made.warnings if "licen" in text]
    assert "pinned by an earlier release" in warning
    assert "-e refresh=true" in warning
    assert warning.endswith("licenses_accepted: [llama3.1]")
    assert plan({"n1": state()}, [wanted], lock, licenses_accepted=["llama3.1"]).warnings == ()


def test_offline_nothing_is_refused_but_said() -> None:
    lock = locked(card("llama3.1"))
    made = plan({"n1": None}, [deployment()], lock, offline=True, instinct_gpus={"model": "MI300X"})
    assert any(
        "a download is refused unless the licence is accepted: llama3.1" in text for text in made.warnings
    )
    unpinned = plan({"n1": None}, [deployment(model="google/gemma-3-27b-it")], Lock(LOCK.images), offline=True,
                    instinct_gpus={"model": "MI300X"})  # fmt: skip
    assert any("licenses_accepted: [gemma]" in text for text in unpinned.warnings)


@pytest.mark.parametrize(
    ("accepts", "text"),
    [
        (
            ["lama3.1"],
            "licenses_accepted[0] (host n1): 'lama3.1' is not a licence that the catalogue or this plan knows. "
            "Did you mean llama3.1?",
        ),
        (["gemma", "Llama3.1"], "Did you mean llama3.1?"),
        (["zzz"], "Valid: llama3.1."),
        (["llama3.1 "], "is not a licence."),
        (["repo:lab"], "is not a licence."),
        ("lama3.1", "Did you mean llama3.1?"),  # as -e gives it
    ],
)  # fmt: skip
def test_entries_that_nobody_knows(accepts: Any, text: str) -> None:
    assert any(text in found for found in refused(locked(card("llama3.1")), licenses_accepted=accepts))


def test_a_repository_that_is_not_used_is_no_mistake_and_a_misspelled_one_is() -> None:
    lock = locked(card("other"))
    assert refused(lock, licenses_accepted=[f"repo:{REPO}", "repo:org/used-once"]) == []
    texts = refused(lock, licenses_accepted=["repo:lab/tiny-lama"])
    assert any("Did you mean repo:lab/tiny-llama?" in text for text in texts)


@pytest.mark.parametrize(
    ("files", "keys", "text"),
    [
        (
            PICKLED,
            {},
            "has its weights only as pickles (pytorch_model.bin), and loading one can run any code.",
        ),
        (PICKLED, {"weights_formats": "any"}, ""),
        (BOTH, {}, ""),
        (
            BOTH,
            {"engine_args": {"load_format": "pt"}},
            "pt loads pickles, and weights_formats: safe downloads none.",
        ),
        (BOTH, {"engine_args": {"load_format": "pt"}, "weights_formats": "any"}, ""),
        (FILES, {"weights_formats": "all"}, "'all' is not valid. Valid: safe, any."),
    ],
)
def test_pickles(files: Any, keys: dict[str, Any], text: str) -> None:
    texts = refused(locked(card(), files), deployment(**keys))
    assert [text in found for found in texts] == ([True] if text else [])


def test_pickles_beside_safetensors_are_not_downloaded() -> None:
    made = plan({"n1": state()}, [deployment()], locked(card(), BOTH))
    (step,) = made.hosts[0].models
    assert set(step.files) == {"config.json", "model.safetensors", "modeling_x.py"}
    assert "*.bin" in step.exclude
    assert "left out 2 pickles, 5.0 GiB" in " ".join(explain(made).split())
    everything = plan({"n1": state()}, [deployment(weights_formats="any")], locked(card(), BOTH))
    assert set(everything.hosts[0].models[0].files) == {name for name, _size in BOTH}


@pytest.mark.parametrize(
    ("issues", "text"),
    [
        (
            (("model.safetensors", "unsafe"),),
            "the hub's scan calls model.safetensors of lab/tiny-llama unsafe.",
        ),
        ((("model.safetensors", "suspicious"),), ""),
        ((("pytorch_model.bin", "unsafe"),), ""),  # which is not downloaded
    ],
)
def test_the_scan(issues: tuple[tuple[str, str], ...], text: str) -> None:
    lock = locked(card(scanned=True, issues=issues), BOTH)
    texts = refused(lock)
    assert [text in found for found in texts] == ([True] if text else [])
    if not text:
        shown = " ".join(explain(plan({"n1": state()}, [deployment()], lock)).split())
        word = issues[0][1]
        assert (
            "reports model.safetensors (suspicious)" if word == "suspicious" else "(1 elsewhere)"
        ) in shown


def test_code_is_listed_with_its_hashes_where_it_runs() -> None:
    lock = locked(card("mit"))
    assert plan({"n1": state()}, [deployment()], lock).downloads[0].code == ()
    made = plan({"n1": state()}, [deployment(engine_args={"trust_remote_code": True})], lock)
    assert made.downloads[0].code == (("modeling_x.py", "git-sha1:" + "2" * 40),)
    assert "git-sha1:" + "2" * 40 in explain(made, full=True)


def test_code_of_another_repository() -> None:
    config = {**CONFIG, "auto_map": {"AutoModel": "org/code--modeling.X", "AutoConfig": ["configuration.Y"]}}
    lock = locked(card("mit"), config=config)
    made = plan({"n1": state()}, [deployment(settings={"trust_remote_code": True})], lock)
    assert any("runs code of org/code, which is neither pinned" in text for text in made.warnings)
    assert plan({"n1": state()}, [deployment()], lock).warnings == ()


def test_a_draft_is_judged_too() -> None:
    draft = ModelPin(COMMIT, FILES, CONFIG, (), ModelCard(CardTerms("lab/draft", ("gemma",))))
    lock = Lock(LOCK.images, {**locked(card("mit")).models, model_key("", "lab/draft", "main"): draft})
    wanted = deployment(
        engine_args={"speculative_config": {"model": "lab/draft", "num_speculative_tokens": 2}}
    )
    assert any("lab/draft would be downloaded" in text for text in refused(lock, wanted))


def test_what_the_plan_says() -> None:
    found = card("llama3.1", base=(BASE,), scanned=True, gate="auto", eu=False)
    made = plan({"n1": state()}, [deployment()], locked(found), licenses_accepted=["llama3.1"])
    text = explain(made)
    assert (
        "Terms of the downloads\n"
        "  lab/tiny-llama@main (model of llama)\n"
        "    licence llama3.1, accepted, https://www.llama.com/llama3_1/license/\n"
        "    gate   lab/tiny-llama: access is granted at once, its publisher does not offer it in the EU; org/base:\n"
        "           access is granted by hand\n"
        "    scan   of the hub: nothing found\n"
    ) in text
    (entry,) = made.to_json()["downloads"]
    assert entry["licenses"][0]["accepted"] is True
    assert entry["gates"] == {REPO: "auto", "org/base": "manual"}


def test_what_the_hub_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real HTTP: the card, the chain of models that it was made from, and the scan."""
    monkeypatch.setattr(registry, "TIMEOUT", GENEROUS)
    one = [make.Commit("one", {"config.json": b"{}", "a.bin": b"1"})]
    made_from = {
        "license": "other",
        "license_name": "Acme\x1b[31m",
        "base_model": ["lab/root", "lab/gone", "../x"],
    }
    scan = {"scansDone": True, "filesWithIssues": [{"path": "a.bin", "level": "unsafe"}, 5]}
    make.write_repo(tmp_path, "lab/m", one, card=made_from, security=scan)
    make.write_repo(
        tmp_path, "lab/root", one, gated=True, card={"license": "LLAMA3.1", "base_model": "lab/m"}
    )
    with server.Hub(tmp_path) as hub:
        pin = model_pin("lab/m", "main", (), hub.url, None, sleep=lambda seconds: None)
    assert pin.card == ModelCard(
        CardTerms("lab/m", ("other",), "Acme\N{REPLACEMENT CHARACTER}[31m"),
        (CardTerms("lab/root", ("llama3.1",), gate="manual"),),
        ("lab/gone",),
        True,
        (("a.bin", "unsafe"),),
    )
