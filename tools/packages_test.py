#!/usr/bin/env python3
"""Checks that packages of the source tree use each other without cycles, and that no folder has too many files.

A package is a folder with a BUILD.bazel. It uses the packages whose headers its sources include. Programs, benchmarks
and tests may use every package, so they do not count.
"""

import os
import pathlib
import re
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("services", "lib", "cli", "kernels", "proto")
SUFFIXES = (".cc", ".h", ".cu", ".cuh")
ABOVE_ALL = re.compile(r"[/_](test|benchmark|main|fuzzer)\.cc$|/testing/|^kernels/cuda/emulation/")
INCLUDE = re.compile(r'^#include "([^"]+)/[^/"]+"', re.M)

FILES_MAX = 40
# Folders with one to three files for each operator, or source of data. They are long but flat, and should not grow much more.
LONG_FOLDERS = {"kernels": 80, "kernels/cpu": 80, "kernels/cuda": 80, "lib/data/source": 60, "lib/engine/cuda": 48}


def files_of(tree):
    """Yields the files below the folders of sources, relative to `tree`."""
    for top in SOURCES:
        for folder, _, names in os.walk(tree / top):
            for name in names:
                if not name.startswith(".") and not name.endswith(".pyc"):
                    yield (pathlib.Path(folder) / name).relative_to(tree).as_posix()


def package_of(tree, folder):
    """Returns the nearest folder with a BUILD.bazel, at `folder` or above; None outside of the sources."""
    while folder.startswith(SOURCES):
        if (tree / folder / "BUILD.bazel").exists():
            return folder
        folder = os.path.dirname(folder)
    return None


def uses(tree):
    """Returns, for each package, the packages that it uses, each with one file that includes it."""
    graph = {}
    for file in files_of(tree):
        if not file.endswith(SUFFIXES) or ABOVE_ALL.search(file):
            continue
        package = package_of(tree, os.path.dirname(file))
        for folder in INCLUDE.findall((tree / file).read_text(encoding="utf-8")):
            used = package_of(tree, folder)
            if used and used != package:
                graph.setdefault(package, {}).setdefault(used, file)
    return graph


def cycle_in(graph):
    """Returns a cycle as a list that begins and ends with the same package; [] if there is none."""
    done = set()

    def visit(package, path):
        if package in path:
            return path[path.index(package):] + [package]
        if package in done:
            return []
        for used in sorted(graph.get(package, {})):
            found = visit(used, path + [package])
            if found:
                return found
        done.add(package)
        return []

    for package in sorted(graph):
        found = visit(package, [])
        if found:
            return found
    return []


def full_folders(tree):
    """Returns the folders with more files than they may have, as text."""
    counts = {}
    for file in files_of(tree):
        folder = os.path.dirname(file)
        counts[folder] = counts.get(folder, 0) + 1
    return [f"{folder} has {count} files, at most {limit} are allowed: split it into packages"
            for folder, count in sorted(counts.items())
            if count > (limit := LONG_FOLDERS.get(folder, FILES_MAX))]


class PackagesTest(unittest.TestCase):
    def test_no_packages_use_each_other_in_a_cycle(self):
        graph = uses(TREE)
        self.assertGreater(len(graph), 30)
        cycle = cycle_in(graph)
        steps = [f"{user} uses {used}: {graph[user][used]}" for user, used in zip(cycle, cycle[1:])]
        self.assertEqual(cycle, [], "\n" + "\n".join(steps))

    def test_no_folder_has_too_many_files(self):
        self.assertEqual(full_folders(TREE), [])


class CheckTest(unittest.TestCase):
    """Tests that the functions above find faults."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)

    def write(self, file, text=""):
        path = self.tree / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def test_a_cycle_of_three_packages_is_found(self):
        for package, used in [("a", "b"), ("b", "c/inner"), ("c", "a")]:
            self.write(f"lib/{package}/BUILD.bazel")
            self.write(f"lib/{package}/part.cc", f'#include "lib/{used}/part.h"\n')
        self.assertEqual(cycle_in(uses(self.tree)), ["lib/a", "lib/b", "lib/c", "lib/a"])

    def test_a_test_may_use_what_uses_its_package(self):
        for package, used in [("a", "b"), ("b", "a")]:
            self.write(f"lib/{package}/BUILD.bazel")
            self.write(f"lib/{package}/part{'_test' if package == 'a' else ''}.cc", f'#include "lib/{used}/part.h"\n')
        self.assertEqual(cycle_in(uses(self.tree)), [])

    def test_a_folder_of_forty_one_files_is_named(self):
        for number in range(FILES_MAX + 1):
            self.write(f"cli/text/part{number}.h")
        self.assertEqual(len(full_folders(self.tree)), 1)
        self.assertIn("cli/text has 41 files", full_folders(self.tree)[0])


if __name__ == "__main__":
    unittest.main()
