"""A convolutional network with batch norm and dropout, which takes raw pixels."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, image):  # f32[batch, 1, 28, 28], 0 to 255
        x = image / 127.5 - 1  # scaled here, so that the data may stay bytes
        x = self.features(x).flatten(1)
        return self.head(self.dropout(x))
