"""timm: the parts that its train.py is made of. Its model, optimizer and schedule; mixup, clipping, a moving average of the
weights; evaluation, and a checkpoint that is loaded again.

    python examples/trainers/timm_loop.py
"""

import copy

import numpy
import timm
import torch
from text import side_by_side
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, dispatch_clip_grad

import trainc


def train(compiled: bool) -> list[float]:
    torch.manual_seed(0)
    numpy.random.seed(0)  # mixup's
    net = timm.create_model("resnet10t", num_classes=4)
    optimizer = create_optimizer_v2(net, opt="adamw", lr=2e-5, weight_decay=0.05)
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=4, warmup_epochs=1, warmup_lr=2e-6)
    average, mixup, criterion = ModelEmaV3(net, decay=0.9), Mixup(0.2, num_classes=4), SoftTargetCrossEntropy()
    if compiled:
        net, optimizer = trainc.compile(net, optimizer)
    batches = [(torch.randn(4, 3, 32, 32), torch.randint(0, 4, (4,))) for _ in range(3)]

    def epoch(number: int) -> list[float]:
        losses = []
        net.train()
        for pictures, labels in batches:
            mixed, targets = mixup(pictures.clone(), labels)
            loss = criterion(net(mixed), targets)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(net.parameters(), 1.0)
            optimizer.step()
            average.update(net)
            losses.append(loss.item())
        schedule.step(number + 1)
        net.eval()
        pictures, labels = batches[0]
        with torch.no_grad():
            return losses + [torch.nn.functional.cross_entropy(m(pictures), labels).item() for m in (net, average)]

    first = epoch(0)
    checkpoint = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    second = epoch(1)
    for part, state in zip((net, optimizer), checkpoint, strict=True):
        part.load_state_dict(state)
    return first + second + epoch(2)


if __name__ == "__main__":
    side_by_side(train)
