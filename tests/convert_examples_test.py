#!/usr/bin/env python3
"""Tests docs/data.md and docs/data_formats.md: converters (examples/convert) run on small data, and the job files are valid.

A converter whose packages are not there is skipped. After a change of a converter: tests/convert_examples_test.py --write-page
"""

import csv
import io
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.path.abspath(__file__)).parent.parent
CONVERTERS = ROOT / "examples" / "convert"
PAGE = ROOT / "docs" / "data_formats.md"  # shows the converters
PAGES = (ROOT / "docs" / "data.md", PAGE)
BLOCK = re.compile(r"(<!-- (examples/convert/\S+) -->\n```\w+\n)(.*?)(^```$)", re.M | re.S)
JOB = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
SAMPLES = 60
PATIENCE = 120


def page_with_files():
    return BLOCK.sub(lambda block: block[1] + (ROOT / block[2]).read_text(encoding="utf-8") + block[4], PAGE.read_text(encoding="utf-8"))


def needs(*packages):
    missing = [name for name in packages if subprocess.run([sys.executable, "-c", f"import {name}"], stderr=subprocess.DEVNULL, check=False).returncode]
    return unittest.skipIf(missing, f"python3 without {', '.join(missing)}: not every converter ran")


class PageTest(unittest.TestCase):
    def test_the_page_shows_the_files_that_are_tested(self):
        shown = {block[1] for block in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}
        self.assertEqual(shown, {f"examples/convert/{path.name}" for path in CONVERTERS.glob("*.py")})
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page_with_files(), "stale: run tests/convert_examples_test.py --write-page")

    def test_every_program_compiles(self):
        with tempfile.TemporaryDirectory() as folder:
            for program in CONVERTERS.glob("*.py"):
                py_compile.compile(program, cfile=f"{folder}/compiled", doraise=True)


class FormatTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        os.symlink(ROOT / "examples", self.folder / "examples")

    def run_here(self, *command, code=0):
        ended = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False,
                               env={**os.environ, "HOME": str(self.folder), "HF_HUB_OFFLINE": "1"})
        self.assertEqual(ended.returncode, code, ended.stdout)
        return ended.stdout

    def expect_error(self, error, program, *arguments):
        told = self.run_here(sys.executable, CONVERTERS / program, *arguments, code=1)
        self.assertIn(error, told)
        self.assertNotIn("Traceback", told)

    def write_table(self, rows):
        with open(self.folder / "table.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    def validate_jobs(self, heading, replace=("", "")):
        """Validates the job files below the heading, which one of the pages has."""
        below = [part for page in PAGES for part in page.read_text(encoding="utf-8").split(f"# {heading}\n")[1:]]
        self.assertEqual(len(below), 1, heading)
        jobs = JOB.findall(re.split(r"\n##+ ", below[0])[0])
        self.assertTrue(jobs, heading)
        for job in jobs:
            (self.folder / "job.yaml").write_text(job.replace(*replace), encoding="utf-8")
            self.run_here(ROOT / "cli/muster", "validate", "job.yaml")

    def convert(self, program, *arguments):
        told = self.run_here(sys.executable, CONVERTERS / program, *arguments)
        self.assertIn(f"{SAMPLES} samples", told)

    def array(self, name):
        import numpy  # only here: without it the converters are skipped

        return numpy.load(self.folder / name)

    def image(self, label):
        """Returns a JPEG with the color of its class."""
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (50, 40), ((200, 0, 0), (0, 0, 200))[label]).save(file, "JPEG", quality=95)
        return file.getvalue()

    def expect_images(self, size):
        images, target = self.array("image.npy"), self.array("target.npy")
        self.assertEqual((images.shape, images.dtype), ((SAMPLES, 3, size, size), "uint8"))
        self.assertEqual(sorted(target), [0] * (SAMPLES // 2) + [1] * (SAMPLES // 2))
        self.assertNotEqual(list(target), sorted(target))  # shuffled
        for image, label in zip(images, target):
            self.assertEqual(image[:, size // 2, size // 2].argmax(), (0, 2)[label])  # red, blue

    def table(self):
        return [{"a": i, "b": i * i, "c": 1.5, "d": -i, "species": i % 3} for i in range(SAMPLES)]

    def expect_table(self):
        features, target = self.array("features.npy"), self.array("target.npy")
        self.assertEqual((features.shape, features.dtype, target.dtype), ((SAMPLES, 4), "float32", "int32"))
        for row, i in enumerate(features[:, 0].argsort()):
            self.assertEqual(target[i], row % 3)  # column a grows with the number of the row

    def test_sources_with_data_in_the_repository(self):
        for heading in ("images: folders of JPEG, PNG or WebP", "tfrecord: files of Examples", "text: bytes as tokens", "idx: MNIST's files",
                        "linear and synthetic: no files", "mixture: several sources with weights"):
            self.validate_jobs(heading)

    def test_tar(self):
        self.run_here(ROOT / "cli/muster", "data", "convert", "examples/data/emoji", "shards")
        self.validate_jobs("tar: shards of WebDataset", ("/data/shards/train-{000..146}.tar", "shards/shard-{000000..000000}.tar"))

    def test_csv_as_it_is(self):
        columns = ("sepal_length", "sepal_width", "petal_length", "petal_width")
        self.write_table([{**dict.fromkeys(columns, i / 7), "species": ("setosa", "virginica", "versicolor")[i % 3]} for i in range(SAMPLES)])
        (self.folder / "table.csv").rename(self.folder / "flowers.csv")
        (self.folder / "species.txt").write_text("setosa\nversicolor\nvirginica\n", encoding="utf-8")
        self.validate_jobs("csv: tables and Criteo's files")

    @needs("numpy")
    def test_npz(self):
        import numpy

        samples = 2 * SAMPLES  # a batch has more than SAMPLES
        numpy.savez(self.folder / "digits.npz", x_train=numpy.zeros((samples, 784), "<f4"), y_train=numpy.zeros(samples, "<i4"))
        self.validate_jobs("npz: several arrays in one file")

    @needs("numpy")
    def test_npy(self):
        self.run_here(sys.executable, ROOT / "examples/onnx_mlp/prepare.py")
        self.validate_jobs("npy: NumPy files")

    @needs("numpy", "PIL")
    def test_a_folder_of_jpegs(self):
        for label, name in enumerate(("blue sky", "red")):
            (self.folder / "photos" / name).mkdir(parents=True)
            for i in range(SAMPLES // 2):
                (self.folder / "photos" / name / f"{i}.JPG").write_bytes(self.image(1 - label))
        self.convert("image_folder.py", "photos", "64")
        self.assertEqual((self.folder / "classes.txt").read_text(encoding="utf-8"), "blue sky\nred\n")
        self.validate_jobs("A folder of JPEGs")
        images, target = self.array("image.npy"), self.array("target.npy")
        self.assertEqual([image[:, 32, 32].argmax() for image in images], [(2, 0)[label] for label in target])

    @needs("numpy", "PIL")
    def test_a_folder_without_subfolders_is_an_error(self):
        (self.folder / "photos").mkdir()
        (self.folder / "photos" / "a.jpg").write_bytes(self.image(0))
        self.expect_error("photos has no subfolders with images", "image_folder.py", "photos", "64")

    @needs("numpy", "PIL")
    def test_jpegs_and_a_csv_file(self):
        (self.folder / "photos").mkdir()
        rows = []
        for i in range(SAMPLES):
            (self.folder / "photos" / f"{i}.jpg").write_bytes(self.image(i % 2))
            rows.append({"file": f"photos/{i}.jpg", "width": i, "height": -i, "city": ("Rome", "Oslo", "Bonn")[i % 3],
                         "zone": (0, 1, 10, 2)[i % 4], "species": i % 10})
        self.write_table(rows)
        self.convert("image_and_table.py", "table.csv", "file", "species", "28", "--ids", "city", "zone")
        images, features, city, zone, target = (self.array(f"{name}.npy") for name in ("image", "features", "city", "zone", "target"))
        self.assertEqual((images.shape, images.dtype, features.dtype, city.dtype), ((SAMPLES, 3, 28, 28), "uint8", "float32", "int32"))
        self.assertEqual((self.folder / "city.txt").read_text(encoding="utf-8"), "Bonn\nOslo\nRome\n")
        self.assertFalse((self.folder / "zone.txt").exists())
        self.assertNotEqual(list(features[:, 0]), sorted(features[:, 0]))  # shuffled
        for row, i in zip(features[:, 0].argsort(), range(SAMPLES)):  # the width is the number of the row
            self.assertEqual((images[row][:, 14, 14].argmax(), city[row], zone[row], target[row]),
                             ((0, 2)[i % 2], (2, 1, 0)[i % 3], (0, 1, 10, 2)[i % 4], i % 10))
        shutil.copy(ROOT / "tests/goldens/onnx_examples/onnx_image_and_table.onnx", self.folder / "model.onnx")
        self.validate_jobs("JPEGs and a CSV file")
        (self.folder / "photos" / "7.jpg").unlink()
        self.expect_error("row 8 below the header: [Errno 2]", "image_and_table.py", "table.csv", "file", "species", "28", "--ids", "city", "zone")

    @needs("numpy")
    def test_csv(self):
        self.write_table(self.table())
        self.convert("csv_table.py", "table.csv", "species")
        self.expect_table()
        self.validate_jobs("CSV")

    @needs("numpy")
    def test_csv_with_words(self):
        self.write_table([{**row, "city": ("Rome", "Oslo")[row["a"] % 2], "species": ("cat", "dog", "ant")[row["species"]]} for row in self.table()])
        self.expect_error("row 1 below the header: 'Rome' in column 'city' is not a number", "csv_table.py", "table.csv", "species")
        self.expect_error("no column 'town'", "csv_table.py", "table.csv", "town")
        self.convert("csv_table.py", "table.csv", "species", "--ids", "city")
        self.assertEqual((self.folder / "classes.txt").read_text(encoding="utf-8"), "ant\ncat\ndog\n")
        features, city, target = (self.array(f"{name}.npy") for name in ("features", "city", "target"))
        for row, i in zip(features[:, 0].argsort(), range(SAMPLES)):
            self.assertEqual((city[row], target[row]), ((1, 0)[i % 2], (1, 2, 0)[i % 3]))

    @needs("numpy")
    def test_ids_that_are_non_negative_integers_stay_as_they_are(self):
        columns = {"zone": (0, 1, 10, 2), "level": (0, -1, 10, 2), "user": (0, 1, 2**31, 2)}
        self.write_table([{**row, **{name: values[row["a"] % 4] for name, values in columns.items()}} for row in self.table()])
        self.convert("csv_table.py", "table.csv", "species", "--ids", *columns)
        features, zone, level, user = (self.array(f"{name}.npy") for name in ("features", *columns))
        self.assertEqual((zone.dtype, level.dtype, user.dtype), ("int32", "int32", "int32"))
        self.assertFalse((self.folder / "zone.txt").exists())
        self.assertEqual((self.folder / "level.txt").read_text(encoding="utf-8"), "-1\n0\n10\n2\n")
        self.assertEqual((self.folder / "user.txt").read_text(encoding="utf-8"), "0\n1\n2\n2147483648\n")
        for row, i in zip(features[:, 0].argsort(), range(SAMPLES)):
            self.assertEqual((zone[row], level[row], user[row]), ((0, 1, 10, 2)[i % 4], (1, 0, 2, 3)[i % 4], (0, 1, 3, 2)[i % 4]))

    @needs("numpy", "pyarrow")
    def test_parquet(self):
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.table()), self.folder / "table.parquet", row_group_size=25)
        self.convert("parquet_table.py", "table.parquet", "species")
        self.expect_table()
        self.validate_jobs("Parquet")

    @needs("numpy", "PIL", "datasets")
    def test_hugging_face_images(self):
        for label, name in enumerate(("a", "b")):
            (self.folder / "cifar" / "train" / name).mkdir(parents=True)
            for i in range(SAMPLES // 2):
                (self.folder / "cifar" / "train" / name / f"{i}.jpg").write_bytes(self.image(label))
        self.convert("hugging_face_images.py", "cifar", "32")
        self.expect_images(32)
        self.validate_jobs("Hugging Face: images")

    @needs("numpy", "datasets", "tokenizers")
    def test_hugging_face_texts(self):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        licences = [path.read_text(encoding="utf-8", errors="replace") for path in sorted((ROOT / "examples/data/licences").iterdir())]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer.train_from_iterator(licences, trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"]))
        tokenizer.save(str(self.folder / "tokenizer.json"))
        (self.folder / "corpus").mkdir()
        with open(self.folder / "corpus" / "train.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text"], *([text] for text in licences)])
        self.run_here(sys.executable, CONVERTERS / "hugging_face_text.py", "corpus", "tokenizer.json", "32")
        tokens, following = self.array("tokens.npy"), self.array("next.npy")
        self.assertEqual(tokens[:, 1:].tolist(), following[:, :-1].tolist())
        self.assertIn("copyright", tokenizer.decode(tokens.flatten().tolist()).replace(" ", "").lower())
        self.validate_jobs("Hugging Face: texts and tokenizers")

    @needs("numpy", "PIL", "lmdb")
    def test_lmdb(self):
        import lmdb

        with lmdb.open(str(self.folder / "images.lmdb"), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
            for i in range(SAMPLES):
                transaction.put(b"%08d" % i, (i % 2).to_bytes(4, "little") + self.image(i % 2))
        self.convert("lmdb_images.py", "images.lmdb", "32")
        self.expect_images(32)
        self.validate_jobs("LMDB")


if __name__ == "__main__":
    if "--write-page" in sys.argv:
        PAGE.write_text(page_with_files(), encoding="utf-8")
        sys.exit()
    program = unittest.main(exit=False)
    for why in sorted({why for _, why in program.result.skipped}):
        print(f"{os.path.relpath(__file__, ROOT)}:1: Skipped\n{why}")
    sys.exit(not program.result.wasSuccessful())
