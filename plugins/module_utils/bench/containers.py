# SPDX-License-Identifier: Apache-2.0
"""The command lines and containers of vLLM's own benchmarks. Pure; run.py runs them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.bench_metrics import KINDS
from ..common.module_main import NodeError
from ..common.paths import HF_MOUNT, INSTANCE_MOUNT, KEYS_MOUNT, container_name
from ..common.versions import version_key
from ..docker.client import Json

LABEL = "instinct-fleet.bench"
RESULT_MOUNT = "/bench"
RESULT_FILE = "result.json"

# Before these releases the clients were scripts, which AMD's images have here. From catalog/vllm/bench_settings.yml.
SCRIPTS = "/app/vllm/benchmarks"
_CLI_SINCE = {"serve": "0.8.0", "latency": "0.8.5", "throughput": "0.8.5"}
_SERVED_NAME_SINCE = "0.7.0"

# E2EL is not measured unless asked for, and only p99 is computed by default (all versions).
MEASURED = {"percentile-metrics": "ttft,tpot,itl,e2el", "metric-percentiles": "50,90,95,99"}

# What the module sets itself: where to, with what name, and where the result goes.
OWN = {
    "serve": (
        "model", "served-model-name", "base-url", "host", "port", "save-result", "result-dir",
        "result-filename", "append-result",
    ),
    "latency": ("model", "output-json"),
    "throughput": ("model", "output-json"),
}  # fmt: skip

# Options of `vllm serve` that concern its HTTP front end; the offline benchmarks, which take all others, have
# them not. From the parsers of vLLM 0.6.3 to 0.33.0.
_FRONT_END = """
allow-credentials allowed-headers allowed-methods allowed-origins anthropic-disabled-thinking-effort api-key
api-server-count chat-template chat-template-content-format cohere-format cohere-is-reasoning-model config
data-parallel-start-rank data-parallel-supervisor-port default-chat-template-kwargs
disable-access-log-for-endpoints disable-fastapi-docs disable-frontend-multiprocessing disable-log-requests
disable-uvicorn-access-log dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
dp-supervisor-probe-timeout-s enable-auto-tool-choice enable-flash-late-interaction
enable-force-include-usage enable-log-deltas enable-log-outputs enable-log-requests enable-offline-docs
enable-per-request-metrics enable-prompt-tokens-details enable-request-id-headers enable-scale-out
enable-server-load-tracking enable-ssl-refresh enable-tokenizer-info-endpoint
exclude-tools-when-tool-choice-none expand-tools-even-if-tool-choice-none fingerprint-mode fingerprint-value
grpc grpc-port h11-max-header-count h11-max-incomplete-event-size headless host log-config-file
log-error-stack lora-modules max-log-len middleware port prompt-adapters response-role
return-tokens-as-token-ids root-path served-model-name shutdown-timeout sse-keep-alive-interval ssl-ca-certs
ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile tokens-only tool-call-parser tool-parser-plugin
tool-server tool-strict-level trust-request-chat-template trust-request-mm-kwargs uds uvicorn-log-level
"""
FRONT_END = frozenset(_FRONT_END.split())

# The client loads only the tokenizer: of the server's options, these change how.
_TOKENIZER_FLAGS = ("trust-remote-code", "tokenizer-mode", "tokenizer")

_ENVIRONMENT = f"""\
set -eu
set -o allexport
. {INSTANCE_MOUNT}/env
if [ -f {KEYS_MOUNT}/instances ]; then . {KEYS_MOUNT}/instances; fi
set +o allexport
export HF_HUB_OFFLINE=1
if [ -n "${{VLLM_API_KEY:-}}" ]; then export OPENAI_API_KEY="$VLLM_API_KEY"; fi
"""
WRAPPER = _ENVIRONMENT + 'exec "$@"\n'
"""Gives the client the instance's environment and API key, without either being in the container's spec."""
# The Python that runs vLLM need not be the first in PATH.
REPEATER = (
    _ENVIRONMENT
    + """\
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${python#\\#!}
case $python in */python*) ;; *) python=python3;; esac
program=$(mktemp -d)/bench_repeat.py
printf %s "$1" > "$program"
shift
# The client of an older release is a script, and imports what stands beside it.
case $6 in python*) export PYTHONPATH="${7%/*}${PYTHONPATH:+:$PYTHONPATH}";; esac
exec $python "$program" "$@"
"""
)
"""Likewise, for several runs: its first argument is the text of programs/bench_repeat.py."""


@dataclass(frozen=True)
class Repeat:
    """Several runs: those thrown away, those kept, and the seed of the first (each has the next one).

    program: programs/bench_repeat.py, which makes them.
    """

    warmups: int
    runs: int
    seed: int
    program: str


@dataclass(frozen=True)
class Target:
    """An instance to measure, from the plan's INSTANCE. `body` is the create body of its container.

    `client` is the image that measures: the instance's own, unless another one is given.
    """

    name: str
    deployment: str
    model: str
    commit: str
    served_model: str
    image: str
    port: int
    argv: tuple[str, ...]
    body: Json
    plan: Mapping[str, Any]
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def server(self) -> str:
        """The instance's own container."""
        return container_name(self.name)

    @property
    def container(self) -> str:
        """The benchmark's container, the same in every run, so that a left-over one is found."""
        return f"instinct-bench-{self.name}"

    @property
    def base_url(self) -> str:
        """Where the node reaches the instance."""
        listen = (groups_of(self.argv).get("host") or ["127.0.0.1"])[0]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def before(self, release: str) -> bool:
        """The client's vLLM is older than a release; False where the plan does not say which it is."""
        version = str(self.client.get("vllm") or self.plan.get("vllm") or "")
        return bool(version) and version_key(version) < version_key(release)

    @property
    def weights(self) -> str:
        """The model inside the container: the snapshot of its commit, or its own path."""
        if self.model.startswith("/") or not self.commit:
            return self.model
        return f"{HF_MOUNT}/hub/models--{self.model.replace('/', '--')}/snapshots/{self.commit}"


