"""Loads a checkpoint into the PyTorch module that was exported. The file is the same in every example: copy it."""

import glob

from safetensors.torch import load_file


def load_back(net, folder):
    """Loads what `muster checkpoint get JOB folder` wrote. Fails if a parameter is missing or a name is unknown.

    Buffers that Muster does not train keep the module's values: constants, and num_batches_tracked of batch norms. A weight
    that has several names in the module has one of them in the checkpoint.
    """
    trained = {}
    for path in glob.glob(f"{folder}/model-*-of-*.safetensors"):  # several if the model is larger than 5 GiB
        trained |= load_file(path)

    own = net.state_dict(keep_vars=True)
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    names = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    for shared in names.values():
        values = [trained[name] for name in shared if name in trained] or [own[name] for name in shared if name in buffers]
        if values:
            trained |= dict.fromkeys(shared, values[0])
    net.load_state_dict(trained, strict=True)
