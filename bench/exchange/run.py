#!/usr/bin/env python3
"""Measures Ferry's exchange beside Open MPI: same tokens, experts and rows, interleaved, with limits.

What: the time and the bytes of a round (dispatch and combine of one MoE layer) for baseline A (what
      common engines send, over MPI), baseline B (Ferry's rows, over MPI) and Ferry, in one host or
      over hosts that are namespaces joined by a shaped link; ratios, limits, targets.
Why here: a speed says nothing without the others' in the same minutes and the limit above all.
Must not know: how any of them works; it starts programs and reads their JSON lines.

    bench/exchange/run.py [--ranks N] [--tokens 1,8,64,512,4096] [--hosts N --link tbf:1000]
                          [--reps N] [--seconds S] [--holder scaled|summed] [--tune]
                          [--ferry PATH] [--baseline PATH] [--json F] [--require]

README.md here says what a round is and how to read the table. Exit 0 measured, 1 failed (or, with
--require, a target missed, or not measured on a quiet machine), 2 wrong usage.
"""

import argparse
import ctypes
import datetime
import glob
import importlib.util
import json
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import hosts as cluster  # noqa: E402

_spec = importlib.util.spec_from_file_location("peers_run",
                                               os.path.join(ROOT, "bench", "peers", "run.py"))
peers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(peers)

AGENT = os.path.join(HERE, "mpi_agent.sh")
HIDDEN, EXPERTS, TOP_K = 2048, 64, 8
RUN_TIMEOUT_S = 300
SHORT_S = 0.2  # of a trial of --tune

_SHM = "--mca pml ob1 --mca btl vader,self"
_RULES = "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_alltoallv_algorithm"
_UCX = "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any"
_TCP = "--mca pml ob1 --mca btl tcp,vader,self --mca btl_tcp_if_include eth0 " \
       "--mca oob_tcp_if_include eth0"
# Settings of Open MPI, the default first; --tune takes the best for each mode and number of tokens.
SETTINGS = {
    "shm": {
        "cma, eager 32K": f"{_SHM} --mca btl_vader_eager_limit 32768",
        "cma": _SHM,
        "cma, eager 1K": f"{_SHM} --mca btl_vader_eager_limit 1024",
        "copies": f"{_SHM} --mca btl_vader_single_copy_mechanism none",
        "copies, eager 64K": f"{_SHM} --mca btl_vader_single_copy_mechanism none "
                             "--mca btl_vader_eager_limit 65536 "
                             "--mca btl_vader_max_send_size 131072",
        "cma, linear": f"{_SHM} {_RULES} 1",
        "cma, pairwise": f"{_SHM} {_RULES} 2",
        "ucx": f"{_UCX} -x UCX_TLS=posix,cma,self",
        "ucx, copies": f"{_UCX} -x UCX_TLS=posix,self",
    },
    "tcp": {
        "tcp": _TCP,
        "tcp, eager 256K": f"{_TCP} --mca btl_tcp_eager_limit 262144 "
                           "--mca btl_tcp_rndv_eager_limit 262144",
        "tcp, buffers 4M": f"{_TCP} --mca btl_tcp_sndbuf 4194304 --mca btl_tcp_rcvbuf 4194304",
        "tcp, 4 links": f"{_TCP} --mca btl_tcp_links 4",
        "ucx": f"{_UCX} --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 "
               "-x UCX_TLS=tcp,self",
    },
}


def fail(text):
    """Ends the run with one line."""
    raise SystemExit(f"bench/exchange: {text}")


