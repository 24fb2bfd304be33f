"""Random encoders over padded batches: attention, masks and pools in many spellings. Some make rows that padding fills of no
account, and many do not, by a hair."""

from __future__ import annotations

import random
from collections.abc import Sequence

TOKENS, WIDTH, HEADS = 12, 16, 2
SHOWN = (  # bool [rows, TOKENS], of ids
    f"torch.arange({TOKENS}) < ids.sum(1, keepdim=True) % {TOKENS} + 1",
    f"torch.arange({TOKENS}) >= {TOKENS - 1} - ids.sum(1, keepdim=True) % {TOKENS}",
    f"torch.cat([ids, ids.flip(1) + 1, ids * 3], 1)[:, :{TOKENS}] % 4 > 0",
    f"torch.arange({TOKENS}).expand(ids.shape[0], -1) < 5",
    f"(torch.arange({TOKENS}) < ids[:, :1]) | (torch.arange({TOKENS}) > 8)",
)
MASKS = (  # of scores [rows, HEADS, TOKENS, TOKENS]: {0} is shown, {1} a name of its own
    ("", "torch.where({0}[:, None, None, :], 0.0, torch.finfo(torch.float32).min)"),
    ("", "{0}[:, None, None, :].expand(-1, 1, {0}.shape[1], -1)"),
    ("", "(1.0 - {0}[:, None, None, :].float()) * torch.finfo(torch.float32).min"),
    ("", "(1.0 - {0}[:, None, None, :].float()) * -10000.0"),
    ("", "torch.zeros({0}.shape).masked_fill(~{0}, -torch.inf)[:, None, None, :]"),
    ("", "torch.where({0}[:, None, None, :], 0.0, -2e38).expand(-1, 1, {0}.shape[1], -1)"),
    ("", "torch.where({0}[:, None, None, :], 0.0, -1e30)"),
    ("", "({0}[:, None, None, :] & torch.ones(12, 12, dtype=torch.bool).tril())"),
    ("", "({0}[:, None, None, :] & {0}[:, None, :, None])"),
    ("", "({0}[:, None, None, :] | torch.eye(12, dtype=torch.bool))"),
    ("", "torch.where({0}[:, None, None, :], 0.0, -3e38) + torch.where(torch.ones(12, 12).tril() > 0, 0.0, -3e38)"),
    ("self.{1} = nn.Parameter(torch.randn(2, 12, 12))", "self.{1} + torch.where({0}[:, None, None, :], 0.0, -3e38)"),
    ("self.{1} = nn.Parameter(torch.randn(1, 1, 1, 12))", "torch.where({0}[:, None, None, :], self.{1}, -3e38)"),
    ("self.{1} = nn.Parameter(torch.tensor(-3e38))", "torch.where({0}[:, None, None, :], 0.0, self.{1})"),
    ("", "torch.where({0}[:, None, None, :], -(torch.arange(12)[:, None] - torch.arange(12)).abs() * 0.1, -3e38)"),
    ("", "torch.where({0}.roll(1, 0)[:, None, None, :], 0.0, -3e38)"),
    ("", "torch.where({0}[:, None, :, None], 0.0, -3e38).expand(-1, 1, -1, 12)"),
    ("", "torch.where({0}[:1, None, None, :], 0.0, -3e38).expand({0}.shape[0], 1, 12, -1)"),
)
SPLIT = "self.{1} = nn.Linear(16, 48)\nself.{1}o = nn.Linear(16, 16)"
HEAD = "q, k, u = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.{1}({0}).chunk(3, -1))\n"
CROSS = (
    "q = self.{1}({0})[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)\n"
    "k, u = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.{1}({3})[..., 16:].chunk(2, -1))\n"
)
SCORES = "s = q @ k.mT * 0.35\n"
TAIL = "\n{4} = self.{1}o(a.transpose(1, 2).flatten(2))"
ADD = "s = s.masked_fill(~{2}, torch.finfo(s.dtype).min) if {2}.dtype == torch.bool else s + {2}\n"
ATTENTION = (  # {0} tokens, {1} a name of its own, {2} a mask, {3} other tokens, {4} the result
    "a = F.scaled_dot_product_attention(q, k, u, attn_mask={2})",
    "a = F.scaled_dot_product_attention(q, k, u, attn_mask={2}, dropout_p=0.2)",
    SCORES + ADD + "a = s.softmax(-1) @ u",
    SCORES + ADD + "a = F.dropout(s.softmax(-1), 0.2) @ u",
    SCORES + ADD + "a = s.softmax(-2) @ u",
    SCORES + ADD + "a = s.softmax(-1).mT @ u",
    SCORES + ADD + "a = (s - s.amax(-1, keepdim=True)).exp()\na = a / a.sum(-1, keepdim=True) @ u",
    SCORES + ADD + "a = (s - s.detach().amax(-1, keepdim=True)).exp()\na = (a @ u) / (a.sum(-1, keepdim=True) + 1e-6)",
    SCORES + ADD + "a = s.clamp(max=20).exp()\na = a @ u / (1 + a.sum(-1, keepdim=True))",
    SCORES + ADD + "a = s.sigmoid() @ u",
    SCORES + ADD + "a = s.log_softmax(-1).exp() @ u",
    SCORES + ADD + "a = (s - s.logsumexp(-1, keepdim=True)).exp() @ u",
    SCORES + "s = s.tanh() * 5\n" + ADD + "a = s.softmax(-1) @ u",
    SCORES + ADD + "s = s.clamp(min=-50)\na = s.softmax(-1) @ u",
    SCORES + ADD + "a = (s.softmax(-1) + 0.01) @ u",
    SCORES + ADD + "w = s.softmax(-1)\na = (w @ w) @ u",
    SCORES + ADD + "w = s.softmax(-1)\na = w @ (u - u.mean(2, keepdim=True))",
    SCORES + ADD + "w = s.softmax(-1) * ({2} if {2}.dtype == torch.bool else {2} > -1)\na = w / (w.sum(-1, True) + 1e-9) @ u",
    SCORES + ADD + "s = torch.cat([s, s.new_zeros(*s.shape[:-1], 1)], -1)\na = s.softmax(-1)[..., :-1] @ u",
    SCORES + ADD + "s = s.topk(6, -1)[0][..., -1:].le(s) * s\na = s.softmax(-1) @ u",
    "q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)\ns = q @ k.mT * 5\n" + ADD + "a = s.softmax(-1) @ u",
    "q, k = F.layer_norm(q, (8,)), F.rms_norm(k, (8,))\n" + SCORES + ADD + "a = s.softmax(-1) @ u",
    "q, k = q.softmax(-1), k.softmax(-2)\na = q @ (k.mT @ u) + 0 * {2}.float().clamp(-1, 1).mean()",
    "s = torch.einsum('bhqd,bhkd->bhqk', q, k) / 8**0.5\n" + ADD + "a = torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), u)",
    "k, u = torch.cat([k, k[:, :, :1]], 2)[:, :, 1:], u.roll(-1, 2)\n" + SCORES + ADD + "a = s.softmax(-1) @ u",
)  # fmt: skip
MODULES = (  # of tokens {0}, shown {3}
    (
        "self.{1} = nn.MultiheadAttention(16, 2, 0.1, batch_first=True)",
        "{2} = self.{1}({0}, {0}, {0}, key_padding_mask=~{3}, need_weights=False)[0]",
    ),
    ("self.{1} = nn.MultiheadAttention(16, 2, batch_first=True)", "{2}, w = self.{1}({0}, {0}, {0}, key_padding_mask=~{3})"),
    ("self.{1} = nn.TransformerEncoderLayer(16, 2, 24, 0.1, batch_first=True)", "{2} = self.{1}({0}, src_key_padding_mask=~{3})"),
    (
        "self.{1} = nn.TransformerEncoderLayer(16, 2, 24, 0.0, F.gelu, batch_first=True, norm_first=True)",
        "{2} = self.{1}({0}, src_key_padding_mask=~{3})",
    ),
)  # fmt: skip
BY_ROW = (  # of tokens {0}; a row of the result is of that row
    ("self.{1} = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16))", "{2} = {0} + self.{1}({0})"),
    (
        "self.{1} = nn.Linear(16, 40)\nself.{1}o = nn.Linear(20, 16)",
        "a, b = self.{1}({0}).chunk(2, -1)\n{2} = self.{1}o(F.silu(a) * b)",
    ),
    ("self.{1} = nn.LayerNorm(16)", "{2} = self.{1}({0})"),
    ("self.{1} = nn.RMSNorm(16)", "{2} = self.{1}({0})"),
    ("self.{1} = nn.Linear(16, 16, bias=False)", "{2} = self.{1}({0})"),
    ("self.{1} = nn.Linear(16, 4)", "{2} = {0} * self.{1}({0}).softmax(-1).amax(-1, keepdim=True)"),
    ("self.{1} = nn.Parameter(torch.randn(16) * 0.5)", "{2} = {0} * self.{1} + 0.1"),
    ("", "{2} = F.dropout({0}, 0.2, self.training)"),
    ("", "{2} = {0} / ({0}.norm(dim=-1, keepdim=True) + 1e-3)"),
    ("", "{2} = ({0} - {0}.mean(-1, keepdim=True)) / {0}.std(-1, keepdim=True)"),
    ("", "{2} = 1 / ({0}.square() + 0.5)"),
    ("", "{2} = {0}.abs().add(0.1).log()"),
    ("", "{2} = {0}.abs().sqrt()"),
    ("", "{2} = {0}.clamp(-3, 3).exp()"),
    ("", "{2} = torch.where({0}.abs() > 0.1, {0}, 0.1).reciprocal()"),
    ("", "{2} = {0}.tanh() * {0}.sigmoid()"),
    ("", "{2} = F.softplus({0})"),
    ("", "{2} = {0}.double().cos().float()"),
    ("", "{2} = torch.utils.checkpoint.checkpoint(lambda t: F.gelu(t) * 0.7, {0}, use_reentrant=False)"),
)  # fmt: skip
ACROSS = (  # of tokens {0}, shown {3}; rows have a part in others
    ("", "{2} = {0} * {3}[..., None]"),
    ("", "{2} = {0}.masked_fill(~{3}[..., None], 0.5)"),
    ("", "{2} = {0}.roll(1, 1)"),
    ("", "{2} = {0}.flip(1)"),
    ("", "{2} = {0}.cumsum(1) * 0.2"),
    ("", "{2} = {0} - {0}.mean(1, keepdim=True)"),
    ("", "{2} = {0} + {0}[:, :1]"),
    ("", "{2} = {0} + {0}[:, -1:]"),
    ("", "{2} = {0}.softmax(1) * 3"),
    ("", "{2} = F.pad({0}[:, 1:], (0, 0, 0, 1))"),
    ("", "{2} = torch.cat([{0}[:, :1], {0}[:, 2:], {0}[:, 1:2]], 1)"),
    ("", "{2} = {0}.reshape(-1, 16).roll(1, 0).reshape({0}.shape)"),
    ("", "{2} = {0}.transpose(0, 1).reshape({0}.shape)"),
    ("self.{1} = nn.Conv1d(16, 16, 3, padding=1)", "{2} = self.{1}({0}.mT).mT"),
    ("self.{1} = nn.BatchNorm1d(16)", "{2} = self.{1}({0}.mT).mT"),
    ("self.{1} = nn.GRU(16, 16, batch_first=True)", "{2} = self.{1}({0})[0]"),
    ("self.{1} = nn.Linear(12, 12)", "{2} = self.{1}({0}.mT).mT"),
)
POOLS = (  # of tokens {0}, shown {3}
    ("", "{2} = {0}[:, 0]"), ("", "{2} = {0}[:, :1].mean(1)"), ("", "{2} = {0}.select(1, 0)"), ("", "{2} = {0}[:, 0, :8]"),
    ("self.{1} = nn.Linear(16, 16)", "{2} = torch.tanh(self.{1}({0}[:, 0]))"),
    ("", "{2} = {0}[:, -1]"), ("", "{2} = {0}[:, 1]"), ("", "{2} = {0}.mean(1)"), ("", "{2} = {0}.amax(1)"),
    ("", "{2} = ({0} * {3}[..., None]).sum(1) / {3}.sum(1, keepdim=True)"),
    ("", "{2} = {0}[torch.arange({0}.shape[0]), {3}.sum(1) - 1]"),
    ("", "{2} = {0}.masked_fill(~{3}[..., None], -torch.inf).amax(1)"),
    ("self.{1} = nn.Linear(16, 1)", "{2} = (self.{1}({0}).masked_fill(~{3}[..., None], -1e9).softmax(1) * {0}).sum(1)"),
    ("self.{1} = nn.Linear(16, 5)", "{2} = F.cross_entropy(self.{1}({0}).flatten(0, 1), torch.where({3}, 2, -100).flatten())"),
    ("self.{1} = nn.Linear(16, 5)", "{2} = F.cross_entropy(self.{1}({0})[:, 0], ids[:, 0] % 5)"),
    ("", "{2} = {0}.detach().square().mean() + {0}[:, 0].sum()"),
)  # fmt: skip
DOORS = ("compile", "compile", "train_step", "fuse_step", "backend")


