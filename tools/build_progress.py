#!/usr/bin/env python3
"""Runs `bazel build` and shows its progress in plain words, in one line.

  tools/build_progress.py NAME [argument of `bazel build`]...

NAME begins each line. On a terminal the line rewrites itself; elsewhere a new line comes at most every 10 s.
Errors of the compiler and of Bazel pass through unchanged. The exit status is Bazel's.

The percentage is the share of Bazel's actions that are done. Between two reports of Bazel it grows at the rate so far,
and it never falls. The time left assumes that rate. Neither is shown before Bazel knows the number of actions.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import time

# Bazel finds further actions only as threads become free. With one thread for each core it knows half of the actions
# for most of the build. So it gets many threads; --local_cpu_resources still limits compilers to the number of cores.
FLAGS = ("--jobs=200", "--curses=no", "--color=no", "--show_progress_rate_limit=1", "--show_result=0")

ACTIONS = re.compile(r"\[([\d,]+) / ([\d,]+)\]")
PROCESSES = re.compile(r"INFO: [\d,]+ process(?:es)?: (.*)\.$")
CHATTER = re.compile(r"(?:Loading:|\s+currently loading:|Analyzing:|\s*Fetching |Starting local Bazel|Extracting Bazel|Target //.* up-to-date"
                     r"|INFO: (?:Invocation|Analyzed |Found |Elapsed time|Build |Writing |Options |Reading ))")
COMPILER_ERROR = re.compile(r"([^\s:]+:\d+(?::\d+)?): (?:fatal )?error: (.*)")
BAZEL_ERROR = re.compile(r"ERROR: (?:([^\s:]+:\d+(?::\d+)?): )?(.*)")
REMEDIES = (
    (re.compile(r"No space left on device"), "free space on the disk that holds Bazel's cache (`bazel info output_base`), then run the same command again"),
    (re.compile(r"Killed signal|OutOfMemory|Cannot allocate memory|virtual memory exhausted"),
     "the memory ran out: end other programs, compile with `bazel build --jobs=1 {arguments}`, then run the same command again"),
)

SETTLED_S = 5  # the percentage is shown after two reports, this far apart, of the same number of actions
ESTIMATE_S = 20  # the time left is shown after this time of compiling ...
ESTIMATE_SHARE = 0.05  # ... and this share of the actions
EXTRAPOLATION_S = 60  # Bazel reports every 40 s at the end of a long build
PLAIN_LINE_S = 10


class BuildProgress:
    """Turns the output of one build into lines of progress. `clock` returns seconds; `write` takes text."""

    def __init__(self, name, write, clock, terminal, columns=80, arguments=()):
        self.name, self.write, self.clock, self.terminal, self.columns = name, write, clock, terminal, columns
        self.arguments = " ".join(arguments)
        self.start = self.line_time = clock()
        self.line = ""
        self.compile_start = None  # when the first action was known
        self.done = self.total = 0
        self.report_time = self.growth_time = 0.0
        self.share = 0.0  # the largest share of the actions that was shown
        self.compiled = None  # whether a compiler or linker ran; None until Bazel says so
        self.compiler_error = self.bazel_error = self.remedy = None

    def read(self, text):
        """Takes one line of Bazel's output."""
        if actions := ACTIONS.match(text):
            self.report(*(int(number.replace(",", "")) for number in actions.groups()))
        elif processes := PROCESSES.match(text):
            self.compiled = any(not kind.endswith(" internal") for kind in processes[1].split(", "))
        elif not CHATTER.match(text):
            self.note_error(text)
            self.clear()
            self.write(text + "\n")
        self.show()

    def report(self, done, total):
        now = self.clock()
        if self.compile_start is None:
            self.compile_start = now
        if total > 1.02 * self.total:  # up to 2 % more actions are ignored
            self.growth_time = now
        self.done, self.total, self.report_time = done, max(total, self.total), now

    def settled(self):
        return self.report_time - self.growth_time >= SETTLED_S

    def words(self):
        if self.compile_start is None:
            return "reading the build files"
        if not self.settled() and self.share == 0:  # a percentage that was shown once stays
            return "compiling"
        now = self.clock()
        rate = self.done / max(self.report_time - self.compile_start, 1)
        # A slow action may be the next: at most half of the remaining actions are assumed to be done.
        done = self.done + min(rate * min(now - self.report_time, EXTRAPOLATION_S), (self.total - self.done) / 2)
        self.share = max(self.share, min(done / self.total, 0.99))
        words = f"compiling {int(100 * self.share)} %"
        elapsed = now - self.compile_start
        if not self.settled() or elapsed < ESTIMATE_S or self.share < ESTIMATE_SHARE:
            return words
        return f"{words}, {time_left(elapsed * (1 / self.share - 1))}"

    def show(self):
        """Shows the line if it changed. Without a terminal it also waits until the last one is old enough."""
        line = f"{self.name}: {self.words()}"
        if line == self.line:
            return
        if self.terminal:
            self.write(f"\r{line[:self.columns - 1]}\033[K")
        elif self.clock() - self.line_time >= PLAIN_LINE_S:
            self.write(line + "\n")
            self.line_time = self.clock()
        else:
            return
        self.line = line

    def clear(self):
        if self.terminal and self.line:
            self.write("\r\033[K")
            self.line = ""

    def note_error(self, text):
        """Keeps the first error of each kind."""
        self.compiler_error = self.compiler_error or COMPILER_ERROR.match(text)
        self.bazel_error = self.bazel_error or BAZEL_ERROR.match(text)
        for pattern, remedy in REMEDIES:
            if pattern.search(text):
                self.remedy = self.remedy or remedy.format(arguments=self.arguments)

    def end(self, status):
        """Says how the build ended. `status` is Bazel's exit status."""
        self.clear()
        took = self.clock() - self.start
        took = f"{took / 60:.0f} min" if took >= 600 else f"{took // 60:.0f}:{took % 60:02.0f} min"
        if status == 0:
            self.write(f"{self.name}: everything is compiled already\n" if self.compiled is False else f"{self.name}: compiled in {took}\n")
        elif status in (8, 130):
            self.write(f"{self.name}: interrupted after {took}; the same command continues from there\n")
        else:
            error = self.compiler_error or self.bazel_error
            place, cause = error.groups() if error else (None, None)
            self.write(f"{self.name}: the build failed after {took} (Bazel's exit status: {status})\n"
                       f"  cause:  {cause or 'Bazel named none; its last lines are above'}\n"
                       f"  place:  {place or 'Bazel named none; its last lines are above'}\n"
                       f"  remedy: {self.remedy or 'correct it (the full message is above) and run the same command again'}; "
                       "finished parts stay compiled\n")


