# SPDX-License-Identifier: Apache-2.0
"""What serves is measured out of service: no request is lost, and no benchmark loads an instance in service."""

from __future__ import annotations

import json
import re
import threading
import time
from datetime import datetime
from typing import Any

import pytest

from tests import ROOT

from .conftest import Lab, Run
from .endpoint import HOST, Endpoint
from .helpers import deployment, wait_for

ALL = [(host, f"llama-{index}") for host in ("lab-n1", "lab-n2") for index in (0, 1)]
LOAD: dict[str, Any] = {
    "dataset_name": "random",
    "random_input_len": 32,
    "random_output_len": 16,
    "num_prompts": 40,
    "max_concurrency": 8,
    "ignore_eos": True,
}
OFFLINE: dict[str, Any] = {"input_len": 16, "output_len": 16, "num_iters": 2, "num_iters_warmup": 1}
COUNT = re.compile(r"^vllm:request_success_total(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)
NODE = "/var/lib/instinct-fleet/bench"
CLIENT = "docker ps --format '{{.Names}}' | grep -q ^instinct-bench- && echo yes"
BOOK = "docs/runbooks/benchmark.md"
OUT = "cat /var/lib/instinct-fleet/balancer/out.json 2> /dev/null || echo '{}'"
ENGINES = (
    "docker top instinct-llama-1 -eo pid,args | grep -v 'PID\\|docker-init\\|supervise.py' | awk '{print $1}'"
)
KILL = f"kill -9 $({ENGINES})"


def wanted(lab: Lab, hosts: list[str]) -> None:
    lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2, hosts=hosts)],
        benchmark_serve_args=LOAD,
        benchmark_latency_args=OFFLINE,
    )


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    """One host that serves behind a load balancer; the first run measured it, as it was new."""
    wanted(balanced_lab, [HOST])
    return Endpoint.deployed(balanced_lab, "site")


@pytest.fixture
def both(endpoint: Endpoint) -> Endpoint:
    """The same with a second host that serves, whichever test comes first."""
    wanted(endpoint.lab, endpoint.lab.hosts)
    if endpoint.in_service() != len(ALL):
        run = endpoint.lab.play("site", "--skip-tags", "benchmark")
        assert run.rc == 0, run.out[-4000:]
        all_back(endpoint)
    return endpoint


def book(lab: Lab, *args: str) -> Run:
    """Run a command of the runbook, with its host's name in place of the lab's."""
    text = (ROOT / BOOK).read_text(encoding="utf-8")
    command = " ".join(["playbooks/benchmark.yml", *args]).replace("lab-n2,lab-n1", "mi300x-01,lb-01")
    assert f"$ ansible-playbook -i inventory/mine {command}\n" in text, command
    return lab.play("benchmark", *args)


def said(run: Run) -> str:
    """What a run printed, without its line ends."""
    return " ".join(run.out.split())


def unfinished(lab: Lab) -> list[str]:
    """The names of the runs that were not reported."""
    return [path.name[1 : -len(".unfinished")] for path in (lab.tmp / "results").glob(".*.unfinished")]


def measured(lab: Lab) -> list[tuple[str, str]]:
    """The instances that answered, in the newest results."""
    summary = json.loads((lab.tmp / "results/latest/summary.json").read_text())
    return sorted((row["host"], row["instance"]) for row in summary["benchmarks"] if row["completed"] != 0)


def answered(lab: Lab) -> dict[tuple[str, str], int]:
    """Requests that each engine has answered, whoever sent them."""
    found = {}
    for host, name in ALL:
        port = 8000 + int(name[-1])
        place = lab.on(host, f"ss -Hltn sport = :{port} | awk '{{print $4}}'").strip()
        program = f"import urllib.request as u; print(u.urlopen('http://{place}/metrics').read().decode())"
        text = lab.on(host, f'python3 -c "{program}"') if place else ""
        found[host, name] = int(sum(map(float, COUNT.findall(text))))
    return found


def balanced(lab: Lab, name: str) -> int:
    """Requests that the load balancer has sent to an instance of its own host, over its reloads."""
    log = "/var/log/instinct-balancer.service.log"
    return int(lab.on(HOST, f"grep -cF ' llama/{HOST}.{name}:' {log} || true"))


def all_back(endpoint: Endpoint) -> None:
    """Every instance is in service, and nothing is noted as drained."""
    assert json.loads(endpoint.lab.on(HOST, OUT)) == {}
    wait_for("all in service", lambda: endpoint.in_service() == len(ALL))


def watched(endpoint: Endpoint, *command: str) -> tuple[Run, int]:
    """Run a playbook; returns how few servers were in service meanwhile, too."""
    least, done = [len(ALL)], threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            least[0] = min(least[0], endpoint.in_service())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return endpoint.lab.play(*command), least[0]
    finally:
        done.set()
        watcher.join()


