"""Models written for this list: sequences, sound, recommendation, generation, and constructs that exporters handle badly."""

import copy
import math

from samples import Case, SAMPLES, classes, images, tokens
import torch
from torch import nn
import torch.nn.functional as functional
from torch.nn.utils.parametrizations import weight_norm

VOCABULARY = 40
LENGTH = 12


# Tacotron 2 (Shen et al. 2018), with the decoder's frames unrolled and the recording as its input (teacher forcing).
class _LocationAttention(nn.Module):
    def __init__(self, queries, memory, width):
        super().__init__()
        self.query = nn.Linear(queries, width, bias=False)
        self.memory = nn.Linear(memory, width, bias=False)
        self.location_conv = nn.Conv1d(2, 4, 5, padding=2, bias=False)
        self.location = nn.Linear(4, width, bias=False)
        self.energy = nn.Linear(width, 1, bias=False)

    def forward(self, query, memory, keys, weights, cumulated):
        location = self.location_conv(torch.stack([weights, cumulated], 1)).transpose(1, 2)
        energies = self.energy(torch.tanh(self.query(query).unsqueeze(1) + keys + self.location(location)))
        weights = functional.softmax(energies.squeeze(-1), dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


class _Tacotron2(nn.Module):
    def __init__(self, width=24, mels=8):
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width)) for _ in range(2))
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.prenet = nn.Sequential(nn.Linear(mels, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.ReLU())
        self.attention_rnn = nn.LSTMCell(16 + width, width)
        self.attention = _LocationAttention(width, width, 16)
        self.decoder_rnn = nn.LSTMCell(2 * width, width)
        self.projection = nn.Linear(2 * width, mels)
        self.gate = nn.Linear(2 * width, 1)
        self.postnet = nn.Sequential(nn.Conv1d(mels, 16, 5, padding=2), nn.BatchNorm1d(16), nn.Tanh(),
                                     nn.Conv1d(16, mels, 5, padding=2), nn.BatchNorm1d(mels))

    def forward(self, text, mel, gate):
        x = self.embedding(text).transpose(1, 2)
        for convolution in self.convolutions:
            x = functional.relu(convolution(x))
        memory, _ = self.encoder(x.transpose(1, 2))
        keys = self.attention.memory(memory)
        zeros = memory.new_zeros(memory.size(0), self.width)
        hidden, cell, decoder_hidden, decoder_cell, context = zeros, zeros, zeros, zeros, zeros
        weights = memory.new_zeros(memory.size(0), memory.size(1))
        cumulated = weights
        frame = mel.new_zeros(mel.size(0), mel.size(1))
        frames, gates = [], []
        for t in range(mel.size(2)):
            hidden, cell = self.attention_rnn(torch.cat([self.prenet(frame), context], 1), (hidden, cell))
            context, weights = self.attention(hidden, memory, keys, weights, cumulated)
            cumulated = cumulated + weights
            decoder_hidden, decoder_cell = self.decoder_rnn(torch.cat([hidden, context], 1),
                                                            (decoder_hidden, decoder_cell))
            both = torch.cat([decoder_hidden, context], 1)
            frames.append(self.projection(both))
            gates.append(self.gate(both))
            frame = mel[:, :, t]
        made = torch.stack(frames, 2)
        refined = made + self.postnet(made)
        return (functional.mse_loss(made, mel) + functional.mse_loss(refined, mel)
                + functional.binary_cross_entropy_with_logits(torch.cat(gates, 1), gate))


def tacotron2():
    inputs = {"text": tokens(LENGTH, VOCABULARY), "mel": torch.randn(SAMPLES, 8, 5),
              "gate": (torch.arange(5) == 4).float().repeat(SAMPLES, 1)}
    return Case(_Tacotron2(), inputs, outputs=("loss",))


# WaveGlow (Prenger et al. 2018). Its 1x1 convolutions use Glow's LU form: the determinant is, up to its sign, the product of a diagonal.
class _InvertibleConvolution(nn.Module):
    def __init__(self, channels):
        super().__init__()
        permutation, lower, upper = torch.linalg.lu(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.register_buffer("permutation", permutation)
        self.register_buffer("sign", torch.sign(torch.diagonal(upper)))
        self.lower = nn.Parameter(lower)
        self.upper = nn.Parameter(upper)
        self.log_diagonal = nn.Parameter(torch.log(torch.abs(torch.diagonal(upper)) + 0.1))

    def forward(self, x):
        identity = torch.eye(x.size(1), dtype=x.dtype)
        lower = torch.tril(self.lower, -1) + identity
        upper = torch.triu(self.upper, 1) + identity * (self.sign * torch.exp(self.log_diagonal))
        weight = self.permutation @ lower @ upper
        return functional.conv1d(x, weight.unsqueeze(-1)), self.log_diagonal.sum() * x.size(2)


class _WaveNet(nn.Module):
    def __init__(self, inputs, mels, width=16, layers=2):
        super().__init__()
        self.width = width
        self.start = weight_norm(nn.Conv1d(inputs, width, 1))
        self.condition = weight_norm(nn.Conv1d(mels, 2 * width * layers, 1))
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(width, 2 * width, 3, dilation=2**i, padding=2**i)) for i in range(layers))
        self.skips = nn.ModuleList(
            weight_norm(nn.Conv1d(width, 2 * width if i < layers - 1 else width, 1)) for i in range(layers))
        self.end = nn.Conv1d(width, 2 * inputs, 1)

    def forward(self, x, mel):
        x = self.start(x)
        total = torch.zeros_like(x)
        condition = self.condition(mel)
        for i, (layer, skip) in enumerate(zip(self.layers, self.skips)):
            y = layer(x) + condition[:, 2 * self.width * i:2 * self.width * (i + 1)]
            y = skip(torch.tanh(y[:, :self.width]) * torch.sigmoid(y[:, self.width:]))
            if i < len(self.layers) - 1:
                x = x + y[:, :self.width]
                y = y[:, self.width:]
            total = total + y
        return self.end(total)


