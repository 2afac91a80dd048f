"""Models of timm, of families that torchvision does not have."""

from samples import Case, classes, images, without_dropout
import timm
from timm import layers
from timm.models import levit as timm_levit

# Both exporters of torch 2.15 fail on fused attention in one of these models. timm's unfused attention computes the same sums.
layers.set_fused_attn(False)


def _case(name, size=64, **settings):
    return Case(without_dropout(timm.create_model(name, pretrained=False, num_classes=10, **settings)), images(size),
                classes())


def beit():
    return _case("beit_base_patch16_224", 32, img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3)


def cait():
    return _case("cait_xxs24_224", 32, img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3)


def levit():
    # This model has no second head for distillation. The norms of two heads start equal, and the dynamo exporter would merge them.
    model = timm_levit.Levit(img_size=64, num_classes=10, embed_dim=(32, 48, 64), key_dim=8, num_heads=(2, 3, 4),
                             depth=(1, 1, 1))
    return Case(without_dropout(model), images(64), classes())


def mobilevit():
    return _case("mobilevit_xxs")


def ghostnet():
    return _case("ghostnet_050")


def hrnet():
    return _case("hrnet_w18_small")


def nfnet():
    return _case("nf_resnet26")


def pvt_v2():
    return _case("pvt_v2_b0", embed_dims=(16, 32, 40, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 5, 8))


def eva02():
    return _case("eva02_tiny_patch14_224", 56, img_size=56, embed_dim=48, depth=2, num_heads=3)
