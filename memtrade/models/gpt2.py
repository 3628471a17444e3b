"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).

The default is the model of the published pipeline logs: 12 layers of width 768, 128 positions, a
vocabulary of 3,000 and a separate output matrix, which makes 89,762,304 parameters (a tied matrix
would have needed 6,000 words; the logs' two halves of the model are equally large, so each has its
own). OpenAI's smallest one, 124,439,808 parameters, is
`positions=1024 vocabulary=50257 tied=true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtrade.errors import MemtradeError
from memtrade.models.base import DrawnModel, Input, Net, Tensor
from memtrade.options import option


@dataclass(frozen=True, kw_only=True)
class Gpt2(DrawnModel):
    """A causal language model. Every transformer block's output is a checkpoint.

    B = batch_size, T = positions, C = width, h = heads, V = vocabulary. Hidden states are kept as
    [B*T, C], so that the dense layers are plain matrix products.
    """

    family: ClassVar[str] = "gpt2"
    summary: ClassVar[str] = "GPT-2, 12 layers of width 768 (Radford et al. 2019)"

    layers: int = option(12, "transformer blocks")
    width: int = option(768, "size of a token's hidden state")
    heads: int = option(12, "attention heads; they divide the width")
    positions: int = option(128, "tokens per example", at_least=2)
    vocabulary: int = option(3000, "different tokens", at_least=2)
    tied: bool = option(False, "the output matrix is the token embedding's")
    dropout: float = option(0.0, "rate of dropout (OpenAI: 0.1)", at_least=0.0, below=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise MemtradeError(
                f"option 'heads' must divide the width, but {self.heads} does not divide "
                f"{self.width}: change one of them"
            )

    @property
    def name(self) -> str:
        return f"gpt2-{self.layers}x{self.width}"

    def inputs(self) -> dict[str, Input]:
        return {"tokens": Input((self.batch_size, self.positions), "int64", below=self.vocabulary)}

    def loss(self, net: Net, *, tokens: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # the names are those of inputs()
        """Mean cross-entropy of each token given those before it. [B, T] -> []

        All T positions are computed; the last one, which has no next token, does not count.
        """
        b, t = self.batch_size, self.positions
        logits = self.logits(net, tokens)  # [B*T, V]
        labels = net.reshape(net.shift_left(tokens), [b * t])  # the next tokens
        losses = net.reshape(net.cross_entropy(logits, labels), [b, t])
        return net.mean(losses[:, :-1])

    def logits(self, net: Net, tokens: Tensor) -> Tensor:
        """[B, T] -> [B*T, V]"""
        b, t, c, v = self.batch_size, self.positions, self.width, self.vocabulary
        with net.scope("embedding"):
            words = net.variable("tokens", [v, c], stddev=0.02)
            places = net.variable("positions", [t, c], stddev=0.01)
            x = net.embedding(tokens, words) + places  # [B, T, C] + [T, C]
            x = net.dropout(net.reshape(x, [b * t, c]), self.dropout)
            mask = net.causal_mask(t)  # [T, T], shared by all blocks
        x = net.checkpoint(x)
        for index in range(self.layers):
            with net.scope(f"block{index + 1}"):
                x = net.block(self._block, x, mask)
        with net.scope("head"):
            x = net.layer_norm(x, name="norm")
            if self.tied:
                return net.matmul(x, words, transpose_b=True)
            return net.dense(x, v, bias=False, stddev=0.02, name="logits")

    def _block(self, net: Net, x: Tensor, mask: Tensor) -> Tensor:
        """[B*T, C] -> [B*T, C]. Projections into the residual start smaller, as in the paper."""
        c, residual = self.width, 0.02 * (2 * self.layers) ** -0.5
        y = self._attention(net, net.layer_norm(x, name="norm1"), mask)
        y = net.dense(y, c, stddev=residual, name="attention_out")
        x = x + net.dropout(y, self.dropout, name="dropout1")
        y = net.dense(net.layer_norm(x, name="norm2"), 4 * c, stddev=0.02, name="mlp_in")
        y = net.dense(net.gelu(y), c, stddev=residual, name="mlp_out")
        return x + net.dropout(y, self.dropout, name="dropout2")

    def _attention(self, net: Net, x: Tensor, mask: Tensor) -> Tensor:
        """[B*T, C] -> [B*T, C]"""
        b, t, c, h = self.batch_size, self.positions, self.width, self.heads
        qkv = net.dense(x, 3 * c, stddev=0.02, name="qkv")  # [B*T, 3C]
        q, k, v = (
            net.transpose(net.reshape(part, [b, t, h, c // h]), [0, 2, 1, 3])  # [B, h, T, C/h]
            for part in net.split(qkv, 3)
        )
        scores = net.matmul(q * (c // h) ** -0.5, k, transpose_b=True) + mask  # [B, h, T, T]
        weights = net.dropout(net.softmax(scores), self.dropout, name="attention_dropout")
        y = net.matmul(weights, v)  # [B, h, T, C/h]
        return net.reshape(net.transpose(y, [0, 2, 1, 3]), [b * t, c])
