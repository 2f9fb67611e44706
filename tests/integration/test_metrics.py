#!/usr/bin/env python3
"""/metrics of a running server, read by Prometheus' own parser and held against docs/metrics.md.

Skipped without python3-prometheus-client.
"""

import collections
import math
import os
import re

import cli
import serve

try:
    from prometheus_client.parser import text_string_to_metric_families as parse
except ImportError:
    parse = None

DOC = os.path.join(cli.ROOT, "docs", "metrics.md")
ONLY_WITH = {"ferry_expert_rows_total": "--expert-metrics"}


def documented(group=False):
    """{name: (type, label names, values)} of the tables of docs/metrics.md; with group also of the one
    for several ranks."""
    found = {}
    with open(DOC, encoding="utf-8") as f:
        several = False
        for line in f:
            if line.startswith("## "):
                several = "only with several ranks" in line
            if several and not group:
                continue
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            name = re.fullmatch(r"`([a-z0-9_:]+)`", cells[0])
            if not line.startswith("|") or not name:
                continue
            assert name[1] not in found, f"{name[1]} stands twice in docs/metrics.md"
            # `stat` = `max`, `p99`: names stand first or before "=", values after it
            names = re.findall(r"`(\w+)`", re.sub(r"= .*", "", cells[2]))
            values = re.findall(r"`(\w+)`", cells[2].split("=")[1]) if "=" in cells[2] else None
            found[name[1]] = (cells[1], names, values)
    return found


def families(text):
    """{full name: family}; the parser takes _total off counters' names."""
    return {f.name + ("_total" if f.type == "counter" else ""): f for f in parse(text)}


