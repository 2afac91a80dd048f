"""Models of torchvision, narrow and shallow."""

import functools
import importlib

from samples import Case, SAMPLES, classes, images, without_dropout
import torch
from torch import nn
from torchvision import models
from torchvision.models import convnext, densenet as densenets, efficientnet, maxvit as maxvits, regnet, resnet
from torchvision.models import segmentation, swin_transformer, vgg, video
from torchvision.models import vision_transformer

# Imported by name, because torchvision.models has functions of the same names.
googlenets = importlib.import_module("torchvision.models.googlenet")
inceptions = importlib.import_module("torchvision.models.inception")


def _case(model, size):
    return Case(without_dropout(model), images(size), classes())


def resnet18():
    return _case(models.resnet18(num_classes=10), 48)


def resnet50():
    return _case(resnet.ResNet(resnet.Bottleneck, [2, 1, 1, 1], num_classes=10, width_per_group=16), 128)


def vgg11_bn():
    layers = vgg.make_layers([8, "M", 16, "M", 32, 32, "M", 32, 32, "M", 32, 32, "M"], batch_norm=True)
    model = vgg.VGG(layers, num_classes=10)
    model.classifier[0] = nn.Linear(32 * 7 * 7, 64)
    model.classifier[3] = nn.Linear(64, 64)
    model.classifier[6] = nn.Linear(64, 10)
    return _case(model, 224)  # the TorchScript exporter requires 7 x 7 before the classifier


def alexnet():
    model = models.alexnet(num_classes=10)
    widths = [3, 16, 24, 32, 24, 24]
    for layer, inputs, outputs in zip((0, 3, 6, 8, 10), widths, widths[1:]):
        own = model.features[layer]
        model.features[layer] = nn.Conv2d(inputs, outputs, own.kernel_size, own.stride, own.padding)
    model.classifier[1] = nn.Linear(24 * 6 * 6, 64)
    model.classifier[4] = nn.Linear(64, 64)
    model.classifier[6] = nn.Linear(64, 10)
    return _case(model, 224)


def squeezenet1_1():
    return _case(models.squeezenet1_1(num_classes=10), 64)


def densenet():
    return _case(densenets.DenseNet(8, (2, 3, 2, 2), 16, num_classes=10), 64)


class _NarrowGoogLeNetConv(googlenets.BasicConv2d):
    """Has a quarter of the channels, except for those of the image."""

    def __init__(self, inputs, outputs, **settings):
        super().__init__(inputs if inputs == 3 else inputs // 4, outputs // 4, **settings)


def googlenet():
    blocks = [_NarrowGoogLeNetConv] + [functools.partial(block, conv_block=_NarrowGoogLeNetConv)
                                       for block in (googlenets.Inception, googlenets.InceptionAux)]
    model = googlenets.GoogLeNet(num_classes=10, aux_logits=True, init_weights=True, blocks=blocks)
    model.fc = nn.Linear(1024 // 4, 10)
    for auxiliary in (model.aux1, model.aux2):
        auxiliary.fc1 = nn.Linear(2048 // 4, 32)
        auxiliary.fc2 = nn.Linear(32, 10)
    case = _case(model, 128)
    case.outputs = ("logits", "aux2", "aux1")
    return case


class _NarrowInceptionConv(inceptions.BasicConv2d):
    """Has a quarter of the channels, except for those of the image."""

    def __init__(self, inputs, outputs, **settings):
        super().__init__(inputs if inputs == 3 else inputs // 4, outputs // 4, **settings)


def inception_v3():
    blocks = [_NarrowInceptionConv] + [
        functools.partial(block, conv_block=_NarrowInceptionConv)
        for block in (inceptions.InceptionA, inceptions.InceptionB, inceptions.InceptionC, inceptions.InceptionD,
                      inceptions.InceptionE, inceptions.InceptionAux)]
    model = inceptions.Inception3(num_classes=10, aux_logits=False, init_weights=True, inception_blocks=blocks)
    model.fc = nn.Linear(2048 // 4, 10)
    return _case(model, 203)


def mobilenet_v2():
    return _case(models.mobilenet_v2(num_classes=10, width_mult=0.25), 128)


def mobilenet_v3():
    return _case(models.mobilenet_v3_small(num_classes=10, width_mult=0.5), 64)


def efficientnet_b0():
    setting, last = efficientnet._efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=0.5)
    return _case(efficientnet.EfficientNet(setting, 0.2, num_classes=10, last_channel=last), 64)


def regnet_y():
    block = regnet.BlockParams.from_init_params(depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25)
    return _case(regnet.RegNet(block, num_classes=10, norm_layer=functools.partial(nn.BatchNorm2d, eps=1e-5)), 64)


def shufflenet_v2():
    return _case(models.shufflenet_v2_x0_5(num_classes=10), 128)


def convnext_tiny():
    setting = [convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, 48, 1),
               convnext.CNBlockConfig(48, 64, 2), convnext.CNBlockConfig(64, None, 1)]
    return _case(convnext.ConvNeXt(setting, stochastic_depth_prob=0.1, layer_scale=0.1, num_classes=10), 64)


def vit_b_16():
    return _case(vision_transformer.VisionTransformer(32, 8, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=96,
                                                      num_classes=10), 32)


def swin_t():
    return _case(swin_transformer.SwinTransformer([4, 4], 24, [2, 2], [3, 6], [4, 4], stochastic_depth_prob=0.1,
                                                  num_classes=10), 32)


def maxvit():
    return _case(maxvits.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.1, num_classes=10), 64)


class _PixelLoss(nn.Module):
    """Computes the cross entropy of all pixels with their labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input, labels):
        return nn.functional.cross_entropy(self.model(input)["out"], labels)


def deeplab_v3():
    model = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    inputs = images(64)
    inputs["labels"] = torch.randint(0, 5, (SAMPLES, 64, 64))
    return Case(_PixelLoss(without_dropout(model)), inputs, outputs=("loss",))


def r3d_18():
    model = video.resnet.VideoResNet(video.resnet.BasicBlock, [video.resnet.Conv3DSimple] * 4, [1, 1, 1, 1],
                                     video.resnet.BasicStem, num_classes=10)
    return Case(without_dropout(model), {"input": torch.randn(SAMPLES, 3, 4, 24, 24)}, classes())