class _WaveGlow(nn.Module):
    def __init__(self, group=8, mels=6, flows=3):
        super().__init__()
        self.group = group
        self.upsample = nn.ConvTranspose1d(mels, mels, 32, 16)
        self.convolutions = nn.ModuleList()
        self.nets = nn.ModuleList()
        remaining = group
        for flow in range(flows):
            if flow == 2:
                remaining -= 2  # an early output
            self.convolutions.append(_InvertibleConvolution(remaining))
            self.nets.append(_WaveNet(remaining // 2, mels * group))

    def forward(self, mel, audio):
        mel = self.upsample(mel)[:, :, :audio.size(1)]
        batch, groups = audio.size(0), audio.size(1) // self.group
        mel = mel.reshape(batch, -1, groups, self.group).permute(0, 2, 1, 3)
        mel = mel.reshape(batch, groups, -1).permute(0, 2, 1)
        audio = audio.view(batch, groups, self.group).permute(0, 2, 1)
        outputs, logs, determinants = [], 0, 0
        for flow, (convolution, net) in enumerate(zip(self.convolutions, self.nets)):
            if flow == 2:
                outputs.append(audio[:, :2])
                audio = audio[:, 2:]
            audio, determinant = convolution(audio)
            half = audio.size(1) // 2
            first, second = audio[:, :half], audio[:, half:]
            made = net(first, mel)
            scale, shift = made[:, half:], made[:, :half]
            second = torch.exp(scale) * second + shift
            audio = torch.cat([first, second], 1)
            logs = logs + scale.mean()
            determinants = determinants + determinant
        z = torch.cat(outputs + [audio], 1)
        return torch.mean(z * z) / 2 - logs - determinants / (z.size(1) * z.size(2))


def waveglow():
    inputs = {"mel": torch.randn(SAMPLES, 6, 8), "audio": torch.randn(SAMPLES, 128) * 0.5}
    return Case(_WaveGlow(), inputs, outputs=("loss",))


# Pix2Pix (Isola et al. 2017): the generator, with instance norm, and its L1 loss.
class _Down(nn.Sequential):
    def __init__(self, inputs, outputs, norm=True):
        layers = [nn.LeakyReLU(0.2), nn.Conv2d(inputs, outputs, 4, 2, 1)]
        super().__init__(*layers, *([nn.InstanceNorm2d(outputs, affine=True)] if norm else []))


class _Up(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, 2, 1),
                         nn.InstanceNorm2d(outputs, affine=True), nn.Dropout(0.0))


class _Pix2Pix(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 4, 2, 1)
        self.downs = nn.ModuleList([_Down(width, 2 * width), _Down(2 * width, 4 * width),
                                    _Down(4 * width, 4 * width, norm=False)])
        self.ups = nn.ModuleList([_Up(4 * width, 4 * width), _Up(8 * width, 2 * width), _Up(4 * width, width)])
        self.last = nn.ConvTranspose2d(2 * width, 3, 4, 2, 1)

    def forward(self, input, wanted):
        kept = [self.first(input)]
        for down in self.downs:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up in self.ups:
            x = torch.cat([up(x), kept.pop()], 1)
        return (torch.tanh(self.last(functional.relu(x))) - wanted).abs().mean()


def pix2pix():
    return Case(_Pix2Pix(), images(32) | images(32, name="wanted"), outputs=("loss",))


# U-Net (Ronneberger et al. 2015), with bilinear upsampling.
def _two_convolutions(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
                         nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = _two_convolutions(3, width)
        self.downs = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), _two_convolutions(width << i, width << (i + 1)))
                                   for i in range(3))
        self.ups = nn.ModuleList(_two_convolutions(3 * (width << i), width << i) for i in reversed(range(3)))
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, input):
        kept = [self.first(input)]
        for down in self.downs:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up in self.ups:
            x = up(torch.cat([kept.pop(), self.upsample(x)], 1))
        return self.last(x)


