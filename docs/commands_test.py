#!/usr/bin/env python3
"""Runs or checks the commands in the documents: README.md, CONTRIBUTING.md and docs, except what is generated and what is history.

A line before a block says what to do with it; leave an empty line between an indented block and that line:

    <!-- run -->                                the blocks of a page run in order, in one folder with the folders of a clone
    <!-- run after: COMMANDS -->                the same, after other commands
    <!-- run: the last command fails -->        the same, and the last command must fail
    <!-- not run: REASON -->                    one of REASONS
    <!-- no block of this page runs: REASON --> stands for all blocks of a page without a marker of their own

A block of `muster`, `kubectl`, `kind`, `docker` and our three daemons alone needs no marker. Every block is checked, marked or not: the
commands and flags of our programs exist, and so do files in the folders of the tree, Bazel's targets and tags of our images. So it is
with commands inside sentences. Job files in YAML are valid, and parts of one have fields that there are.

    docs/commands_test.py --unmarked            prints the blocks that need a marker, and the commands that ask for it
    docs/commands_test.py                       tests with the programs in bazel-bin
"""

import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent  # where Bazel shows the programs
TREE = pathlib.Path(__file__).resolve().parent.parent         # documents name files anywhere in it
PROGRAMS = ROOT if (ROOT / "cli" / "muster").exists() else TREE / "bazel-bin"
VERSION = (TREE / "VERSION").read_text(encoding="utf-8").strip()
REASONS = ("names files or jobs of yours", "needs a GPU", "needs Kubernetes", "needs PyTorch", "needs containers", "needs other hosts",
           "needs other programs", "needs root", "runs until you stop it", "takes minutes")
NOT_READ = ("docs/benchmarks_history.md", "docs/reference/")  # as they were then; made from the code
DAEMONS = ("coordinator", "ps", "worker")
CHECKED = {"muster", "kubectl", "kind", "minikube", "helm", "docker", "podman", *DAEMONS}
NEUTRAL = {"awk", "cat", "cd", "date", "echo", "export", "grep", "mkdir", "sleep", "touch", "true", "wait"}
# Blocks without a language are commands if one of these, or a script of the tree, begins a line.
PLAIN = CHECKED | {"apt-get", "bazel", "buildah", "cd", "column", "curl", "export", "git", "go", "grpcurl", "install", "journalctl",
                   "kill", "mkdir", "openssl", "pip", "promtool", "python3", "sbatch", "sed", "sha256sum", "srun",
                   "ssh", "sudo", "systemctl", "tar", "tensorboard", "time"}
KEYWORDS = {"!", "do", "done", "else", "exec", "fi", "if", "sudo", "then", "time", "until", "while", "{", "}"}
PATIENCE_S = 100
MADE = {"k8s/components/tls-static/admin", "python/muster/_protos.bin"}  # by the command itself or the one before
SPAN = re.compile(r"`((?:muster|kubectl|bazel|docker) [^`]*)`")
WIRE = "docs/protocol.md"  # its `muster ...` are bytes


class Block:
    def __init__(self, page, line, language, text, marker):
        self.where, self.page, self.language, self.text, self.marker = f"{page}:{line}", page, language, text, marker

    def job(self):
        """Returns 'whole' or 'part' for a job file, '' for something else."""
        keys = set(re.findall(r"^(\w+):", self.text, re.MULTILINE))
        if self.language not in ("", "yaml") or not keys or not keys <= job_fields():
            return ""
        return "whole" if {"name", "model", "data", "training"} <= keys else "part"

    def commands(self):
        """Lists of words. If some lines begin with $, the others are output."""
        lines = self.text.replace("\\\n", "").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found, text = [], ""
        for line in lines:
            text += line.replace("# bare metal:", ";")  # docs/alerts.md has both in a line
            try:
                found += split(text)
                text = ""
            except ValueError:  # a quote goes on in the next line
                text += "\n"
        return found + [line.split() for line in text.splitlines() if line.split()]

    def is_shell(self):
        if self.language:
            return self.language in ("bash", "sh", "console")
        return any(name_of(command) in PLAIN or is_script(command[0]) for command in self.commands())


