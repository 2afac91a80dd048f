#!/usr/bin/env python3
"""Tests the stamp that tools/workspace_status.sh prints in repositories of a few commits."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "workspace_status.sh"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always")


class WorkspaceStatusTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.tree = self.root / "tree"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(SCRIPT, self.tree / "tools")
        self.git("init", "--quiet")
        self.release = self.commit("VERSION", "0.3.0\n")

    def git(self, *arguments):
        # Git must not find a repository above the test's folder.
        env = {**os.environ, "HOME": str(self.root), "GIT_CEILING_DIRECTORIES": str(self.root)}
        return subprocess.run([*GIT, *arguments], cwd=self.tree, env=env, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, name, text):
        (self.tree / name).write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=a change")
        return self.git("rev-parse", "--short=12", "HEAD")

    def stamp(self, tree=None):
        env = {**os.environ, "HOME": str(self.root), "GIT_CEILING_DIRECTORIES": str(self.root)}
        told = subprocess.run(["tools/workspace_status.sh"], cwd=tree or self.tree, env=env, check=True, capture_output=True, text=True)
        self.assertEqual(told.stderr, "")
        keys = dict(line.split(" ", 1) for line in told.stdout.splitlines())
        self.assertEqual(sorted(keys), ["BUILD_EMBED_LABEL", "BUILD_HOST", "BUILD_USER"])
        return keys["BUILD_EMBED_LABEL"]

    def test_the_commit_that_sets_the_version_is_the_release(self):
        self.assertEqual(self.stamp(), self.release)

    def test_later_commits_are_counted(self):
        self.commit("a", "1")
        second = self.commit("a", "2")
        self.assertEqual(self.stamp(), f"{second} +2.g{second}")
        self.assertEqual(self.stamp(), self.stamp())

    def test_the_next_release_counts_from_zero(self):
        self.commit("a", "1")
        following = self.commit("VERSION", "0.4.0\n")
        self.assertEqual(self.stamp(), following)

    def test_changes_that_are_not_committed_are_said(self):
        (self.tree / "VERSION").write_text("0.4.0\n", encoding="utf-8")
        self.assertEqual(self.stamp(), f"{self.release}-dirty +0.g{self.release}.dirty")

    def test_a_shallow_clone_has_no_count(self):
        last = self.commit("a", "1")
        self.git("clone", "--quiet", "--depth=1", self.tree.as_uri(), str(self.root / "shallow"))
        self.assertEqual(self.stamp(self.root / "shallow"), f"{last} +g{last}")

    def test_a_tarball_is_unknown_even_inside_a_checkout(self):
        inside = self.tree / "unpacked"
        shutil.copytree(self.tree / "tools", inside / "tools")
        self.assertEqual(self.stamp(inside), "unknown")
        shutil.rmtree(self.tree / ".git")
        self.assertEqual(self.stamp(), "unknown")


if __name__ == "__main__":
    unittest.main()
