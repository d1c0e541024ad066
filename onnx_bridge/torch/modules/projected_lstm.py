"""Replace an LSTM whose hidden state is projected (``proj_size``), which ONNX does not have, by plain ones.

    h(t) = P·h'(t)    with    h', c = cell(W·x + R·h(t − 1), c)

    →   h', c = LSTM of [x, h(0) at the first step and 0 later], with the weights [W, R] and R·P, from h'(0) = 0
        h(t) = P·h'(t)

Skips: packed sequences, which have no such first step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

States = tuple[torch.Tensor, torch.Tensor]


def is_projected(module: nn.Module) -> bool:
    """Return whether a module is such an LSTM."""
    return type(module) is nn.LSTM and module.proj_size > 0


class ProjectedLstm(nn.Module):
    """The replacement of all layers and directions of one LSTM."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.batch_first, self.layers, self.size = lstm.batch_first, lstm.num_layers, lstm.proj_size
        self.backward_too = lstm.bidirectional
        self.hidden_size = lstm.hidden_size
        self.cells = nn.ModuleList(_plain(lstm, suffix) for suffix in _suffixes(lstm))
        self.projections = nn.ParameterList(
            nn.Parameter(getattr(lstm, f"weight_hr_{suffix}").detach(), requires_grad=False)
            for suffix in _suffixes(lstm)
        )

    def forward(self, x: torch.Tensor, states: States | None = None) -> tuple[torch.Tensor, States]:
        """Return the result of the LSTM; dropout between its layers is off, as in evaluation mode."""
        batched = x.dim() == 3
        x = (x.transpose(0, 1) if self.batch_first else x) if batched else x.unsqueeze(1)
        if states is None:
            count, batch = len(self.cells), x.shape[1]
            states = x.new_zeros(count, batch, self.size), x.new_zeros(count, batch, self.hidden_size)
        elif not batched:
            states = states[0].unsqueeze(1), states[1].unsqueeze(1)
        hidden, cell = [], []
        directions = 1 + self.backward_too
        for layer in range(self.layers):
            results = []
            for index in range(directions * layer, directions * (layer + 1)):
                result, last, c = self._run(
                    index, x, states[0][index], states[1][index], reverse=index % directions > 0
                )
                results.append(result)
                hidden.append(last)
                cell.append(c)
            x = torch.cat(results, -1) if self.backward_too else results[0]
        last_states = torch.stack(hidden), torch.stack(cell)
        if not batched:
            return x.squeeze(1), (last_states[0].squeeze(1), last_states[1].squeeze(1))
        return (x.transpose(0, 1) if self.batch_first else x), last_states

    def _run(
        self, index: int, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *, reverse: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = x.flip(0) if reverse else x
        first = torch.cat([h.unsqueeze(0), torch.zeros_like(x[1:, :, :1]).expand(-1, -1, self.size)])
        none = torch.zeros_like(c).unsqueeze(0)
        result, (_, last) = self.cells[index](torch.cat([x, first], -1), (none, c.unsqueeze(0)))
        result = torch.matmul(result, self.projections[index].t())
        return (result.flip(0) if reverse else result), result[-1], last[0]


def _suffixes(lstm: nn.LSTM) -> Iterator[str]:
    for layer in range(lstm.num_layers):
        yield f"l{layer}"
        if lstm.bidirectional:
            yield f"l{layer}_reverse"


def _plain(lstm: nn.LSTM, suffix: str) -> nn.LSTM:
    """Compute one layer in one direction, without its projection."""
    taken, recurrent, projection = (getattr(lstm, f"weight_{kind}_{suffix}").detach() for kind in ("ih", "hh", "hr"))
    plain = nn.LSTM(taken.shape[1] + lstm.proj_size, lstm.hidden_size, bias=lstm.bias)
    values = {"weight_ih_l0": torch.cat([taken, recurrent], 1), "weight_hh_l0": recurrent @ projection}
    if lstm.bias:
        values |= {f"bias_{kind}_l0": getattr(lstm, f"bias_{kind}_{suffix}").detach() for kind in ("ih", "hh")}
    for name, value in values.items():
        setattr(plain, name, nn.Parameter(value, requires_grad=False))
    return plain
