#!/usr/bin/env python3
"""Times the input pipeline: JPEG files, Examples in TFRecord files, and tar, against torchvision, tf.data and tarfile, in turns.

    input.py [--only images,pace,examples,tar] [--rounds 5] [--seconds 8] [--threads 2] [--photos 1000] [--work FOLDER]

The photos are 500 x 375 pixels, about 110 KB each, made from noise of several scales. Every competitor gets the same files in
the page cache, the same number of threads or loader processes, and makes 224 x 224 random-resized crops, flipped and
normalized, in batches of 64. A figure is the median over the rounds; a round runs each competitor once. Peak memory is that of
all processes of a competitor (proportional set size, so shared pages count once), less that of the same program without input:
Python with its imports, or Muster with a batch of one small synthetic sample.

Examples are records of about 1 KB: 256 numbers and a class, or BERT's features. tf.data reads them in the order of the files. Muster
reads them in a full shuffle and in a block shuffle.

Needs `bazel build -c opt //cli:muster`, Pillow and numpy; torch, torchvision and tensorflow-cpu if they are to be compared. The
Examples are written with tensorflow-cpu.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "bazel-bin/cli/muster"
BATCH, SIZE = 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ------------------------------------------------------------------------------------------------ data

def make_photos(folder, count):
    """Writes photos in four folders of classes."""
    import numpy as np
    from PIL import Image
    for number in range(count):
        path = folder / f"class_{number % 4}" / f"{number:06}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        dice = np.random.default_rng(number)
        pixels = np.full((375, 500, 3), 128.0)
        for scale, height in ((125, 50), (25, 30), (5, 16), (1, 18)):
            noise = dice.normal(0, height, (375 // scale + 1, 500 // scale + 1, 3))
            layer = Image.fromarray(np.clip(noise + 128, 0, 255).astype(np.uint8)).resize((500, 375), Image.BICUBIC)
            pixels += np.asarray(layer, np.float64) - 128
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=92)


def job(folder, source, model, batch=BATCH):
    text = (f"name: bench\nmodel: {model}\ndata:\n  {source}\n  batch_size: {batch}\n  last_batch: continue\n"
            "training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.1}}}\n")
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def write_examples(path, count, make):
    """Writes Examples into four files. `make` makes the features of one from random numbers."""
    import numpy as np
    import tensorflow as tf
    dice = np.random.default_rng(1)
    path.mkdir(parents=True)
    for part in range(4):
        with tf.io.TFRecordWriter(str(path / f"{part}.tfrecord")) as file:
            for _ in range(count // 4):
                features = {}
                for name, values in make(dice).items():
                    kind = {"float_list": tf.train.FloatList(value=values)} if values.dtype.kind == "f" else {
                        "int64_list": tf.train.Int64List(value=values)}
                    features[name] = tf.train.Feature(**kind)
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def make_numbers(dice):
    return {"input": dice.random(256, "float32"), "target": dice.integers(0, 10, 1)}


def make_bert(dice):
    return {"input_ids": dice.integers(0, 30522, 128), "input_mask": dice.integers(1, 2, 128), "segment_ids": dice.integers(0, 2, 128),
            "masked_lm_positions": dice.permutation(128)[:20], "masked_lm_ids": dice.integers(0, 30522, 20),
            "masked_lm_weights": dice.integers(1, 2, 20).astype("float32"), "next_sentence_labels": dice.integers(0, 2, 1)}


# Each name has a maker, the rules of a job, its model, and the lengths of the features that both read. A length with 1j is of numbers,
# another one is of integers.
EXAMPLES = {
    "numbers": (make_numbers, "input: {fixed: {}}, target: {fixed: {}}", '{zoo: {name: mlp, args: {inputs: 256, hidden: "16"}}}',
                {"input": 256 + 1j, "target": 1}),
    "bert": (make_bert, "tokens: {fixed: {feature: input_ids}}, segments: {fixed: {feature: segment_ids}}, "
             "masked_tokens: {scatter: {positions: masked_lm_positions, values: masked_lm_ids, weights: masked_lm_weights}}, "
             "next_sentence: {fixed: {feature: next_sentence_labels}}",
             "{zoo: {name: bert, args: {layers: 1, heads: 2, channels: 32, context: 128}}}",
             {"input_ids": 128, "segment_ids": 128, "masked_lm_positions": 20, "masked_lm_ids": 20, "masked_lm_weights": 20 + 1j,
              "next_sentence_labels": 1}),
}


def image_job(folder, photos):
    source = (f"images: {{path: {photos}}}\n  image: {{train: [{{random_resized_crop: {{size: {SIZE}}}}}, {{random_flip: {{}}}}], "
              f"mean: {list(MEAN)}, std: {list(STD)}}}")
    return job(folder, source, "{zoo: {name: resnet50, args: {classes: 4}}}")


# ------------------------------------------------------------------------------------------------ competitors

def consume(batches, seconds):
    """Takes batches for a quarter of `seconds` to warm up, then for `seconds`. Prints the samples per second of the second part."""
    batches = iter(batches)

    def take(length):
        count, start = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - start < length:
            count += next(batches)
        return count / (time.perf_counter() - start)
    take(seconds / 4)
    print(json.dumps({"rate": take(seconds)}))


def run_torch(arguments, tensors):
    import torch
    import torchvision
    from torchvision.transforms import v2
    torch.set_num_threads(1)
    crop = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if tensors:
        transform = v2.Compose(crop + [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

        def load(path):
            return torchvision.io.decode_jpeg(torchvision.io.read_file(path), mode=torchvision.io.ImageReadMode.RGB)
    else:
        from torchvision import transforms
        transform = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                        transforms.Normalize(MEAN, STD)])
        load = torchvision.datasets.folder.pil_loader
    data = torchvision.datasets.ImageFolder(arguments.data, transform, loader=load)
    # One endless epoch: between epochs the loader processes would wait.
    sampler = torch.utils.data.RandomSampler(data, num_samples=10**9)
    loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler, num_workers=arguments.threads)
    consume((len(images) for images, _ in loader), arguments.seconds)


def tf_with(threads):
    """Returns TensorFlow and options of a dataset, both with this many threads."""
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return tf, options


def run_tf(arguments):
    tf, options = tf_with(arguments.threads)
    names = sorted(str(path) for path in pathlib.Path(arguments.data).glob("*/*.jpg"))

    def load(path):
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(tf.io.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0),
                                                                aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True)
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.resize(tf.io.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_ACCURATE"), (SIZE, SIZE), antialias=True)
        return (tf.image.random_flip_left_right(image) / 255 - MEAN) / STD

    data = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names)).repeat()
    data = data.map(load, num_parallel_calls=arguments.threads, deterministic=True).batch(BATCH).prefetch(2)
    consume((int(images.shape[0]) for images in data.with_options(options)), arguments.seconds)


def run_tf_examples(arguments):
    tf, options = tf_with(arguments.threads)
    features = {}
    for name, length in EXAMPLES[arguments.examples][3].items():
        features[name] = tf.io.FixedLenFeature([int(length.real)], tf.float32 if length.imag else tf.int64)
    names = sorted(map(str, pathlib.Path(arguments.data).iterdir()))
    data = tf.data.TFRecordDataset(names, num_parallel_reads=arguments.threads).repeat().batch(BATCH, drop_remainder=True)
    data = data.map(lambda records: tf.io.parse_example(records, features), num_parallel_calls=arguments.threads, deterministic=True)
    consume((BATCH for _ in data.prefetch(2).with_options(options)), arguments.seconds)


def run_write_examples(arguments):
    write_examples(pathlib.Path(arguments.data), arguments.records, EXAMPLES[arguments.examples][0])
    print("{}")


COMPETITORS = {"torchvision": lambda a: run_torch(a, False), "torchvision_v2": lambda a: run_torch(a, True), "tf_data": run_tf}
RUNS = {**COMPETITORS, "tf_data_examples": run_tf_examples, "write_examples": run_write_examples}
IMPORTS = {"torchvision": "import torch, torchvision", "torchvision_v2": "import torch, torchvision", "tf_data": "import tensorflow"}


# ------------------------------------------------------------------------------------------------ measuring

def memory_of(pid):
    """Returns the proportional set size of a process and its children, in bytes."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as file:
                    waiting += map(int, file.read().split())
    return total


