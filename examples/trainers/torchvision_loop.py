"""torchvision: a training loop as its reference for classification has it. SGD without decay of biases and norms, mixup or
cutmix, smoothed labels, warm-up and cosine, accumulation, clipping, an average of the weights, evaluation, a checkpoint.

    python examples/trainers/torchvision_loop.py
"""

import copy

import torch
from text import side_by_side
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import resnet18
from torchvision.transforms import v2

import trainc


def train(compiled: bool) -> list[float]:
    torch.manual_seed(0)
    net = resnet18(num_classes=4)
    weights, others = ([p for p in net.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    optimizer = torch.optim.SGD([{"params": weights, "weight_decay": 1e-4}, {"params": others}], 1e-4, 0.9, nesterov=True)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, 6)], [2])
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True).eval()
    mix = v2.RandomChoice([v2.MixUp(num_classes=4, alpha=0.2), v2.CutMix(num_classes=4)])
    smoothed, losses = torch.nn.CrossEntropyLoss(label_smoothing=0.1), []
    if compiled:
        net, optimizer = trainc.compile(net, optimizer)
    batches = [(torch.randn(4, 3, 96, 96), torch.randint(0, 4, (4,))) for _ in range(4)]

    def epoch() -> None:
        net.train()
        for i, batch in enumerate(batches, 1):
            pictures, labels = mix(*batch)
            loss = smoothed(net(pictures), labels)
            (loss / 2).backward()
            losses.append(loss.item())
            if i % 2 == 0:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                average.update_parameters(net)
        net.eval()
        with torch.no_grad():
            losses.extend(smoothed(m(batches[0][0]), batches[0][1]).item() for m in (net, average))

    epoch()
    parts = net, optimizer, schedule
    checkpoint = copy.deepcopy([part.state_dict() for part in parts])
    epoch()
    for part, state in zip(parts, checkpoint, strict=True):
        part.load_state_dict(state)
    epoch()
    return losses


if __name__ == "__main__":
    side_by_side(train)
