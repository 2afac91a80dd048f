"""Runs a program with the Python package on its path: run_program.py PROGRAM ARGUMENTS...

Debian's torch has to be imported before the newer numpy of the tests is on the path.
"""

import os
import runpy
import sys

import support

support.import_torch()
support.prepare()
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