def split(text):
    """The simple commands of a line of shell, without assignments, keywords and redirections."""
    text = re.sub(r"\$\(([^()]*)\)(.*)", r"_\2; \1", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands, words = [], []
    for word in [*lexer, ";"]:
        if set(word) <= set("();|&"):
            if words and words[0] != "for":
                commands.append(words)
            words = []
        elif words or not (word in KEYWORDS or re.match(r"\w+=", word)):
            words.append(word)
    return commands


def name_of(command):
    """`muster` of bazel-bin/cli/muster, `ps` of services/ps/main."""
    path = command[0].split("/")
    return path[-2] if path[-1] == "main" and len(path) > 1 and path[-2] in DAEMONS else path[-1] if path[-1] == "muster" else command[0]


def is_script(word):
    return "/" in word and os.access(TREE / word, os.X_OK) and (TREE / word).is_file()


def blocks_of(page):
    lines = (TREE / page).read_text(encoding="utf-8").splitlines()
    everywhere = re.search(r"^<!-- no block of this page runs: (.*) -->$", "\n".join(lines), re.MULTILINE)
    at, marker = 0, None
    while at < len(lines):
        fence, begin = re.match(r"( *)```(\w*)$", lines[at]), at
        if fence:
            at = next(end for end in range(begin + 1, len(lines)) if lines[end].strip() == "```")
            text, language = lines[begin + 1:at], fence[2]
        elif re.match(r"    +\S", lines[at]) and (at == 0 or not lines[at - 1].strip()):
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1].strip()):
                at += 1
            text, language = lines[begin:at + 1], ""
        else:
            comment = re.match(r" *<!-- (.*) -->$", lines[at])
            if comment or lines[at].strip():
                marker = comment[1] if comment else None
            at += 1
            continue
        at += 1
        yield Block(page, begin + 1, language, textwrap.dedent("\n".join(text)).strip("\n") + "\n",
                    marker or (f"not run: {everywhere[1]}" if everywhere else ""))
        marker = None


@functools.lru_cache(maxsize=None)
def all_blocks():
    pages = ["README.md", "CONTRIBUTING.md", *sorted(path.relative_to(TREE).as_posix() for path in (TREE / "docs").rglob("*.md"))]
    return [block for page in pages if not page.startswith(NOT_READ) for block in blocks_of(page)]


def spans():
    """(page, command) of the commands inside sentences."""
    for page in sorted({block.page for block in all_blocks()} - {WIRE}):
        text = re.sub(r"^ *```.*?^ *```", "", (TREE / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for span in SPAN.findall(text):
            yield from ((page, command) for command in split(span.replace("\n", " ")))


@functools.lru_cache(maxsize=None)
def job_fields():
    return set(re.findall(r"^  (\w+)  \(", help_of("cli/muster", "explain"), re.MULTILINE))


@functools.lru_cache(maxsize=None)
def help_of(program, *arguments):
    told = subprocess.run([PROGRAMS / program, *arguments], capture_output=True, text=True, check=False)
    return told.stdout if told.returncode == 0 or program != "cli/muster" else ""


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))


def faults_of_muster(words):
    overall = help_of("cli/muster", "--help")
    values = {flag for line in re.findall(r"^  (-.*?) TEXT", overall, re.MULTILINE) for flag in flags_in(line)}
    while words and words[0].startswith("-"):  # flags before the command
        words = words[2 if words[0] in values else 1:]
    path = []
    usage = overall
    while words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and (not path or "\nSubcommands:\n" in usage):
        path.append(words[0])
        usage = help_of("cli/muster", *path, "--help")
        if f"Usage: muster {' '.join(path)}" not in usage:
            return [f"muster {' '.join(path)}: no such command"]
        words = words[1:]
    known = flags_in(usage) | flags_in(overall) | {"--version"}
    return [f"muster {' '.join(path)}: no flag {word}" for word in words
            if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0] not in known]


def faults_of_command(command):
    name, faults = name_of(command), []
    if name == "muster":
        faults += faults_of_muster(command[1:])
    elif name in DAEMONS:
        known = flags_in(help_of(f"services/{name}/main", "--helpfull")) | {"--version"}
        faults += [f"{name}: no flag {word}" for word in command[1:] if word.startswith("--") and word.split("=")[0] not in known]
    for word in command:
        word = word.split("=")[-1]
        top = word.removeprefix("./").split("/")[0]
        if re.fullmatch(r"[\w./-]+", word) and "/" in word and top in TOP and not (TREE / word).exists() and word not in MADE:
            faults.append(f"{word} is not in the tree")
        for target in re.findall(r"^//([\w/]*)(?::([\w./-]+))?$", word):
            build = TREE / target[0] / "BUILD.bazel"
            rule = target[1] or target[0].split("/")[-1]
            if not build.exists() or not re.search(rf'\b{re.escape(rule)}(\.cc|\.py)?"', build.read_text(encoding="utf-8")):
                faults.append(f"{word} is no target")
        tag = re.fullmatch(r"(?:\S*/)?muster-[a-z-]+:(\d+\.\S+)", word)
        if tag and tag[1] != VERSION:
            faults.append(f"{word} is not of version {VERSION}")
    return faults


TOP = {path.name for path in TREE.iterdir() if path.is_dir() and not path.name.startswith("bazel-")}


def reason_of(block):
    return block.marker.removeprefix("not run: ") if block.marker.startswith("not run: ") else None


def unchecked(block):
    """The commands of the block that only a marker can excuse."""
    return sorted({command[0] for command in block.commands() if name_of(command) not in CHECKED | NEUTRAL})


def shows_a_file(block):
    """Such files have tests of their own, with the data and the models that they name."""
    return bool(block.marker) and (TREE / block.marker).is_file()


def unmarked():
    return [block for block in all_blocks() if block.is_shell() and unchecked(block) and not block.marker.startswith("run")
            and reason_of(block) is None and not shows_a_file(block)]


class CommandsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.env.update(HOME=str(self.folder), PATH=f"{PROGRAMS}/cli:{os.environ['PATH']}")

    def test_a_block_runs_or_is_checked_or_says_why_not(self):
        self.assertEqual([f"{block.where}: {', '.join(unchecked(block))}" for block in unmarked()], [], "give them a marker: the head of docs/commands_test.py has the list")
        self.assertEqual([f"{block.where}: {reason_of(block)}" for block in all_blocks() if reason_of(block) not in (None, *REASONS)], [])

    def test_commands_flags_files_and_targets_exist(self):
        shell = [block for block in all_blocks() if block.is_shell()]
        self.assertGreater(len(shell), 80)
        commands = [(block.where, command) for block in shell for command in block.commands()] + list(spans())
        self.assertEqual([f"{where}: {fault}" for where, command in commands for fault in faults_of_command(command)], [])

    def test_wrong_commands_are_found(self):
        right = Block("a.md", 1, "", "$ muster -o json members\nworker-0\n$ X=1 muster submit examples/linear.yaml && \\\n muster list", "")
        self.assertEqual(len(right.commands()), 3)
        self.assertEqual([fault for command in right.commands() for fault in faults_of_command(command)], [])
        wrong = Block("a.md", 1, "", "muster sumbit\nmuster local upp\nkill $(muster list --al)\nps/main --no_such\n"
                      f"bazel test //docs:no_test\nkubectl apply -k k8s/no\ndocker pull a.example/muster-ps:{VERSION}\n"
                      "docker pull muster-ps:0.1\n", "")
        self.assertEqual([fault for command in wrong.commands() for fault in faults_of_command(command)],
                         ["muster sumbit: no such command", "muster local upp: no such command", "muster list: no flag --al",
                          "ps: no flag --no_such", "//docs:no_test is no target", "k8s/no is not in the tree",
                          f"muster-ps:0.1 is not of version {VERSION}"])
        self.assertEqual(unchecked(Block("a.md", 1, "", "curl x\nmuster list | grep y\n", "")), ["curl"])

    def test_job_files_are_valid(self):
        jobs = [block for block in all_blocks() if block.job() and reason_of(block) is None and not shows_a_file(block)]
        self.assertEqual({block.job() for block in jobs}, {"whole", "part"})
        for block in jobs:
            (self.folder / "job.yaml").write_text(block.text, encoding="utf-8")
            told = subprocess.run(["muster", "validate", self.folder / "job.yaml"], cwd=TREE, env=self.env, capture_output=True, text=True,
                                  check=False)
            if block.job() == "whole":
                self.assertEqual(told.returncode, 0, f"{block.where}: {told.stderr}")
            self.assertNotIn("unknown field", told.stderr, block.where)

    def test_overlays_can_be_rendered(self):
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            self.skipTest("there is no kubectl")
        named = {command[command.index("-k") + 1] for block in all_blocks() if block.is_shell() for command in block.commands()
                 if command[0] == "kubectl" and "-k" in command}
        for overlay in sorted(path for path in named if path.split("/")[0] in TOP):
            told = subprocess.run([kubectl, "kustomize", TREE / overlay], capture_output=True, text=True, check=False)
            self.assertEqual(told.returncode, 0, f"{overlay}: {told.stderr}")

    def test_blocks_that_are_marked_run(self):
        pages = {}
        for block in all_blocks():
            if re.match(r"run\b", block.marker):
                pages.setdefault(block.page, []).append(block)
        self.assertIn("README.md", pages)
        for page, blocks in pages.items():
            with self.subTest(page=page):
                self.run_page(page, blocks)

    def run_page(self, page, blocks):
        clone = self.folder / page.replace("/", "_")
        clone.mkdir()
        self.env["HOME"] = str(clone / "home")
        for name in TOP:
            (clone / name).symlink_to(TREE / name)
        (clone / "bazel-bin").symlink_to(PROGRAMS)
        script = ["set -eu -o pipefail", "trap 'muster local down >&2 || true' EXIT"]
        for block in blocks:
            script.append(f"echo '@@ {block.where}' >&2")
            lines = block.text.replace(" && ", "\n").splitlines()  # bash -e ignores what fails before &&
            if block.marker.startswith("run after: "):
                script.append(block.marker.removeprefix("run after: "))
            elif block.marker == "run: the last command fails":
                lines[-1] = f"if {lines[-1]}\nthen echo 'this did not fail' >&2; exit 1; fi"
            else:
                self.assertEqual(block.marker, "run", block.where)
            script += lines
        told = subprocess.run(["bash", "-c", "\n".join(script)], cwd=clone, env=self.env, stdin=subprocess.DEVNULL, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S)
        self.assertEqual(told.returncode, 0, told.stdout[-6000:])


if __name__ == "__main__":
    if sys.argv[1:] == ["--unmarked"]:
        for found in unmarked():
            print(f"{found.where}: {', '.join(unchecked(found))}\n    {found.text.splitlines()[0]}")
    else:
        unittest.main()
