#!/usr/bin/env python3
"""tools/prose.py finds blocks that readers have to decode, and tools/same_tokens.py finds changes of code."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import prose  # noqa: E402
import same_tokens  # noqa: E402


def rules_of(text, path="lib/x.cc", allowed=()):
    """Names of the rules that the blocks of a file break."""
    return [rule.name for block in prose.blocks_of(path, text) for rule in prose.rules_broken(block, allowed)]


class ProseTest(unittest.TestCase):
    def test_plain_comments_break_no_rule(self):
        self.assertEqual(rules_of("// Returns the number of shards.\n// Blocks until the ps answers.\nint x;\n"), [])

    def test_each_rule_finds_its_example(self):
        for text, rule in (("Resends it to the one who asked.", "a process is a thing"),
                           ("Of a job that recovers.", "a clause that hides its noun"),
                           ("Begins the step anew.", "an uncommon word"),
                           ("The peer is waited for here.", "a passive riddle"),
                           ("Has a turn done soon.", "a fragment without a subject"),
                           ("word " * 36 + ".", "a sentence over 35 words")):
            self.assertEqual(rules_of(f"// {text}\n"), [rule], text)

    def test_a_run_of_comment_lines_is_one_block(self):
        blocks = prose.blocks_of("lib/x.h", "// One.\n// Two.\nint x;\n// Three.\n")
        self.assertEqual([[number for number, _ in block.lines] for block in blocks], [[1, 2], [4]])

    def test_markdown_leaves_out_code_headings_and_tables(self):
        page = "# Who\n\n    who | runs\n\n| who |\n\n```\nwho\n```\n\n- One item.\n- Another item.\n"
        blocks = prose.blocks_of("docs/x.md", page)
        self.assertEqual([block.text for block in blocks], ["- One item.", "- Another item."])

    def test_long_paragraph_counts_in_documents_only(self):
        text = "A short sentence. " * 31
        self.assertEqual(rules_of(text, "docs/x.md"), ["a paragraph over 90 words"])
        self.assertEqual(rules_of(f"// {text}", "lib/x.cc"), [])

    def test_allowed_phrase_counts_only_where_it_is_allowed(self):
        allowed = [("docs/*", "World Health Organization (who)")]
        text = "The World Health Organization (who) has data."
        self.assertEqual(rules_of(text, "docs/x.md", allowed), [])
        self.assertEqual(rules_of(f"# {text}", "tools/x.py", allowed), ["a process is a thing"])


def differs(before, after, tokens=same_tokens.c_tokens, renames=None):
    return same_tokens.difference(same_tokens.renamed(tokens(before), renames or {}),
                                  same_tokens.renamed(tokens(after), renames or {}))


class SameTokensTest(unittest.TestCase):
    def test_comments_literals_and_line_breaks_do_not_count(self):
        self.assertIsNone(differs('int x = 1;  // one\nSay("a" "b", x);', '/* first */ int x =\n 1; Say("c", x);'))

    def test_raw_literal_is_one_literal(self):
        self.assertIsNone(differs('f(R"x(a " // b)x");', 'f("c");'))

    def test_changed_code_is_reported_with_both_lines(self):
        self.assertEqual(differs("int x;\nx = 1;", "// new\nint x;\nx = 2;"), "'1' (line 2) became '2' (line 3)")

    def test_removed_end_is_reported(self):
        self.assertEqual(differs("a();\nb();", "a();"), "'b' (line 2) is gone")

    def test_digit_separator_begins_no_literal(self):
        self.assertIsNotNone(differs("f(1'000, 2); g('a');", "f(1'000, 3); g('a');"))

    def test_name_of_a_test_does_not_count_and_its_suite_does(self):
        self.assertIsNone(differs("TEST_F(Suite, Old) {}", "TEST_F(Suite, New) {}"))
        self.assertIsNotNone(differs("TEST(Suite, Old) {}", "TEST(Other, Old) {}"))

    def test_listed_renames_do_not_count(self):
        self.assertIsNone(differs("Rehearse();", "WarmUp();", renames={"Rehearse": "WarmUp"}))
        self.assertIsNotNone(differs("Rehearse();", "WarmUp();"))

    def test_python_docstrings_do_not_count_and_indents_do(self):
        tokens = same_tokens.python_tokens
        self.assertIsNone(differs('def f():\n  """A."""\n  g()  # x\n', 'def f():\n  """B."""\n  g()\n', tokens))
        self.assertIsNotNone(differs("if a:\n  b()\n  c()\n", "if a:\n  b()\nc()\n", tokens))

    def test_commands_of_a_shell_script_count_and_its_messages_do_not(self):
        tokens = same_tokens.shell_tokens
        self.assertIsNone(differs("# a\nrm x\necho done\n", "rm x  # b\necho ready\n", tokens))
        self.assertIsNotNone(differs("rm x\n", "rm y\n", tokens))


if __name__ == "__main__":
    unittest.main()
