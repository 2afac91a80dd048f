#!/usr/bin/env python3
"""Trains ResNet-18 on examples/data/emoji with Muster's image pipeline and with torchvision's in PyTorch, from several seeds.

    image_learning.py [--seeds 3] [--epochs 30] [--work FOLDER]

Both have the same initial values (torchvision's, of the seed), optimizer, rates, batch and transforms, and hold out
every fifth image. Prints the accuracies on the held-out images after the last step.

Needs torch, torchvision and onnx, and `bazel build -c opt //:muster //:coordinator //:ps //:worker`.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

import torch
import torchvision
from torchvision import transforms

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "examples/data/emoji"
SIZE, BATCH, RATE, DECAY, WARMUP = 56, 32, 1e-3, 0.05, 40
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def write_lists(folder):
    """Writes the lists of images to train on and to evaluate. Every fifth image is held out. Returns their numbers in ImageFolder."""
    samples = torchvision.datasets.ImageFolder(IMAGES).samples
    held_out = set(range(0, len(samples), 5))
    for name, chosen in (("train.txt", lambda i: i not in held_out), ("eval.txt", lambda i: i in held_out)):
        lines = [f"{pathlib.Path(path).relative_to(IMAGES)} {label}\n" for i, (path, label) in enumerate(samples) if chosen(i)]
        (folder / name).write_text("".join(lines))
    return held_out


def net(seed):
    torch.manual_seed(seed)
    return torchvision.models.resnet18(num_classes=4)


def train_muster(seed, epochs, folder):
    model = net(seed).train()
    path = folder / f"resnet18_{seed}.onnx"
    torch.onnx.export(model, (torch.zeros(2, 3, SIZE, SIZE),), str(path), dynamo=True, optimize=False, external_data=False,
                      dynamic_shapes=({0: "batch"},), input_names=["input"], output_names=["logits"])
    job = folder / f"job_{seed}.yaml"
    job.write_text(f"""
name: learning
model: {{onnx: {{path: {path}}}}}
data:
  images: {{path: {IMAGES}, list: {folder}/train.txt, eval_list: {folder}/eval.txt}}
  image:
    train: [{{random_resized_crop: {{size: {SIZE}, scale_min: 0.5}}}}, {{random_flip: {{}}}}]
    evaluate: [{{center_crop: {{size: {SIZE}}}}}]
    mean: {MEAN}
    std: {STD}
  batch_size: {BATCH}
  seed: {seed}
training:
  epochs: {epochs}
  optimizer: {{adamw: {{learning_rate: {RATE}, weight_decay: {DECAY}}}}}
  schedule: {{warmup_steps: {WARMUP}, cosine: {{final_ratio: 0}}}}
  seed: {seed}
resources: {{workers: {{min: 1, max: 1}}, ps: 1}}
""")
    out = subprocess.run([str(ROOT / "bazel-bin/cli/muster"), "-o", "json", "run", str(job), "--dir", str(folder / f"cluster_{seed}")], capture_output=True, text=True, check=False)
    if out.returncode != 0:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(out.stdout)["progress"]["evaluation_accuracy"]


def train_torch(seed, epochs, held_out):
    crop = transforms.Compose([transforms.RandomResizedCrop(SIZE, scale=(0.5, 1)), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                               transforms.Normalize(MEAN, STD)])
    plain = transforms.Compose([transforms.CenterCrop(SIZE), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    names = [path for path, _ in torchvision.datasets.ImageFolder(IMAGES).samples]
    train = [i for i, path in enumerate(names) if i not in held_out]
    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(torch.utils.data.Subset(torchvision.datasets.ImageFolder(IMAGES, crop), train), BATCH, shuffle=True, drop_last=True)
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    total = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP) if step < WARMUP else
                                                 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP))))
    for _ in range(epochs):
        for images, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), classes).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for images, classes in torch.utils.data.DataLoader(torch.utils.data.Subset(torchvision.datasets.ImageFolder(IMAGES, plain), sorted(held_out)), 64):
            right += int((model(images).argmax(1) == classes).sum())
    return right / len(held_out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--work", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.work or pathlib.Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        held_out = write_lists(folder)
        muster, alone = [], []
        for seed in range(1, arguments.seeds + 1):
            muster.append(train_muster(seed, arguments.epochs, folder))
            alone.append(train_torch(seed, arguments.epochs, held_out))
            print(json.dumps({"seed": seed, "muster": round(muster[-1], 3), "torchvision": round(alone[-1], 3)}), flush=True)
    print(json.dumps({"muster": round(statistics.mean(muster), 3), "torchvision": round(statistics.mean(alone), 3)}))


if __name__ == "__main__":
    main()
