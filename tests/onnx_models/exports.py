#!/usr/bin/env python3
"""Exports the models of recipes.py from PyTorch, and records how they train there.

    exports.py export OUT [NAME...]    writes OUT/NAME.{script,dynamo}.onnx, and OUT/exports.json with the errors
    exports.py record OUT [NAME...]    writes OUT/NAME.safetensors: samples, 20 losses, and their noise. After `export` also
                                       NAME.folded.safetensors: the same for the model as the dynamo exporter changes it
    exports.py ops OUT                 prints, for each operator, how many models of each exporter have it
"""

import argparse
import collections
import importlib
import importlib.metadata
import json
import itertools
import logging
import multiprocessing
import pathlib
import re
import time
import traceback
import warnings

import recipes
from recipes import BATCH, BATCHES, EXPORTERS, MOMENTUM, SIGMOID, SOFTMAX, SQUARES, STEPS

SECONDS_MAX = 300  # of an export or a recording
NOISE_RUNS = 4
PERTURBATION = 1e-7


def first_batch(case):
    return {name: value[:BATCH] for name, value in case.inputs.items()}


def export_script(case, path):
    import torch

    names = list(case.inputs)
    torch.onnx.export(
        case.model, tuple(first_batch(case).values()), str(path), dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=names,
        output_names=list(case.outputs),
        dynamic_axes={name: {0: "batch"} for name in names + [name for name in case.outputs if name != "loss"]})


def export_dynamo(case, path):
    import torch

    names = list(case.inputs)
    torch.onnx.export(
        case.model, tuple(first_batch(case).values()), str(path), dynamo=True, input_names=names,
        output_names=list(case.outputs), dynamic_shapes=tuple({0: "batch"} for _ in names), verbose=False)


def shortened(error):
    """Returns an error as one line: its beginning and its end, because exporters name the cause at the end."""
    text = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())
    return text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"


