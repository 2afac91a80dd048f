#!/usr/bin/env python3
"""The site is whole: every link leads somewhere, and nothing of it is loaded from elsewhere. Needs mkdocs, which tools/test.sh asks pip for."""

import importlib.util
import logging
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

# The tree itself, not what Bazel shows of it: pages link to sources and folders anywhere in it.
TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tools"))
MKDOCS = importlib.util.find_spec("mkdocs") is not None
if MKDOCS:
    import docs_site
    import mkdocs.exceptions
else:
    print("docs/site_test.py:1: Skipped\nmkdocs is not there: the site was not built")


@unittest.skipUnless(MKDOCS, "mkdocs is not there")
class SiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(self):
        docs_site.build(self.folder / "site", TREE)
        pages = list((self.folder / "site").rglob("*.html"))
        self.assertGreater(len(pages), 20)
        loads = re.compile(r'<(?:script|img|iframe|source|embed)\b[^>]*\bsrc="(?:https?:)?//[^"]*"|<link\b[^>]*\bhref="(?:https?:)?//[^"]*"')
        for page in pages:
            text = page.read_text(encoding="utf-8")
            self.assertEqual(loads.findall(text), [], page)
            self.assertEqual(re.findall(r'href="#\d[^"]*"', text), [], f"{page}: the theme's scripts end at a name that begins with a digit")
        for sheet in (self.folder / "site").rglob("*.css"):
            self.assertEqual(re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), [], sheet)

    def test_a_link_that_leads_nowhere_is_an_error(self):
        tree = self.folder / "tree"
        shutil.copytree(TREE / "docs", tree / "docs")
        for name in (*docs_site.PAGES, "mkdocs.yml"):
            shutil.copy(TREE / name, tree / name)
        (tree / "docs" / "codecs.md").write_text(
            "[a](no_page.md) [b](onnx.md#no-heading) [c](../lib/no_source.h) [d](onnx.md)\n", encoding="utf-8")
        for name in ("architecture.md", "protocol.md"):  # whose links to sources lead nowhere in this tree
            (tree / "docs" / name).write_text("# There\n", encoding="utf-8")

        with self.assertRaises(mkdocs.exceptions.Abort), self.assertLogs("mkdocs", "WARNING") as told:
            docs_site.build(self.folder / "site", tree)

        about = [line for line in told.output if "codecs.md" in line]
        for target in ("no_page.md", "no-heading", "no_source.h"):
            self.assertTrue(any(target in line for line in about), (target, told.output))
        self.assertFalse(any("'onnx.md'," in line for line in about), about)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # what mkdocs complains of
    unittest.main()
