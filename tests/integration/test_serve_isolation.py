#!/usr/bin/env python3
"""ferry serve: nobody's answer depends on who else is served (T26, T48).

Sixteen requests at once with prompts and canary strings of their own give, byte for byte, the
answers that they give alone; twenty rounds, prefix cache on, with and without streaming, with
different keys, greedy and with seeds.
"""

import os
import random
import re
import string

import cli
import serve

ROUNDS = int(os.environ.get("FERRY_TEST_ROUNDS", "4" if os.environ.get("FERRY_TEST_SANITIZE") else "20"))
WIDTH = 16
DOMAINS = ("english", "code", "math", "chinese")
KEYS = ("key-of-the-first-tenant-000000", "key-of-the-second-tenant-00000", "key-of-the-third-tenant-000000")


class Job:
    """One request that can be sent again and again, and what it answered alone."""

    def __init__(self, number, rng):
        self.canary = "".join(rng.choices(string.ascii_uppercase, k=12))
        size = rng.choice((40, 90, 200, 500, 900, 1500))
        text = serve.heldout(DOMAINS[number % 4], rng.randrange(20000), size)
        # The canary stands at both ends: beside what is generated, and in what is cached.
        prompt = f"{self.canary} {text} {self.canary}"
        self.chat = number % 3 == 0
        self.stream = number % 2 == 0
        self.key = KEYS[number % len(KEYS)]
        self.body = {"max_tokens": rng.choice((8, 24, 48)), "temperature": 0, "ignore_eos": True}
        if number % 4 >= 2:
            self.body.update(temperature=1.1, top_p=0.95, seed=rng.randrange(2**31))
        if number % 5 == 0:
            self.body.update(logprobs=True, top_logprobs=3) if self.chat else \
                self.body.update(logprobs=3)
        if self.chat:
            self.body["messages"] = [{"role": "user", "content": prompt}]
        else:
            self.body["prompt"] = prompt
        self.path = "/v1/chat/completions" if self.chat else "/v1/completions"
        self.expected = None

    def ask(self, server, stream):
        """(text, finish reason, log-probabilities as text) of the answer."""
        if stream:
            got = server.stream(self.path, self.body, key=self.key)
            assert got.status == 200, got.body()
            all_of = got.collect()
            assert got.done and not all_of.errors, all_of.errors
            return all_of.text, all_of.finish[0], values_of(all_of.logprobs.get(0, []))
        got = server.post(self.path, self.body, key=self.key)
        assert got.status == 200, got.body
        choice = got.json()["choices"][0]
        text = choice["message"]["content"] if self.chat else choice["text"]
        parts = [choice["logprobs"]] if choice.get("logprobs") else []
        return text, choice["finish_reason"], values_of(parts)


def values_of(parts):
    """Log-probabilities of an answer in one form for both kinds of request, however it was cut."""
    out = []
    for part in parts:
        if "content" in part:
            out += [(e["token"], e["logprob"], [(t["token"], t["logprob"])
                                                for t in e["top_logprobs"]])
                    for e in part["content"]]
        else:
            out += list(zip(part["tokens"], part["token_logprobs"],
                            [sorted(t.items()) for t in part["top_logprobs"]]))
    return out


