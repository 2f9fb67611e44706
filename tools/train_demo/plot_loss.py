#!/usr/bin/env python3
"""Join the loss files of consecutive runs and draw them: training loss and held-out bits per byte.

What: one CSV and an SVG with two panels over training tokens. Why here: the README shows the curve without a plotting
package. Must not know: anything but the CSV's columns.
"""
import argparse
import csv

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 320, 48, 28, 64
COLOURS = {"code": "#1f77b4", "math": "#d62728", "english": "#2ca02c", "chinese": "#9467bd"}


def panel(x0, title, series, xmax, lo, hi, ylabel):
    """SVG fragments of one panel; series: name -> (colour, [(x, y)])."""
    w, h = (WIDTH - LEFT - GAP) / 2 - 8, HEIGHT - TOP - 40

    def px(x, y):
        return f"{x0 + w * x / xmax:.1f},{TOP + h * (hi - min(max(y, lo), hi)) / (hi - lo):.1f}"

    out = [f'<text x="{x0}" y="{TOP - 10}" font-weight="bold">{title}</text>',
           f'<rect x="{x0}" y="{TOP}" width="{w}" height="{h}" fill="none" stroke="#888"/>']
    for n in range(5):
        y, x = lo + (hi - lo) * n / 4, xmax * n / 4
        py = TOP + h * (hi - y) / (hi - lo)
        out.append(f'<text x="{x0 - 5}" y="{py + 4:.1f}" text-anchor="end">{y:.1f}</text>')
        out.append(f'<line x1="{x0}" x2="{x0 + w}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x0 + w * n / 4:.1f}" y="{TOP + h + 15}" text-anchor="middle">'
                   f'{x / 1e6:.1f}M</text>')
    out.append(f'<text x="{x0 + w / 2}" y="{TOP + h + 31}" text-anchor="middle">'
               f'tokens; y: {ylabel}</text>')
    for n, (name, (colour, points)) in enumerate(series.items()):
        path = " ".join(px(x, y) for x, y in points)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        out.append(f'<text x="{x0 + w - 8}" y="{TOP + 16 + 15 * n}" text-anchor="end" '
                   f'fill="{colour}">{name} {points[-1][1]:.3f}</text>')
    return out


def join(paths):
    """Rows of all files; steps, tokens and minutes of later runs go on where the last one ended."""
    rows, base = [], {"step": 0, "tokens": 0, "minutes": 0.0}
    for path in paths:
        with open(path, newline="", encoding="utf-8") as f:
            part = list(csv.DictReader(f))
        for row in part:
            row["step"] = int(row["step"]) + base["step"]
            row["tokens"] = int(row["tokens"]) + base["tokens"]
            row["minutes"] = f"{float(row['minutes']) + base['minutes']:.2f}"
        if part:
            last = part[-1]
            base = {"step": last["step"], "tokens": last["tokens"],
                    "minutes": float(last["minutes"])}
        rows += part
    return rows


def main():
    """Read the CSVs, write the joined one and the SVG."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("runs", nargs="+", help="loss.csv of each run, in order")
    ap.add_argument("--csv", required=True, help="joined table")
    ap.add_argument("--svg", required=True)
    args = ap.parse_args()
    rows = join(args.runs)
    if not rows:
        ap.error("no rows in " + " ".join(args.runs))
    with open(args.csv, "w", newline="", encoding="utf-8") as f:
        table = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    xmax = max(float(r["tokens"]) for r in rows)
    loss = [(float(r["tokens"]), float(r["loss"])) for r in rows if float(r["loss"]) > 0]
    held = {d: (c, [(float(r["tokens"]), float(r["bpb_" + d])) for r in rows if r.get("bpb_" + d)])
            for d, c in COLOURS.items()}
    top = max(y for _, p in held.values() for _, y in p)
    body = panel(LEFT, "training loss", {"all domains": ("#333", loss)}, xmax, 2.0, 8.5,
                 "nats per token")
    body += panel(LEFT + (WIDTH - LEFT - GAP) / 2 + GAP, "held-out text", held, xmax, 0.5, top,
                  "bits per byte")
    with open(args.svg, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" '
                f'fill="white"/>\n' + "\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
