#!/usr/bin/env python3
"""Measures what several ranks cost or save: `ferry serve` on one rank of N threads beside N ranks of
one thread, interleaved; and how much of a link's time the micro-batches of a prompt hide.

What: tokens/s of one stream, of 16 streams, of prompts on every rank at once, and their ratios to one
      rank, each beside the ratio that the bytes allow; with --hosts, the time of a prompt with one
      and with two micro-batches, and over a link that costs nothing.
Why here: bench/exchange times the exchange alone; users see whole steps, in which dense layers, waits
      and other ranks' rows meet.
Must not know: how ranks work; it starts programs and speaks the API.

    bench/ranks/run.py [MODEL] [--ferry PATH] [--ranks 2] [--reps N] [--json F] [--require]
    bench/ranks/run.py [MODEL] --hosts --link tap:1000:200 [--reps N] ...

README.md here says what is compared. MODEL as for bench/peers/run.py; default olmoe-1b-7b-Q4_0. Exit
0 measured, 1 failed (or, with --require, a target missed, or not measured on a quiet machine), 2
wrong usage.
"""

import argparse
import datetime
import json
import os
import random
import re
import secrets
import statistics
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "bench", "peers"), os.path.join(ROOT, "tools", "peers"),
                os.path.join(ROOT, "tests", "cluster")]
import gguf_header  # noqa: E402
import hosts as cluster  # noqa: E402
import run as peers  # noqa: E402  (bench/peers/run.py: model files, quiet runs)
import serve  # noqa: E402  (bench/peers/serve.py: servers, the client)

PORT = 7200
TIMEOUT_S = 1800
WANT_HIDDEN = 0.6
FREE_LINK = ("tbf", 40000, 0)
UNEVEN = []  # of every run with one rank
# name: (streams, prompt tokens, answer tokens, least ratio to one rank that is wanted)
WORK = {"batch 1": (1, 16, 64, 0.65), "batch 16": (16, 16, 48, 0.85),
        "a prompt on each": (0, 512, 2, 0.88)}  # 0: as many as there are ranks


def fail(text):
    """Ends the run with one line."""
    raise SystemExit(f"bench/ranks/run.py: {text}")


# ---- the ceiling ----