class Isolation(serve.Case):
    @classmethod
    def setUpClass(cls):
        path = cli.scratch("isolation-keys")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(KEYS) + "\n")
        os.chmod(path, 0o600)
        cls.flags = ("--parallel", WIDTH, "--threads", 2, "--api-key-file", path)
        super().setUpClass()
        cls.server.key = KEYS[0]

    def test_answers_equal_their_solo_runs(self):
        seed = int(os.environ.get("FERRY_TEST_SEED", "20"))
        rng = random.Random(seed)
        server = self.server
        jobs = [Job(i, rng) for i in range(WIDTH)]
        canaries = {job.canary for job in jobs}
        for job in jobs:
            job.expected = job.ask(server, job.stream)
            self.assertEqual(job.ask(server, not job.stream), job.expected,
                             "the stream is not the answer")
            others = [c for c in canaries if c != job.canary and c in job.expected[0]]
            self.assertEqual(others, [], "an answer has another request's canary")
        steps = server.metrics().total("ferry_steps_total")
        hits = server.metrics().total("ferry_prefix_cache_hit_tokens_total")
        for round_number in range(ROUNDS):
            order = rng.sample(jobs, WIDTH)
            got = serve.together([lambda job=job: job.ask(server, job.stream) for job in order])
            for job, answer in zip(order, got):
                self.assertEqual(answer, job.expected,
                                 f"round {round_number}, seed {seed}: {job.canary}, {job.path}, "
                                 f"stream {job.stream}, {job.body.get('temperature')}")
            # Every other round a stranger with a shared beginning comes in between.
            if round_number % 2:
                job = rng.choice(jobs)
                other = dict(job.body, max_tokens=4)
                if job.chat:
                    other["messages"] = [dict(job.body["messages"][0], content=job.body["messages"][0]
                                              ["content"][:300] + " something else")]
                else:
                    other["prompt"] = job.body["prompt"][:300] + " something else"
                self.assertEqual(server.post(job.path, other, key=job.key).status, 200)
        metrics = server.metrics()
        # They did run together: one after another they would need a step for each of their tokens,
        # none of which is saved by an early end. And the cache was on.
        tokens = sum(job.body["max_tokens"] for job in jobs) * ROUNDS
        self.assertLess(metrics.total("ferry_steps_total") - steps, tokens / 2)
        self.assertGreater(metrics.total("ferry_prefix_cache_hit_tokens_total"), hits)
        server.wait_idle()

    def test_one_key_never_sees_anothers_cache(self):
        """The same prompt under two keys: the second finds nothing, under its own key everything."""
        server = self.server
        prompt = "One tenant's private words. " + serve.heldout("english", 30000, 1600)
        seen = []
        for key in (KEYS[0], KEYS[1], KEYS[0], KEYS[1], KEYS[2]):
            usage = server.complete(prompt, max_tokens=2, temperature=0, key=key)["usage"]
            self.assertGreater(usage["prompt_tokens"], 256)
            seen.append(usage["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual([n > 0 for n in seen], [False, False, True, True, False], seen)

    def test_an_answer_does_not_depend_on_the_cache(self):
        """T26: every shared length, around page borders, then once more with the cache filled."""
        server = self.server
        ids = server.post("/tokenize", {"prompt": serve.heldout("math", 100, 3000)}).json()["tokens"]
        bodies = [{"prompt": ids[:n], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
                  for n in (1, 2, 127, 128, 129, 255, 256, 257, 383, 384, 385)]
        first = [server.post("/v1/completions", b, key=KEYS[1]).json()["choices"] for b in bodies]
        for order in (bodies, list(reversed(bodies))):
            for body in order:
                got = server.post("/v1/completions", body, key=KEYS[1]).json()["choices"]
                self.assertEqual(got, first[bodies.index(body)], len(body["prompt"]))

    def test_seeds(self):
        """T48: the seed in effect is told, and gives the same answer again, alone or not."""
        server = self.server
        drawn = server.complete("The", max_tokens=24, temperature=1.3)
        self.assertIsInstance(drawn["seed"], int)
        self.assertTrue(re.fullmatch(r"\S+", drawn["system_fingerprint"]), drawn)
        def again():
            return server.complete("The", max_tokens=24, temperature=1.3, seed=drawn["seed"])
        for got in serve.together([again] * 8):
            self.assertEqual(got["choices"], drawn["choices"])
            self.assertEqual(got["system_fingerprint"], drawn["system_fingerprint"])
        other = server.complete("The", max_tokens=24, temperature=1.3)
        self.assertNotEqual(other["seed"], drawn["seed"])


if __name__ == "__main__":
    cli.main()
