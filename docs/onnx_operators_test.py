#!/usr/bin/env python3
"""docs/reference/onnx_operators.md lists the operators that the importer takes, as its sources register them.

  docs/onnx_operators_test.py              tests that the page is current
  docs/onnx_operators_test.py --write      writes the page
"""

import os
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent
IMPORTER = ROOT / "lib" / "graph" / "onnx"
PAGE = ROOT / "docs" / "reference" / "onnx_operators.md"
REFUSE_DATA = {"NonZero"}  # their converter only says why
TABLE = re.compile(r"^void Add\w+Converters\(ConverterTable& table\) \{\n(.*?)^\}", re.M | re.S)

HEAD = """# ONNX operators

The operators of the standard domain that [a model from an ONNX file](../onnx.md) may have. Made by `docs/onnx_operators_test.py --write`.

- *yes*: the operator may read data and trained weights. Some attributes are refused; `muster model describe --onnx FILE` names node and cause.
- *constants*: the importer computes it while it reads the file, so every input must be a constant or a shape.
- `If` is taken if its condition follows from shapes and constants. Functions of the file's own are written out first.
- `Loop`, `Scan`, operators of other domains and those that are not here are refused. So is a size that depends on data, as of `NonZero`.

This prints the operators of a file, with its functions written out. It leaves out those inside the branches of `If`.
`pip install onnx` has what it needs:

```python
import onnx, onnx.inliner
print(sorted({n.op_type for n in onnx.inliner.inline_local_functions(onnx.load("model.onnx")).graph.node}))
```

| operator | accepted | family |
|---|---|---|
"""


def converted():
    """The file that converts each operator."""
    found = {}
    for source in sorted((IMPORTER / "converters").glob("*.cc")):
        for table in TABLE.findall(source.read_text(encoding="utf-8")):
            found.update(dict.fromkeys(re.findall(r'"(\w+)"', table), source.stem))
    importer = (IMPORTER / "importer.cc").read_text(encoding="utf-8")
    for test in re.findall(r"^  if \((.*)\) return Convert\w+\(node\);$", importer, re.M):
        found.update(dict.fromkeys(re.findall(r'"(\w+)"', test), "importer"))
    return {name: family for name, family in found.items() if name not in REFUSE_DATA}


def folded():
    return set(re.findall(r'^ {6}\{"([A-Z]\w*)",', (IMPORTER / "folding.cc").read_text(encoding="utf-8"), re.M))


def page():
    families = converted()
    rows = {name: f"| `{name}` | yes | {family} |\n" for name, family in families.items()}
    rows.update({name: f"| `{name}` | constants | |\n" for name in folded() - set(families)})
    return HEAD + "".join(row for _, row in sorted(rows.items(), key=lambda item: item[0].lower()))


class OnnxOperatorsTest(unittest.TestCase):
    def test_the_page_has_every_operator_that_is_registered(self):
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page(), "stale: run docs/onnx_operators_test.py --write")

    def test_the_sources_are_read_as_they_are_written(self):
        registrations = (IMPORTER / "converters" / "converters.cc").read_text(encoding="utf-8").count("Converters(*all)")
        self.assertEqual(len(set(converted().values()) - {"importer"}), registrations)
        self.assertLessEqual({"Abs", "BatchNormalization", "Conv", "Gemm", "LSTM", "Shape", "Unsqueeze"}, set(converted()))
        self.assertLessEqual({"Add", "Constant", "EyeLike", "NonZero"}, folded())


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        unittest.main()
