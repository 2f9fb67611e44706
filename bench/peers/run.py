#!/usr/bin/env python3
"""Measures Ferry beside the pinned llama.cpp: same file, same threads, interleaved, with limits.

What: prompt (pp) and generation (tg) speed of both engines on synthetic files of real MoE shapes,
      divided by what this machine can do at most, measured in the same run.
Why here: a speed says nothing without the peer's on the same day and the limit above both.
Must not know: how either engine works; it starts programs and reads their JSON.

How: the peer (tools/peers), the model files (tools/make_synthetic) and bench_limits are set up when
missing. The file's pages are read once. Then each repetition runs both engines, one process each
and one at a time, in an order that swaps every repetition; loading is not timed and each process
warms up first. Limits are measured before and after. README.md here tells how to read the result.

    bench/peers/run.py [MODEL ...] [--ferry PATH] [--limits PATH] [--threads N] [--reps N]
                       [-p 512] [-n 64] [--batch 1,4,16] [--json F] [--require]

MODEL: a .gguf file, or SHAPE[-DEPTH]-QUANT such as olmoe-1b-7b-Q4_0 or qwen3-30b-a3b-half-Q4_K.
Default: the six cases that docs/performance.md tracks. Exit 0 measured, 1 failed (or, with
--require, a target missed), 2 wrong usage.
"""

import argparse
import datetime
import glob
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tools", "peers"))
import gguf_header  # noqa: E402  (a neighbour folder, found only after the line above)

CACHE = os.environ.get("FERRY_CACHE") or os.path.expanduser("~/.cache/ferry")
PEER_PYTHON = os.path.join(CACHE, "peers-venv", "bin", "python")
DEFAULT_MODELS = [
    "olmoe-1b-7b-Q4_0", "olmoe-1b-7b-Q8_0", "olmoe-1b-7b-Q4_K",
    "qwen3-30b-a3b-half-Q4_0", "qwen3-30b-a3b-quarter-Q8_0", "qwen3-30b-a3b-half-Q4_K",
]
# Which instruction mix bounds which weight format (bench/limits/mixes.h).
MIX = {"Q8_0": "s8_sign", "F32": "f32_fma", "F16": "f32_fma", "BF16": "f32_fma"}
PROCESS_TIMEOUT_S = 1800
QUIET_CPUS = 0.15  # more CPU time than this used by others spoils a run


def fail(text):
    """Ends the run with one line."""
    raise SystemExit(f"bench/peers: {text}")


