#!/usr/bin/env python3
"""ferry serve: streams, cancelling, queues, slow readers, draining; each test names the row of
public reports (docs/bugs-covered.md) that it keeps out.
"""

import signal
import threading
import time

import cli
import serve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


def delta(before, after, name, **labels):
    return after.total(name, **labels) - before.total(name, **labels)


def read_on(events):
    """Reads until the stream ends or is closed by us."""
    try:
        for _ in events:
            pass
    except OSError:
        pass


class Streams(serve.Case):
    """Stop strings, other users' progress, health in the meantime."""

    def answers(self, body, text):
        """(text, finish) by every path that there is: both routes, streamed or not."""
        out = []
        for path in (TEXT, CHAT):
            one = dict(body, **({"prompt": text} if path == TEXT else
                                {"messages": [{"role": "user", "content": text}]}))
            choice = self.server.post(path, one).json()["choices"][0]
            whole = choice["text"] if path == TEXT else choice["message"]["content"]
            got = self.server.stream(path, one).collect()
            self.assertEqual((got.text, got.finish[0]), (whole, choice["finish_reason"]),
                             "the stream is not the answer")
            self.assertTrue(got.stream.done and got.stream.ended)
            out.append((whole, choice["finish_reason"], got))
        return out

    def test_T05_T07_stop_strings(self):
        text = "def read_lines(path):"
        for sampling in ({"temperature": 0}, {"temperature": 1.5, "seed": 9}):
            body = {"max_tokens": 40, "ignore_eos": True, **sampling}
            plain = self.answers(body, text)
            for at in range(0, 30, 7 if serve.SLOW == 1 else 15):
                for size in (1, 2, 5, 11) if serve.SLOW == 1 else (1, 7):
                    for route, (whole, _, _) in enumerate(plain):
                        stop = whole[at : at + size]
                        if not stop or "\ufffd" in stop:
                            continue
                        got = self.answers({**body, "stop": ["never to be seen", stop]}, text)[route]
                        self.assertEqual(got[:2], (whole[: whole.index(stop)], "stop"), repr(stop))

    def test_T06_no_more_is_held_back_than_must_be(self):
        body = {"max_tokens": 48, "ignore_eos": True, "temperature": 0}
        for (whole, _, free), (same, finish, got) in zip(
                self.answers(body, "The king"), self.answers({**body, "stop": "\u2603 qqqq"}, "The king")):
            self.assertEqual((same, finish), (whole, "length"))
            pieces = [sum(bool(c.get("text") or c.get("delta", {}).get("content"))
                          for e in g.chunks for c in e["choices"]) for g in (free, got)]
            self.assertGreater(pieces[0], 20)
            self.assertEqual(pieces[0], pieces[1], "a stop string that never begins holds text back")

    def test_T17_T19_a_long_prompt_stops_nobody(self):
        """Others' prompts of 2,000 tokens: a stream goes on, /health stays green and quick."""
        with self.server.stream(TEXT, LONG) as mine:
            events = mine.events()
            for _ in range(5):
                next(events)
            probe = serve.Probe(self.server)
            before = self.server.metrics()
            n, size = (8, 2000) if serve.SLOW == 1 else (2, 800)
            jobs = [lambda i=i: self.server.post(
                TEXT, {"prompt": [64 + i] + [(7 * j + i) % 4000 for j in range(size)],
                       "max_tokens": 1}).status for i in range(n)]
            reader = threading.Thread(target=read_on, args=(events,), daemon=True)
            reader.start()
            start = time.monotonic()
            self.assertEqual(serve.together(jobs), [200] * n)
            end, after = time.monotonic(), self.server.metrics()
            probes = probe.stop()
        reader.join(30)
        self.assertEqual(delta(before, after, "ferry_prompt_tokens_total", source="computed"),
                         n * (size + 1))
        times = [start] + [t for t in mine.times if start < t < end] + [end]
        gaps = [b - a for a, b in zip(times, times[1:])]
        self.assertLess(max(gaps), 1.2 * serve.SLOW, f"{len(gaps)} pieces in {end - start:.1f} s")
        self.assertEqual({status for status, _ in probes}, {200})
        self.server.wait_idle()

    def test_T18_a_body_of_27_MB(self):
        prompt = b'{"max_tokens": 1, "prompt": "' + b"a b " * 6750000 + b'"}'
        self.assertGreater(len(prompt), 27_000_000)
        with self.server.stream(TEXT, LONG) as mine:
            events = mine.events()
            next(events)
            probe = serve.Probe(self.server)
            got = self.server.post(TEXT, prompt)
            probes = probe.stop()
            self.assertEqual((got.status, got.error["code"]), (400, "context_length_exceeded"))
            next(events)
        times = sorted(seconds for _, seconds in probes)
        self.assertGreater(len(times), 5)
        self.assertEqual({status for status, _ in probes}, {200})
        self.assertLess(times[int(len(times) * 0.99)], 0.05 * serve.SLOW)
        self.server.wait_idle()

    def test_T18_large_bodies_leave_a_worker_free(self):
        """More large requests than workers: small ones are read, and finished answers written."""
        self.server.complete("a", max_tokens=1)
        prompt = b'{"prompt": "' + b"a b " * 2000000 + b'"}'
        threads = [threading.Thread(target=self.server.post, args=("/tokenize", prompt)) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.server.wait_for(lambda m: m.total("ferry_http_requests_open") > 3, what="all to come in")
        longest, n = 0, 0
        while threads[-1].is_alive() and n < 50:
            start = time.monotonic()
            self.assertEqual(self.server.complete("a", max_tokens=1)["usage"]["completion_tokens"], 1)
            longest, n = max(longest, time.monotonic() - start), n + 1
        for thread in threads:
            thread.join()
        self.assertGreater(n, 3)
        self.assertLess(longest, 0.7 * serve.SLOW)
        # One that is far beyond the context is not encoded to its end to say so.
        got = self.refuse(400, TEXT, prompt, code="context_length_exceeded")
        self.assertIn("more than 16384 tokens and the context is 2048", got.error["message"])

    def test_T50_counters_only_count(self):
        first = self.server.metrics()
        usage = [self.server.complete("a", max_tokens=n, ignore_eos=True)["usage"] for n in (3, 9)]
        second = self.server.metrics()
        self.assertEqual(delta(first, second, "ferry_generation_tokens_total"), 12)
        self.assertEqual(delta(first, second, "ferry_prompt_tokens_total"),
                         sum(u["prompt_tokens"] for u in usage))
        self.assertEqual(delta(first, second, "vllm:generation_tokens_total"), 12)
        self.assertEqual(delta(first, second, "ferry_inter_token_seconds_count"), 2 + 8)
        self.assertEqual(delta(first, second, "ferry_time_to_first_token_seconds_count"), 2)
        for name, value in first.items():
            if name.split("{")[0].endswith(("_total", "_count", "_bucket", "_sum")):
                self.assertGreaterEqual(second[name], value, name)
            self.assertNotRegex(name, "per_second|throughput|tokens_seconds")


class Leaving(serve.Case):
    """Clients that go: one sequence, so that others wait."""

    flags = ("--parallel", 1, "--threads", 2)

    def long(self, **more):
        """A stream that runs."""
        stream = self.server.stream(TEXT, {**LONG, **more})
        self.assertEqual(stream.status, 200)
        next(stream.events())
        return stream

    def post_and_keep(self, body):
        """Sends a request, reads nothing; returns the socket."""
        return self.server.ask(TEXT, body)

    def test_T08_a_closed_answer_ends(self):
        for how in ("stream", "whole"):
            for reset in (False, True):
                if how == "stream":
                    client = self.long().sock
                else:
                    client = self.post_and_keep(LONG)
                    self.server.wait_for(lambda m: m.total("ferry_requests_running") == 1)
                before = self.server.metrics()
                serve.leave(client, reset)
                took = self.server.wait_idle()
                after = self.server.metrics()
                self.assertLess(took, 1.0 * serve.SLOW)
                # Before the next step, says unit/serve/test_answer.c: clients_leave; from here there
                # are the steps while the page before was read and the connection closed.
                self.assertLess(delta(before, after, "ferry_generation_tokens_total"), 100)
                self.assertEqual(delta(before, after, "ferry_answers_finished_total",
                                       reason="cancelled"), 1, (how, reset))
                self.assertEqual(delta(before, after, "ferry_clients_left_total"), 1)
        self.assertEqual(self.server.complete("a", max_tokens=2, ignore_eos=True)
                         ["usage"]["completion_tokens"], 2)

    def test_T09_leaving_during_prefill(self):
        steps = self.server.metrics()
        sockets = [self.post_and_keep({"prompt": [(i + 3 * j) % 4000 for j in range(2000)],
                                       "max_tokens": 2}) for i in range(12)]
        self.server.wait_for(lambda m: m.total("ferry_requests_running") == 1)
        for sock in sockets:
            sock.close()
        self.server.wait_idle(2)
        computed = delta(steps, self.server.metrics(), "ferry_step_tokens_sum")
        self.assertLess(computed, 12000, "prompts of clients that left were computed to their ends")

    def test_T10_T11_leaving_the_queue(self):
        alone = self.server.complete("Once", max_tokens=300, ignore_eos=True, temperature=0)
        before = self.server.metrics()
        running = self.long(max_tokens=300)
        queued = [self.post_and_keep({"prompt": [5] * 1500, "max_tokens": 5}) for _ in range(3)]
        self.server.wait_for(lambda m: m.total("ferry_requests_waiting") == 3)
        for sock in queued:
            sock.close()
        self.server.wait_for(lambda m: m.total("ferry_requests_waiting") == 0, 5, "the queue")
        text = "".join(e["choices"][0]["text"] for e in running.events() if e["choices"])
        running.close()
        self.assertTrue(running.done)
        self.assertTrue(alone["choices"][0]["text"].endswith(text))  # its first piece was read before
        self.assertGreater(len(text), 0.9 * len(alone["choices"][0]["text"]))
        after = self.server.metrics()
        self.assertEqual(delta(before, after, "ferry_answers_finished_total", reason="cancelled"), 3)
        self.assertEqual(delta(before, after, "ferry_answers_finished_total", reason="length"), 1)
        self.assertLess(delta(before, after, "ferry_step_tokens_sum"), 400, "one of them was run")


class Queue(serve.Case):
    """Waiting: a bounded queue, words while it lasts, an end."""

    # The reference kernels: an answer that occupies the server lasts, however fast the machine is.
    flags = ("--parallel", 1, "--threads", 2, "--cpu-level", "ref", "--max-waiting", 2,
             "--queue-seconds", "1.5", "--keepalive-seconds", "0.2")

    def occupy(self):
        stream = self.server.stream(TEXT, LONG)
        next(stream.events())
        return stream

    def test_T20_headers_at_once_and_comments(self):
        with self.occupy():
            start = time.monotonic()
            with self.server.stream(TEXT, {"prompt": "b", "max_tokens": 2}) as waiting:
                self.assertEqual(waiting.status, 200)
                self.assertLess(waiting.head_at - start, 0.5 * serve.SLOW)
                self.assertTrue(waiting.headers["content-type"].startswith("text/event-stream"))
                list(waiting.events())  # to the time-out
                times = waiting.comment_times
                self.assertGreaterEqual(len(times), 3)
                for a, b in zip([start] + times, times):
                    self.assertLess(b - a, 0.6 * serve.SLOW)
        self.server.wait_idle()

    def test_T21_waiting_too_long_is_told(self):
        with self.occupy():
            got = self.server.stream(TEXT, {"prompt": "b", "max_tokens": 2}).collect()
            self.assertEqual([e["code"] for e in got.errors], ["queue_timeout"])
            self.assertFalse(got.stream.done, "[DONE] after an error")
            self.assertTrue(got.stream.cut, "a broken stream that looks complete")
            self.assertEqual(got.text, "")
            answer = self.refuse(503, TEXT, {"prompt": "b", "max_tokens": 2}, code="queue_timeout")
            self.assertIn("retry-after", answer.headers)
        self.server.wait_idle()

    def test_T22_a_full_queue(self):
        before = self.server.metrics()
        busy = self.occupy()
        waiting = [self.server.stream(TEXT, {"prompt": "c", "max_tokens": 2}) for _ in range(2)]
        self.server.wait_for(lambda m: m.total("ferry_requests_waiting") == 2)
        for stream in (False, True):
            got = self.refuse(429, TEXT, {"prompt": "d", "stream": stream}, code="queue_full")
            self.assertGreaterEqual(int(got.headers["retry-after"]), 1)
            self.assertEqual(got.error["type"], "rate_limit_error")
        busy.close()
        for stream in waiting:
            self.assertEqual(stream.collect().finish.get(0), "length")
        after = self.server.metrics()
        self.assertEqual(delta(before, after, "ferry_requests_rejected_total", reason="queue_full"), 2)
        self.server.wait_idle()


class Preemption(serve.Case):
    """A KV cache for less than what runs (T23)."""

    flags = ("--parallel", 4, "--threads", 2, "--kv-tokens", 1024, "--context", 896,
             "--max-waiting", 4)

    def test_T23_preempted_answers_are_whole(self):
        bodies = [{"prompt": [(64 + i * 31 + j * j) % 4000 for j in range(140)], "max_tokens": 300,
                   "ignore_eos": True, "temperature": 1.2, "seed": i} for i in range(4)]
        alone = [self.server.post(TEXT, b).json()["choices"] for b in bodies]
        before = self.server.metrics()
        for _ in range(2):
            got = serve.together([lambda b=b: self.server.post(TEXT, b) for b in bodies])
            self.assertEqual([g.status for g in got], [200] * 4)
            self.assertEqual([g.json()["choices"] for g in got], alone)
        self.assertGreater(delta(before, self.server.metrics(), "ferry_preemptions_total"), 0)


class SlowReader(serve.Case):
    flags = ("--parallel", 2, "--threads", 2, "--stall-seconds", "1")

    def test_T24_a_reader_that_does_not_read(self):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1900,
                "ignore_eos": True, "temperature": 1, "logprobs": True, "top_logprobs": 20}
        other = {"prompt": "b", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        alone = self.server.post(TEXT, other).json()["choices"]
        for _ in range(2):  # buffers that every answer needs
            self.server.post(CHAT, {**body, "max_tokens": 300})
        before, memory = self.server.metrics(), self.server.memory_bytes()
        stuck = self.server.stream(CHAT, body, rcvbuf=4096)
        self.assertEqual(stuck.status, 200)
        self.assertEqual(self.server.post(TEXT, other).json()["choices"], alone)
        peak = 0
        start = time.monotonic()
        while self.server.begun() > 0:
            peak = max(peak, self.server.memory_bytes() - memory)
            self.assertLess(time.monotonic() - start, 20 * serve.SLOW, "it is never dropped")
            time.sleep(0.05)
        after = self.server.metrics()
        # 1,900 such events are 5 MB; it was paused long before, then dropped.
        self.assertLess(delta(before, after, "ferry_generation_tokens_total"), 200 + 900)
        if serve.SLOW == 1.0:
            self.assertLess(peak, 2 << 20)
        self.assertEqual(delta(before, after, "ferry_clients_left_total"), 1)
        self.assertGreater(delta(before, after, "ferry_client_backpressure_seconds_total"), 0)
        stuck.close()


class StuckReaders(serve.Case):
    """As many readers that do not read as there are sequences; they are dropped late."""

    flags = ("--parallel", 2, "--threads", 2, "--stall-seconds", "20")

    def test_T24_readers_that_do_not_read_do_not_keep_the_others_waiting(self):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1900, "ignore_eos": True,
                "temperature": 1, "logprobs": True, "top_logprobs": 20}
        stuck = [self.server.stream(CHAT, body, rcvbuf=4096) for _ in range(2)]
        self.server.wait_for(lambda m: m.total("ferry_requests_held") == 2, 15, "both to stand still")
        start = time.monotonic()
        for _ in range(3):
            self.assertEqual(self.server.complete("b", max_tokens=8, ignore_eos=True)
                             ["usage"]["completion_tokens"], 8)
        self.assertLess(time.monotonic() - start, 10)
        metrics = self.server.metrics()
        self.assertEqual(metrics.total("ferry_requests_held"), 2)
        self.assertEqual(metrics.total("ferry_clients_left_total"), 0)
        for stream in stuck:
            stream.close()
        self.server.wait_idle()


