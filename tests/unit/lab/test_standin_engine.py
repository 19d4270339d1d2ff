# SPDX-License-Identifier: Apache-2.0
"""The stand-in's engine, knobs and metrics, without a server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from lab.standin.engine import Draining, Engine, EngineDead, Request
from lab.standin.knobs import KnobError, Knobs
from lab.standin.metrics import Histogram, Metrics


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time goes forward by waiting only, and at once: no machine is too slow for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None) -> Any:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


T = TypeVar("T")


def run_by_the_clock(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(scenario)


@dataclass
class Collect:
    """A sink that remembers."""

    texts: list[str] = field(default_factory=list)
    reason: str | None = None
    stop: str | None = None
    error: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def token(self, text: str, finish_reason: str | None, stop_reason: str | None) -> None:
        self.texts.append(text)
        self.reason, self.stop = finish_reason, stop_reason
        if finish_reason:
            self.done.set()

    def failed(self, message: str) -> None:
        self.error = message
        self.done.set()

    @property
    def text(self) -> str:
        return "".join(self.texts)


def request(**options: object) -> tuple[Request, Collect]:
    sink = Collect()
    wanted = {"seed": 7, "prompt_tokens": 4, "max_tokens": 8, "sink": sink, **options}
    return Request(**wanted), sink  # type: ignore[arg-type]


def generate(*requests: tuple[Request, Collect], knobs: Knobs | None = None, seats: int = 256) -> Engine:
    """Let an engine finish all requests."""

    async def run() -> Engine:
        engine = Engine(knobs or Knobs(tokens_per_second=2000), Metrics(), seats)
        for wanted, _ in requests:
            engine.submit(wanted)
        await asyncio.gather(*(sink.done.wait() for _, sink in requests))
        return engine

    return run_by_the_clock(run())


class TestLength:
    @pytest.mark.parametrize(
        ("options", "tokens", "reason"),
        [
            ({"max_tokens": 3}, 3, "length"),
            ({"max_tokens": 500}, 23, "stop"),  # 16 + 7
            ({"max_tokens": 23}, 23, "stop"),
            ({"max_tokens": 60, "ignore_eos": True}, 60, "length"),
            ({"max_tokens": 500, "min_tokens": 40}, 40, "stop"),
        ],
    )
    def test_reason(self, options: dict[str, object], tokens: int, reason: str) -> None:
        wanted, sink = request(**options)
        generate((wanted, sink))
        assert (wanted.generated, len(sink.texts), sink.reason) == (tokens, tokens, reason)

    def test_the_same_prompt_has_the_same_answer(self) -> None:
        first, second, other = request(), request(), request(seed=8)
        generate(first, other)
        generate(second)
        assert first[1].text == second[1].text != other[1].text
        assert re.fullmatch(r"( [a-z]+){8}", first[1].text)

    def test_garbage(self) -> None:
        wanted = request()
        generate(wanted, knobs=Knobs(tokens_per_second=2000, garbage=True))
        assert wanted[1].text == "!" * 8


class TestStop:
    def test_at_a_stop_string(self) -> None:
        _, whole = full = request(max_tokens=20)
        generate(full)
        word = whole.texts[9].strip()
        wanted, sink = request(max_tokens=20, stop=(word + " ",))
        generate((wanted, sink))
        assert (sink.reason, sink.stop) == ("stop", word + " ")
        assert sink.text == whole.text[: whole.text.index(word + " ")]

    def test_over_two_tokens_and_not_a_letter_of_it_is_sent(self) -> None:
        _, whole = full = request(max_tokens=12)
        generate(full)
        across = whole.texts[4][-2:] + whole.texts[5][:3]
        _, sink = stopped = request(max_tokens=12, stop=(across, "!!!"))
        generate(stopped)
        assert sink.stop == across
        assert sink.text == whole.text[: whole.text.index(across)]

    def test_a_stop_string_that_never_comes_holds_nothing_back_at_the_end(self) -> None:
        _, whole = full = request()
        _, sink = stopped = request(stop=("!!!",))
        generate(full, stopped)
        assert sink.text == whole.text


class TestSchedule:
    def test_no_more_run_than_there_are_seats(self) -> None:
        requests = [request(max_tokens=5) for _ in range(6)]
        engine = generate(*requests, seats=2)
        ends = sorted(wanted.last for wanted, _ in requests)
        assert len({round(end, 9) for end in ends}) == 3
        assert engine.metrics.finished["length"] == 6
        assert not engine.busy

    def test_no_more_run_than_the_cache_holds(self) -> None:
        requests = [request(prompt_tokens=60, max_tokens=4) for _ in range(4)]
        generate(*requests, knobs=Knobs(tokens_per_second=2000, kv_tokens=160))
        assert len({round(wanted.last, 9) for wanted, _ in requests}) == 2

    def test_usage_while_running(self) -> None:
        async def run() -> tuple[float, float]:
            engine = Engine(Knobs(kv_tokens=1600), Metrics())
            wanted, sink = request(prompt_tokens=150, max_tokens=8)
            engine.submit(wanted)
            while not engine.running:
                await asyncio.sleep(0.001)
            before = engine.kv_usage
            await sink.done.wait()
            return before, engine.kv_usage

        assert run_by_the_clock(run()) == (0.1, 0.0)

    def test_speed_is_what_was_asked_for(self) -> None:
        wanted, sink = request(max_tokens=101, ignore_eos=True)
        generate((wanted, sink), knobs=Knobs(tokens_per_second=1000))
        assert wanted.last - wanted.first == pytest.approx(0.1)


class TestEnd:
    def submit_twice(
        self, prepare: Callable[[Engine], None], knobs: Knobs | None = None
    ) -> tuple[Collect, object]:
        async def run() -> tuple[Collect, object]:
            engine = Engine(knobs or Knobs(), Metrics())
            wanted, sink = request(max_tokens=1000, ignore_eos=True)
            engine.submit(wanted)
            await asyncio.sleep(0.02)
            prepare(engine)
            try:
                engine.submit(request()[0])
            except (EngineDead, Draining) as error:
                return sink, type(error)
            return sink, engine

        return run_by_the_clock(run())

    def test_death_fails_what_is_in_flight_and_what_comes(self) -> None:
        sink, error = self.submit_twice(Engine.die)
        assert "EngineCore encountered an issue" in (sink.error or "")
        assert error is EngineDead

    def test_draining_takes_nothing_new(self) -> None:
        def drain(engine: Engine) -> None:
            engine.draining = True

        sink, error = self.submit_twice(drain)
        assert (sink.error, error) == (None, Draining)

    def test_crash_after_a_number_of_requests(self) -> None:
        sink, error = self.submit_twice(lambda engine: None, Knobs(crash_after=1))
        assert sink.error
        assert error is EngineDead

    def test_death_at_the_first_request(self) -> None:
        async def run() -> None:
            Engine(Knobs(fail="first_request"), Metrics()).submit(request()[0])

        with pytest.raises(EngineDead):
            run_by_the_clock(run())

    def test_stop_says_nothing_to_anybody(self) -> None:
        async def run() -> tuple[int, int]:
            engine = Engine(Knobs(tokens_per_second=1000), Metrics())
            wanted, sink = request(max_tokens=1000, ignore_eos=True)
            engine.submit(wanted)
            await asyncio.sleep(0.02)
            engine.stop()
            before = len(sink.texts)
            await asyncio.sleep(0.02)
            return before, len(sink.texts)

        before, after = run_by_the_clock(run())
        assert before == after > 0

    def test_an_aborted_request_is_counted_and_makes_room(self) -> None:
        async def run() -> Engine:
            engine = Engine(Knobs(tokens_per_second=1000), Metrics(), 1)
            first, second = request(max_tokens=1000, ignore_eos=True), request()
            engine.submit(first[0])
            engine.submit(second[0])
            await asyncio.sleep(0.01)
            engine.abort(first[0])
            engine.abort(first[0])
            await second[1].done.wait()
            return engine

        assert run_by_the_clock(run()).metrics.finished == {
            "stop": 0,
            "length": 1,
            "abort": 1,
            "error": 0,
            "repetition": 0,
        }


class TestKnobs:
    def test_from_the_environment(self) -> None:
        environ = {
            "STANDIN_STARTUP_SECONDS": "1.5",
            "STANDIN_GARBAGE": "1",
            "STANDIN_FAIL": "oom",
            "PATH": "/",
        }
        assert Knobs.from_environ(environ) == Knobs(startup_seconds=1.5, garbage=True, fail="oom")

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("STANDIN_STARTUP_SECOND", "1", "did you mean STANDIN_STARTUP_SECONDS"),
            ("STANDIN_STARTUP_SECONDS", "soon", "STANDIN_STARTUP_SECONDS='soon' is not of type float"),
            ("STANDIN_CRASH_AFTER", "1.5", "is not of type int"),
            ("STANDIN_FAIL", "boom", "none of oom, kv_cache"),
            ("STANDIN_TOKENS_PER_SECOND", "0", "above 0"),
        ],
    )
    def test_nonsense_is_refused(self, name: str, value: str, message: str) -> None:
        with pytest.raises(KnobError, match=re.escape(message)):
            Knobs.from_environ({name: value})


class TestMetrics:
    def test_names_and_types(self) -> None:
        gauges = {"num_requests_running": 3, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.25}
        text = Metrics().render("lab/m", gauges, {"block_size": "16", "num_gpu_blocks": "100"})
        assert 'vllm:num_requests_running{engine="0",model_name="lab/m"} 3.0' in text
        assert 'vllm:kv_cache_usage_perc{engine="0",model_name="lab/m"} 0.25' in text
        assert 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0' in text
        types = dict(re.findall(r"^# TYPE vllm:(\S+) (\S+)$", text, re.MULTILINE))
        assert types["generation_tokens_total"] == types["request_success_total"] == "counter"
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
        ):
            assert types[name] == "histogram"

    def test_buckets_add_up(self) -> None:
        metrics = Metrics()
        for value in (0.0005, 0.001, 0.03, 9999.0):
            metrics.first_token.observe(value)
        text = metrics.render("m", dict.fromkeys(("num_requests_running", "num_requests_waiting"), 0.0), {})
        found = re.findall(r'vllm:time_to_first_token_seconds_bucket\{.*le="([^"]+)".*\} (\S+)', text)
        counts = [float(count) for _, count in found]
        assert (found[0], found[-1]) == (("0.001", "2.0"), ("+Inf", "4.0"))
        assert counts == sorted(counts)
        assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0' in text

    def test_a_bound_belongs_to_its_bucket(self) -> None:
        histogram = Histogram((1.0, 2.0))
        for value in (1.0, 2.0, 2.1):
            histogram.observe(value)
        assert histogram.counts == [1, 1, 1]