def measure(command, **environment):
    """Runs a command. Returns its JSON, or that of its last line, and the peak of its memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    peak, done = 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, memory_of(process.pid))
    watcher = threading.Thread(target=watch)
    watcher.start()
    out, errors = process.communicate()
    done.set()
    watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"{command} failed: {errors[-2000:]}")
    with contextlib.suppress(ValueError):
        return json.loads(out), peak  # of Muster
    return json.loads(out.strip().splitlines()[-1]), peak


def idle_memory(python, imports):
    return measure([python, "-c", f"{imports}, time; time.sleep(1); print('{{}}')"])[1]


def has_packages(python, imports):
    return subprocess.run([python, "-c", imports], capture_output=True, check=False).returncode == 0


def muster_bench(arguments, spec):
    return [str(MUSTER), "-o", "json", "bench", "data", str(spec), "--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]


def own_run(arguments, python, name, data, *more):
    """Returns the command that runs one of RUNS."""
    return [python, __file__, "--run", name, "--data", str(data), "--seconds", str(arguments.seconds), "--threads", str(arguments.threads), *more]


def bench_images(arguments, folder):
    photos = folder / "photos"
    make_photos(photos, arguments.photos)
    spec = image_job(folder, photos)
    (folder / "idle").mkdir(exist_ok=True)
    small = job(folder / "idle", "synthetic: {samples: 64}", "{zoo: {name: resnet50, args: {classes: 4, image: 32}}}", batch=1)
    runs = {"muster": (muster_bench(arguments, spec), measure(muster_bench(arguments, small))[1])}
    for name in COMPETITORS:
        python = arguments.tf_python if name == "tf_data" else arguments.torch_python
        if not has_packages(python, IMPORTS[name]):
            print(f"{name}: its packages are not there", file=sys.stderr)
            continue
        runs[name] = (own_run(arguments, python, name, photos), idle_memory(python, IMPORTS[name]))
    rates, memories = {name: [] for name in runs}, {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, (command, idle) in runs.items():
            result, peak = measure(command, TF_CPP_MIN_LOG_LEVEL="3")
            rates[name].append(result.get("rate") or result["capacity_per_second"])
            memories[name].append(peak - idle)
    report = {}
    for name in runs:
        rate = statistics.median(rates[name])
        report[name] = {"images_per_second": round(rate, 1), "spread": [round(min(rates[name]), 1), round(max(rates[name]), 1)],
                        "muster_is_faster": round(statistics.median(rates["muster"]) / rate, 2),
                        "extra_mib": round(statistics.median(memories[name]) / 2**20)}
    return report


def bench_pace(arguments, folder):
    """A model at 80 % and at 120 % of what the pipeline can read."""
    photos = folder / "photos"
    make_photos(photos, arguments.photos)
    base = muster_bench(arguments, image_job(folder, photos))
    report = {}
    for share in (0.8, 1.2):
        results = []
        for _ in range(arguments.rounds):
            capacity = measure(base)[0]["capacity_per_second"]
            paced = measure(base + ["--pace", str(share * capacity)])[0]
            results.append((paced["paced_per_second"] / capacity, paced["wait_share"], paced["verdict"]))
        report[f"{share:.0%}"] = {"of_capacity": round(statistics.median(each[0] for each in results), 3),
                                  "wait_share": round(statistics.median(each[1] for each in results), 4), "verdict": results[-1][2]}
    return report


def bench_examples(arguments, folder):
    """Reads Examples in two orders, against tf.data."""
    if not has_packages(arguments.tf_python, IMPORTS["tf_data"]):
        print("examples: the packages of tf_data are not there", file=sys.stderr)
        return {}
    report = {}
    for kind, (_, rules, model, _) in EXAMPLES.items():
        data = folder / f"examples_{kind}_{arguments.records}"
        if not data.exists():
            measure(own_run(arguments, arguments.tf_python, "write_examples", data, "--examples", kind, "--records", str(arguments.records)))
        runs = {"tf_data": own_run(arguments, arguments.tf_python, "tf_data_examples", data, "--examples", kind)}
        for order, shuffle in (("muster_full", ""), ("muster_block", "\n  shuffle: {block: {}}")):
            (folder / order).mkdir(exist_ok=True)
            runs[order] = muster_bench(arguments, job(folder / order, f"tfrecord: {{path: {data}, inputs: {{{rules}}}}}{shuffle}", model))
        rates = {name: [] for name in runs}
        for _ in range(arguments.rounds):
            for name, command in runs.items():
                result, _ = measure(command, TF_CPP_MIN_LOG_LEVEL="3")
                rates[name].append(result.get("rate") or result["capacity_per_second"])
        theirs = statistics.median(rates["tf_data"])
        report[kind] = {"bytes_each": round(sum(file.stat().st_size for file in data.iterdir()) / arguments.records)}
        for name, each in rates.items():
            rate = statistics.median(each)
            report[kind][name] = {"records_per_second": round(rate), "per_thread": round(rate / arguments.threads),
                                  "spread": [round(min(each)), round(max(each))], "of_tf_data": round(rate / theirs, 2)}
    return report


def bench_tar(arguments, folder):
    """Indexes members of a tar file, against Python's tarfile on a tenth of them."""
    def write(path, members):
        if path.exists() and path.stat().st_size > members * 512:
            return
        import io
        import tarfile
        dice = random.Random(1)
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(members // 2):
                for extension, size in (("bin", int(dice.gammavariate(2, arguments.member_bytes / 2))), ("cls", 2)):
                    info = tarfile.TarInfo(f"{number:08}.{extension}")
                    info.size = size
                    tar.addfile(info, io.BytesIO(bytes(size)))
    small = folder / "small.tar"
    write(small, arguments.members // 10)
    write(folder / "large.tar", arguments.members)
    ours, theirs = [], []
    spec = tar_job(folder, folder / "large.tar")
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=folder) as index:  # a folder with an index would be loaded
            start = time.perf_counter()
            measure([str(MUSTER), "-o", "json", "data", "index", str(spec), "--index-folder", index])
            ours.append((time.perf_counter() - start) / arguments.members)
        code = f"import json, tarfile, time; t = time.perf_counter(); n = len(tarfile.open({str(small)!r}).getmembers()); print(json.dumps({{'each': (time.perf_counter() - t) / n}}))"
        theirs.append(measure([sys.executable, "-c", code])[0]["each"])
    return {"members": arguments.members, "gib": round((folder / "large.tar").stat().st_size / 2**30, 2),
            "seconds": round(statistics.median(ours) * arguments.members, 2), "faster_than_tarfile": round(statistics.median(theirs) / statistics.median(ours), 1)}


def tar_job(folder, path):
    return job(folder, f"tar: {{path: {path}, inputs: {{input: {{extension: bin, image: {{}}}}, target: {{extension: cls, integer: {{}}}}}}}}\n"
                       f"  image: {{train: [{{resize: {{height: {SIZE}, width: {SIZE}}}}}], evaluate: [{{resize: {{height: {SIZE}, width: {SIZE}}}}}]}}",
               "{zoo: {name: resnet50, args: {classes: 1000}}}")


BENCHES = {"images": bench_images, "pace": bench_pace, "examples": bench_examples, "tar": bench_tar}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--records", type=int, default=200_000, help="of Examples")
    parser.add_argument("--members", type=int, default=1_280_000)
    parser.add_argument("--member_bytes", type=int, default=14_000)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--tf_python", default=sys.executable)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    parser.add_argument("--examples", choices=EXAMPLES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        RUNS[arguments.run](arguments)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.work or pathlib.Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only.split(","):
            print(json.dumps({name: BENCHES[name](arguments, folder)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