@pytest.mark.deep  # a minute; what measures it is the same as below
def test_a_new_fleet_is_measured_before_it_enters(endpoint: Endpoint) -> None:
    assert measured(endpoint.lab) == [(HOST, "llama-0"), (HOST, "llama-1")]
    modules = [record["module"].rpartition(".")[2] for record in endpoint.run.records]
    assert modules.index("vllm_bench") < modules.index("haproxy_config")


@pytest.mark.deep
def test_site_measures_a_new_host_and_sends_nothing_to_what_serves(endpoint: Endpoint) -> None:
    """Counted at the engines of the host that serves: there is no request but those of the load balancer."""
    lab = endpoint.lab
    wanted(lab, lab.hosts)
    names = ("llama-0", "llama-1")
    before, through = answered(lab), {name: balanced(lab, name) for name in names}
    with endpoint.load() as load:
        load.wait_for(30)
        run = lab.play("site")
        assert run.rc == 0, run.out[-4000:]
    load.assert_nothing_lost(at_least=30)
    assert measured(lab) == [("lab-n2", "llama-0"), ("lab-n2", "llama-1")]
    assert "benchmark.yml measures all" in " ".join(run.out.split())
    after = answered(lab)
    for name in names:
        count = after[HOST, name] - before[HOST, name]
        # The load balancer writes of a request after its client has the answer.
        wait_for("the log has them all", lambda: balanced(lab, name) - through[name] >= count, 60)  # noqa: B023
        assert count == balanced(lab, name) - through[name] > 0
    # The client of a benchmark reached the new ones.
    assert after["lab-n2", "llama-0"] >= LOAD["num_prompts"]

    counted = answered(lab)
    again = lab.play("site")
    assert (again.rc, again.changed()) == (0, []), again.out[-3000:]
    assert not {"vllm_bench", "bench_report"} & {name.rpartition(".")[2] for name in again.modules()}
    assert answered(lab) == counted


def test_all_are_measured_under_load_and_nothing_is_lost(both: Endpoint) -> None:
    lab = both.lab
    with both.load() as load:
        load.wait_for(30)
        run, least = watched(both, "benchmark")
        assert run.rc == 0, run.out[-4000:]
    print(load.assert_nothing_lost(at_least=100))
    assert least >= 2, "rollout_min_available keeps half of four"
    assert measured(lab) == ALL
    assert "Benchmark: 4 groups of 4 done." in run.out
    # Each one is out of service, by the load balancer's own answer, before a client of a benchmark runs.
    order = [
        (record["module"].rpartition(".")[2], record["result"].get("results", [{}])[0].get("servers"))
        for record in run.records
        if record["module"].rpartition(".")[2] in ("balancer_server", "vllm_bench")
    ]
    assert [module for module, _servers in order] == ["balancer_server", "vllm_bench", "balancer_server"] * 4
    all_back(both)


@pytest.mark.deep  # the batches are those of the serving benchmark, above
def test_the_offline_benchmarks_stop_a_few_at_a_time(both: Endpoint) -> None:
    lab = both.lab
    with both.load() as load:
        load.wait_for(30)
        run, least = watched(both, "benchmark", "--tags", "latency")
        assert run.rc == 0, run.out[-4000:]
    load.assert_nothing_lost(at_least=100)
    assert (least >= 2, measured(lab)) == (True, ALL)
    all_back(both)


@pytest.mark.deep
def test_a_live_measurement_goes_through_the_load_balancer_at_its_rate(both: Endpoint) -> None:
    lab = both.lab
    before, counted = both.served(), answered(lab)
    checked = book(lab, "--check")
    assert checked.rc == 0, checked.out
    assert "Benchmark of llama: 4 groups in 4 batches" in checked.out
    refused = lab.play("benchmark", "-e", "live=true")
    assert refused.rc == 2
    assert "rate: is required with live" in refused.out
    run = book(lab, "-e", "live=true", "-e", "rate=2")
    assert run.rc == 0, run.out[-4000:]
    summary = json.loads((lab.tmp / "results/latest/summary.json").read_text())
    (row,) = summary["benchmarks"]
    assert (row["live"], row["request_rate"], row["max_concurrency"]) == (True, 2.0, None)
    assert row["completed"] == LOAD["num_prompts"]
    through = sum(both.served().values()) - sum(before.values())
    assert LOAD["num_prompts"] <= sum(answered(lab).values()) - sum(counted.values()) <= through
    assert "balancer_server" not in {record["module"].rpartition(".")[2] for record in run.records}
    assert both.key not in run.out + json.dumps(run.records) + json.dumps(summary)


@pytest.mark.deep
def test_what_the_operator_drained_is_measured_and_stays_drained(both: Endpoint) -> None:
    lab = both.lab
    out = lab.play("drain", "--limit", "lab-n2,lab-n1", "-e", "instance=llama-1", "-e", "at_once=true")
    assert out.rc == 0, out.out
    before = json.loads(lab.on(HOST, OUT))
    assert len(before) == 2
    run = lab.play("benchmark", "-e", "instance=llama-1")
    assert run.rc == 0, run.out[-4000:]
    assert measured(lab) == [("lab-n1", "llama-1"), ("lab-n2", "llama-1")]
    assert json.loads(lab.on(HOST, OUT)) == before
    back = lab.play("undrain", "-e", "instance=llama-1")
    assert back.rc == 0, back.out
    all_back(both)