class Run:
    """What a run of this program works with: programs, hosts, settings."""

    def __init__(self, args):
        self.args = args
        self.net = None
        self.road = "tcp" if args.hosts > 1 else "shm"
        self.baseline = find_program(args.baseline, "bench/exchange/mpi_baseline", "--baseline")
        self.mpirun = shutil.which("mpirun")
        if self.mpirun is None:
            fail("no mpirun; install Debian's openmpi-bin and libopenmpi-dev")
        self.chosen = {}  # (label, tokens): name of a setting and a road
        self.ferry_flags = []
        self.port, self.key_file = 0, None
        self.environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def open_hosts(self):
        """Makes the hosts; the caller closes them."""
        kind, *numbers = self.args.link.split(":")
        why = cluster.reason(kind)
        if why:
            fail(f"no hosts on this machine: {why}")
        self.net = cluster.Hosts(self.args.hosts, kind, *(int(n) for n in numbers))
        self.key_file = os.path.join(self.net.logs, "group.key")
        with open(os.open(self.key_file, os.O_WRONLY | os.O_CREAT, 0o600), "w",
                  encoding="ascii") as f:
            f.write(secrets.token_hex(32) + "\n")
        self.environment.update(FERRY_HOSTS_RUN=self.net.run_id,
                                FERRY_HOSTS_OWNER=str(os.getpid()))

    def launch(self, setting):
        """The command line in front of a program's own: mpirun, in the first host."""
        command = [self.mpirun, "-n", str(self.args.ranks), "--bind-to", "none", *setting.split()]
        if self.args.ranks > os.cpu_count():
            command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        if self.net is None:
            return command
        share = self.args.ranks // self.args.hosts
        names = ",".join(f"host{name}:{share}" for name in self.net.names)
        return self.net.command("A", command + ["--host", names, "--mca", "plm_rsh_agent", AGENT])


def find_program(path, built, flag):
    """The given program, or the newest one of that name in a build folder."""
    if path:
        if not os.access(path, os.X_OK):
            fail(f"{flag} {path}: no such program")
        return os.path.abspath(path)
    found = glob.glob(os.path.join(ROOT, "build", "*", built))
    if not found:
        fail(f"{os.path.basename(built)} is not built; build its CMake target, or give {flag}")
    return max(found, key=os.path.getmtime)


def run_line(command, environment, what):
    """Runs a program; returns (the JSON line that it printed, None) or (None, why not)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
                              check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return None, f"{what}: {exc}"
    lines = [l for l in done.stdout.splitlines() if l.startswith("{")]
    if done.returncode != 0 or len(lines) != 1:
        words = [l for l in done.stderr.strip().splitlines() if l.strip("- ")] or ["no message"]
        return None, f"{what}: exit {done.returncode}, {len(lines)} results: {words[0].strip()}"
    try:
        line = json.loads(lines[0])
        return {**line, "us_p50": float(line["us_p50"]),
                "bytes_out_per_rank": float(line["bytes_out_per_rank"])}, None
    except (ValueError, KeyError, TypeError) as exc:
        return None, f"{what}: not what README.md says: {exc!r}: {lines[0][:200]}"


# ---- the programs ----

def mpi_command(run, flags, tokens, setting, seconds):
    """Baseline A or B."""
    command = [*run.launch(setting), run.baseline, *flags, "--tokens", str(tokens),
               "--experts", str(EXPERTS), "--top-k", str(TOP_K), "--hidden", str(HIDDEN),
               "--seconds", str(seconds)]
    return command + (["--interface", "eth0"] if run.net else [])


def ferry_command(run, ferry, flags, tokens, seconds):
    """Ferry: starts its ranks itself in one host, by mpirun over several."""
    own = [ferry, "bench", "exchange", "--tokens", str(tokens), "--experts", str(EXPERTS),
           "--top-k", str(TOP_K), "--hidden", str(HIDDEN), "--seconds", str(seconds), "--json",
           *run.ferry_flags, *flags]
    if run.net:
        run.port = 20000 + (run.port + 1) % 1000  # not the one that a run before may still hold
        return [*run.launch(_TCP), *own, "--listen", f"{run.net.address('A')}:{run.port}",
                "--group-key-file", run.key_file]
    return [*own, "--ranks", str(run.args.ranks)]


def roads(label):
    """Ways of a baseline to use MPI."""
    return ["messages", "alltoallv"] if label.startswith("B") else [None]


def tune(run, label, flags, tokens):
    """Chooses the setting and the road that are fastest for a baseline, by two rounds of trials."""
    trials = {}
    for _ in range(2):
        for name, setting in SETTINGS[run.road].items():
            for road in roads(label):
                more = ["--road", road] if road else []
                line, why = run_line(mpi_command(run, flags + more, tokens, setting, SHORT_S),
                                     run.environment, name)
                if line:
                    trials.setdefault((name, road), []).append(line["us_p50"])
                else:
                    print(f"  note: {why}")
    if not trials:
        fail(f"no setting of Open MPI works for {label}")
    best = min(trials, key=lambda t: min(trials[t]))
    shown = ", ".join(f"{n}{' ' + r if r else ''} {min(v):.1f}"
                      for (n, r), v in sorted(trials.items(), key=lambda t: min(t[1])))
    print(f"  {label} at {tokens} tokens, us: {shown}", flush=True)
    run.chosen[label, tokens] = best


def programs(run, ferry):
    """{label: function of (tokens) that gives a command}."""
    holder = ["--holder", run.args.holder]
    flags = {"A": ["--mode", "A"], "B": ["--mode", "B", *holder]}
    if run.net:
        flags["B random"] = [*flags["B"], "--placement", "random"]
        flags["B bf16"] = [*flags["B"], "--combine", "bf16"]

    def baseline(label):
        def command(tokens):
            base = label if label in ("A", "B") else "B"
            name, road = run.chosen.get((base, tokens), (next(iter(SETTINGS[run.road])),
                                                         roads(base)[0]))
            more = ["--road", road] if road else []
            return mpi_command(run, flags[label] + more, tokens, SETTINGS[run.road][name],
                               run.args.seconds)
        return command

    out = {label: baseline(label) for label in flags}
    if ferry:
        kinds = {"ferry": []}
        if run.net:
            kinds.update({"ferry random": ["--placement", "random"],
                          "ferry bf16": ["--combine", "bf16"]})
        for label, more in kinds.items():
            out[label] = lambda tokens, more=more: ferry_command(run, ferry, more, tokens,
                                                                 run.args.seconds)
    return flags, out


def find_ferry(run):
    """(the program, None) when it can do `bench exchange`, otherwise (None, why not). Chooses
    run.ferry_flags: --holder as the baseline's, unless this Ferry has no such flag."""
    path = peers.find_ferry(run.args.ferry)
    if path is None:
        return None, "not built"
    path = os.path.abspath(path)
    for flags in (["--holder", run.args.holder], []):
        run.ferry_flags = flags
        line, why = run_line(ferry_command(run, path, [], 1, SHORT_S), run.environment, "ferry")
        if line:
            return path, None
    return None, f"bench exchange: not built ({why})"