def in_own_process(function, *arguments):
    """Runs `function` in a process of its own and returns its result, or {"error": ...} if it raises, crashes or takes too long."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def call():
        receiver.close()
        try:
            sender.send(function(*arguments))
        except Exception as error:  # exporters raise exceptions of many types, and all of them are results
            traceback.print_exc()
            sender.send({"error": f"{type(error).__name__}: {shortened(error)}"})

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(SECONDS_MAX) else {"error": f"took more than {SECONDS_MAX} s"}
    except EOFError:
        result = {"error": "the process died"}
    process.kill()
    process.join()
    return result


def export(recipe, exporter, out):
    started = time.monotonic()
    case = recipe.make()
    case.model.train()
    {"script": export_script, "dynamo": export_dynamo}[exporter](case, out / f"{recipe.name}.{exporter}.onnx")
    return {"seconds": round(time.monotonic() - started, 1)}


def loss_of(recipe, outputs, target):
    from torch.nn import functional

    if recipe.loss == SOFTMAX:
        return functional.cross_entropy(outputs.flatten(0, -2), target.flatten())
    if recipe.loss == SIGMOID:
        return functional.binary_cross_entropy_with_logits(outputs, target.to(outputs.dtype))
    if recipe.loss == SQUARES:
        return functional.mse_loss(outputs, target.to(outputs.dtype))
    return outputs


def fold_batch_norms(case):
    """Folds batch norms into the convolutions before them, as the dynamo exporter does even for a model in training mode.
    Returns the number of folded norms."""
    import torch
    from torch import nn

    makers = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)
    made, readers, hooks = {}, collections.defaultdict(list), []  # by the identity of a tensor, which `made` keeps alive

    def remember(module, _, output):
        made[id(output)] = (module, output)

    def read(module, inputs):
        if id(inputs[0]) in made:
            readers[id(inputs[0])].append(module)

    for module in case.model.modules():
        if isinstance(module, makers):
            hooks.append(module.register_forward_hook(remember))
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or not list(module.children()):
            hooks.append(module.register_forward_pre_hook(read))
    with torch.no_grad():
        case.model.eval()(*first_batch(case).values())
    for hook in hooks:
        hook.remove()
    pairs = [(made[tensor][0], norms[0]) for tensor, norms in readers.items()
             if len(norms) == 1 and isinstance(norms[0], nn.modules.batchnorm._BatchNorm)]
    for convolution, norm in pairs:
        transposed = isinstance(convolution, (nn.ConvTranspose1d, nn.ConvTranspose2d))
        convolution.weight, convolution.bias = nn.utils.fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias,
            transposed)
        rest = nn.Sequential(norm.drop, norm.act) if hasattr(norm, "act") else nn.Identity()  # timm's norms have both
        norm.forward = rest.forward
    return len(pairs)


def freeze_lost_biases(case, path):
    """Freezes biases that the dynamo exporter has left out of convolutions and products. It leaves out biases that start at
    zero. Returns the number of frozen biases."""
    import onnx

    weights = {node.input[1] for node in onnx.load(str(path), load_external_data=False).graph.node
               if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) == 2}
    lost = [bias for name, bias in case.model.named_parameters()
            if name.endswith("bias") and name[:-len("bias")] + "weight" in weights and not bias.any()]
    for bias in lost:
        bias.requires_grad = False
    return len(lost)


def train(recipe, dtype, perturbation=0.0, seed=0, exported=None):
    """Trains the recipe's model. Returns the case, the first batch's output and the loss of every step. Each weight starts
    multiplied by 1 + perturbation * normal. With `exported`, a file of the dynamo exporter, trains the model as that exporter
    changes it; returns None if the exporter changes nothing."""
    import torch

    case = recipe.make()
    if exported is not None and freeze_lost_biases(case, exported) + fold_batch_norms(case) == 0:
        return None
    model = case.model.to(dtype).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # the row would get no gradient, which an ONNX file does not express
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 1 + perturbation * torch.randn(weights.shape, generator=generator, dtype=dtype)
    sgd = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], recipe.learning_rate, MOMENTUM)
    first, losses = None, []
    for step in range(STEPS):
        part = slice(step % BATCHES * BATCH, (step % BATCHES + 1) * BATCH)
        outputs = model(*(x[part].to(dtype) if x.is_floating_point() else x[part] for x in case.inputs.values()))
        outputs = outputs if torch.is_tensor(outputs) else outputs[0]
        first = outputs.detach() if first is None else first
        loss = loss_of(recipe, outputs, None if case.target is None else case.target[part])
        losses.append(loss.item())
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return case, first, losses


def noise_of(runs, losses):
    """Returns, for each step, the largest relative difference of any run from `losses` up to that step."""
    largest = [max(abs(run[step] - loss) / abs(loss) for run in runs) for step, loss in enumerate(losses)]
    return list(itertools.accumulate(largest, max))


def save_tensors(path, tensors):
    import numpy
    import safetensors.numpy

    safetensors.numpy.save_file({name: numpy.ascontiguousarray(tensor) for name, tensor in tensors.items()}, str(path))


def recordings_name(recipe, folded):
    return f"{recipe.name}.folded" if folded else recipe.name


def record(recipe, out, folded):
    """Writes the recording of a recipe and returns a summary. The losses are those of a run in double precision. The noise is
    the largest difference from them of NOISE_RUNS runs in single precision, whose weights start a ten-millionth off.
    Returns {} and writes nothing if `folded` is true and the dynamo exporter changed nothing or made no file."""
    import numpy
    import torch

    started = time.monotonic()
    exported = out / f"{recipe.name}.dynamo.onnx" if folded else None
    if folded and not exported.exists():
        return {}
    right = train(recipe, torch.float64, exported=exported)
    if right is None:
        return {}
    case, logits, losses = right
    noise = noise_of(
        [train(recipe, torch.float32, PERTURBATION, seed, exported)[2] for seed in range(NOISE_RUNS)], losses)
    tensors = {
        name: value.numpy().astype("float32" if value.is_floating_point() else "int32")
        for name, value in list(case.inputs.items()) + ([] if case.target is None else [("target", case.target)])
    }
    tensors["losses"] = numpy.array(losses)
    tensors["logits"] = logits.numpy().astype("float32")
    tensors["learning_rate"] = numpy.array([recipe.learning_rate])
    tensors["momentum"] = numpy.array([MOMENTUM])
    tensors["noise"] = numpy.array(noise)
    save_tensors(out / f"{recordings_name(recipe, folded)}.safetensors", tensors)
    parameters = sum(weights.numel() for weights in case.model.parameters())
    # Batches are used in turn, so the step BATCHES before the end has the samples of the first step.
    return {"first": losses[0], "last": losses[-BATCHES], "noise": noise[-1], "parameters": parameters,
            "seconds": round(time.monotonic() - started, 1)}


class Record:
    """A JSON file of results by name. Every assignment writes the file."""

    def __init__(self, path):
        self.path = path
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def __setitem__(self, key, value):
        self.found[key] = value
        self.path.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n")
        print(f"{key}: {json.dumps(value)}", flush=True)


def write_versions(out):
    packages = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "onnxruntime")
    versions = {package: importlib.metadata.version(package).split("+")[0] for package in packages}
    (out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


def export_all(out, chosen):
    write_versions(out)
    exports = Record(out / "exports.json")
    for recipe in chosen:
        importlib.import_module(f"{recipe.family}_models")
        for exporter in EXPORTERS:
            exports[f"{recipe.name}.{exporter}"] = in_own_process(export, recipe, exporter, out)


def record_all(out, chosen):
    import torch._dynamo  # noqa: F401, because the optimizer needs it, and each forked process would load it again

    recordings = Record(out / "recordings.json")
    for recipe in chosen:
        importlib.import_module(f"{recipe.family}_models")
        for folded in (False, True):
            recordings[recordings_name(recipe, folded)] = in_own_process(record, recipe, out, folded)


def operators(graph, functions):
    """Returns the operators of a graph, of its subgraphs and of the local functions that it calls."""
    found = set()
    for node in graph.node:
        function = functions.get((node.domain, node.op_type))
        if function is not None:
            found |= operators(function, functions)
        else:
            found.add(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
        for attribute in node.attribute:
            for subgraph in [attribute.g] + list(attribute.graphs):
                found |= operators(subgraph, functions)
    return found


def count_operators(out):
    import onnx

    counts = {exporter: collections.Counter() for exporter in EXPORTERS}
    for path in sorted(out.glob("*.onnx")):
        exporter = path.name.split(".")[-2]
        model = onnx.load(str(path), load_external_data=False)
        functions = {(function.domain, function.name): function for function in model.functions}
        counts[exporter].update(operators(model.graph, functions))
    print(f"{'operator':40}{'script':>8}{'dynamo':>8}")
    names = set(counts["script"]) | set(counts["dynamo"])
    for name in sorted(names, key=lambda name: (-counts["script"][name] - counts["dynamo"][name], name)):
        print(f"{name:40}{counts['script'][name]:8}{counts['dynamo'][name]:8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["export", "record", "ops"])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="of recipes; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    chosen = recipes.named(options.names)
    if options.command == "export":
        export_all(options.out, chosen)
    elif options.command == "record":
        record_all(options.out, chosen)
    else:
        count_operators(options.out)


if __name__ == "__main__":
    main()