def largest_share(n_experts, top_k, n_ranks, draws=20000):
    """The part of a token's experts that the rank with most of them has, on average."""
    generator = random.Random(1)
    total = 0
    for _ in range(draws):
        ranks = [e * n_ranks // n_experts for e in generator.sample(range(n_experts), top_k)]
        total += max(ranks.count(r) for r in set(ranks))
    return total / draws / top_k


def ceilings(model, limits, n_ranks, uneven):
    """{work: (the ratio that reading the bytes, or of prompts the arithmetic, allows, why)}. One
    rank reads all with all processors. Several read the experts at once, each those it holds; what
    is no expert's is read by every rank that has tokens, by its own processor. uneven: of prompts,
    how many times its fair share the rank with most of a layer's rows has: all wait for it."""
    parts = gguf_header.traffic(gguf_header.read(model))
    every = parts["every"] + parts["output"]
    one, both = limits["one"] * 1e9, limits["all"] * 1e9
    alone, sixteen = gguf_header.step_bytes(parts, 1), gguf_header.step_bytes(parts, 16)
    share = largest_share(parts["n_experts"], parts["k"], n_ranks)
    arithmetic = (alone - every) / (alone - parts["output"])
    experts_s = max((alone - every) * share / one, (alone - every) / both)
    return {
        "batch 1": ((alone / both) / (every / one + experts_s),
                    f"{every / 1e6:.0f} MB that are no expert's are read by one processor at "
                    f"{one / 1e9:.1f} GB/s instead of {both / 1e9:.1f}, and one rank has "
                    f"{100 * share:.0f} % of a token's experts"),
        "batch 16": (sixteen / (sixteen + (n_ranks - 1) * every),
                     f"they are read by each rank, {(sixteen - every) / 1e6:.0f} MB of experts once"),
        "a prompt on each": (1 / (1 - arithmetic + arithmetic * uneven),
                             f"arithmetic, {100 * arithmetic:.0f} % of it experts', of whose rows "
                             f"one rank has {uneven:.3f} times its share in the mean layer")}


def read_limits():
    """Read bandwidth in GB/s: of one thread, of all."""
    figures = peers.best_limits([peers.run_json([peers.set_up_limits(None)], "bench_limits")])
    return {side: max(figures[k][side] for k in ("read_4k", "read_huge")) for side in ("one", "all")}


# ---- one machine: one rank beside several ----


def command(ferry, model, port, n_ranks, n_threads):
    """A server whose ranks share all processors."""
    return [ferry, "serve", model, "--port", str(port), "--parallel", "16", "--context", "640",
            "--ranks", str(n_ranks), "--threads", str(n_threads), "--expert-metrics"]


def expert_rows(port):
    """{(layer, expert): rows computed} of a server."""
    rows = {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("ferry_expert_rows_total{"):
                labels = dict(re.findall(r'(\w+)="(\d+)"', line))
                rows[int(labels["layer"]), int(labels["expert"])] = float(line.rsplit(" ", 1)[1])
    return rows


def unevenness(rows, n_ranks):
    """How many times its fair share the rank with most rows has, over all layers; contiguous."""
    n_experts = 1 + max(expert for _, expert in rows)
    loads = {layer: [0.0] * n_ranks for layer, _ in rows}
    for (layer, expert), n in rows.items():
        loads[layer][expert * n_ranks // n_experts] += n
    return sum(map(max, loads.values())) * n_ranks / sum(map(sum, loads.values()))


def tokens_per_s(requests, p, n):
    """Of prompts: their tokens per second until the last has its first piece. Of answers: tokens per
    second while all streams run, from the last stream's first piece to the first one's end."""
    if n <= 2:
        return len(requests) * p / (max(r.times[0] for r in requests)
                                    - min(r.start for r in requests))
    begin, end = max(r.times[0] for r in requests), min(r.times[-1] for r in requests)
    pieces = sum(begin < t <= end for r in requests for t in r.times)
    return pieces / (end - begin) * n * len(requests) / sum(len(r.times) for r in requests)


def one_run(name, args, pool, rep):
    """Starts a server, warms it up, does all kinds of work; {work: tokens/s}, others' CPUs. Of one
    rank, UNEVEN gets how unequal the experts' rows of its prompts would be."""
    n_ranks, n_threads = (1, args.ranks) if name == "one rank" else (args.ranks, 1)
    port = serve.free_port()
    server = serve.Server("ferry", command(args.ferry, args.model, port, n_ranks, n_threads), port)
    at = 97 * rep
    try:
        server.wait_ready()
        serve.drive(port, [pool[(at + i) % len(pool)][:40] for i in range(16)], 8, 16)
        others = Others(server)
        others.start()
        figures = {}
        for i, (work, (streams, p, n, _)) in enumerate(WORK.items()):
            streams = streams or args.ranks
            prompts = [pool[(at + 20 * (i + 1) + s) % len(pool)][:p] for s in range(streams)]
            before = expert_rows(port)
            requests, _ = serve.drive(port, prompts, n, streams)
            figures[work] = tokens_per_s(requests, p, n)
            if n_ranks == 1 and n <= 2:
                after = expert_rows(port)
                UNEVEN.append(unevenness({k: after[k] - before[k] for k in after}, args.ranks))
        return figures, others.stop()
    finally:
        server.stop()


class Others(peers.OtherLoad):
    """CPU use of everything but this program, a server and the ranks that it has started."""

    def __init__(self, server):
        super().__init__()
        self.server = server

    def _ours(self):
        pids = [self.server.process.pid]
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) == pids[0]:
                        pids.append(int(name))
            except (OSError, ValueError, IndexError):
                continue
        used = 0
        for pid in pids:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used + super()._ours()


def quiet_pairs(args, names, once):
    """Pairs of runs in an order that swaps, until as many were quiet as are wanted, twice that at
    most. `once(name, rep)` gives (figures, others' CPUs)."""
    pairs = []
    while len(pairs) < 2 * args.reps and sum(p["quiet"] for p in pairs) < args.reps:
        order = names if len(pairs) % 2 == 0 else names[::-1]
        pair = {"loads": {}}
        for name in order:
            pair[name], pair["loads"][name] = once(name, len(pairs))
            print(f"  {len(pairs) + 1:2d} {name:16s} "
                  + "   ".join(f"{k} {v:.2f}" for k, v in pair[name].items())
                  + f"   (others used {pair['loads'][name]:.2f} CPUs)", flush=True)
        pair["quiet"] = max(pair["loads"].values()) <= peers.QUIET_CPUS
        pairs.append(pair)
    quiet = [p for p in pairs if p["quiet"]]
    enough = len(quiet) >= args.reps
    return quiet if enough else pairs, enough


def measure_cost(args):
    """One rank of all processors beside a rank on each."""
    pool, limits = slices(args), read_limits()
    pairs, quiet = quiet_pairs(args, ["one rank", "ranks"],
                               lambda name, rep: one_run(name, args, pool, rep))
    bound = ceilings(args.model, limits, args.ranks,
                     statistics.median(UNEVEN))
    print(f"\n{os.path.basename(args.model)}: {args.ranks} ranks x 1 thread beside 1 rank x "
          f"{args.ranks} threads, tokens/s, medians of {len(pairs)}")
    met, result = True, {}
    for work, (_, _, _, wanted) in WORK.items():
        one = [p["one rank"][work] for p in pairs]
        many = [p["ranks"][work] for p in pairs]
        ratios = [b / a for a, b in zip(one, many)]
        ratio = statistics.median(many) / statistics.median(one)
        ceiling, words = bound[work]
        met = met and ratio >= wanted
        result[work] = {"one": one, "ranks": many, "ratio": ratio, "ceiling": ceiling,
                        "wanted": wanted}
        print(f"  {'met   ' if ratio >= wanted else 'MISSED'} {work:17s} "
              f"{statistics.median(one):8.1f} ({min(one):.1f}..{max(one):.1f})  "
              f"{statistics.median(many):8.1f} ({min(many):.1f}..{max(many):.1f})  ratio {ratio:.2f} "
              f"(pairs {min(ratios):.2f}..{max(ratios):.2f}), wanted {wanted}, ceiling "
              f"{ceiling:.2f}: {words}")
    return {"limits": limits, "work": result, "quiet": quiet}, met, quiet


def slices(args):
    """Distinct pieces of real text, as ids, as long as the longest prompt."""
    longest = max(p for _, p, _, _ in WORK.values())
    pool = []
    for name in sorted(os.listdir(serve.HELDOUT)):
        ids = peers.run_json([args.ferry, "tokenize", args.model, "--text-file",
                              os.path.join(serve.HELDOUT, name), "--json"], "ferry tokenize")["ids"]
        pool += [ids[i:i + longest] for i in range(0, len(ids) - longest + 1, longest)]
    return pool


# ---- two hosts: what of the link's time is hidden ----


def prompt_on_hosts(args, net, key, n_batches, port):
    """Seconds of one prompt of args.prompt tokens that host A computes with host B's experts."""
    at = f"{net.address('A')}:{port}"
    shared = ["--threads", "1", "--group-key-file", key, "--micro-batches", str(n_batches)]
    rank = None
    front = net.start("A", [args.ferry, "bench", args.model, "-p", args.prompt, "-n", "0", "--reps",
                            "3", "--json", "--ranks", "2", "--listen", at, *shared], name="bench")
    try:
        rank = net.start("B", [args.ferry, "rank", args.model, "--join", at, "--parallel", "0",
                               *shared], name="rank")
        if front.wait(TIMEOUT_S) != 0:
            fail(front.last_words())
        text = front.log()
        return args.prompt / json.loads(text[text.index("{"):text.rindex("}") + 1])["pp_tps"]
    finally:
        front.kill()
        if rank is not None:
            rank.kill()


def measure_overlap(args):
    """One and two micro-batches, over the link and over one that costs next to nothing."""
    kind, rate, *delay = args.link.split(":")
    link = (kind, int(rate), int(delay[0]) if delay else 0)
    plain = {f"{n} micro-batch{'es' * (n - 1)}{text}": (*road, n)
             for text, road in ((" free", FREE_LINK), ("", link)) for n in (1, 2)}
    rows = []
    with tempfile.NamedTemporaryFile("w") as key:
        key.write(secrets.token_hex(32) + "\n")
        key.flush()
        for rep in range(args.reps):
            row = {}
            for i, (name, (k, r, d, n)) in enumerate(plain.items()):
                with cluster.Hosts(2, k, r, d) as net:
                    row[name] = prompt_on_hosts(args, net, key.name, n, PORT + 10 * rep + i)
            rows.append(row)
            print(f"  {rep + 1:2d} " + "   ".join(f"{n} {row[n]:.2f} s" for n in plain), flush=True)
    free_one, free_two, one, two = (statistics.median(r[n] for r in rows) for n in plain)
    share = 1 - (two - free_two) / (one - free_one)
    print(f"\n{os.path.basename(args.model)}: a prompt of {args.prompt} tokens, hosts joined by "
          f"{args.link}: one micro-batch {one:.2f} s, {free_one:.2f} s without the link's cost; two "
          f"{two:.2f} s, {free_two:.2f} s without")
    print(f"  {'met   ' if share >= WANT_HIDDEN else 'MISSED'} hidden {100 * share:.0f} % of "
          f"{one - free_one:.2f} s, wanted {100 * WANT_HIDDEN:.0f} %")
    return {"rows": rows, "hidden": share, "link": args.link}, share >= WANT_HIDDEN, True


# ---- the program ----


def parse_arguments():
    """Parses and checks the command line."""
    parser = argparse.ArgumentParser(prog="bench/ranks/run.py",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="olmoe-1b-7b-Q4_0", metavar="MODEL")
    parser.add_argument("--ferry", help="the ferry program; default: the newest in build/")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--hosts", action="store_true", help="two hosts; what of a prompt is hidden")
    parser.add_argument("--link", default="tap:1000:200", help="KIND:MBIT[:US], see hosts.sh")
    parser.add_argument("--prompt", type=int, default=512, help="tokens, with --hosts")
    parser.add_argument("--json", help="also write everything measured to this file")
    parser.add_argument("--require", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    if args.ranks < 2 or args.reps < 1 or args.prompt < 2:
        parser.error("--ranks and --prompt must be at least 2, --reps at least 1")
    return args


def main():
    """Measures; returns the exit code."""
    args = parse_arguments()
    why = cluster.reason("tap") if args.hosts else None
    if why is not None:
        fail(why)
    args.ferry = peers.find_ferry(args.ferry)
    args.model = peers.model_file(args.model)
    print(f"ferry: {args.ferry}; reading pages of {os.path.basename(args.model)}", flush=True)
    peers.warm_pages(args.model)
    result, met, quiet = measure_overlap(args) if args.hosts else measure_cost(args)
    if not quiet:
        print("  NOT QUIET: other programs used the CPUs; do not quote these figures")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"date": datetime.datetime.now().isoformat(timespec="seconds"),
                       "model": os.path.basename(args.model), **result}, f, indent=1)
    return 1 if args.require and not (met and quiet) else 0


if __name__ == "__main__":
    sys.exit(main())