# ---- measuring ----

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """From now on, descendants whose parents end are this process' children."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    """This process' children, by pid."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
        return set(map(int, f.read().split()))


class Load(peers.OtherLoad):
    """CPU use of everything but our children and the emulated link. What mpirun starts at another
    host leaves its parents: it becomes our child (adopt_orphans), and counts once it was waited
    for."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.lasting = children()  # the hosts

    def _busy(self):
        """Without interrupts over hosts: there they are the kernel's work for what we send."""
        with open("/proc/stat", encoding="ascii") as f:
            interrupts = sum(int(x) for x in f.readline().split()[6:8])
        return super()._busy() - (interrupts / self.tick if self.net else 0.0)

    def _ours(self):
        if self.net:
            self._reap()
        return super()._ours() + (self.net.link_cpu_s() if self.net else 0.0)

    def _reap(self):
        end = time.monotonic() + 5
        while time.monotonic() < end and children() - self.lasting:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def measure(run, commands, tokens):
    """Interleaves the programs until args.reps repetitions were quiet, at most twice as many.

    Returns (repetitions that count, whether all were quiet); a repetition is {label: line}."""
    load, seen = Load(run.net), []
    while len(seen) < 2 * run.args.reps and sum(r["quiet"] for r in seen) < run.args.reps:
        labels = list(commands)
        shift = len(seen) % len(labels)
        lines, loads = {}, {}
        for label in labels[shift:] + labels[:shift]:
            load.start()
            lines[label], why = run_line(commands[label](tokens), run.environment, label)
            loads[label] = load.stop()
            if lines[label] is None:
                fail(why)
        seen.append({"lines": lines, "loads": loads,
                     "quiet": max(loads.values()) <= peers.QUIET_CPUS})
        print(f"  {tokens:5d} tokens, {len(seen):2d}: "
              + "  ".join(f"{k} {v['us_p50']:.1f}" for k, v in lines.items())
              + f"   (others used {max(loads.values()):.2f} CPUs)", flush=True)
    quiet = [r for r in seen if r["quiet"]]
    kept = quiet if len(quiet) >= run.args.reps else seen
    return kept, kept is quiet