def parse_repeat(kind: str, runs: int, warmups: int, seed: Any, now: int, program: str) -> Repeat | None:
    """None for one run as it is. `now` gives the first seed when none is asked for. Raises NodeError."""
    if runs < 1 or warmups < 0:
        raise NodeError(
            f"repeat is {runs} and warmups {warmups}: at least one run is needed, and no fewer than 0."
        )
    if runs == 1 and not warmups:
        return None
    if kind != "serve":
        raise NodeError(f"repeat and warmups are of the serve benchmark; {kind} has its own (num_iters).")
    try:
        return Repeat(warmups, runs, now if seed is None else int(seed), program)
    except (TypeError, ValueError):
        raise NodeError(f"args: seed is {seed!r}, not a whole number.") from None


def parse_target(data: Mapping[str, Any]) -> Target:
    """A target from an INSTANCE. Raises NodeError."""
    name = str(data.get("name") or "")
    server = data.get("server")
    missing = [
        key
        for key in ("name", "model", "served_model", "image", "port", "argv", "server")
        if not data.get(key)
    ]
    if missing or not isinstance(server, Mapping) or not server.get("container"):
        what = ", ".join(missing) or "server.container"
        raise NodeError(
            f"targets[{name or '?'}]: {what} is missing. Give the instances as the plan has them."
        )
    return Target(
        name=name,
        deployment=str(data.get("deployment") or ""),
        model=str(data["model"]),
        commit=str(data.get("commit") or ""),
        served_model=str(data["served_model"]),
        image=str(data["image"]),
        port=int(data["port"]),
        argv=tuple(str(word) for word in data["argv"]),
        body=dict(server["container"]),
        plan=data,
        client={str(key): str(value) for key, value in (data.get("client") or {}).items()},
    )


def groups_of(argv: Sequence[str]) -> dict[str, list[str]]:
    """The options of a command line with their values: --x 1 2 --y=3 → {"x": ["1", "2"], "y": ["3"]}."""
    groups: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            values = groups.setdefault(flag.replace("_", "-"), [])
            if equals:
                values.append(value)
        elif values is not None:
            values.append(word)
    return groups


