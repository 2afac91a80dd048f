#!/usr/bin/env python3
"""Builds the site of mkdocs.yml: tools/docs.sh calls it.

Pages are first copied into a temporary folder. Links between pages stay as in the tree. A link to another file or folder of the tree (sources) becomes
plain text if its target exists.
"""

import logging
import os
import pathlib
import re
import shutil
import sys
import tempfile

import mkdocs.commands.build
import mkdocs.config
import mkdocs.exceptions

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def usable(anchor_of_the_tree):
    """Returns an anchor that does not begin with a digit, because such an anchor stops the theme's scripts on the page."""
    return re.sub(r"^(?=\d)", "section-", anchor_of_the_tree)


def anchor(heading, separator):
    """Returns the anchor that source browsers give a heading: every blank becomes a dash."""
    return usable(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator))


def with_links_of_the_site(text, page, stage, tree):
    """Returns the page's text without links to files outside the site. A broken link stays, so that mkdocs reports it."""

    def replace(link):
        words, target = link[2], link[3]
        path, _, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target):
            return link[0]
        place = os.path.normpath(page.parent / path)
        if not path or (stage / place).is_file() or not (tree / place).exists():
            return link[0].replace(f"#{fragment})", f"#{usable(fragment)})")
        return words

    # Replaces links outside of code blocks only.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def stage_pages(tree, stage):
    shutil.copytree(tree / "docs", stage / "docs", ignore=shutil.ignore_patterns("*.cc", "*.h", "BUILD.bazel"))
    for page in PAGES:
        shutil.copy(tree / page, stage / page)
    for page in stage.rglob("*.md"):
        page.write_text(with_links_of_the_site(page.read_text(encoding="utf-8"), page.relative_to(stage), stage, tree), encoding="utf-8")


def build(site, tree=ROOT):
    """Builds the site. Raises mkdocs.exceptions.Abort if a page, a link or an anchor is missing."""
    with tempfile.TemporaryDirectory() as folder:
        stage_pages(tree, pathlib.Path(folder))
        config = mkdocs.config.load_config(str(tree / "mkdocs.yml"), docs_dir=folder, site_dir=str(site), strict=True)
        config.mdx_configs["toc"] = {"slugify": anchor, "permalink": False}
        mkdocs.commands.build.build(config)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    build(pathlib.Path(sys.argv[1]).absolute())
