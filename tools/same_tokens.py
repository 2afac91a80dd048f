#!/usr/bin/env python3
"""Shows that a change rewrites only comments, string literals and the names of tests.

  tools/same_tokens.py REV              compares the working tree with REV
  tools/same_tokens.py REV..REV2        compares two commits
  tools/same_tokens.py --renames FILE ...   ignores renames: FILE has a line `old new` for each

The script reads every file that both sides have, drops comments, and compares the rest token by token.
A run of string literals is one token, whatever it says. Exit code 1: another token differs, which the
script prints. Files that are not code (Markdown, YAML, JSON) are left out.
"""
import argparse
import io
import pathlib
import re
import subprocess
import sys
import tokenize

C_LIKE = {".h", ".cc", ".cu", ".cuh", ".proto"}
SCRIPTS = {".sh", ".bash"}
PYTHON = {".py", ".bzl", ".bazel"}
STRING = "\"\""  # what stands for a run of literals

_C_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
      |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      |(?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
      |(?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-fA-F])|[0-9a-zA-Z_.])*)
      |(?P<word>[A-Za-z_]\w*)
      |(?P<space>\s+|\\\n)
      |(?P<other>.)""",
    re.DOTALL | re.VERBOSE)
# The name of a test is prose as well.
_TEST_NAME = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?$")


def c_tokens(text):
    """Tokens of C++, CUDA or proto source, each with its line."""
    out = []
    line = 1
    for match in _C_TOKEN.finditer(text):
        kind, value = match.lastgroup, match.group()
        if kind == "mark":
            kind = "raw"
        if match.group("raw") is not None or kind == "string":
            if not out or out[-1][0] != STRING:
                out.append((STRING, line))
        elif kind not in ("comment", "space"):
            out.append((value, line))
        line += value.count("\n")
    for i in range(len(out) - 4):
        if _TEST_NAME.match(out[i][0]) and out[i + 1][0] == "(" and out[i + 3][0] == ",":
            out[i + 4] = ("<test>", out[i + 4][1])
    return out


def python_tokens(text):
    """Tokens of Python or Starlark source. Docstrings are string literals."""
    out = []
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in skipped:
            continue
        if token.type == tokenize.STRING:
            if not out or out[-1][0] != STRING:
                out.append((STRING, token.start[0]))
            continue
        value = tokenize.tok_name[token.type] if token.type in (tokenize.INDENT, tokenize.DEDENT) else token.string
        out.append((value, token.start[0]))
    return out


def shell_tokens(text):
    """Words of a shell script without comments. Quoted text counts, because commands stand in quotes."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", line)
        line = re.sub(r"\b(echo|printf|die|say|usage)\b.*", r"\1", line)
        out += [(word, number) for word in line.split()]
    return out


def tokens(path, text):
    suffix = pathlib.Path(path).suffix
    if suffix in C_LIKE:
        return c_tokens(text)
    if suffix in PYTHON:
        return python_tokens(text)
    return shell_tokens(text)


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def difference(before, after):
    """The first pair of tokens that differ, or None."""
    for (old, old_line), (new, new_line) in zip(before, after):
        if old != new:
            return f"{old!r} (line {old_line}) became {new!r} (line {new_line})"
    if len(before) != len(after):
        longer, word = (before, "is gone") if len(before) > len(after) else (after, "is new")
        value, line = longer[min(len(before), len(after))]
        return f"{value!r} (line {line}) {word}"
    return None


def renamed(stream, renames):
    return [(renames.get(value, value), line) for value, line in stream]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renames", type=pathlib.Path, help="a file with a line `old new` for each identifier")
    parser.add_argument("revisions", help="REV, or REV..REV2")
    parser.add_argument("paths", nargs="*", help="only these files or folders")
    options = parser.parse_args()
    renames = {}
    if options.renames:
        renames = dict(line.split() for line in options.renames.read_text().splitlines()
                       if line.strip() and not line.startswith("#"))
    before, dots, after = options.revisions.partition("..")
    changed = git("diff", "--name-status", "--find-renames", before, *([after] if dots else []), "--",
                  *options.paths).splitlines()
    compared, faults = 0, 0
    for entry in changed:
        status, *names = entry.split("\t")
        old, new = names[0], names[-1]
        if pathlib.Path(new).suffix not in C_LIKE | SCRIPTS | PYTHON:
            continue
        if status[0] in "AD":
            print(f"{new}: {'added' if status[0] == 'A' else 'deleted'}, not compared", file=sys.stderr)
            continue
        then = tokens(old, git("show", f"{before}:{old}"))
        now = tokens(new, git("show", f"{after}:{new}") if dots else pathlib.Path(new).read_text())
        compared += 1
        found = difference(renamed(then, renames), renamed(now, renames))
        if found:
            faults += 1
            print(f"{new}: {found}")
    print(f"{compared} files compared, {faults} with another token", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
