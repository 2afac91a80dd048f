#!/usr/bin/env python3
"""Tests which coordinator muster.Client chooses from arguments, environment, contexts and the local cluster."""

import json
import os
import pathlib
import unittest

import support

support.prepare()

from muster import _destination, errors

CONTEXTS = """
current: prod
contexts:
  prod: {server: "prod:7070,spare:7070", tls: /certs/prod, token_file: /tokens/prod}
  test: {server: "test:7070"}
"""


class DestinationTest(unittest.TestCase):
    def setUp(self):
        self.home = support.enter(self, support.home())

    def write_contexts(self, text=CONTEXTS):
        path = self.home / ".config/muster/contexts.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def write_local_cluster(self, pid):
        fields = pathlib.Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        folder = self.home / ".muster/local"
        folder.mkdir(parents=True)
        member = {"name": "coordinator", "pid": pid, "start_ticks": int(fields[19]), "argv": []}
        record = {"address": "127.0.0.1:4711", "whole": True, "members": [member]}
        (folder / "cluster.json").write_text(json.dumps(record), encoding="utf-8")

    def test_without_anything_it_is_the_default(self):
        self.assertEqual(_destination.find(), _destination.Destination(("127.0.0.1:7070",), "127.0.0.1:7070"))

    def test_the_local_cluster_comes_before_the_default(self):
        self.write_local_cluster(os.getpid())
        self.assertEqual(_destination.find().addresses, ("127.0.0.1:4711",))

    def test_a_local_cluster_that_has_ended_is_an_error_with_the_remedy(self):
        self.write_local_cluster(1)  # another process has the number now
        with self.assertRaisesRegex(errors.UnavailableError, "muster local up starts it again"):
            _destination.find()

    def test_the_current_context_comes_before_the_local_cluster(self):
        self.write_local_cluster(os.getpid())
        self.write_contexts()
        found = _destination.find()
        self.assertEqual(found.addresses, ("prod:7070", "spare:7070"))
        self.assertEqual((found.tls, found.token_file), ("/certs/prod", "/tokens/prod"))
        self.assertIn("(context prod)", found.where)

    def test_the_environment_comes_before_the_current_context(self):
        self.write_contexts()
        os.environ["MUSTER_CONTEXT"] = "test"
        self.assertEqual(_destination.find().addresses, ("test:7070",))
        os.environ.update(MUSTER_SERVER="env:7070", MUSTER_TLS="/certs/env", MUSTER_TOKEN_FILE="/tokens/env")
        found = _destination.find()
        self.assertEqual((found.addresses, found.tls, found.token_file), (("env:7070",), "/certs/env", "/tokens/env"))

    def test_arguments_come_before_the_environment(self):
        self.write_contexts()
        os.environ.update(MUSTER_SERVER="env:7070", MUSTER_TLS="/certs/env", MUSTER_CONTEXT="prod")
        self.assertEqual(_destination.find("arg:7070").addresses, ("arg:7070",))

    def test_a_named_context_does_not_get_the_credentials_of_the_environment(self):
        self.write_contexts()
        os.environ.update(MUSTER_SERVER="env:7070", MUSTER_TLS="/certs/env", MUSTER_TOKEN_FILE="/tokens/env")
        found = _destination.find(context="test")
        self.assertEqual((found.addresses, found.tls, found.token_file), (("test:7070",), "", ""))

    def test_mistakes_name_the_remedy(self):
        self.write_contexts()
        for arguments, kind, message in (
                ({"server": "a:1", "context": "prod"}, errors.InvalidArgumentError, "give only one"),
                ({"server": "host"}, errors.InvalidArgumentError, "HOST:PORT"),
                ({"server": "a:1", "token_file": "t"}, errors.InvalidArgumentError, "ca.crt"),
                ({"context": "dev"}, errors.NotFoundError, "there are prod, test")):
            with self.subTest(arguments=arguments), self.assertRaisesRegex(kind, message):
                _destination.find(**arguments)

    def test_a_faulty_file_is_named(self):
        for text in ("[1, 2]", "other: 1", "contexts: {a: 1}", "contexts: {a: {port: 1}}", "a: ["):
            self.write_contexts(text)
            with self.subTest(text=text), self.assertRaisesRegex(errors.InvalidArgumentError, "contexts.yaml: .*fix it"):
                _destination.find()

    def test_it_reads_what_the_command_line_writes(self):
        support.muster("context", "add", "lab", "--server", "lab:7070", "--tls", str(self.home))
        support.muster("context", "use", "lab")
        self.assertEqual(_destination.find(), _destination.Destination(("lab:7070",), "lab:7070 (context lab)",
                                                                       str(self.home)))
        support.muster("context", "use", "none")
        self.assertEqual(_destination.find().where, "127.0.0.1:7070")


if __name__ == "__main__":
    support.main()