@pytest.mark.deep  # two minutes; a client that fails is a unit test's too
def test_one_that_dies_under_load_is_named_and_the_others_are_measured(both: Endpoint) -> None:
    lab = both.lab
    lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2, hosts=lab.hosts)],
        benchmark_serve_args={**LOAD, "num_prompts": 80, "max_concurrency": 1},
        benchmark_repeat=1,
    )
    victim = lab.start("benchmark")
    assert victim.stdout is not None
    text: list[str] = []
    reader = threading.Thread(target=lambda: text.append(victim.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    find = "docker ps --format '{{.Names}}' | grep -q ^instinct-bench-llama-1 && echo yes"
    wait_for(
        "the client of lab-n2's second",
        lambda: lab.on("lab-n2", find, check=False).strip() == "yes" or victim.poll() is not None,
    )
    before = answered(lab)["lab-n2", "llama-1"]
    wait_for("its load", lambda: answered(lab)["lab-n2", "llama-1"] > before + 5)
    lab.on("lab-n2", KILL)
    reader.join()
    assert victim.wait() == 2
    assert "llama-1" in text[0].partition("Failed: ")[2], text[0][-3000:]
    assert measured(lab) == [item for item in ALL if item != ("lab-n2", "llama-1")]
    all_back(both)
    wanted(lab, lab.hosts)


@pytest.mark.deep  # two minutes; the job and the record of what is measured have unit tests
def test_the_same_command_goes_on_and_measures_nothing_twice(both: Endpoint) -> None:
    lab = both.lab
    assert lab.killed_at("Measure serving", "benchmark", times=3, later=0)
    (name,) = unfinished(lab)
    other = lab.play("benchmark", "--check", "-e", "benchmark_repeat=2")
    assert f"leaves run {name}, begun" in said(other)
    assert "it measures something else (other benchmark_repeat)" in said(other)
    refused = lab.play("benchmark", "-e", "benchmark_repeat=2", "-e", f"benchmark_run={name}")
    assert refused.rc == 2
    assert f"run {name}, begun" in said(refused)
    begun = time.time()
    run = lab.play("benchmark")
    assert run.rc == 0, run.out[-4000:]
    assert f"continues run {name}, begun" in said(run)
    found = re.search(r"(\d) of 4 cells are measured; -e benchmark_run=NEW begins another", said(run))
    assert found is not None, said(run)[-4000:]
    rows = [
        json.loads(line)
        for line in (lab.tmp / "results" / name / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    starts: dict[tuple[str, str], set[bool]] = {}
    for row in rows:
        earlier = datetime.fromisoformat(row["started"]).timestamp() < begun
        starts.setdefault((row["host"], row["instance"]), set()).add(earlier)
    assert sorted(starts) == ALL
    whole = [item for item, found in starts.items() if found == {True}]
    print(f"of {len(rows)} runs, those of {whole} are of the first command")
    assert len(whole) == int(found[1])
    assert len(whole) in (2, 3)  # the third may have ended before the kill reached it
    assert unfinished(lab) == []
    for host in lab.hosts:
        assert lab.on(host, f"ls {NODE}/{name} 2>/dev/null", check=False) == ""
    all_back(both)
    # What is finished is over.
    assert "continues" not in lab.play("benchmark", "--check").out


@pytest.mark.deep
@pytest.mark.parametrize(
    ("tags", "task"),
    [
        ((), "Measure serving"),
        (("--tags", "latency"), "Measure offline"),
        ((), "Set servers of the load balancer to drain"),
        (("--tags", "latency"), "Stop the instances"),
        (("--tags", "latency"), "Start the instances again"),
    ],
)
@pytest.mark.parametrize("then", [("benchmark",), ("site",)])
def test_the_next_run_returns_what_a_killed_one_left(
    both: Endpoint, tags: tuple[str, ...], task: str, then: tuple[str, ...]
) -> None:
    lab = both.lab
    assert lab.killed_at(task, "benchmark", *tags, later=0)
    run = lab.play(*then)
    if run.rc and tags:  # the node went on stopping an instance, after this run had seen it running
        assert "does not run" in run.out.partition("Failed: ")[2], run.out[-4000:]
        all_back(both)
        run = lab.play(*then)
    assert run.rc == 0, run.out[-4000:]
    all_back(both)
    if then == ("benchmark",):
        assert measured(lab) == ALL
        assert f"{'leaves' if tags else 'continues'} run 20" in said(run)
    assert not [host for host in lab.hosts if lab.on(host, CLIENT, check=False).strip()]
