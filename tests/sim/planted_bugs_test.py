#!/usr/bin/env python3
"""Checks that the source text of every bug in planted_bugs.py still occurs exactly once."""

import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import planted_bugs  # noqa: E402

ROOT = HERE / ".." / ".."


class PlantedBugs(unittest.TestCase):
    def test_have_places_that_are_there_once(self):
        for name, path, sound, _ in planted_bugs.BUGS:
            with self.subTest(name):
                text = (ROOT / path).read_text(encoding="utf-8")
                self.assertEqual(text.count(sound), 1, f"{path}: {sound}")

    def test_change_something(self):
        for name, _, sound, planted in planted_bugs.BUGS:
            self.assertNotEqual(sound, planted, name)

    def test_have_names_of_their_own(self):
        names = [name for name, *_ in planted_bugs.BUGS]
        self.assertEqual(len(set(names)), len(names))


if __name__ == "__main__":
    unittest.main()
