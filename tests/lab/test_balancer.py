# SPDX-License-Identifier: Apache-2.0
"""One endpoint in front of two nodes: keys, TLS, routing; and no request is lost while instances leave and come."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed

from tests import ROOT

from .conftest import Lab, node_address
from .endpoint import HOST, RATE, URL, Endpoint
from .helpers import MODEL, deployment, wait_for
from .leaks import found_on, search_works

AGENT = "instinct-balancer-agent"
# Kills a process once its instance has streams.
KILL = """
import os, re, select, signal, time, urllib.request
count = re.compile(r"^vllm:num_requests_running(?:{{.*}})? ([0-9.e+]+)$", re.MULTILINE)
while sum(map(float, count.findall(urllib.request.urlopen("{url}/metrics").read().decode()))) < 3:
    time.sleep(0.05)
ended = os.pidfd_open({pid})
os.kill({pid}, signal.SIGKILL)
select.select([ended], [], [])
"""
BACKENDS = "cat /etc/instinct-fleet/balancer/current/balancer.json"


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    deploy(balanced_lab)
    checked = balanced_lab.play("site", "--skip-tags", "benchmark", "--check")
    secrets_of_check = Endpoint(balanced_lab).secrets.exists()
    made = Endpoint.deployed(balanced_lab, "site", "--skip-tags", "benchmark", "-vvv")
    made.checked, made.secrets_of_check = checked, secrets_of_check
    return made


def deploy(lab: Lab, second: int = 1 << 20, **variables: Any) -> None:
    """Two instances on each node, and one of another deployment; lab-n2's have `second` tokens of KV cache."""
    tokens = f"{{{{ {second} if inventory_hostname == 'lab-n2' else {1 << 20} }}}}"
    lab.write_vars(
        vllm_deployments=[
            deployment(
                instances_per_host=2, engine_args={"shutdown_timeout": 20}, env={"STANDIN_KV_TOKENS": tokens}
            ),
            deployment(
                name="other",
                gpus=[7],
                port=8100,
                served_model_name="other",
                hosts=[HOST],
                env={"STANDIN_TOKENS_PER_SECOND": 5},
            ),
        ],
        **variables,
    )


def test_the_endpoint_is_made_and_then_costs_nothing(endpoint: Endpoint) -> None:
    lab, run = endpoint.lab, endpoint.run
    assert endpoint.checked.rc == 0, endpoint.checked.out
    assert not endpoint.secrets_of_check
    assert f"Load balancer lab-n1, {URL}" in run.out
    private = (endpoint.secrets / "endpoint.pem").read_text().partition("PRIVATE KEY-----")[2].split()[0]
    printed, records = run.out, json.dumps(run.records)
    assert MODEL in printed  # these are what the run said and did
    assert "haproxy_config" in records
    for secret in (endpoint.key, endpoint.instance_key, private):
        assert len(secret) >= 20
        assert secret not in printed
        assert secret not in records

    again = lab.play("site", "--skip-tags", "benchmark")
    assert again.rc == 0, again.out
    assert again.changed() == []
    assert again.modules(HOST).count("node_state") == 1
    assert "haproxy_config" not in again.modules()


def test_keys_tls_and_paths(endpoint: Endpoint) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    assert endpoint.ask("/v1/completions", body, key="")[0] == 401
    status, error = endpoint.ask("/v1/completions", body, key="sk-" + "x" * 40)
    assert (status, error["error"]["type"]) == (401, "invalid_api_key")
    assert endpoint.ask("/v1/completions", body)[1]["usage"]["completion_tokens"] == 4
    assert endpoint.ask("/metrics")[0] == 404
    assert endpoint.ask("/v1/load_lora_adapter", {})[0] == 404
    with urllib.request.urlopen(
        f"{URL}/health", context=ssl.create_default_context(cafile=str(endpoint.ca))
    ) as up:
        assert up.status == 200
    with pytest.raises(urllib.error.URLError, match="certificate"):
        urllib.request.urlopen(f"{URL}/health", timeout=60)