def start(rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(of __init__, of forward): words [rows, TOKENS], shown, the first hidden states `v0`, and three masks."""
    forward = [f"shown = {rng.choice(SHOWN)}", f"words = torch.cat([ids, ids + 1, ids * 2], 1)[:, :{TOKENS}] % 9"]
    if rng.random() < 0.7:
        forward.append("words = torch.where(shown, words, 1)")
    init = ["self.words, self.places = nn.Embedding(9, 16), nn.Embedding(12, 16)"]
    forward.append("v0 = self.words(words) + self.places.weight")
    for i, (made, used) in enumerate(rng.choices(MASKS, weights=[6] * 3 + [1] * (len(MASKS) - 3), k=2)):
        init += [made.format("shown", f"b{i}")] if made else []
        forward.append(f"m{i} = {used.format('shown', f'b{i}')}")
    return tuple(init), tuple(forward)


def statement(rng: random.Random, tokens: Sequence[str], number: int) -> tuple[str, str]:
    """(of __init__, of forward); it gives the variable of this number, tokens or what is made of all of them."""
    result, own, x = f"v{number}", f"l{number}", tokens[-1] if rng.random() < 0.8 else rng.choice(tokens)
    kind = rng.random()
    if kind < 0.38:
        form = rng.choice(ATTENTION[:4] if rng.random() < 0.5 else ATTENTION)
        words = x, own, f"m{rng.choice([0, 0, 0, 1])}", rng.choice(tokens), result
        head = HEAD if rng.random() < 0.85 else CROSS
        return SPLIT.format(*words), (head + form + TAIL).format(*words)
    if kind < 0.44:
        made, used = rng.choice(MODULES)
    elif kind < 0.74:
        made, used = rng.choice(BY_ROW)
    elif kind < 0.79:
        made, used = rng.choice(ACROSS)
    elif kind < 0.94:
        return "", f"{result} = {x} + {rng.choice(tokens)}"
    else:
        made, used = rng.choice(POOLS)
    words = x, own, result, "shown"
    return made.format(*words), used.format(*words)


def last(rng: random.Random, tokens: str) -> tuple[str, str]:
    """What the loss is made of, `vz`: mostly the first token alone."""
    made, used = rng.choice(POOLS[:5] if rng.random() < 0.6 else POOLS)
    words = tokens, "lz", "vz", "shown"
    return made.format(*words), used.format(*words)


__all__ = ["DOORS", "TOKENS", "WIDTH", "last", "start", "statement"]
