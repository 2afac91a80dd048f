#!/usr/bin/env python3
"""Trains models from PyTorch as docs/bring_your_model.md (examples/onnx_*) and README.md tell a reader to.

Without PyTorch the models are those of tests/goldens/onnx_examples. After a change of an example, with PyTorch:
  tests/onnx_examples_test.py --write-goldens
  tests/onnx_examples_test.py --write-page
"""

import json
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("onnx_*"))
GOLDENS = ROOT / "tests" / "goldens" / "onnx_examples"
PAGES = [ROOT / "docs" / "bring_your_model.md", ROOT / "docs" / "operations" / "troubleshooting.md"]
BLOCK = re.compile(r"(<!-- (examples/onnx_\S+) -->\n```\w+\n)(.*?)(^```$)", re.M | re.S)
EVALUATION = re.compile(r"evaluation loss +(\S+?),?\s")
PATIENCE = 300


def runs(program):
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode == 0


HAS_NUMPY = runs("import numpy")
HAS_TORCH = HAS_NUMPY and runs("import inspect, onnxscript, safetensors.torch, torch; inspect.signature(torch.onnx.export).parameters['dynamo']")

NO_TORCH = "python3 with torch (2.7 or later), onnxscript and safetensors is not there: no model was exported and loaded back"


def with_files(page):
    return BLOCK.sub(lambda block: block[1] + (ROOT / block[2]).read_text(encoding="utf-8") + block[4], page.read_text(encoding="utf-8"))


def run(*command, **arguments):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False, **arguments)
    if ended.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


class FilesTest(unittest.TestCase):
    def test_the_pages_show_the_files_that_are_tested(self):
        for page in PAGES:
            self.assertTrue(BLOCK.search(page.read_text(encoding="utf-8")), page)
            self.assertEqual(page.read_text(encoding="utf-8"), with_files(page), "stale: run tests/onnx_examples_test.py --write-page")

    def test_every_example_is_complete(self):
        self.assertGreater(len(EXAMPLES), 2)
        for name in EXAMPLES:
            files = {path.name for path in (ROOT / "examples" / name).iterdir()}
            self.assertLessEqual({"prepare.py", "model.py", "export.py", "job.yaml", "evaluate.py", "load_back.py"}, files, name)

    def test_every_example_loads_the_weights_with_the_same_function(self):
        self.assertEqual(len({(ROOT / "examples" / name / "load_back.py").read_text(encoding="utf-8") for name in EXAMPLES}), 1)

    def test_every_program_compiles(self):
        with tempfile.TemporaryDirectory() as folder:
            for program in (ROOT / "examples").glob("onnx_*/*.py"):
                py_compile.compile(program, cfile=f"{folder}/compiled", doraise=True)