def time_left(seconds):
    if seconds >= 90:
        return f"about {round(seconds / 60)} min left"
    if seconds > 10:
        return f"about {round(seconds / 10) * 10} s left"
    return "a few seconds left"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    name, arguments = sys.argv[1], sys.argv[2:]
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def write(text):
        sys.stderr.write(text)
        sys.stderr.flush()

    # Ctrl-C reaches Bazel as well, which then ends in order.
    signal.signal(signal.SIGINT, lambda *_: None)
    bazel = subprocess.Popen(["bazel", "build", *FLAGS, *arguments], stderr=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda *_: bazel.terminate())
    columns = os.get_terminal_size(sys.stderr.fileno()).columns if terminal else 0
    progress = BuildProgress(name, write, time.monotonic, terminal, columns or 80, arguments)
    selector = selectors.DefaultSelector()
    selector.register(bazel.stderr, selectors.EVENT_READ)
    rest = b""
    while True:
        if selector.select(timeout=1):
            some = os.read(bazel.stderr.fileno(), 65536)
            if not some:
                break
            *lines, rest = (rest + some).split(b"\n")
            for line in lines:
                progress.read(line.decode(errors="replace").rstrip("\r"))
        progress.show()
    if rest:
        progress.read(rest.decode(errors="replace"))
    status = bazel.wait()
    status = 128 - status if status < 0 else status
    progress.end(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