def run_json(command, what):
    """Runs a program and parses its stdout as JSON; failure is one line with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        fail(f"{what}: {exc}")
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        fail(f"{what} exited with {done.returncode}: {words}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as exc:
        fail(f"{what} printed no JSON ({exc}): {done.stdout[:200]!r}")


def set_up_peer():
    """Installs the peer when needed and returns its build facts."""
    if not os.path.exists(os.path.join(os.path.dirname(PEER_PYTHON), "..", "ferry-peer")):
        print("bench/peers: the peer is not installed yet; tools/peers/setup.sh takes 5-20 minutes",
              flush=True)
        if subprocess.run([os.path.join(ROOT, "tools/peers/setup.sh")], check=False).returncode:
            fail("tools/peers/setup.sh failed")
    return run_json([PEER_PYTHON, os.path.join(ROOT, "tools/peers/llama.py"), "info"],
                    "tools/peers/llama.py info")


def set_up_limits(path):
    """Returns a bench_limits program: the given one, or one compiled into the cache."""
    if path:
        if not os.access(path, os.X_OK):
            fail(f"--limits {path}: no such program")
        return path
    folder = os.path.join(ROOT, "bench", "limits")
    sources = [os.path.join(folder, n) for n in ("limits.c", "mixes_avx2.c")]
    path = os.path.join(CACHE, "bench_limits")
    if not os.path.exists(path) or any(os.path.getmtime(s) > os.path.getmtime(path)
                                       for s in sources):
        os.makedirs(CACHE, exist_ok=True)
        build = ["cc", "-std=c11", "-O3", "-pthread", "-o", path + ".part"]
        objects = []
        for source, flags in zip(sources, ([], ["-mavx2", "-mfma"])):
            objects.append(f"{path}.{len(objects)}.o")
            step = ["cc", "-std=c11", "-O3", *flags, "-c", source, "-o", objects[-1]]
            if subprocess.run(step, check=False).returncode:
                fail(f"cannot compile {source}; build the CMake target bench_limits, pass --limits")
        if subprocess.run(build + objects, check=False).returncode:
            fail("cannot link bench_limits; build the CMake target bench_limits, pass --limits")
        os.replace(path + ".part", path)
        for name in objects:
            os.remove(name)
    return path


def find_ferry(path):
    """Returns the ferry program to measure, or None to measure the peer alone."""
    if path:
        if not os.access(path, os.X_OK):
            fail(f"--ferry {path}: no such program")
        return path
    built = glob.glob(os.path.join(ROOT, "build", "*", "src", "app", "ferry"))
    return max(built, key=os.path.getmtime) if built else None


def model_file(name):
    """Turns a MODEL argument into a file, generating it when it is a known shape."""
    if name.endswith(".gguf"):
        if not os.path.isfile(name):
            fail(f"no such file: {name}")
        return name
    parts = re.fullmatch(r"(olmoe-1b-7b|qwen3-30b-a3b|mixs)(?:-(half|quarter|\d+))?-(Q8_0|Q4_0|Q4_K)",
                         name)
    if not parts:
        fail(f"{name}: want a .gguf file or SHAPE[-DEPTH]-QUANT, e.g. {DEFAULT_MODELS[3]}")
    path = os.path.join(CACHE, "synthetic", name + ".gguf")
    if not os.path.exists(path):
        command = [PEER_PYTHON, os.path.join(ROOT, "tools/make_synthetic/make_synthetic.py"),
                   parts[1], parts[3], "--depth", parts[2] or "full", "--out", path]
        if subprocess.run(command, check=False).returncode:
            fail(f"cannot generate {path}")
    return path


def warm_pages(path):
    """Reads the file once so that both engines find it in the page cache."""
    with open(path, "rb", buffering=0) as f:
        block = bytearray(1 << 24)
        while f.readinto(block):
            pass


class OtherLoad:
    """CPU use of everything but our children, in CPUs, between start() and stop()."""

    def __init__(self):
        self.tick = os.sysconf("SC_CLK_TCK")

    def _busy(self):
        with open("/proc/stat", encoding="ascii") as f:
            fields = [int(x) for x in f.readline().split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / self.tick  # all but idle and iowait

    @staticmethod
    def _ours():
        use = resource.getrusage(resource.RUSAGE_CHILDREN)
        return use.ru_utime + use.ru_stime

    def start(self):
        """Begins a span."""
        self.at = (time.monotonic(), self._busy(), self._ours())

    def stop(self):
        """Ends the span; returns mean CPUs used by others, steal included."""
        wall, busy, ours = (b - a for a, b in
                            zip(self.at, (time.monotonic(), self._busy(), self._ours())))
        return max(0.0, (busy - ours) / wall)


def as_number(value):
    """A figure given as a number or as a list of one or more repetitions."""
    return statistics.median(value) if isinstance(value, list) else float(value)


def one_sample(raw, batches):
    """Flattens one engine's JSON to {"pp": x, "tg<b>": x}."""
    sample = {"pp": as_number(raw["pp_tps"])} if raw.get("pp_tps") else {}
    tg = raw.get("tg_tps") or []
    if isinstance(tg, list) and len(tg) != len(batches):
        fail(f"tg_tps holds {len(tg)} figures for {len(batches)} batch sizes")
    for i, b in enumerate(batches):
        sample[f"tg{b}"] = as_number(tg[str(b)] if isinstance(tg, dict) else tg[i])
    return sample


def measure(path, engines, args, batches):
    """Runs pairs (one process per engine) until args.reps of them were quiet, at most twice as many.

    A pair is quiet when nothing else used more than QUIET_CPUS during either run. Returns
    ({engine: [sample]}, raw JSON of the last, other load per kept run, whether all kept were quiet).
    """
    pairs, last = [], {}
    others = OtherLoad()
    while len(pairs) < 2 * args.reps and sum(p["quiet"] for p in pairs) < args.reps:
        order = list(engines) if len(pairs) % 2 == 0 else list(reversed(list(engines)))
        pair = {"samples": {}, "loads": {}}
        for name in order:
            others.start()
            raw = run_json(engines[name](path, len(pairs)), f"{name} on {os.path.basename(path)}")
            pair["loads"][name] = others.stop()
            last[name] = raw
            pair["samples"][name] = one_sample(raw, batches)
            shown = "  ".join(f"{k} {v:.1f}" for k, v in pair["samples"][name].items())
            print(f"  {len(pairs) + 1:2d} {name:9s} {shown}   (others used "
                  f"{pair['loads'][name]:.2f} CPUs)", flush=True)
        pair["quiet"] = max(pair["loads"].values()) <= QUIET_CPUS
        pairs.append(pair)
    quiet = [p for p in pairs if p["quiet"]]
    kept = quiet if len(quiet) >= args.reps else pairs
    samples = {name: [p["samples"][name] for p in kept] for name in engines}
    return samples, last, [p["loads"] for p in kept], kept is quiet


