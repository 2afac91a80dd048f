#!/usr/bin/env python3
"""Tests that muster.Client reads the same from job files and dicts as the command line, and finds the same faults."""

import datetime
import json
import pathlib
import unittest

import support

support.prepare()

import numpy as np
from google.protobuf import json_format

from muster import _spec, errors


def read(job, **overrides):
    spec, _ = _spec.read(job, overrides)
    return json_format.MessageToDict(spec, preserving_proto_field_name=True)


def faults(job, overrides=None):
    try:
        _spec.read(job, overrides or {})
    except errors.InvalidSpecError as error:
        return error.faults
    return ()


def without_defaults(whole, part):
    """Returns the entries of `whole` that `part` has too."""
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return [without_defaults(*pair) for pair in zip(whole, part)]
    if not isinstance(part, dict) or not isinstance(whole, dict):
        return whole
    return {key: without_defaults(whole[key], part[key]) for key in part if key in whole}


def below(folder, value):
    """Returns a tree of paths with the folder before those that are relative."""
    if isinstance(value, list):
        return [below(folder, item) for item in value]
    if isinstance(value, dict):
        return {key: below(folder, item) for key, item in value.items()}
    return value if value.startswith("/") else folder + value


# Faulty files whose messages differ from the command line's: the YAML library words them, or a number has another form.
OTHER_WORDS = ("02_not_yaml.yaml", "06_alias_bomb.yaml", "23_float_as_batch_size.yaml")


class JobFileTest(unittest.TestCase):
    def test_every_example_is_what_the_command_line_reads(self):
        files = sorted((support.ROOT / "examples").glob("*.yaml"))
        self.assertGreater(len(files), 10)
        with support.home():
            for file in files:
                with self.subTest(file=file.name):
                    mine = read(file)
                    theirs = json.loads(support.muster("validate", str(file), "-o", "json", folder=support.ROOT, check=False))
                    self.assertEqual(mine, without_defaults(theirs, mine))

    def test_faulty_files_have_the_faults_that_the_command_line_finds(self):
        found = 0
        for file in sorted((support.ROOT / "tests/faulty_jobs").glob("*.yaml")):
            # "# expect: FIELD: PART OF THE MESSAGE"
            _, field, message = file.read_text(encoding="utf-8").partition("\n")[0].split(": ", 2)
            mine = faults(file)
            found += bool(mine)
            if mine:  # the coordinator finds the others
                text = "\n".join(map(str, mine))
                with self.subTest(file=file.name):
                    self.assertTrue(text.startswith(f"{file}:"), text)
                    if file.name not in OTHER_WORDS:
                        self.assertIn(field, text)
                        self.assertIn(message.strip(), text)
        self.assertGreaterEqual(found, 25)

    def test_scalars_are_those_of_yaml_1_2(self):
        job = read("name: no\ndata: {batch_size: 010, text: {path: '1'}}\ntraining: {optimizer: {sgd: {learning_rate: 1e-3}}}")
        self.assertEqual(job, {"name": "no", "data": {"batch_size": "10", "text": {"path": "1"}},
                               "training": {"optimizer": {"sgd": {"learning_rate": 0.001}}}})

    def test_a_file_that_is_not_there_or_not_text_is_named(self):
        with self.assertRaisesRegex(errors.NotFoundError, "nowhere.yaml: No such file"):
            _spec.read("nowhere.yaml", {})
        with support.home() as folder:
            (folder / "job.yaml").write_bytes(b"name: a\nlabels: \xff\n")
            self.assertIn("job.yaml:2: not UTF-8", str(faults(folder / "job.yaml")[0]))