class Metrics(serve.Case):
    flags = ("--parallel", 4, "--threads", 2, "--expert-metrics", "--served-model-name", 'a "b\\c')

    @classmethod
    def setUpClass(cls):
        if parse is None:
            raise cli.unittest.SkipTest("python3-prometheus-client is not installed")
        super().setUpClass()

    def page(self, server=None):
        got = (server or self.server).get("/metrics")
        self.assertEqual(got.status, 200)
        self.assertEqual(got.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        text = got.body.decode()
        self.assertTrue(text.endswith("\n"))
        self.assertEqual(len(re.findall("(?m)^# TYPE ", text)), len(set(re.findall("(?m)^# TYPE (.*) ", text))))
        return families(text)

    def test_the_document_names_the_same_series(self):
        self.check_names(self.page(), documented())

    def test_the_document_names_what_several_ranks_add(self):
        server = serve.start(self.demo(), "--ranks", 2, "--threads", 1, *self.flags[4:])
        self.addCleanup(server.stop)
        server.complete("Once", max_tokens=2)
        self.assertGreater(len(documented(group=True)), len(documented()) + 5)
        self.check_names(self.page(server), documented(group=True))

    def check_names(self, page, said):
        self.assertGreater(len(said), 60)
        self.assertEqual(sorted(page), sorted(said))
        for name, (kind, labels, values) in said.items():
            self.assertEqual(page[name].type, kind, name)
            if name.startswith("vllm:"):
                labels = ["model_name", "engine", *labels]
            for sample in page[name].samples:
                self.assertEqual(sorted(set(sample.labels) - {"le"}), sorted(labels), name)
            if values is not None:
                self.assertEqual({s.labels[labels[-1]] for s in page[name].samples}, set(values), name)

    def test_flags_leave_series_out(self):
        server = serve.start(self.demo(), "--no-vllm-metrics")
        self.addCleanup(server.stop)
        server.complete("Once", max_tokens=2)
        want = {n for n in documented() if not n.startswith("vllm:") and n not in ONLY_WITH}
        self.assertEqual(set(self.page(server)), want)

    def test_histograms_are_cumulative_and_complete(self):
        self.server.complete("Once upon a time", max_tokens=4)
        checked = 0
        for name, family in self.page().items():
            if family.type != "histogram":
                continue
            series = collections.defaultdict(list)
            rest = {}
            for s in family.samples:
                key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
                if s.name == name + "_bucket":
                    series[key].append((float(s.labels["le"]), s.value))
                else:
                    rest[key, s.name[len(name):]] = s.value
            for key, buckets in series.items():
                bounds, counts = zip(*buckets)
                self.assertEqual(list(bounds), sorted(set(bounds)), name)
                self.assertEqual(bounds[-1], math.inf)
                self.assertEqual(list(counts), sorted(counts), name)
                self.assertEqual(counts[-1], rest[key, "_count"])
                self.assertGreaterEqual(rest[key, "_sum"], 0)
                checked += 1
        self.assertEqual(checked, 11 + 6 + 9)  # the engine's, one for each route, vLLM's names

    def value(self, page, name, **labels):
        found = [s.value for s in page[name].samples if s.name == name
                 and all(s.labels.get(k) == v for k, v in labels.items())]
        self.assertEqual(len(found), 1, (name, labels))
        return found[0]

    def test_numbers_follow_the_traffic(self):
        before = self.page()
        usage = [self.server.complete(text, max_tokens=5)["usage"] for text in ("Once", "Two men", "A")]
        self.server.wait_idle()
        after = self.page()

        def grown(name, **labels):
            return self.value(after, name, **labels) - self.value(before, name, **labels)

        n_prompt, n_answer = (sum(u[k] for u in usage) for k in ("prompt_tokens", "completion_tokens"))
        self.assertEqual(grown("ferry_prompt_tokens_total", source="computed")
                         + grown("ferry_prompt_tokens_total", source="cached"), n_prompt)
        self.assertEqual(grown("vllm:prompt_tokens_total"), n_prompt)
        self.assertEqual(grown("ferry_generation_tokens_total"), n_answer)
        self.assertEqual(grown("vllm:generation_tokens_total"), n_answer)
        self.assertEqual(sum(grown("ferry_answers_finished_total", reason=r) for r in ("stop", "length")), 3)
        self.assertEqual(grown("ferry_http_requests_total", route="completions", code="2xx"), 3)
        self.assertEqual(self.value(after, "ferry_requests_running"), 0)
        # Every token that was fed went to top_k experts of every layer.
        info = after["ferry_model_info"].samples[0].labels
        self.assertEqual(info["model_name"], self.flags[-1])
        layers, experts, top_k = int(info["layers"]), int(info["experts"]), int(info["top_k"])
        fed = n_prompt - grown("ferry_prompt_tokens_total", source="cached") + n_answer - 3
        rows = {(s.labels["layer"], s.labels["expert"]): s.value
                for s in after["ferry_expert_rows_total"].samples}
        old = {(s.labels["layer"], s.labels["expert"]): s.value
               for s in before["ferry_expert_rows_total"].samples}
        self.assertEqual(len(rows), layers * experts)
        for layer in range(layers):
            mine = [rows[str(layer), str(e)] for e in range(experts)]
            self.assertEqual(sum(mine) - sum(old[str(layer), str(e)] for e in range(experts)), fed * top_k)
            # The few numbers are those of the many.
            fair = sum(mine) / experts
            self.assertAlmostEqual(self.value(after, "ferry_layer_expert_load_ratio", layer=str(layer), stat="max"),
                                   max(mine) / fair)
            self.assertAlmostEqual(self.value(after, "ferry_layer_expert_load_ratio", layer=str(layer), stat="min"),
                                   min(mine) / fair)
            self.assertAlmostEqual(self.value(after, "ferry_layer_balance_ratio", layer=str(layer)),
                                   sum(mine) ** 2 / experts / sum(m * m for m in mine))
            self.assertEqual(self.value(after, "ferry_layer_experts_active", layer=str(layer)),
                             sum(m > 0 for m in mine))

    def test_counters_never_fall(self):
        before = self.page()
        self.server.complete("Once", max_tokens=3)
        after = self.page()
        for name, family in before.items():
            if family.type != "counter":
                continue
            new = {tuple(sorted(s.labels.items())): s.value for s in after[name].samples}
            for s in family.samples:
                self.assertGreaterEqual(new[tuple(sorted(s.labels.items()))], s.value, name)


if __name__ == "__main__":
    cli.main()
