#!/usr/bin/env python3
"""Determines which of the exported models the importer accepts, and whether they train as they do in PyTorch.

    judge.py judge OUT --replay PROGRAM [NAME...]    runs //lib/engine/replay:onnx_replay_main over OUT; needs onnxruntime
    judge.py table OUT [--to docs/onnx_models.md]    prints or writes the page with the results; needs only Python
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import recipes  # noqa: E402
from recipes import BATCH, EXPORTERS, OUTPUT, SIGMOID, SOFTMAX, SQUARES  # noqa: E402

PAGE = """\
# ONNX models

Sixty models as people export them (`tests/onnx_models/recipes.py`), what the importer makes of them, and how they train.
Made by `tests/onnx_models/judge.py table`; [testing.md](testing.md#onnx-models) says how to run it. All of it ran on one
thread of a CPU, nothing on a GPU.

- *loss*: PyTorch's, of the first samples, at the start and 18 steps of SGD with momentum later, in double precision.
- *noise*: the largest relative difference of PyTorch's own losses in single precision when weights start 1e-7 off, over
  20 steps and four runs.
- *difference*: the largest of a loss here, relative; *in noises*: in units of the noise up to its step (at least 3e-7).
  Up to three a model trains right. Where batch norms amplify roundings late steps are hardly judged, but the first ones
  are as sharply as elsewhere.
- *saved*: the trained model, written back into its file: onnxruntime's logits against ours, relative to the largest;
  right up to {logits_difference_max}. Where the loss reads no classes it is the loss that is compared.

The rows *dynamo* are of exports **without `optimize=False`**, which [the guide](bring_your_model.md#2-export-the-model)
recommends. With it batch norms and biases stay in the file, and the next paragraph does not apply.

The dynamo exporter exports a model that trains as one that does not: it folds batch norms into the convolutions before
them, and leaves out biases that start at zero. No importer can know of them. *As exported* means that the losses are
those of the model in PyTorch without them. What trains otherwise was joined or computed by the exporter beyond repair;
the import warns of each.

With {versions}.
"""
REPLAY_SECONDS_MAX = 300
LOGITS_DIFFERENCE_MAX = 1e-5  # from onnxruntime's logits, relative to the largest logit
REASON_LENGTH_MAX = 200


def replay_flags(recipe, exporter):
    """Returns the flags that replace the model's settings in a job file. The dynamo exporter folds frozen tensors into others, so its
    files have no name to freeze."""
    flags = [] if recipe.loss == SOFTMAX else [f"--loss={recipe.loss}"]
    flags += [f"--freeze={','.join(recipe.freeze)}"] if recipe.freeze and exporter == "script" else []
    # GoogLeNet has auxiliary heads, so its output must be named. Naming the only output of a model does no harm.
    return flags + [f"--logits={'loss' if recipe.loss == OUTPUT else 'logits'}"]


def recording_of(recipe, exporter, recordings):
    """Returns the name of the recording to compare an exporter's file with: the folded one, if there is one, for a dynamo file."""
    folded = f"{recipe.name}.folded"
    return folded if exporter == "dynamo" and recordings.get(folded) else recipe.name


def replay(program, recipe, exporter, recording, out):
    """Runs the program on an exported model. Returns its line of JSON, or {"accepted": False, "message": ...} without one."""
    stem = f"{recipe.name}.{exporter}"
    command = [str(program), f"--onnx={out / stem}.onnx", f"--recording={out / recording}.safetensors",
               f"--save={out / 'trained' / stem}.onnx", f"--inference={out / 'trained' / stem}.f32"]
    try:
        ran = subprocess.run(command + replay_flags(recipe, exporter), capture_output=True, text=True, timeout=REPLAY_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return {"accepted": False, "message": f"took more than {REPLAY_SECONDS_MAX} s"}
    if not ran.stdout.startswith("{"):
        lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["it said nothing"]
        return {"accepted": False, "message": f"the program ended with {ran.returncode}: {lines[0]}"}
    found = json.loads(ran.stdout)
    if ran.returncode != 0:
        found["save_error"] = ran.stderr.strip().splitlines()[-1]
    return found


def loss_of(recipe, logits, target):
    import numpy

    if recipe.loss == SIGMOID:
        return numpy.mean(numpy.logaddexp(0, logits) - logits * target)
    if recipe.loss == SQUARES:
        return numpy.mean((logits - target) ** 2)
    return logits


def onnxruntime_difference(recipe, exporter, out):
    """Returns the largest difference between the trained model's logits in onnxruntime and in Muster, relative to the largest logit.
    Compares losses if Muster keeps no logits. Returns None if the difference is not finite."""
    import numpy
    import onnxruntime
    import safetensors.numpy

    tensors = safetensors.numpy.load_file(str(out / f"{recipe.name}.safetensors"))
    stem = out / "trained" / f"{recipe.name}.{exporter}"
    session = onnxruntime.InferenceSession(f"{stem}.onnx", providers=["CPUExecutionProvider"])
    types = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32"}
    inputs = {given.name: tensors[given.name][:BATCH].astype(types[given.type]) for given in session.get_inputs()}
    theirs = session.run([session.get_outputs()[0].name], inputs)[0].astype("float64")
    own = numpy.fromfile(f"{stem}.f32", "float32").astype("float64")
    if own.size != theirs.size:
        target = tensors["target"][:BATCH].astype("float64") if "target" in tensors else None
        theirs = loss_of(recipe, theirs, target)
    difference = numpy.max(numpy.abs(own - numpy.reshape(theirs, -1))) / numpy.max(numpy.abs(theirs))
    return float(difference) if math.isfinite(difference) else None


def judge(program, recipe, exporter, recording, out):
    found = replay(program, recipe, exporter, recording, out)
    if found["accepted"] and "save_error" not in found:
        try:
            found["onnxruntime_difference"] = onnxruntime_difference(recipe, exporter, out)
        except Exception as error:  # onnxruntime has exceptions of its own
            found["onnxruntime_error"] = " ".join(str(error).split())[:300]
    return found


def judge_all(program, out, chosen):
    path = out / "judgements.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    recordings = json.loads((out / "recordings.json").read_text())
    (out / "trained").mkdir(exist_ok=True)
    for recipe in chosen:
        for exporter in EXPORTERS:
            name = f"{recipe.name}.{exporter}"
            if not (out / f"{name}.onnx").exists():
                continue
            found[name] = judge(program, recipe, exporter, recording_of(recipe, exporter, recordings), out)
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{name}: {json.dumps(found[name])[:300]}", flush=True)
            for made in (out / "trained").glob(f"{name}.*"):
                made.unlink()


def trains_right(judgement):
    return bool(judgement.get("passed"))


def exports_right(judgement):
    difference = judgement.get("onnxruntime_difference")
    return difference is not None and difference <= LOGITS_DIFFERENCE_MAX


def plain(message):
    """Returns the message as one line for a table cell: file names without their folders, cut at REASON_LENGTH_MAX characters."""
    text = " ".join(re.sub(r"\S*/(\S+\.onnx)", r"\1", message).split()).replace("|", "\\|")
    return text if len(text) <= REASON_LENGTH_MAX else text[:REASON_LENGTH_MAX] + " ..."


def number(value):
    return "not finite" if value is None else f"{value:.1e}"


def verdict(judgement, folded):
    if not judgement["accepted"]:
        return f"refused: {plain(judgement['message'])}"
    if not trains_right(judgement):
        return "**trains otherwise**"
    if "save_error" in judgement:
        return f"cannot be saved: {plain(judgement['save_error'])}"
    if "onnxruntime_error" in judgement:
        return f"onnxruntime refuses what was saved: {plain(judgement['onnxruntime_error'])}"
    right = "yes, as exported" if folded else "yes"
    return right if exports_right(judgement) else "**other logits when saved**"


def row(recipe, exporter, exports, recordings, judgements):
    name = f"{recipe.name}.{exporter}"
    exported = exports.get(name, {"error": "not exported"})
    if "error" in exported:
        return [recipe.name, exporter, f"the exporter fails: {plain(exported['error'])}"] + [""] * 5
    judgement = judgements.get(name, {"accepted": False, "message": "not judged"})
    recording = recording_of(recipe, exporter, recordings)
    cells = [recipe.name, exporter, verdict(judgement, recording != recipe.name)]
    if not judgement["accepted"]:
        return cells + [""] * 5
    saved = number(judgement["onnxruntime_difference"]) if "onnxruntime_difference" in judgement else ""
    losses = recordings[recording]
    noises = judgement["loss_noises"]
    return cells + [f"{losses['first']:.3f} to {losses['last']:.3f}",
                    number(losses["noise"]), number(judgement["loss_difference"]), "" if noises is None else f"{noises:.1f}", saved]


def summary(exporter, exports, judgements):
    """Returns the exporter and four counts: files, accepted, trained right, and trained right and right when saved."""
    made = [name for name, found in exports.items() if name.endswith("." + exporter) and "error" not in found]
    found = [judgements[name] for name in made if name in judgements]
    accepted = [judgement for judgement in found if judgement["accepted"]]
    trained = [judgement for judgement in accepted if trains_right(judgement)]
    return [exporter, len(made), len(accepted), len(trained), len([each for each in trained if exports_right(each)])]


def table(exports, recordings, judgements, versions):
    """Returns the page as Markdown."""
    def line(cells):
        return "| " + " | ".join(str(cell) for cell in cells) + " |"

    lines = PAGE.format(logits_difference_max=f"{LOGITS_DIFFERENCE_MAX:.0e}",
                        versions=", ".join(f"{name} {version}" for name, version in sorted(versions.items()))).splitlines()
    lines += [
        "",
        line(["exporter", "files", "accepted", "train right", "and are right when saved"]),
        "|---|---:|---:|---:|---:|",
    ]
    lines += [line(summary(exporter, exports, judgements)) for exporter in EXPORTERS]
    lines += ["", line(["model", "exporter", "accepted", "loss", "noise", "difference", "in noises", "saved"]),
              "|---|---|---|---|---:|---:|---:|---:|"]
    lines += [line(row(recipe, exporter, exports, recordings, judgements))
              for recipe in recipes.RECIPES for exporter in EXPORTERS]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["judge", "table"])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="of recipes; default: all")
    parser.add_argument("--replay", type=pathlib.Path, help="the program of //lib/engine/replay:onnx_replay_main")
    parser.add_argument("--to", type=pathlib.Path, help="the page to write; default: standard output")
    options = parser.parse_intermixed_args()
    if options.command == "judge":
        if options.replay is None:
            parser.error("judge needs --replay")
        judge_all(options.replay, options.out, recipes.named(options.names))
        return
    parts = [json.loads((options.out / f"{name}.json").read_text())
             for name in ("exports", "recordings", "judgements", "versions")]
    page = table(*parts)
    if options.to is None:
        sys.stdout.write(page)
    else:
        options.to.write_text(page)


if __name__ == "__main__":
    main()
