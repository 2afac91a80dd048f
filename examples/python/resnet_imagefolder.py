#!/usr/bin/env python3
"""Trains a ResNet-18 of torchvision on a folder of images with one subfolder for each class.

  muster launch --workers 2 -- python3 examples/python/resnet_imagefolder.py FOLDER [STEPS]

Needs torchvision.
"""

import sys

import torch
from torch.nn import functional
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import muster.torch as mt


def main():
    dataset = ImageFolder(sys.argv[1], transforms.Compose([
        transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]))
    torch.manual_seed(1)
    model = models.resnet18(num_classes=len(dataset.classes))
    if torch.cuda.is_available():
        model = model.cuda()
    device = next(model.parameters()).device
    job = mt.join(model, {
        "name": "resnet",
        "data": {"batch_size": min(32, len(dataset))},
        "training": {
            "steps": int(sys.argv[2]) if len(sys.argv) > 2 else 1000,
            "optimizer": {"sgd": {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4}},
        },
        "resources": {"workers": {"min": 1, "max": 2}},
    })
    optimizer = job.optimizer(model)
    for images, labels in job.loader(dataset, num_workers=2):
        loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)


if __name__ == "__main__":  # the loader's processes import this file
    main()