def unet():
    return Case(_UNet(), images(32), (torch.rand(SAMPLES, 1, 32, 32) < 0.3).float())


# DLRM (Naumov et al. 2019): uses the lower triangle of the pairwise products of embeddings.
class _Dlrm(nn.Module):
    def __init__(self, tables=(30, 20, 12), width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        features = len(tables) + 1
        self.top = nn.Sequential(nn.Linear(width + features * (features - 1) // 2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, categories):
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(categories[:, i]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        features = products.size(1)
        rows = torch.tensor([i for i in range(features) for j in range(i)])
        columns = torch.tensor([j for i in range(features) for j in range(i)])
        return self.top(torch.cat([x, products[:, rows, columns]], 1)).squeeze(1)


def dlrm():
    inputs = {"dense": torch.randn(SAMPLES, 13), "categories": torch.randint(0, 12, (SAMPLES, 3))}
    return Case(_Dlrm(), inputs, torch.randint(0, 2, (SAMPLES,)).float())


class _LstmLanguageModel(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input):
        return self.head(self.lstm(self.embedding(input))[0])


def lstm_language_model():
    return Case(_LstmLanguageModel(), {"input": tokens(LENGTH, VOCABULARY)}, tokens(LENGTH, VOCABULARY))


class _GruClassifier(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.gru = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, input):
        last = self.gru(self.embedding(input))[1]
        return self.head(torch.cat([last[-2], last[-1]], 1))


def gru_classifier():
    return Case(_GruClassifier(), {"input": tokens(LENGTH, VOCABULARY)}, classes(5))


class _ElmanRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(6, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, input):
        return self.head(self.rnn(input)[0][:, -1])


def elman_rnn():
    return Case(_ElmanRnn(), {"input": torch.randn(SAMPLES, 9, 6)}, classes(4))


# Neural collaborative filtering (He et al. 2017).
class _Ncf(nn.Module):
    def __init__(self, users=30, items=20, width=8):
        super().__init__()
        self.user_product, self.item_product = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_mlp, self.item_mlp = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(width + 8, 1)

    def forward(self, user, item):
        product = self.user_product(user) * self.item_product(item)
        deep = self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], -1))
        return self.head(torch.cat([product, deep], -1)).view(-1)


def ncf():
    inputs = {"user": torch.randint(0, 30, (SAMPLES,)), "item": torch.randint(0, 20, (SAMPLES,))}
    return Case(_Ncf(), inputs, torch.randint(0, 2, (SAMPLES,)).float())


# DCGAN (Radford et al. 2015).
def dcgan_discriminator():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Flatten(0))
    return Case(model, images(32), torch.randint(0, 2, (SAMPLES,)).float())