def summarise(run, kept, quiet, tokens, bandwidth):
    """Figures of one number of tokens."""
    labels = list(kept[0]["lines"])
    out = {"tokens": tokens, "quiet": quiet, "modes": {}, "ratios": {},
           "other_load_cpus": [r["loads"] for r in kept]}
    for label in labels:
        lines = [r["lines"][label] for r in kept]
        n_bytes = statistics.median(l["bytes_out_per_rank"] for l in lines)
        entry = {"us": peers.spread([l["us_p50"] for l in lines]), "bytes_out_per_rank": n_bytes,
                 "limit_us": limit_us(run, tokens, n_bytes, bandwidth), "lines": lines}
        entry["limit_share"] = entry["limit_us"] / entry["us"]["median"]
        wire = [l["wire_bytes_out_per_rank"] for l in lines if "wire_bytes_out_per_rank" in l]
        if wire:
            entry["wire_bytes_out_per_rank"] = statistics.median(wire)
        out["modes"][label] = entry
    for label in labels:
        for base in ("A", "B"):
            if label == base or base == "B" and label == "A":
                continue
            pairs = [r["lines"][base]["us_p50"] / r["lines"][label]["us_p50"] for r in kept]
            out["ratios"][f"{base}/{label}"] = {
                "of_medians": out["modes"][base]["us"]["median"] / out["modes"][label]["us"]["median"],
                "min": min(pairs), "max": max(pairs),
                "bytes": out["modes"][label]["bytes_out_per_rank"]
                         / max(1.0, out["modes"][base]["bytes_out_per_rank"])}
    return out


def limit_us(run, tokens, n_bytes, bandwidth):
    """What the bytes alone would take: memory writes and reads each byte that is sent, reads the
    tokens and writes the sums; over a link, each rank's bytes at its rate, and two trips."""
    ranks = run.args.ranks
    moved = 2 * n_bytes * ranks + 2 * 4 * HIDDEN * tokens * ranks
    limit = moved / bandwidth * 1e6
    if run.net:
        crossing = n_bytes * (ranks / run.args.hosts) * (1 - (1 / run.args.hosts)) \
            / (1 - 1 / ranks)  # of a host's bytes, those for other hosts
        limit = max(limit, crossing * 8 / run.net.rate_mbit + 2 * run.net.delay_us)
    return limit


def targets(run, results):
    """The project's targets, as [(text, met)]; none without Ferry or for other shapes."""
    out = []
    for r in results:
        if "ferry" not in r["modes"]:
            continue
        tokens, ratios = r["tokens"], r["ratios"]
        if run.net and run.args.hosts == 2:
            ratio = ratios["A/ferry"]
            out.append((f"{tokens} tokens: at most 0.35 of A's bytes: {ratio['bytes']:.3f}",
                        ratio["bytes"] <= 0.35))
            out.append((f"{tokens} tokens: at least 2.5x less time than A: "
                        f"{ratio['of_medians']:.2f}x", ratio["of_medians"] >= 2.5))
        elif not run.net and run.args.ranks == 2:
            wanted = {"A": 4.0, "B": 2.0} if tokens <= 512 else {"B": 1.6}
            for base, want in wanted.items():
                got = ratios[f"{base}/ferry"]["of_medians"]
                out.append((f"{tokens} tokens: at least {want}x {base}: {got:.2f}x", got >= want))
    return out


def print_table(run, result):
    """Prints the figures of one number of tokens for people."""
    print(f"\n{result['tokens']} tokens a rank, {run.args.ranks} ranks"
          + (f" on {run.args.hosts} hosts, {run.args.link}" if run.net else ""))
    print(f"  {'':13s} {'us':>9s} {'min..max':>19s} {'limit':>9s} {'share':>6s} {'KB out':>9s}"
          f" | {'A/this':>6s} {'pairs':>12s} {'bytes':>6s} | {'B/this':>6s} {'pairs':>12s}")
    for label, m in result["modes"].items():
        row = (f"  {label:13s} {m['us']['median']:9.1f} {m['us']['min']:9.1f}..{m['us']['max']:<8.1f} "
               f"{m['limit_us']:9.1f} {100 * m['limit_share']:5.0f}% "
               f"{m['bytes_out_per_rank'] / 1000:9.1f} |")
        for base in ("A", "B"):
            ratio = result["ratios"].get(f"{base}/{label}")
            if ratio:
                row += f" {ratio['of_medians']:6.2f} {ratio['min']:5.2f}..{ratio['max']:<5.2f}"
                row += f" {ratio['bytes']:6.3f} |" if base == "A" else ""
            elif base == "A":
                row += f" {'':6s} {'':12s} {'':6s} |"
        print(row)
    if not result["quiet"]:
        print("  NOT QUIET: other programs used the CPUs; do not quote these figures")


