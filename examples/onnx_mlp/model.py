"""The model: your own nn.Module goes here."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, pixels):  # f32[batch, 784]; the argument's name is the input's name in the ONNX file
        return self.head(self.hidden(pixels).relu())
