"""Lists sixty models as people export them, and how each is trained. Needs only Python.

A recipe names a function of a module beside this file. The function makes the model and its samples. The model has the real
architecture with all its operators, but is so small that a step takes a fraction of a second.
"""

import dataclasses
import importlib

BATCH = 4  # samples of a step
BATCHES = 2  # batches of a recipe's samples; steps use them in turn
SAMPLES = BATCH * BATCHES
STEPS = 20
MOMENTUM = 0.9
EXPORTERS = ("script", "dynamo")

SOFTMAX = "softmax_cross_entropy"  # takes logits f32[B, ..., V] and classes
SIGMOID = "sigmoid_cross_entropy"
SQUARES = "mean_squared_error"
OUTPUT = "output"  # the graph computes the loss, its first output, from inputs alone


@dataclasses.dataclass(frozen=True)
class Recipe:
    family: str  # the module beside this file: FAMILY_models.py
    name: str  # name of the function in that module, and of the files
    loss: str
    learning_rate: float  # large enough to move the loss; small, because batch norms over small batches amplify noise (exports.py)
    freeze: tuple = ()  # onnx.freeze; without it an import would have to guess, and would warn

    def make(self):
        """Returns a new Case (samples.py), made with a fixed seed."""
        import torch

        torch.manual_seed(7)
        module = importlib.import_module(f"{self.family}_models")
        return getattr(module, self.name)()


RECIPES = [
    Recipe("torchvision", "resnet18", SOFTMAX, 0.0003),
    Recipe("torchvision", "resnet50", SOFTMAX, 0.0001),
    Recipe("torchvision", "vgg11_bn", SOFTMAX, 0.001),
    Recipe("torchvision", "alexnet", SOFTMAX, 0.01),
    Recipe("torchvision", "squeezenet1_1", SOFTMAX, 0.0003),
    Recipe("torchvision", "densenet", SOFTMAX, 0.001),
    Recipe("torchvision", "googlenet", SOFTMAX, 0.0001),
    Recipe("torchvision", "inception_v3", SOFTMAX, 0.0001),
    Recipe("torchvision", "mobilenet_v2", SOFTMAX, 0.00003),
    Recipe("torchvision", "mobilenet_v3", SOFTMAX, 0.003),
    Recipe("torchvision", "efficientnet_b0", SOFTMAX, 0.0003),
    Recipe("torchvision", "regnet_y", SOFTMAX, 0.001),
    Recipe("torchvision", "shufflenet_v2", SOFTMAX, 0.0003),
    Recipe("torchvision", "convnext_tiny", SOFTMAX, 0.001),
    Recipe("torchvision", "vit_b_16", SOFTMAX, 0.001),
    Recipe("torchvision", "swin_t", SOFTMAX, 0.003),
    Recipe("torchvision", "maxvit", SOFTMAX, 0.01),
    Recipe("torchvision", "deeplab_v3", OUTPUT, 0.001),
    Recipe("torchvision", "r3d_18", SOFTMAX, 0.0001),
    Recipe("timm", "beit", SOFTMAX, 0.003),
    Recipe("timm", "cait", SOFTMAX, 0.003),
    Recipe("timm", "levit", SOFTMAX, 0.003),
    Recipe("timm", "mobilevit", SOFTMAX, 0.003),
    Recipe("timm", "ghostnet", SOFTMAX, 0.001),
    Recipe("timm", "hrnet", SOFTMAX, 0.0003),
    Recipe("timm", "nfnet", SOFTMAX, 0.003),
    Recipe("timm", "pvt_v2", SOFTMAX, 0.003),
    Recipe("timm", "eva02", SOFTMAX, 0.003),
    Recipe("transformers", "bert", OUTPUT, 0.03),
    Recipe("transformers", "roberta", SOFTMAX, 0.03),
    Recipe("transformers", "distilbert", SOFTMAX, 0.03),
    Recipe("transformers", "albert", SOFTMAX, 0.03),
    Recipe("transformers", "gpt2", SOFTMAX, 0.03),
    Recipe("transformers", "gpt_neo", SOFTMAX, 0.03),
    Recipe("transformers", "opt", SOFTMAX, 0.03),
    Recipe("transformers", "llama", SOFTMAX, 0.03),
    Recipe("transformers", "mistral", SOFTMAX, 0.03),
    Recipe("transformers", "t5", SOFTMAX, 0.03),
    Recipe("transformers", "bart", SOFTMAX, 0.03),
    Recipe("transformers", "deit", SOFTMAX, 0.03),
    Recipe("transformers", "clip", OUTPUT, 0.03),
    Recipe("transformers", "wav2vec2", SOFTMAX, 0.03),
    Recipe("transformers", "whisper", SOFTMAX, 0.03),
    Recipe("own", "tacotron2", OUTPUT, 0.1),
    Recipe("own", "waveglow", OUTPUT, 0.03, freeze=("*permutation*", "*sign*")),
    Recipe("own", "pix2pix", OUTPUT, 0.1),
    Recipe("own", "unet", SIGMOID, 0.003),
    Recipe("own", "dlrm", SIGMOID, 0.03),
    Recipe("own", "lstm_language_model", SOFTMAX, 0.1),
    Recipe("own", "gru_classifier", SOFTMAX, 0.03),
    Recipe("own", "elman_rnn", SOFTMAX, 0.03),
    Recipe("own", "ncf", SIGMOID, 0.1),
    Recipe("own", "dcgan_discriminator", SIGMOID, 0.001),
    Recipe("own", "dcgan_generator", SQUARES, 0.1),
    Recipe("own", "audio_conv1d", SOFTMAX, 0.03),
    Recipe("own", "causal_mask_gpt", SOFTMAX, 0.1),
    Recipe("own", "normalised_cnn", SOFTMAX, 0.1),
    Recipe("own", "tied_language_model", SOFTMAX, 0.1),
    Recipe("own", "copied_encoder", SOFTMAX, 0.01),
    Recipe("own", "mlp_mixer", SOFTMAX, 0.01),
]


def named(names):
    """Returns the recipes of these names, or all recipes if `names` is empty. Raises KeyError if a name is unknown."""
    by_name = {recipe.name: recipe for recipe in RECIPES}
    return [by_name[name] for name in names] if names else RECIPES
