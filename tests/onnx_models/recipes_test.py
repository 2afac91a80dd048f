#!/usr/bin/env python3
"""Tests the list of models, the judge and its page, without the packages that make the models."""

import ast
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import judge  # noqa: E402
import recipes  # noqa: E402

REPLAY = os.path.join(HERE, "..", "..", "lib", "engine", "replay", "onnx_replay_main")
GOLDENS = os.path.join(HERE, "..", "goldens", "onnx")


def functions_of(family):
    with open(os.path.join(HERE, family + "_models.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def with_noise(recording, noise):
    """Returns a recording's bytes with the tensor `noise` added. The noise is equal in every step."""
    if noise is None:
        return recording
    (length,) = struct.unpack("<Q", recording[:8])
    header, values = json.loads(recording[8:8 + length]), recording[8 + length:]
    added = struct.pack("<20d", *[noise] * 20)
    header["noise"] = {"dtype": "F64", "shape": [20], "data_offsets": [len(values), len(values) + len(added)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values + added


class Recipes(unittest.TestCase):
    def test_are_sixty_of_different_names(self):
        self.assertEqual(len({recipe.name for recipe in recipes.RECIPES}), 60)
        self.assertEqual(len(recipes.RECIPES), 60)

    def test_are_the_functions_of_their_families(self):
        for family in {recipe.family for recipe in recipes.RECIPES}:
            own = [recipe.name for recipe in recipes.RECIPES if recipe.family == family]
            self.assertEqual(own, functions_of(family))

    def test_have_losses_that_a_job_file_knows(self):
        for recipe in recipes.RECIPES:
            self.assertIn(recipe.loss, [recipes.SOFTMAX, recipes.SIGMOID, recipes.SQUARES, recipes.OUTPUT], recipe.name)

    def test_are_found_by_name(self):
        self.assertEqual([recipe.name for recipe in recipes.named(["unet", "bert"])], ["unet", "bert"])
        self.assertRaises(KeyError, recipes.named, ["no_such_model"])


class Programs(unittest.TestCase):
    def test_compile(self):
        for name in ("exports.py", "samples.py"):
            with open(os.path.join(HERE, name), encoding="utf-8") as file:
                ast.parse(file.read(), name)


class Replay(unittest.TestCase):
    """Replays goldens as if they were exports of recipes."""

    def replay(self, name, recording=None, program=REPLAY, noise=None):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            (out / "trained").mkdir()
            (out / "unet.script.onnx").symlink_to(os.path.realpath(os.path.join(GOLDENS, name + ".onnx")))
            golden = os.path.join(GOLDENS, (recording or name) + ".safetensors")
            (out / "unet.safetensors").write_bytes(with_noise(pathlib.Path(golden).read_bytes(), noise))
            found = judge.replay(program, recipes.Recipe("own", "unet", recipes.SOFTMAX, 0.1), "script", "unet", out)
            sizes = {path.suffix: path.stat().st_size for path in (out / "trained").iterdir()}
        return found, sizes

    def test_says_how_far_the_losses_are_off_and_writes_what_was_trained(self):
        for name, logits in (("mlp", 8 * 5), ("recurrent", 4 * 4)):
            found, sizes = self.replay(name)
            self.assertTrue(found["accepted"], found)
            self.assertLess(found["loss_difference"], 1e-4)
            self.assertLess(found["logits_difference"], 1e-4)
            self.assertEqual(sizes[".f32"], 4 * logits)
            self.assertGreater(sizes[".onnx"], os.path.getsize(os.path.join(GOLDENS, name + ".onnx")) // 2)

    def test_passes_within_three_noises(self):
        found, _ = self.replay("mlp", noise=1e-4)
        self.assertTrue(found["passed"], found)
        self.assertAlmostEqual(found["loss_noises"], found["loss_difference"] / 1e-4)
        found, _ = self.replay("resnet18", noise=0)
        self.assertFalse(found["passed"], found)
        self.assertNotIn("passed", self.replay("mlp")[0])

    def test_says_what_is_wrong_with_a_recording(self):
        found, sizes = self.replay("mlp", recording="recurrent")
        self.assertFalse(found["accepted"])
        self.assertIn("input 'input': a batch has", found["message"])
        self.assertEqual(sizes, {})

    def test_of_a_program_that_dies_is_refused(self):
        found, _ = self.replay("mlp", program="/bin/false")
        self.assertEqual(found["message"], "the program ended with 1: it said nothing")


class Page(unittest.TestCase):
    RECORDING = {"unet": {"first": 0.7, "last": 0.5, "noise": 2e-7}}
    RIGHT = {"accepted": True, "passed": True, "loss_difference": 3e-7, "loss_noises": 1.5, "onnxruntime_difference": 2e-6}

    def row(self, judgement, exported={}):
        (recipe,) = recipes.named(["unet"])
        return judge.row(recipe, "script", {"unet.script": exported}, self.RECORDING, {"unet.script": judgement})

    def test_shows_what_trains_right(self):
        self.assertEqual(self.row(self.RIGHT),
                         ["unet", "script", "yes", "0.700 to 0.500", "2.0e-07", "3.0e-07", "1.5", "2.0e-06"])

    def test_shows_what_is_silently_wrong(self):
        self.assertEqual(self.row({**self.RIGHT, "passed": False})[2], "**trains otherwise**")
        endless = {**self.RIGHT, "passed": False, "loss_difference": None, "loss_noises": None}
        self.assertEqual(self.row(endless)[5:7], ["not finite", ""])
        self.assertEqual(self.row({**self.RIGHT, "onnxruntime_difference": 1e-3})[2], "**other logits when saved**")

    def test_names_reasons_without_paths(self):
        refused = {"accepted": False, "message": "/tmp/out/unet.script.onnx: node 'a|b'\nis odd"}
        self.assertEqual(self.row(refused)[2], "refused: unet.script.onnx: node 'a\\|b' is odd")
        self.assertEqual(self.row(self.RIGHT, {"error": "E: no"})[2], "the exporter fails: E: no")

    def test_says_which_files_have_lost_a_part_of_their_model(self):
        (recipe,) = recipes.named(["unet"])
        recordings = {"unet": {}, "unet.folded": {"first": 0.7, "last": 0.6, "noise": 2e-7}}
        cells = judge.row(recipe, "dynamo", {"unet.dynamo": {}}, recordings, {"unet.dynamo": self.RIGHT})
        self.assertEqual(cells[2:4], ["yes, as exported", "0.700 to 0.600"])
        self.assertEqual(judge.recording_of(recipe, "script", recordings), "unet")
        self.assertEqual(judge.recording_of(recipe, "dynamo", {"unet": {}, "unet.folded": {}}), "unet")

    def test_counts_files_and_not_what_exporters_cannot_make(self):
        exports = {"a.script": {}, "b.script": {}, "c.script": {"error": "E"}, "a.dynamo": {}, "d.script": {}}
        judgements = {"a.script": self.RIGHT, "b.script": {"accepted": False, "message": ""},
                      "d.script": {**self.RIGHT, "passed": False}}
        self.assertEqual(judge.summary("script", exports, judgements), ["script", 3, 2, 1, 1])


if __name__ == "__main__":
    unittest.main()
