"""Small training programs in the style of public ones. Each prints its losses; none knows of trainc but those that say so."""

from __future__ import annotations

_HEAD = """
import copy, sys, torch
import torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self, ins=8, outs=3):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(ins, 16), nn.BatchNorm1d(16), nn.Linear(16, outs)
    def forward(self, x):
        return self.fc2(F.dropout(F.relu(self.norm(self.fc1(x))), 0.1, self.training))
data = [(torch.randn(6, 8), torch.randint(0, 3, (6,))) for _ in range(4)]
"""

# name -> (program, how often each class is compiled: what --explain names)
PROGRAMS: dict[str, tuple[str, list[str]]] = {}


def program(name: str, compiled: list[str], text: str, head: str = _HEAD) -> None:
    PROGRAMS[name] = (head + text, compiled)


program("epochs", ["Net"], """
def train(model, optimizer):
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(x), 1), y)
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
def test(model):
    model.eval()
    with torch.no_grad():
        print("loss", sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in data))
def main():
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    for _ in range(2):
        train(model, optimizer)
        test(model)
        scheduler.step()
if __name__ == "__main__":
    main()
""")  # fmt: skip

program("gan", ["Discriminator", "Generator"], """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    def forward(self, z):
        return self.main(z)
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
    def forward(self, x):
        return self.main(x).squeeze(1)
netG, netD, criterion = Generator(), Discriminator(), nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
for x, _ in data:
    netD.zero_grad()
    real = criterion(netD(x), torch.ones(6))
    real.backward()
    fake = netG(torch.randn(6, 4))
    wrong = criterion(netD(fake.detach()), torch.zeros(6))
    wrong.backward()
    optimizerD.step()
    netG.zero_grad()
    right = criterion(netD(fake), torch.ones(6))
    right.backward()
    optimizerG.step()
    print("loss", real.item(), wrong.item(), right.item())
""")  # fmt: skip

program("vae", ["VAE"], """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.var, self.fc3 = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(4, 8)
    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.mu(h), self.var(h)
    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc3(z)), mu, logvar
model = VAE()
optimizer = torch.optim.Adam(model.parameters())
for x, _ in data:
    optimizer.zero_grad()
    recon, mu, logvar = model(x.sigmoid())
    loss = F.binary_cross_entropy(recon, x.sigmoid(), reduction="sum") - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
model.eval()
print("loss", model.encode(data[0][0])[0].sum().item())
""")  # fmt: skip

program("distillation", ["Net"], """
class Teacher(Net):
    pass
teacher, student = Teacher().eval(), Net()
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for x, y in data:
    out = student(x)
    loss = F.kl_div(F.log_softmax(out, 1), F.softmax(teacher(x), 1), reduction="batchmean") + F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip

program("a_method_calls_the_parts", ["Encoder", "Sequential"], """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 4)
    def forward(self, x):
        return torch.tanh(self.lin(x))
class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 8))
    def loss(self, x):
        return F.mse_loss(self.decoder(self.encoder(x)), x)
model = Auto()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for x, _ in data:
    loss = model.loss(x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
""")  # fmt: skip

program("a_method_calls_the_model", ["Net"], """
class Wrapped(Net):
    pass
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, x, y):
        return F.cross_entropy(self.net(x), y)
task = Task()
optimizer = torch.optim.RMSprop(task.parameters(), lr=1e-2)
for x, y in data:
    loss = task.training_step(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip

program("optimizers_made_later", ["Net"], """
model = Net()
F.cross_entropy(model(data[0][0]), data[0][1]).backward()   # before there is any
model.zero_grad()
for make in (lambda: torch.optim.AdamW(model.parameters()), lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)):
    optimizer = make()
    for x, y in data[:3]:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
""")  # fmt: skip

program("no_optimizer", ["Net"], """
model = Net()
for x, y in data:
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.5)
    print("loss", loss.item())
""")  # fmt: skip

program("in_evaluation_mode", ["Net"], """
model = Net().eval()
for p in model.fc1.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
with torch.no_grad():
    print("loss", F.cross_entropy(model(data[0][0]), data[0][1]).item())
for x, y in data:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip

program("closures", ["Sequence"], """
class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.linear = nn.LSTMCell(1, 6), nn.Linear(6, 1)
    def forward(self, x):
        h = c = torch.zeros(x.size(0), 6, dtype=x.dtype)
        outputs = []
        for t in x.split(1, dim=1):
            h, c = self.cell(t, (h, c))
            outputs.append(self.linear(h))
        return torch.cat(outputs, 1)
seq = Sequence().double()
x = torch.sin(torch.arange(40, dtype=torch.float64).reshape(4, 10))
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.5, max_iter=4)
for _ in range(2):
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(seq(x[:, :-1]), x[:, 1:])
        print("loss", loss.item())
        loss.backward()
        return loss
    optimizer.step(closure)
""")  # fmt: skip

program("accumulation", ["Net"], """
model = Net()
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW([{"params": model.fc1.parameters()}, {"params": model.fc2.parameters(), "lr": 1e-2}])
optimizer.add_param_group({"params": list(model.norm.parameters()), "weight_decay": 0.0})
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8)
for step in range(4):
    for x, y in data[:2]:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        print("loss", loss.item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.1)
print("loss", F.cross_entropy(ema.eval()(data[0][0]), data[0][1]).item())
""")  # fmt: skip

program("checkpoints", ["Net", "Net"], """
import io, pickle
def steps(model, optimizer):
    for x, y in data[:2]:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
model = Net()
optimizer = torch.optim.NAdam(model.parameters())
steps(model, optimizer)
file = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
steps(model, optimizer)
file.seek(0)
saved = torch.load(file, weights_only=False)
model = saved["model"]
optimizer = torch.optim.NAdam(model.parameters())
optimizer.load_state_dict(saved["optimizer"])
torch.set_rng_state(saved["rng"])
steps(model, optimizer)
assert pickle.loads(pickle.dumps(Net)) is Net and Net.__module__ == "__main__"
""")  # fmt: skip

program("compiles_with_torch", [], """
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model, backend="aot_eager")
for x, y in data:
    loss = F.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip

program("compiles_with_trainc", [], """
import trainc
model = Net()
model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()))
for x, y in data:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip

program("loss_with_parameters", ["Centers", "Net"], """
class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 3))
    def forward(self, x, y):
        return (x - self.centers[y]).square().sum(1).mean()
model, center, criterion = Net(), Centers(), nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.Adam([*model.parameters(), *center.parameters()])
for x, y in data:
    out = model(x)
    loss = criterion(out, y) + center(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""")  # fmt: skip
