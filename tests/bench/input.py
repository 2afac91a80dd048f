#!/usr/bin/env python3
"""Times the input pipeline: JPEG files, TFRecord and tar, against torchvision, tf.data and bare loops, in turns on this machine.

    input.py [--only images,pace,examples,tar] [--rounds 5] [--seconds 8] [--threads 2] [--photos 1000] [--work FOLDER]

The photos are 500 x 375 pixels, about 110 KB each, made from noise of several scales. Every competitor gets the same files in
the page cache, the same number of threads or loader processes, and makes 224 x 224 random-resized crops, flipped and
normalized, in batches of 64. A figure is the median over the rounds; a round runs each competitor once. Peak memory is that of
all processes of a competitor (proportional set size, so shared pages count once), less that of the same program without input.

Needs `bazel build -c opt //cli:muster`, Pillow and numpy; torch, torchvision and tensorflow-cpu if they are to be compared.
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


def job(folder, source, model):
    text = (f"name: bench\nmodel: {model}\ndata:\n  {source}\n  batch_size: {BATCH}\n  last_batch: continue\n"
            "training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.1}}}\n")
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def image_job(folder, photos):
    source = (f"images: {{path: {photos}}}\n  image: {{train: [{{random_resized_crop: {{size: {SIZE}}}}}, {{random_flip: {{}}}}], "
              f"mean: {list(MEAN)}, std: {list(STD)}}}")
    return job(folder, source, "{zoo: {name: resnet50, args: {classes: 4}}}")


# ------------------------------------------------------------------------------------------------ competitors

def consume(batches, seconds):
    """Takes batches for `seconds` after two for warm-up. Prints images per second."""
    count, start = 0, None
    for index, size in enumerate(batches):
        if index == 2:
            count, start = 0, time.perf_counter()
        count += size
        if start is not None and time.perf_counter() - start >= seconds:
            break
    print(json.dumps({"rate": count / (time.perf_counter() - start)}))


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
    data = torchvision.datasets.ImageFolder(arguments.photos_folder, transform, loader=load)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=arguments.threads, persistent_workers=True, drop_last=True)

    def endless():
        while True:
            for images, _ in loader:
                yield len(images)
    consume(endless(), arguments.seconds)


def run_tf(arguments, _):
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    names = sorted(str(path) for path in pathlib.Path(arguments.photos_folder).glob("*/*.jpg"))

    def load(path):
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(tf.io.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0),
                                                                aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True)
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.resize(tf.io.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_ACCURATE"), (SIZE, SIZE), antialias=True)
        return (tf.image.random_flip_left_right(image) / 255 - MEAN) / STD

    data = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names)).repeat()
    data = data.map(load, num_parallel_calls=arguments.threads, deterministic=True).batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = arguments.threads
    consume((int(images.shape[0]) for images in data.with_options(options)), arguments.seconds)


COMPETITORS = {"torchvision": lambda a: run_torch(a, False), "torchvision_v2": lambda a: run_torch(a, True), "tf_data": lambda a: run_tf(a, None)}
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


def bench_images(arguments, folder):
    photos = folder / "photos"
    make_photos(photos, arguments.photos)
    spec = image_job(folder, photos)
    runs = {"muster": ([str(MUSTER), "-o", "json", "bench", "data", str(spec), "--seconds", str(arguments.seconds), "--threads", str(arguments.threads)], 0)}
    for name in COMPETITORS:
        python = arguments.tf_python if name == "tf_data" else arguments.torch_python
        if subprocess.run([python, "-c", IMPORTS[name]], capture_output=True, check=False).returncode != 0:
            print(f"{name}: its packages are not there", file=sys.stderr)
            continue
        command = [python, __file__, "--run", name, "--photos_folder", str(photos), "--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
        runs[name] = (command, idle_memory(python, IMPORTS[name]))
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
    base = [str(MUSTER), "-o", "json", "bench", "data", str(image_job(folder, photos)), "--seconds", str(arguments.seconds), "--threads",
            str(arguments.threads)]
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
    for _ in range(arguments.rounds):
        result, _ = measure([str(MUSTER), "-o", "json", "data", "index", str(tar_job(folder, folder / "large.tar"))])
        ours.append(result["seconds"] / arguments.members)
        code = f"import json, tarfile, time; t = time.perf_counter(); n = len(tarfile.open({str(small)!r}).getmembers()); print(json.dumps({{'each': (time.perf_counter() - t) / n}}))"
        theirs.append(measure([sys.executable, "-c", code])[0]["each"])
    return {"members": arguments.members, "gib": round((folder / "large.tar").stat().st_size / 2**30, 2),
            "seconds": round(statistics.median(ours) * arguments.members, 2), "faster_than_tarfile": round(statistics.median(theirs) / statistics.median(ours), 1)}


def tar_job(folder, path):
    return job(folder, f"tar: {{path: {path}, inputs: {{input: {{extension: bin, image: {{}}}}, target: {{extension: cls, integer: {{}}}}}}}}\n"
                       f"  image: {{train: [{{resize: {{height: {SIZE}, width: {SIZE}}}}}], evaluate: [{{resize: {{height: {SIZE}, width: {SIZE}}}}}]}}",
               "{zoo: {name: resnet50, args: {classes: 1000}}}")


BENCHES = {"images": bench_images, "pace": bench_pace, "tar": bench_tar}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--members", type=int, default=1_280_000)
    parser.add_argument("--member_bytes", type=int, default=14_000)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--tf_python", default=sys.executable)
    parser.add_argument("--run", choices=COMPETITORS, help=argparse.SUPPRESS)
    parser.add_argument("--photos_folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        COMPETITORS[arguments.run](arguments)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.work or pathlib.Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only.split(","):
            print(json.dumps({name: BENCHES[name](arguments, folder)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
