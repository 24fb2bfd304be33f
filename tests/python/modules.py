"""Small modules whose Python is what several tests are about."""

import torch
from torch import nn


class Branches(nn.Module):
    """Two computations, chosen by the number of rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        h = self.layer(x)
        return h * 2 if x.shape[0] > 10 else h + x.shape[0]


class ValueBranches(Branches):
    """Two computations, chosen by what is computed."""

    def forward(self, x):
        h = self.layer(x)
        if h.sum() > 0:
            return h * 2
        return h - 1


class Constant(Branches):
    """Takes the number of rows for a constant."""

    def forward(self, x):
        return self.layer(x) * torch.tensor([float(i) for i in range(int(x.shape[0]))]).unsqueeze(1)
