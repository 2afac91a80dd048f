#!/usr/bin/env python3
"""Runs the examples of docs/python.md against a local cluster."""

import doctest
import os
import re
import unittest

import support

torch = support.import_torch()
support.prepare()

PAGE = support.ROOT / "docs/python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = support.LocalCluster(cls).home
        # The examples name these files.
        support.muster("certs", "init", folder=cls.home)
        support.muster("certs", "issue", "submitter", "bob", folder=cls.home)
        (cls.home / "ci.token").write_text("a token", encoding="utf-8")
        (cls.home / "examples").symlink_to(support.ROOT / "examples")
        cls.addClassCleanup(os.chdir, os.getcwd())
        os.chdir(cls.home)

    def test_every_example_does_what_the_page_shows(self):
        page = PAGE.read_text(encoding="utf-8")
        parser, said = doctest.DocTestParser(), []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        names = {}
        for block in BLOCK.finditer(page):
            if "import torch" in block[1] and torch is None:
                continue
            line = page.count("\n", 0, block.start()) + 1
            examples = parser.get_doctest(block[1], {}, "python.md", str(PAGE), line)
            examples.globs = names  # one program from block to block
            runner.run(examples, out=said.append, clear_globs=False)
        names["client"].close()
        self.assertGreater(runner.tries, 30)
        self.assertEqual(runner.failures, 0, "".join(said))

    @unittest.skipUnless(torch, "torch is not there: the example of docs/python.md with a torch model did not run")
    def test_torch_is_there(self):
        pass


if __name__ == "__main__":
    support.main()