def parse_arguments():
    """Parses and checks the command line."""
    parser = argparse.ArgumentParser(prog="bench/exchange/run.py",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", default="1,8,64,512,4096", help="of each rank, per round")
    parser.add_argument("--hosts", type=int, default=1, help="namespaces joined by --link; root")
    parser.add_argument("--link", default="tbf:1000", help="tbf:MBIT or tap:MBIT:DELAY_US")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed rounds in a process")
    parser.add_argument("--holder", choices=["scaled", "summed"], default="scaled",
                        help="what baseline B's holders do with a row (README.md)")
    parser.add_argument("--tune", action="store_true",
                        help="first choose Open MPI's best setting for every case; minutes")
    parser.add_argument("--ferry", help="the ferry program; default: the newest in build/")
    parser.add_argument("--baseline", help="mpi_baseline; default: the newest in build/")
    parser.add_argument("--limits", help="bench_limits; default: compiled into the cache")
    parser.add_argument("--json", help="also write everything measured to this file")
    parser.add_argument("--require", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    if not re.fullmatch(r"\d+(,\d+)*", args.tokens):
        parser.error(f"--tokens {args.tokens}: want numbers with commas")
    if not re.fullmatch(r"tbf:\d+|tap:\d+:\d+", args.link):
        parser.error(f"--link {args.link}: want tbf:MBIT or tap:MBIT:DELAY_US")
    if args.reps < 1 or args.ranks < 2 or args.hosts < 1 or args.ranks % args.hosts:
        parser.error("--reps and --hosts must be at least 1, --ranks at least 2 and a multiple "
                     "of --hosts")
    if args.reps < 5:
        print(f"bench/exchange: note: {args.reps} repetitions; figures to quote need at least 5")
    return args


def bench(run):
    """All cases; returns the report."""
    args = run.args
    limits_program = peers.set_up_limits(args.limits)
    ferry, why_not = find_ferry(run)
    flags, commands = programs(run, ferry)
    version = subprocess.run([run.mpirun, "--version"], capture_output=True, text=True, check=False)
    print(f"baselines: {version.stdout.splitlines()[0]}; {run.baseline}")
    print(f"ferry: {ferry or why_not}")
    if ferry and not run.ferry_flags:
        print("ferry: note: it has no --holder; see README.md before comparing it with B")
    limits = peers.run_json([limits_program, "--threads", str(os.cpu_count())], "bench_limits")
    bandwidth = 1e9 * max(limits["read"]["read_4k"]["all"], limits["read"]["read_huge"]["all"])
    print(f"memory: {bandwidth / 1e9:.1f} GB/s, read by all processors")
    report = {"date": datetime.date.today().isoformat(), "ranks": args.ranks, "hosts": args.hosts,
              "link": args.link if run.net else None, "reps": args.reps, "holder": args.holder,
              "mpi": version.stdout.splitlines()[0], "ferry": ferry, "ferry_missing": why_not,
              "ferry_flags": run.ferry_flags,
              "bandwidth": bandwidth, "limits": limits, "results": []}
    for tokens in [int(t) for t in args.tokens.split(",")]:
        if args.tune:
            for label in ("A", "B"):
                tune(run, label, flags[label], tokens)
        kept, quiet = measure(run, commands, tokens)
        report["results"].append(summarise(run, kept, quiet, tokens, bandwidth))
        print_table(run, report["results"][-1])
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(report, f, indent=1)
    report["settings"] = {f"{label} {tokens}": list(best)
                          for (label, tokens), best in run.chosen.items()}
    report["targets"] = targets(run, report["results"])
    return report


def main():
    """See the file's head."""
    args = parse_arguments()
    run = Run(args)
    if args.hosts > 1:
        adopt_orphans()
        run.open_hosts()
    try:
        report = bench(run)
    finally:
        if run.net:
            run.net.close()
    print()
    for text, met in report["targets"]:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if not report["targets"]:
        print("no target was measured: Ferry's side is missing, or the shape has none")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
    bad = (not report["targets"] or not all(met for _, met in report["targets"])
           or not all(r["quiet"] for r in report["results"]))
    return 1 if args.require and bad else 0


if __name__ == "__main__":
    sys.exit(main())