def check_args(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The benchmark's arguments with kebab names. Raises NodeError for those that the module sets itself."""
    if kind not in KINDS:
        raise NodeError(f"kind {kind!r} is unknown; {difflib.get_close_matches(kind, KINDS, 1) or KINDS}")
    plain = {str(name).lstrip("-").replace("_", "-"): value for name, value in args.items()}
    own = sorted(set(plain) & set(OWN[kind]))
    if own:
        raise NodeError(f"args: {', '.join(own)} is set by the module, from the instance. Leave it out.")
    return plain


def flag_words(args: Mapping[str, Any]) -> list[str]:
    """Words of a command line: true → the flag alone; false, null → nothing; list → its values; map → JSON.

    --goodput and --metadata take their maps in their own forms: ttft:500 and key=value.
    """
    words: list[str] = []
    for name, value in args.items():
        flag = f"--{name}"
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, Mapping):
            pair = {"goodput": "{}:{}", "metadata": "{}={}"}.get(name)
            items = (
                [pair.format(*item) for item in value.items()]
                if pair
                else [json.dumps(value, sort_keys=True)]
            )
            words += [flag, *items]
        elif isinstance(value, (list, tuple)):
            words += [flag, *(str(item) for item in value)]
        else:
            words += [flag, str(value)]
    return words


def command(kind: str, target: Target, args: Mapping[str, Any]) -> list[str]:
    """The benchmark's command line. It holds no secret."""
    program = ["vllm", "bench", kind]
    if target.before(_CLI_SINCE[kind]):
        program = ["python3", f"{SCRIPTS}/benchmark_{'serving' if kind == 'serve' else kind}.py"]
    serve_flags = groups_of(target.argv)
    result = f"{RESULT_MOUNT}/{RESULT_FILE}"
    if kind == "serve":
        own: dict[str, Any] = {
            "model": target.model,
            "served-model-name": target.served_model,
            "tokenizer": target.weights,
            "base-url": target.base_url,
            **{flag: serve_flags[flag] or True for flag in _TOKENIZER_FLAGS if flag in serve_flags},
            **MEASURED,
            "save-result": True,
            "result-dir": RESULT_MOUNT,
            "result-filename": RESULT_FILE,
        }
        if target.before(_SERVED_NAME_SINCE):
            own["model"] = own.pop("served-model-name")
        return [*program, *flag_words({**own, **args})]
    engine: dict[str, Any] = {
        flag: values or True
        for flag, values in serve_flags.items()
        if (flag[3:] if flag.startswith("no-") else flag) not in FRONT_END
    }
    for flag in args:
        engine.pop(flag, None)
    own = {
        "model": target.argv[2] if len(target.argv) > 2 else target.model,
        **engine,
        **args,
        "output-json": result,
    }
    return [*program, *flag_words(own)]


def container_body(
    target: Target, words: Sequence[str], run: str, result_dir: str, repeat: Repeat | None = None
) -> Json:
    """The instance's own container with another command: same image, devices, limits and mounts.

    The client of a served instance gets the devices too, as vLLM's command line looks for its platform before
    it looks at its arguments, and fails without one (vllm-project/vllm#23967).
    """
    host = {
        key: value for key, value in (target.body.get("HostConfig") or {}).items() if key != "RestartPolicy"
    }
    host["Binds"] = [*(host.get("Binds") or []), f"{result_dir}:{RESULT_MOUNT}:rw"]
    entrypoint = ["/bin/bash", "-c", WRAPPER, "vllm-bench"]
    if repeat:
        numbers = [str(number) for number in (repeat.seed, repeat.warmups, repeat.runs)]
        entrypoint = [
            "/bin/bash", "-c", REPEATER, "vllm-bench", repeat.program, RESULT_MOUNT, RESULT_FILE, *numbers
        ]  # fmt: skip
    return {
        **target.body,
        "Image": target.client.get("image") or target.body["Image"],
        "Entrypoint": entrypoint,
        "Cmd": list(words),
        "Labels": {LABEL: run, f"{LABEL}.instance": target.name},
        "HostConfig": host,
    }