class DictTest(unittest.TestCase):
    def test_a_dict_has_the_form_of_a_job_file(self):
        job = {"name": "a", "sync": {"mode": "ssp", "compression": "int8"}, "active_deadline": "1h30m",
               "restart": {"backoff": datetime.timedelta(milliseconds=1500)},
               "model": {"zoo": {"name": "gpt", "args": {"layers": np.int64(2), "dropout": np.float32(0.5), "tied": True}}},
               "training": {"parameter_groups": [{"match": ["*.bias"], "frozen": True}], "schedule": {"constant": None}},
               "labels": {"team": "vision"}}
        self.assertEqual(read(job), {
            "name": "a", "sync": {"mode": "SSP", "compression": {"kind": "COMPRESSION_INT8"}},
            "active_deadline": "5400s", "restart": {"backoff": "1.500s"},
            "model": {"zoo": {"name": "gpt", "args": {"layers": 2, "dropout": 0.5, "tied": True}}},
            "training": {"parameter_groups": [{"match": ["*.bias"], "frozen": True}], "schedule": {"constant": {}}},
            "labels": {"team": "vision"}})

    def test_a_dict_may_hold_nested_sources_and_lists_of_numbers(self):
        images = {"images": {"path": "photos"}, "image": {"train": [{"resize": {"size": 8}}], "mean": [0.5, np.float32(0.25), 1]}}
        examples = {"tfrecord": {"path": "a", "inputs": {"x": {"fixed": {"feature": "ids"}}, "y": {"image": {}}}}}
        data = {"mixture": {"parts": [{"weight": 2.0, "data": images}, {"weight": 1.0, "data": examples}]}}
        self.assertEqual(read({"data": data})["data"], {"mixture": {"parts": [
            {"weight": 2.0, "data": {**images, "image": {"train": [{"resize": {"size": 8}}], "mean": [0.5, 0.25, 1.0]}}},
            {"weight": 1.0, "data": examples}]}})
        self.assertEqual([str(fault) for fault in faults({"data": {"image": {"std": [1, "a"]}}})],
                         ['data.image.std[1]: expects a number (is "a")'])

    def test_every_fault_has_its_field(self):
        found = faults({"nam": 1, "name": 7, "data": {"batch_size": 8.0, "seed": -1, "npy": {"inputs": {"x": None}}},
                        "training": {"steps": True, "epochs": 2, "parameter_groups": [{"match": "x"}], "precision": "FP16",
                                     "deterministic": "yes"},
                        "model": {"zoo": {"args": {"layers": float("nan"), "what": object}}}, "checkpoint": 3,
                        "resources": {"ps": 0}, "active_deadline": 90})
        self.assertEqual({fault.field: fault.message[:14] for fault in found}, {
            "nam": "unknown field;", "name": "expects text (", "data.batch_size": "expects a whol",
            "data.seed": "must not be ne", "data.npy.inputs.x": "expects text (", "training.epochs": "only one of 's",
            "training.steps": "expects a whol", "training.parameter_groups[0].match": "expects a list",
            "training.precision": "\"FP16\": is the", "training.deterministic": "expects true o",
            "model.zoo.args.layers": "must be a fini", "model.zoo.args.what": "expects a numb", "checkpoint": "expects a map ",
            "resources.ps": "must be at lea", "active_deadline": "expects a time"})

    def test_no_logical_workers_may_be_said_and_no_workers_may_not(self):
        workers = {"min": 1, "max": 2, "logical": 0}
        self.assertEqual(read({"resources": {"workers": workers}}), {"resources": {"workers": {"min": 1, "max": 2}}})
        self.assertEqual([fault.field for fault in faults({"resources": {"workers": {**workers, "min": 0}}})], ["resources.workers.min"])

    def test_values_that_a_message_cannot_hold_are_faults(self):
        for job, field in (({"name": "\ud800"}, "name"), ({"labels": {"a": "\ud800"}}, "labels.a"), ("name: '\ud800'\n", ""),
                           ({"model": {"zoo": {"args": {"a": "\ud800"}}}}, "model.zoo.args.a"),
                           ({"active_deadline": "9" * 400 + "h"}, "active_deadline"), ({"priority": 2**31}, "priority"),
                           ({1: 2}, "1"), ({"data": object()}, "data")):
            with self.subTest(field=field):
                self.assertEqual([fault.field for fault in faults(job)], [field])

    def test_overrides_replace_fields_and_displace_members_of_a_oneof(self):
        job = {"training": {"steps": 5, "optimizer": {"sgd": {"learning_rate": 1}}}}
        changed = read(job, **{"training.epochs": 2, "training.optimizer.adam.learning_rate": 0.5, "name": "b"})
        self.assertEqual(changed, {"name": "b", "training": {"epochs": 2.0, "optimizer": {"adam": {"learning_rate": 0.5}}}})
        self.assertEqual(job, {"training": {"steps": 5, "optimizer": {"sgd": {"learning_rate": 1}}}})
        self.assertEqual([str(fault) for fault in faults("name: a\n", {"training.step": 3})],
                         ["overrides: training.step: unknown field; did you mean 'steps'?"])

    def test_relative_paths_begin_at_the_folder(self):

        spec, _ = _spec.read({"data": {"npy": {"inputs": {"x": "x.npy", "y": "/data/y.npy"}}}, "model": {"onnx": {"path": "m.onnx"}},
                              "checkpoint": {"resume_from": "linear-1@7"}}, {})
        _spec.make_paths_absolute(spec, pathlib.Path("/here"))
        self.assertEqual(dict(spec.data.npy.inputs), {"x": "/here/x.npy", "y": "/data/y.npy"})
        self.assertEqual(spec.model.onnx.path, "/here/m.onnx")
        self.assertEqual(spec.checkpoint.resume_from, "linear-1@7")

    def test_relative_paths_of_every_source_begin_at_the_folder(self):
        sources = [{"images": {"path": "a", "list": "b", "eval_path": "c", "eval_list": "d"}}, {"tar": {"path": "a-{0..9}.tar"}},
                   {"tfrecord": {"path": "a*", "eval_path": "/b"}}, {"npz": {"path": "a"}}, {"npy": {"inputs": {"x": "a"}}},
                   {"csv": {"path": "a", "inputs": {"x": {"vocabulary": {"path": "b"}}, "y": {"number": {}}}}}]
        spec, _ = _spec.read({"data": {"mixture": {"parts": [{"data": data} for data in sources]}}}, {})
        _spec.make_paths_absolute(spec, pathlib.Path("/here"))
        made = json_format.MessageToDict(spec.data.mixture, preserving_proto_field_name=True)["parts"]
        self.assertEqual([part["data"] for part in made], below("/here/", sources))


if __name__ == "__main__":
    support.main()