@unittest.skipUnless(HAS_NUMPY, "numpy is not there: the examples from PyTorch did not run")
class ExamplesTest(unittest.TestCase):
    """A cluster as `muster local up` starts it, and copies of the examples whose data is converted."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(dir="/tmp")  # a short name: the paths of sockets have a limit
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        shutil.copytree(ROOT / "examples", cls.folder / "examples")
        for name in EXAMPLES:
            run(sys.executable, "prepare.py", cwd=cls.folder / "examples" / name)
        cls.addClassCleanup(cls.muster, EXAMPLES[0], "local", "down")
        cls.muster(EXAMPLES[0], "local", "up")

    @classmethod
    def muster(cls, example, *arguments):
        return run(ROOT / "cli/muster", *arguments, cwd=cls.folder / "examples" / example, env={**os.environ, "HOME": str(cls.folder)})

    def test_the_exported_models_train_on_the_converted_data(self):
        for name in EXAMPLES:
            with self.subTest(name):
                shutil.copy(GOLDENS / f"{name}.onnx", self.folder / "examples" / name / "model.onnx")
                self.muster(name, "validate", "job.yaml")
                self.muster(name, "submit", "--wait", "job.yaml", "--set", "training.steps=60", "--set", "checkpoint.every_steps=60",
                            "--set", "training.evaluate_every_steps=60")

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
    def test_pytorch_exports_the_model_and_evaluates_the_trained_weights(self):
        for name in EXAMPLES:
            with self.subTest(name):
                folder = self.folder / "examples" / name
                shutil.copy(GOLDENS / f"{name}.onnx", folder / "model.onnx")
                golden = self.tensors(name)
                run(sys.executable, "export.py", cwd=folder)
                self.assertEqual(self.tensors(name), golden, "stale: run tests/onnx_examples_test.py --write-goldens")

                job = self.muster(name, "-o", "name", "submit", "job.yaml").split()[-1]
                self.muster(name, "wait", job)
                self.muster(name, "checkpoint", "get", job, "trained")
                told = run(sys.executable, "evaluate.py", "trained", cwd=folder)

                progress = json.loads(self.muster(name, "-o", "json", "get", job))["progress"]
                self.assertAlmostEqual(float(EVALUATION.search(told)[1]), progress["evaluation_loss"], places=3, msg=told)

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
    def test_five_steps_have_the_losses_of_pytorch(self):
        folder = self.folder / "examples" / "onnx_mlp"
        run(sys.executable, "export.py", cwd=folder)
        theirs = [line.split(",") for line in run(sys.executable, "compare.py", cwd=folder).splitlines()]  # writes the job's samples, too
        block = next(block for block in re.findall(r"(?<=\n\n)(?:    .*\n)+", PAGES[1].read_text(encoding="utf-8")) if "data.batch_size" in block)
        submit = block[:block.index("muster metrics")].strip().replace("submit --wait", "-o name submit")
        environment = {**os.environ, "HOME": str(self.folder), "PATH": f"{ROOT}/cli:{os.environ['PATH']}"}
        job = run("bash", "-c", submit, cwd=folder, env=environment).split()[-1]
        self.muster("onnx_mlp", "wait", job)
        own = [line.split(",")[:2] for line in self.muster("onnx_mlp", "metrics", job, "--csv").splitlines()[-5:]]
        for (step, loss), (their_step, their_loss) in zip(own, theirs, strict=True):
            self.assertEqual(step, their_step)
            self.assertAlmostEqual(float(loss), float(their_loss), delta=1e-6 * float(loss))

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
    def test_the_loss_of_the_page_smooths_labels_as_pytorch_does(self):
        block = re.search(r"^```python\n(import torch\n\n\nclass NetAndLoss.*?)^```$", PAGES[0].read_text(encoding="utf-8"), re.M | re.S)[1]
        run(sys.executable, "-c", block + textwrap.dedent("""
            torch.manual_seed(1)
            net, ids, target = torch.nn.Embedding(7, 5), torch.arange(7), torch.arange(7) % 5
            theirs = torch.nn.functional.cross_entropy(net(ids), target, label_smoothing=0.1)
            torch.testing.assert_close(NetAndLoss(net)(ids, target), theirs)"""))

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
    def test_the_model_of_the_readme_trains_in_an_empty_folder(self):
        page = (ROOT / "README.md").read_text(encoding="utf-8")
        section = page[page.index("\n## Your model\n"):].split("\n## ")[1]
        program, job, commands = (textwrap.dedent(block) for block in re.findall(r"(?<=\n\n)(?:    .*\n)+", section))
        folder = self.folder / "empty"
        folder.mkdir()
        (folder / "export.py").write_text(program, encoding="utf-8")
        (folder / "mine.yaml").write_text(job, encoding="utf-8")
        own = self.folder / "own"  # a cluster that has had no job
        environment = {**os.environ, "HOME": str(own), "PATH": f"{ROOT}/cli:{os.environ['PATH']}"}
        self.addCleanup(run, "muster", "local", "down", env=environment)
        run("muster", "local", "up", env=environment)
        run("bash", "-euc", commands, cwd=folder, env=environment)
        self.assertTrue((folder / "trained.onnx").exists())

    def tensors(self, name):
        """Returns shapes and roles of the tensors that training changes, and the inputs. Names of nodes and of shared weights differ from exporter to exporter."""
        described = self.muster(name, "model", "describe", "job.yaml")
        return sorted(re.findall(r"(\[.*\]) +(trained|statistic)", described)), re.search(r"(?m)^INPUT.*\n(?:\w.*\n)+", described)[0]


def write_goldens():
    import onnx  # only here: it comes with onnxscript

    with tempfile.TemporaryDirectory() as folder:
        for name in EXAMPLES:
            shutil.copytree(ROOT / "examples" / name, f"{folder}/{name}")
            run(sys.executable, "export.py", cwd=f"{folder}/{name}")
            model = onnx.load(f"{folder}/{name}/model.onnx")
            del model.metadata_props[:]
            for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
                part.doc_string = ""
                del part.metadata_props[:]  # stack traces, with paths of the exporting machine
            onnx.save(model, GOLDENS / f"{name}.onnx")


if __name__ == "__main__":
    if "--write-page" in sys.argv:
        for page in PAGES:
            page.write_text(with_files(page), encoding="utf-8")
        sys.exit()
    if "--write-goldens" in sys.argv:
        write_goldens()
        sys.exit()
    program = unittest.main(exit=False)
    for why in sorted({why for _, why in program.result.skipped}):
        print(f"{os.path.relpath(__file__, ROOT)}:1: Skipped\n{why}")
    sys.exit(not program.result.wasSuccessful())