def dcgan_generator():
    model = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh())
    return Case(model, {"input": torch.randn(SAMPLES, 16, 1, 1)}, torch.rand(SAMPLES, 3, 32, 32) * 2 - 1)


# The M5 network over waveforms (Dai et al. 2016), with learned slopes.
def audio_conv1d():
    def block(inputs, outputs, size, stride):
        return [nn.Conv1d(inputs, outputs, size, stride), nn.BatchNorm1d(outputs), nn.PReLU(outputs), nn.MaxPool1d(2)]

    model = nn.Sequential(*block(1, 8, 16, 4), *block(8, 16, 3, 1), *block(16, 32, 3, 1), nn.AdaptiveAvgPool1d(1),
                          nn.Flatten(), nn.Linear(32, 6), nn.LogSoftmax(-1))
    return Case(model, {"input": torch.randn(SAMPLES, 1, 400)}, classes(6))


# A GPT whose causal mask is a buffer of minus infinities, with learned positions.
class _Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), diagonal=1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads) + self.mask[:t, :t]
        return self.projection((torch.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class _Gpt(nn.Module):
    def __init__(self, width=24, heads=3):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm1": nn.LayerNorm(width), "attention": _Attention(width, heads), "norm2": nn.LayerNorm(width),
                           "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))})
            for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input):
        x = self.tokens(input) + self.positions(torch.arange(input.size(1), device=input.device))
        for block in self.blocks:
            x = x + block["attention"](block["norm1"](x))
            x = x + block["mlp"](block["norm2"](x))
        return self.head(self.norm(x))


def causal_mask_gpt():
    return Case(_Gpt(), {"input": tokens(LENGTH, VOCABULARY)}, tokens(LENGTH, VOCABULARY))


class _NormalisedCnn(nn.Module):
    """Takes images of 0 to 255 and normalises them by buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([123.7, 116.3, 103.5]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.4, 57.1, 57.4]).view(1, 3, 1, 1))
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
            nn.ELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def forward(self, input):
        return self.layers((input - self.mean) / self.std)


def normalised_cnn():
    return Case(_NormalisedCnn(), {"input": torch.rand(SAMPLES, 3, 16, 16) * 255}, classes())


class _TiedLanguageModel(nn.Module):
    """A language model whose head has the weight of the embedding. Each position is a learned vector."""

    def __init__(self, width=24):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(1, LENGTH, width) * 0.02)
        self.layer = nn.TransformerEncoderLayer(width, 3, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=self.positions.dtype)
        x = self.layer(self.tokens(input) + self.positions, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def tied_language_model():
    case = Case(_TiedLanguageModel(), {"input": tokens(LENGTH, VOCABULARY)}, tokens(LENGTH, VOCABULARY))
    with torch.no_grad():
        case.model.tokens.weight.mul_(0.2)  # to the size of the weights of a head
    return case


class _CopiedEncoder(nn.Module):
    """An encoder whose layers are copies of one layer. Their values start equal, so exporters merge them."""

    def __init__(self, width=24):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 3, 48, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, input):
        x = self.embedding(input)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def copied_encoder():
    return Case(_CopiedEncoder(), {"input": tokens(LENGTH, VOCABULARY)}, classes(5))


# MLP-Mixer (Tolstikhin et al. 2021).
class _MixerBlock(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class _MlpMixer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(*[_MixerBlock(16, width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, input):
        x = self.blocks(self.stem(input).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def mlp_mixer():
    return Case(_MlpMixer(), images(32), classes())