class Drain(cli.Case):
    """SIGTERM (T25)."""

    def start(self, *flags):
        server = serve.start(self.demo(), "--parallel", 2, *flags)
        self.addCleanup(server.kill)
        return server

    def test_T25_streams_finish(self):
        server = self.start("--drain-seconds", "60")
        body = {**LONG, "max_tokens": 500}
        alone = server.complete(**body)["choices"][0]["text"]
        stream = server.stream(TEXT, body)
        whole = threading.Thread(target=lambda: results.append(server.post(TEXT, body)))
        results = []
        whole.start()
        server.wait_for(lambda m: m.total("ferry_requests_running") == 2)
        server.signal(signal.SIGTERM)
        until = time.monotonic() + 5
        while (status := server.get("/ready").status) == 200 and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(status, 503)
        self.assertEqual(server.get("/health").status, 200)
        refused = server.post(TEXT, {"prompt": "a"})
        self.assertEqual(refused.status, 503)
        self.assertIn("retry-after", refused.headers)
        got = stream.collect()
        self.assertEqual((got.text, got.finish), (alone, {0: "length"}))
        whole.join(60)
        self.assertEqual(results[0].json()["choices"][0]["text"], alone)
        self.assertEqual(server.process.wait(30), 0, server.log())

    def broken_off(self, server, act):
        stream = server.stream(TEXT, LONG)
        next(stream.events())
        start = time.monotonic()
        act()
        got = stream.collect()
        self.assertLess(time.monotonic() - start, 4 * serve.SLOW)
        self.assertEqual(len(got.errors), 1)
        self.assertFalse(stream.done)
        self.assertEqual(server.process.wait(30), 0, server.log())

    def test_T25_a_second_signal_forces(self):
        server = self.start()

        def twice():
            server.signal(signal.SIGTERM)
            time.sleep(0.3)
            self.assertTrue(server.alive())
            server.signal(signal.SIGTERM)

        self.broken_off(server, twice)

    def test_T25_draining_ends(self):
        server = self.start("--drain-seconds", "0.5")
        self.broken_off(server, lambda: server.signal(signal.SIGINT))

    def test_an_idle_server_ends_at_once(self):
        server = self.start()
        with server.connect():  # an idle connection is nothing to wait for
            start = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - start, 3 * serve.SLOW)


if __name__ == "__main__":
    cli.main()