def spread(values):
    """Median, least and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def best_limits(runs):
    """Merges limit runs: per figure the larger median, since contention only lowers it."""
    both = [dict(**r["read"], **r["compute"]) for r in runs]
    keys = [k for k, v in both[0].items() if isinstance(v, dict)]
    return {k: {side: max(b[k][side] for b in both) for side in ("one", "all")} for k in keys}


def judge(figures, quant, limits, parts, batches, touched, threads):
    """Adds shares of the limits to each engine's figures."""
    side = "one" if threads == 1 else "all"
    bandwidth = max(limits["read_4k"][side], limits["read_huge"][side])
    peak = limits[MIX.get(quant, "u4_acc16")][side]
    bound = {"pp": peak * 1e9 / (2 * gguf_header.prompt_macs_per_token(parts))}
    for b in batches:
        n = touched.get(str(b))
        bound[f"tg{b}"] = b * bandwidth * 1e9 / gguf_header.step_bytes(parts, b, n)
    for engine in figures.values():
        for key, value in engine.items():
            value["limit_share"] = value["median"] / bound[key]
    return bound


def targets(figures, bound, quant, batches):
    """The speed targets of the project, as [(text, met)]."""
    ferry, peer = figures.get("ferry"), figures.get("llama.cpp")
    if not ferry or not peer:
        return []
    out = []
    if "pp" in ferry:
        want, ratio = (2.2 if quant == "Q8_0" else 2.5), ferry["pp"]["median"] / peer["pp"]["median"]
        out.append((f"prompt at least {want}x llama.cpp: {ratio:.2f}x", ratio >= want))
    if "tg1" in ferry:
        mine = ferry["tg1"]["median"]
        want = min(1.35 * peer["tg1"]["median"], 0.8 * bound["tg1"])
        out.append((f"generation at least min(1.35x llama.cpp, 80 % of the bandwidth limit) = "
                    f"{want:.1f} t/s: {mine:.1f}", mine >= want))
    if "tg1" in ferry and "tg16" in ferry:
        own = ferry["tg16"]["median"] / ferry["tg1"]["median"]
        over = ferry["tg16"]["median"] / peer["tg16"]["median"]
        out.append((f"batch 16 at least 2.5x batch 1: {own:.2f}x", own >= 2.5))
        out.append((f"batch 16 at least 2x llama.cpp: {over:.2f}x", over >= 2.0))
    return out


def print_table(result):
    """Prints one model's figures for people."""
    figures, bound = result["figures"], result["bound"]
    print(f"\n{result['model']}: {result['quant']}, {result['bytes'] / 1e9:.2f} GB, one token reads "
          f"{result['bytes_per_token'] / 1e6:.0f} MB")
    print(f"  {'':6s} {'limit':>8s}" + "".join(f" | {n:>9s} {'min..max':>15s} {'share':>6s}"
                                             for n in figures)
          + (" | ratio  pairs min..max" if len(figures) == 2 else ""))
    for key, top in bound.items():
        if not all(key in f for f in figures.values()):
            continue
        row = f"  {key:6s} {top:8.1f}"
        for f in figures.values():
            v = f[key]
            row += (f" | {v['median']:9.1f} {v['min']:7.1f}..{v['max']:<6.1f} "
                    f"{100 * v['limit_share']:5.0f}%")
        if key in result["ratio"]:
            r = result["ratio"][key]
            row += f" | {r['of_medians']:5.2f}  {r['min']:.2f}..{r['max']:.2f}"
        print(row)
    if not result["quiet"]:
        print("  NOT QUIET: other programs used the CPUs; do not quote these figures")
    for text, met in result["targets"]:
        print(f"  {'met   ' if met else 'MISSED'} {text}")