def test_past_the_endpoint_nobody_is_answered(endpoint: Endpoint) -> None:
    def status(path: str, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        try:
            request = urllib.request.Request(f"http://{node_address(2)}:8000{path}", headers=headers)
            return int(urllib.request.urlopen(request, timeout=60).status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status("/v1/models", "sk-" + "x" * 40) == 401
    assert status("/v1/models", endpoint.key) == 401  # a client's
    assert status("/v1/models", endpoint.instance_key) == 200
    assert status("/health", "") == 200


def test_requests_go_by_their_model(endpoint: Endpoint) -> None:
    def chat(model: str | None, length: int, **headers: str) -> tuple[int, Any]:
        # As OpenAI's client has it: the messages come first.
        body = {"messages": [{"role": "user", "content": "x" * length}], "model": model, "max_tokens": 2}
        return endpoint.ask("/v1/chat/completions", {k: v for k, v in body.items() if v}, **headers)

    assert [item["id"] for item in endpoint.ask("/v1/models")[1]["data"]] == [MODEL, "other"]
    for model in (MODEL, "other"):
        status, answer = chat(model, 10)
        assert (status, answer["model"]) == (200, model)
    assert chat(MODEL, 500_000)[1]["model"] == MODEL
    assert chat("no-such", 10)[0] == 404
    assert chat(None, 10)[0] == 400
    # Too much before the model: a client that sends all before it reads may only see the end of the connection.
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert chat(MODEL, 1_500_000)[0] == 413
    assert chat(MODEL, 1_500_000, **{"X-Model": MODEL})[1]["model"] == MODEL


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_request(endpoint: Endpoint, stream: bool) -> None:
    def busy() -> int:
        program = (
            "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8100/metrics').read().decode())"
        )
        lines = endpoint.lab.on(HOST, f'python3 -c "{program}"').splitlines()
        return int(
            sum(float(line.split()[1]) for line in lines if line.startswith("vllm:num_requests_running"))
        )

    # At five tokens per second it is still there when it is looked for, and does not end by itself meanwhile.
    body = json.dumps(
        {"model": "other", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    )
    place = http.client.HTTPSConnection(
        node_address(1), 8443, context=ssl.create_default_context(cafile=str(endpoint.ca))
    )
    headers = {"Authorization": f"Bearer {endpoint.key}", "Content-Type": "application/json"}
    place.request("POST", "/v1/completions", body, headers)
    wait_for("the request at the instance", lambda: busy() == 1)
    place.close()
    wait_for("its end", lambda: busy() == 0)


@pytest.mark.deep
def test_no_request_is_lost_while_instances_leave_and_come(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    with endpoint.load() as load:
        wait_for("the load", lambda: len(load.outcomes) > RATE)
        out = lab.play("drain", "--limit", "lab-n2")
        assert out.rc == 0, out.out
        before = endpoint.requests()
        assert lab.on("lab-n2", "docker restart instinct-llama-0 instinct-llama-1").split()
        after = dict(before)

        def used() -> set[str]:
            after.update(endpoint.requests())
            return {name for name in after if after[name] > before[name]}

        # A restart may be over before the load went on: both of the other host have requests, sooner or later.
        wait_for("requests at lab-n1", lambda: used() >= {"lab-n1.llama-0:8000", "lab-n1.llama-1:8001"})
        assert used() == {"lab-n1.llama-0:8000", "lab-n1.llama-1:8001"}
        back = lab.play("undrain", "--limit", "lab-n2")
        assert back.rc == 0, back.out
        wait_for(
            "requests at lab-n2",
            lambda: endpoint.requests()["lab-n2.llama-1:8001"] > after["lab-n2.llama-1:8001"],
        )

        # A new configuration, so a reload; and a HAProxy that goes on with what is out.
        out = lab.play("drain", "--limit", "lab-n2", "-e", "instance=llama-1")
        assert out.rc == 0, out.out
        deploy(lab, load_balancer_queue_timeout=50)
        reload = lab.play("site", "--skip-tags", "benchmark")
        assert reload.rc == 0, reload.out
        assert reload.changed() == [f"{HOST}: instinct.fleet.load_balancer : Update the load balancers"]
        assert "lab-n2.llama-1:8001 has been drained since" in reload.out
        lab.on(HOST, f"systemctl restart {AGENT}")
        wait_for(
            "the agent", lambda: lab.on(HOST, f"systemctl is-active {AGENT}", check=False).strip() == "active"
        )
        before = endpoint.requests()
        # So many, and none of them is for the one that is out.
        wait_for("requests", lambda: sum(endpoint.requests().values()) > sum(before.values()) + 2 * RATE)
        assert endpoint.requests()["lab-n2.llama-1:8001"] == before["lab-n2.llama-1:8001"]
        assert lab.play("undrain").rc == 0

        # What a deploy replaces leaves by itself, and comes back; here on one of the two hosts.
        deploy(lab, second=2_000_000, load_balancer_queue_timeout=50)
        replaced = lab.play("site", "--skip-tags", "benchmark")
        assert replaced.rc == 0, replaced.out
        assert {item.split(":")[0] for item in replaced.changed()} == {"lab-n2"}
        load.wait_for(requests=500)
    print(load.assert_nothing_lost(at_least=500))


def test_what_a_deployment_cannot_spare_stays_in_service(endpoint: Endpoint) -> None:
    lab, body = endpoint.lab, {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    with endpoint.load() as load:
        wait_for("the load", lambda: len(load.outcomes) > RATE)
        for playbook in ("drain", "stop"):
            refused = lab.play(playbook)
            assert (refused.rc, refused.changed()) == (2, []), refused.out
            assert "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service" in refused.out
            assert "To do it anyway, with 503 for clients: -e at_once=true." in refused.out
        load.wait_for(requests=200)
    print(load.assert_nothing_lost(at_least=200))
    drained = lab.play("drain", "-e", "deployment=llama", "-e", "at_once=true")
    assert drained.rc == 0, drained.out
    assert endpoint.ask("/v1/completions", body)[0] == 503
    assert lab.play("undrain").rc == 0
    assert endpoint.ask("/v1/completions", body)[0] == 200


def test_a_killed_instance_takes_only_its_own_streams(endpoint: Endpoint) -> None:
    lab, name = endpoint.lab, "lab-n2.llama-0:8000"
    broken = endpoint.broken()
    # Answers of two seconds, so that some run on the instance whenever it is killed; some five of the twenty at once.
    with endpoint.load(rate=10, tokens=200) as load:
        wait_for("its streams", lambda: endpoint.running()[name] >= 3)
        pid = lab.on("lab-n2", "docker inspect -f '{{.State.Pid}}' instinct-llama-0").strip()
        asked = load.now
        # Looked at once more where it is killed: a busy machine takes as long for a command as a stream lasts.
        program = KILL.format(url=f"http://{node_address(2)}:8000", pid=pid)
        lab.on("lab-n2", f"python3 -c {shlex.quote(program)}")
        killed = load.now
        # Docker starts it again; it is in when it has generated tokens.
        show = "docker inspect -f '{{.State.Pid}}' instinct-llama-0"
        wait_for("its restart", lambda: lab.on("lab-n2", show).strip() not in ("0", pid))
        before = endpoint.served()[name]
        wait_for("the killed instance", lambda: endpoint.served()[name] > before + 10)
        load.wait_for(requests=100)
    failed = [item for item in load.outcomes if item.problem]
    print(load.assert_accounted(at_least=100))
    lost = {server: count - broken[server] for server, count in endpoint.broken().items()}
    # What had no answer yet on a connection that was kept, HAProxy ends without a word and does not count.
    counted = [item for item in failed if not item.problem.startswith("kept connection")]
    assert 0 < len(counted) <= lost.pop(name)
    assert not any(lost.values()), lost
    assert all(item.begun < killed and item.begun + item.seconds > asked for item in failed)


@pytest.mark.deep
def test_what_a_run_that_died_left_out_comes_back(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    name = "llama/lab-n2.llama-0:8000"
    env, _ = lab.environment()
    done = subprocess.run(
        [
            lab.command("site")[0].removesuffix("-playbook"), "-i", str(lab.inventory), HOST, "-b",
            "-m", "balancer_server", "-a", json.dumps({"servers": [name], "state": "drain", "by": "run", "wait": 5}),
        ],
        env=env, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    assert f"return to service {name}: drained → in service" in run.out
    before = endpoint.requests()["lab-n2.llama-0:8000"]
    with endpoint.load() as load:
        wait_for("requests", lambda: endpoint.requests()["lab-n2.llama-0:8000"] > before)
    load.assert_nothing_lost()


@pytest.mark.deep
def test_after_a_reboot_of_its_host_it_balances_and_what_was_out_is_out(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    assert lab.play("drain", "--limit", "lab-n2", "-e", "instance=llama-1").rc == 0
    lab.reboot(HOST)
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}

    def answers() -> bool:
        try:
            return endpoint.ask("/v1/completions", body)[0] == 200
        except OSError:
            return False

    wait_for("the endpoint", answers)
    for _ in range(8):
        assert endpoint.ask("/v1/completions", body)[0] == 200
    assert endpoint.requests()["lab-n2.llama-1:8001"] == 0
    assert lab.play("undrain").rc == 0


@pytest.mark.deep
def test_secrets_are_replaced_without_a_lost_request(endpoint: Endpoint) -> None:
    """The key of the instances, the certificate, and the clients' key; before, a checkout without them is refused."""
    lab, kept, keys = endpoint.lab, endpoint.lab.tmp / "kept", endpoint.secrets / "api-keys.yml"
    endpoint.secrets.rename(kept)
    refused = lab.play("site", "--skip-tags", "benchmark")
    assert (refused.rc, refused.changed(), endpoint.secrets.exists()) == (2, [], False)
    assert refused.out.count("To replace them anyway: -e new_secrets=") == 3
    kept.rename(endpoint.secrets)

    old, old_key = endpoint.instance_key, endpoint.key
    pem = self_signed([node_address(1), node_address(2)])
    (endpoint.secrets / "endpoint.pem").write_text(pem)
    keys.write_text(f"{keys.read_text()}second: {'s' * 40}\n")
    with endpoint.ca.open("a") as trusted:
        trusted.write(pem[: pem.index("-----BEGIN PRIVATE KEY-----")])
    with endpoint.load() as load:
        load.wait_for(requests=50)
        words = ("-e", "new_secrets=certificate,instance_key", "-e", "canary=false", "-e", "rollout_soak=3")
        run = lab.play("upgrade", *words)
        assert run.rc == 0, run.out
        load.wait_for(requests=50)
    print(load.assert_nothing_lost(at_least=500))
    assert endpoint.instance_key != old
    for host in lab.hosts:
        assert found_on(lab, host, [old]) == set()
    endpoint.trust()  # the new certificate alone
    keys.write_text(f"second: {'s' * 40}\n")
    assert lab.play("site", "--skip-tags", "benchmark").rc == 0
    assert [endpoint.ask("/v1/models", key=key)[0] for key in (old_key, endpoint.key)] == [401, 200]
    assert lab.play("site", "--skip-tags", "benchmark").changed() == []


def test_secrets_and_ports(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    assert (endpoint.secrets.stat().st_mode & 0o777, (endpoint.secrets / "api-keys.yml").stat().st_mode & 0o777) == (
        0o700, 0o600,
    )  # fmt: skip
    for host in lab.hosts:
        assert found_on(lab, host, [endpoint.key]) == set()
        found = found_on(lab, host, [endpoint.instance_key])
        where = {place.rsplit("/", 1)[-1] for place in found if not place.startswith("environ ")}
        assert where == ({"instances", "instance.map"} if host == HOST else {"instances"})
        search_works(lab, host)
        assert lab.on(host, "cd /etc/instinct-fleet; stat -c %a keys keys/instances").split() == [
            "700",
            "600",
        ]
        places = "/etc/instinct-fleet /var/lib/instinct-fleet/balancer"
        assert lab.on(host, f"find {places} -name '*.pem' -perm /077 2> /dev/null || true").strip() == ""
    ports = lab.on(HOST, "ss -Hltn | awk '{print $4}' | grep -v 127.0.0.11").split()
    assert sorted(ports) == sorted([
        "0.0.0.0:22", "[::]:22", "0.0.0.0:8443", "127.0.0.1:8405", "127.0.0.1:8406", "127.0.0.1:8000",
        "127.0.0.1:8001", "127.0.0.1:8100",
    ])  # fmt: skip
    ports = lab.on("lab-n2", "ss -Hltn | awk '{print $4}' | grep -v 127.0.0.11").split()
    assert sorted(ports) == sorted(
        ["0.0.0.0:22", "[::]:22", *(f"{node_address(2)}:{port}" for port in (8000, 8001))]
    )
