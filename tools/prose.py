#!/usr/bin/env python3
"""Finds comments and paragraphs that readers have to decode.

  tools/prose.py                 a line for each folder: hits, blocks, share, and its limit
  tools/prose.py PATH...         every hit in these files and folders, with its rule
  tools/prose.py --since REV     every hit in blocks that have a line added since REV
  tools/prose.py --check         exit code 1 if a folder is over its limit
  tools/prose.py --check --since REV   and if an added line has a hit

A block is a run of comment lines, or a paragraph or list item of a Markdown page. A hit is a place to
look at. A folder with 50 or more blocks may have hits in 6 % of them. tools/prose_limits.txt names the
folders that have more today: lower the number when a folder gets better. tools/prose_allowed.txt names
phrases that are right where they stand.
"""
import argparse
import collections
import fnmatch
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".sh", ".bzl", ".bazel"}
SKIPPED = ("tests/goldens/*", "third_party/*", "docs/reference/*", "examples/data/*", "CHANGELOG.md",
           "docs/benchmarks_history.md")
SHARE = 0.06  # of the blocks of a folder
FEWEST = 50  # blocks that a folder has before its share counts
LONGEST_SENTENCE = 35  # words; write 25
LONGEST_PARAGRAPH = 90


class Rule(NamedTuple):
    name: str
    pattern: re.Pattern
    remedy: str


RULES = [
    Rule("a process is a thing",
         re.compile(r"\b(who|whoever|whom|somebody|nobody|everybody|anybody|he|him|his)\b", re.I),
         'name it: "the worker that ...", "no caller", "it"'),
    Rule("a clause that hides its noun",
         re.compile(r"(^|[.;:] )(What|Whatever|That which|Of (a|an|one|which|what|whom)|Likewise|"
                    r"The same( of|,|:)|Nor (is|are|does|while))\b"),
         'begin with the noun: not "What is sent comes ..." but "Sent messages come ..."'),
    Rule("an uncommon word",
         re.compile(r"\b(mend(s|ed)?|whence|thereof|hence(forth)?|moreover|anew|ere|lest|aught|naught|"
                    r"so often|no longer than|is told of|goes on with(out)?|gives? way|is left over|"
                    r"stands? still)\b", re.I),
         'fix, again, at most, yields, hangs, continues'),
    Rule("a passive riddle",
         re.compile(r"\b(is|are|was|were) (looked|waited|told|asked|given|taken|let|seen|made sure) "
                    r"(for|of|at|to|up|back|out)\b", re.I),
         'say what acts: "the coordinator waits for ..."'),
    Rule("a fragment without a subject",
         re.compile(r"^(Has|Have|Is|Are|Was|Does|Did|Says|Lets|For|Until|Then|Before|After|By|In|On|At|As|To|"
                    r"From|With|Without|Where|While|Else|Also|And|Or|But) [a-z][^,.;:]*([.;]|$)"),
         'subject, verb, object: "The entry has ..."; or "Returns ...", "Blocks until ..."'),
]
# A line of a list or of a table ends a sentence.
_SENTENCE_END = re.compile(r"(?<=[.!?:;]) |\n")
LONG_SENTENCE = Rule(f"a sentence over {LONGEST_SENTENCE} words", re.compile(""), "one idea a sentence, 25 words")
LONG_PARAGRAPH = Rule(f"a paragraph over {LONGEST_PARAGRAPH} words", re.compile(""), "a list, a table, or two paragraphs")


class Block(NamedTuple):
    path: str
    lines: list  # (number, text)

    @property
    def text(self):
        return " ".join(text for _, text in self.lines)


class Hit(NamedTuple):
    block: Block
    rules: list


_COMMENT = re.compile(r"^\s*(//+|#(?!!|include|define|if|endif|pragma|else|undef))\s?(.*)$")
_RULER = re.compile(r"^[-=*/ ]*$")
_ITEM = re.compile(r"([-*]|\d+\.) ")
_COLUMNS = re.compile(r"\S {2,}\S")