def bench_model(name, args, batches, limits_program, ferry):
    """Measures one model with both engines; returns its result for the JSON file."""
    path = model_file(name)
    header = gguf_header.read(path)
    parts = gguf_header.traffic(header)
    print(f"\n{os.path.basename(path)}: reading pages, measuring limits", flush=True)
    warm_pages(path)
    limit_command = [limits_program, "--threads", str(args.threads)]
    limit_runs = [run_json(limit_command, "bench_limits")]
    peer = [PEER_PYTHON, os.path.join(ROOT, "tools/peers/llama.py"), "bench"]
    common = ["-p", str(args.p), "-n", str(args.n), "--batch", args.batch,
              "--threads", str(args.threads), "--reps", "1"]
    engines = {"llama.cpp": lambda m, rep: peer + [m, *common, "--seed", str(rep + 1)]}
    if ferry:
        engines["ferry"] = lambda m, _rep: [ferry, "bench", m, *common, "--json"]
    samples, last, loads, quiet = measure(path, engines, args, batches)
    limit_runs.append(run_json(limit_command, "bench_limits"))
    limits = best_limits(limit_runs)
    figures = {e: {k: spread([s[k] for s in rows]) for k in rows[0]} for e, rows in samples.items()}
    touched = {}
    seen = last.get("ferry", {}).get("experts_per_step")
    if isinstance(seen, list) and len(seen) == len(batches):
        touched = {str(b): s for b, s in zip(batches, seen)}
    elif isinstance(seen, dict):
        touched = seen
    bound = judge(figures, parts["quant"], limits, parts, batches, touched, args.threads)
    ratio = {}
    if ferry:
        for key in figures["ferry"]:
            pairs = [a[key] / b[key] for a, b in zip(samples["ferry"], samples["llama.cpp"])]
            ratio[key] = {"of_medians": figures["ferry"][key]["median"]
                          / figures["llama.cpp"][key]["median"],
                          "min": min(pairs), "max": max(pairs)}
    result = {
        "model": os.path.basename(path), "quant": parts["quant"], "bytes": os.path.getsize(path),
        "bytes_per_token": gguf_header.step_bytes(parts, 1), "bound": bound, "figures": figures,
        "ratio": ratio, "samples": samples, "limits": limits, "limit_runs": limit_runs,
        "other_load_cpus": loads, "quiet": quiet, "experts_per_step": touched,
        "targets": targets(figures, bound, parts["quant"], batches),
    }
    print_table(result)
    return result


def parse_arguments():
    """Parses and checks the command line."""
    parser = argparse.ArgumentParser(prog="bench/peers/run.py",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=DEFAULT_MODELS, metavar="MODEL")
    parser.add_argument("--ferry", help="the ferry program; default: the newest in build/")
    parser.add_argument("--limits", help="bench_limits; default: compiled into the cache")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("-p", type=int, default=512, help="prompt tokens")
    parser.add_argument("-n", type=int, default=64, help="generated tokens per sequence")
    parser.add_argument("--batch", default="1,4,16", help="sequences stepped together")
    parser.add_argument("--json", help="also write everything measured to this file")
    parser.add_argument("--require", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    if not re.fullmatch(r"\d+(,\d+)*", args.batch):
        parser.error(f"--batch {args.batch}: want numbers with commas")
    if args.reps < 1 or args.threads < 1 or args.p < 1 or args.n < 1:
        parser.error("--reps, --threads, -p and -n must be at least 1")
    if args.reps < 5:
        print(f"bench/peers: note: {args.reps} repetitions; figures to quote need at least 5")
    return args


def main():
    """Runs every model; see the file's head."""
    args = parse_arguments()
    batches = [int(b) for b in args.batch.split(",")]
    facts = set_up_peer()
    limits_program, ferry = set_up_limits(args.limits), find_ferry(args.ferry)
    print(f"peer: {facts['package']}, llama.cpp {facts['commit']}, ggml {facts['ggml']}")
    print(f"      {facts['system_info']}")
    print(f"ferry: {ferry or 'not found (build it or pass --ferry); measuring the peer alone'}")
    report = {"date": datetime.date.today().isoformat(), "peer": facts, "ferry": bool(ferry),
              "threads": args.threads, "reps": args.reps, "p": args.p, "n": args.n,
              "batch": batches, "models": []}
    for name in args.models:
        report["models"].append(bench_model(name, args, batches, limits_program, ferry))
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(report, f, indent=1)
    missed = [t for m in report["models"] for t, met in m["targets"] if not met]
    return 1 if args.require and missed else 0


if __name__ == "__main__":
    sys.exit(main())
