# SPDX-License-Identifier: Apache-2.0
"""A virtual address before two load balancers: it moves when HAProxy dies, and then stays; and it can be given up."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.load import Load, Target

from .conftest import Lab, Run, node_address
from .endpoint import Endpoint
from .helpers import MODEL, deployment, wait_for

pytestmark = pytest.mark.deep
HOSTS = ("lab-n1", "lab-n2")
ADDRESS = node_address(90)
URL = f"https://{ADDRESS}:8443"
RATE = 30  # requests per second
# Several times what it takes to move: two failed checks, a second between them, and the other one's turn.
STAYS_SECONDS = 10.0
SERVICE = "instinct-balancer-address"


def deploy(lab: Lab, address: str = f"{ADDRESS}/24") -> None:
    lab.write_vars(
        vllm_deployments=[deployment(engine_args={"shutdown_timeout": 20})],
        load_balancer_virtual_address=address,
    )


def holders(lab: Lab) -> list[str]:
    return [host for host in HOSTS if f" {ADDRESS}/" in lab.on(host, "ip -o -4 address")]


def holder(lab: Lab) -> str:
    """The host with the address. Where the machine stood still, both may have it for a moment."""
    found: list[str] = []

    def only_one() -> bool:
        found[:] = holders(lab)
        return len(found) == 1

    wait_for("one holder", only_one)
    return found[0]


def listens(lab: Lab, host: str) -> bool:
    return ":8443" in lab.on(host, "ss -Hltn sport = :8443")


def stays(lab: Lab, host: str) -> None:
    """The address stays where it is, looked at again and again for long enough that it would have moved.

    A machine that stands still proves nothing: neither hears the other meanwhile, and both may have the address for a
    moment. Then it begins again, wherever the address is.
    """
    with Stills() as stills:
        begun, seen = time.monotonic(), 0
        while time.monotonic() < begun + STAYS_SECONDS:
            found = holders(lab)
            time.sleep(0.5)
            if stills.count > seen:
                host = holder(lab)
                begun, seen = time.monotonic(), stills.count
            else:
                assert found == [host]


class Stills:
    """Counts how often this machine stood still for longer than keepalived, which sends every second, may be silent."""

    def __init__(self) -> None:
        self.count = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Stills:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._end.wait(0.1):
            now = time.monotonic()
            self.count += now - last > 2
            last = now


@pytest.fixture(scope="module")
def shared(balanced_lab: Lab) -> Endpoint:
    lab = balanced_lab
    lab.write_balancer(*HOSTS)
    deploy(lab)
    # apt's lists are to be fetched, which other tests spare themselves. Of a directory that was emptied just now they
    # would count as new.
    for host in HOSTS:
        lab.on(host, "rm -rf /var/lib/apt/lists/* /var/lib/apt/periodic/* /var/cache/apt/*")
        lab.on(host, "touch -d '2 hours ago' /var/lib/apt/lists")
    endpoint = Endpoint.deployed(lab)
    assert f"Load balancer lab-n2, {URL}" in endpoint.run.out
    wait_for("the address", lambda: answers(endpoint))
    return endpoint


def answers(endpoint: Endpoint) -> bool:
    """The address is answered, under a certificate that is for it."""
    context = ssl.create_default_context(cafile=str(endpoint.ca))
    try:
        with urllib.request.urlopen(f"{URL}/health", timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_one_has_it_and_a_second_run_changes_nothing(shared: Endpoint) -> None:
    holder(shared.lab)  # whose HAProxy was found to work first
    again = shared.lab.play("site", "--skip-tags", "benchmark")
    assert again.rc == 0, again.out
    assert again.changed() == []
    path = "/etc/instinct-fleet/balancer/current/keepalived.conf"
    assert shared.lab.on("lab-n1", f"stat -c %a {path}").strip() == "600"


def test_it_leaves_a_dead_haproxy_and_stays_where_it_went(shared: Endpoint) -> None:
    lab = shared.lab
    had = holder(lab)
    (other,) = set(HOSTS) - {had}
    with Load(Target(URL, MODEL, shared.key, str(shared.ca)), RATE) as load:
        wait_for("the load", lambda: len(load.outcomes) > RATE)
        # The lab's systemctl does not start it again, so it is dead for good.
        asked = load.now
        lab.on(had, "kill -9 $(pgrep -x haproxy)")
        killed = time.monotonic()
        wait_for("the address at the other one", lambda: answers(shared))
        seconds = time.monotonic() - killed
        # The one that had it lets go when it hears the other.
        wait_for("its only holder", lambda: holders(lab) == [other])
        back = load.now
        wait_for("requests through it", lambda: any(i.begun > back and not i.problem for i in load.outcomes))
        lab.on(had, "systemctl start instinct-balancer")
        wait_for("HAProxy", lambda: listens(lab, had))
        stays(lab, other)
    failed = [item for item in load.outcomes if item.problem]
    print(f"away for {seconds:.1f} s; {load.assert_accounted()}")
    assert failed
    # What was on its way through the dead one, or came before the other had the address.
    assert all(item.begun < back and item.begun + item.seconds > asked for item in failed)
    assert [item for item in load.outcomes if item.begun > back and not item.problem]


def test_it_leaves_a_host_that_is_gone(shared: Endpoint) -> None:
    lab = shared.lab
    had = holder(lab)
    (other,) = set(HOSTS) - {had}
    lab.on(had, f"pkill -9 -x keepalived; pkill -9 -x haproxy; ip address del {ADDRESS}/24 dev eth0")
    wait_for("the address at the other one", lambda: answers(shared))
    wait_for("its only holder", lambda: holders(lab) == [other])
    repaired = lab.play("site", "--skip-tags", "benchmark")
    assert repaired.rc == 0, repaired.out
    assert repaired.changed() == [f"{had}: instinct.fleet.load_balancer : Update the load balancers"]
    assert f"start {SERVICE}.service" in repaired.actions()[had]
    wait_for("HAProxy", lambda: listens(lab, had))
    stays(lab, other)


@pytest.fixture
def given_up(shared: Endpoint) -> Iterator[Run]:
    """A run without the address, which is there again afterwards."""
    deploy(shared.lab, "")
    yield shared.lab.play("site", "--skip-tags", "benchmark")
    deploy(shared.lab)
    back = shared.lab.play("site", "--skip-tags", "benchmark")
    assert back.rc == 0, back.out
    wait_for("the address", lambda: answers(shared))


def test_it_is_given_up(shared: Endpoint, given_up: Run) -> None:
    lab, run = shared.lab, given_up
    assert run.rc == 0, run.out
    assert holders(lab) == []
    for host in HOSTS:
        assert f"remove {SERVICE}.service" in run.actions()[host]
        assert SERVICE not in lab.on(host, "ls /etc/systemd/system")
        # Its own processes end after it.
        wait_for("its end", lambda host=host: lab.on(host, "pgrep -x keepalived; true").strip() == "")  # type: ignore[misc]
    again = lab.play("site", "--skip-tags", "benchmark")
    assert (again.rc, again.changed()) == (0, []), again.out