def blocks_of(path, text):
    """The comment blocks or paragraphs of a file."""
    out, lines = [], []
    markdown = path.endswith(".md")
    fenced = False

    def end():
        if lines:
            out.append(Block(path, list(lines)))
            lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if markdown:
            if line.startswith("```"):
                fenced = not fenced
            code = fenced or line.startswith(("```", "    ", "#", "|"))
            words = "" if code else line.strip()
        else:
            match = _COMMENT.match(line)
            words = match.group(2).strip() if match else ""
            if _RULER.match(words):
                words = ""
        if not words:
            end()
            continue
        if markdown and _ITEM.match(words):
            end()
        lines.append((number, words))
    end()
    return out


def rules_broken(block, allowed=()):
    text = block.text
    for glob, phrase in allowed:
        if fnmatch.fnmatch(block.path, glob):
            if phrase == "*":
                return []
            text = text.replace(phrase, "")
    broken = [rule for rule in RULES if rule.pattern.search(text)]
    lines = [f"\n{line}" if _ITEM.match(line) or _COLUMNS.search(line) else line for _, line in block.lines]
    if any(len(sentence.split()) > LONGEST_SENTENCE for sentence in _SENTENCE_END.split(" ".join(lines))):
        broken.append(LONG_SENTENCE)
    if block.path.endswith(".md") and len(text.split()) > LONGEST_PARAGRAPH:
        broken.append(LONG_PARAGRAPH)
    return broken


def folder_of(path):
    """Two levels: `lib/shard`, `docs/testing.md`."""
    return "/".join(path.split("/")[:2])


def table(name):
    """Rows of a text file of ours, without comments."""
    path = ROOT / "tools" / name
    rows = path.read_text().splitlines() if path.exists() else []
    return [row.split(None, 1) for row in rows if row.strip() and not row.startswith("#")]


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def lines_added_since(revision):
    added, path = collections.defaultdict(set), None
    for line in git("diff", "-U0", "--no-renames", revision).splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        match = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))?", line)
        if match:
            first, count = int(match[1]), int(match[2] or 1)
            added[path].update(range(first, first + count))
    return added


def print_hit(hit):
    print(f"{hit.block.path}:{hit.block.lines[0][0]}: {hit.block.text[:160]}")
    for rule in hit.rules:
        print(f"    {rule.name}: {rule.remedy}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--since", metavar="REV")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()

    allowed = table("prose_allowed.txt")
    limits = {folder: float(percent) / 100 for folder, percent in table("prose_limits.txt")}
    added = lines_added_since(options.since) if options.since else {}
    total, hits = collections.Counter(), collections.defaultdict(list)
    for path in git("ls-files", "--", *options.paths).splitlines():
        if pathlib.Path(path).suffix not in CODE | {".md"}:
            continue
        if any(fnmatch.fnmatch(path, glob) for glob in SKIPPED) or not (ROOT / path).exists():
            continue
        for block in blocks_of(path, (ROOT / path).read_text(errors="replace")):
            total[folder_of(path)] += 1
            broken = rules_broken(block, allowed)
            if broken:
                hits[folder_of(path)].append(Hit(block, broken))
    every = [hit for folder in sorted(hits) for hit in hits[folder]]
    fresh = [hit for hit in every if any(number in added.get(hit.block.path, ()) for number, _ in hit.block.lines)]

    if options.since:
        for hit in fresh:
            print_hit(hit)
    elif options.paths:
        for hit in every:
            print_hit(hit)
    if options.check:
        over = [folder for folder in sorted(total)
                if total[folder] >= FEWEST and len(hits[folder]) > limits.get(folder, SHARE) * total[folder]]
        for folder in over:
            print(f"prose: {folder}: {len(hits[folder])} of {total[folder]} blocks need a reader's guess, more than "
                  f"{100 * limits.get(folder, SHARE):.1f} %; tools/prose.py {folder} shows them")
        return 1 if over or fresh else 0
    if not options.since and not options.paths:
        for folder in sorted(total, key=lambda folder: -len(hits[folder])):
            limit = limits.get(folder, SHARE) if total[folder] >= FEWEST else 1
            print(f"{len(hits[folder]):5d} of {total[folder]:5d}  {100 * len(hits[folder]) / total[folder]:5.1f} %  "
                  f"limit {100 * limit:5.1f} %  {folder}")
    found, blocks = len(fresh if options.since else every), sum(total.values())
    print(f"{found} of {blocks} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
