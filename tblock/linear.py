"""Linear: torch's, except that a wider input widens the weight for the length of one call.

That one rule is what lets the float64 reference run the very same block on its stored weights: each matrix
is cast when it is used and freed after, so the reference needs one matrix in float64, not the model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = x W^T + b."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis.

        Args:
            x: [..., in], the weight's dtype, or float64 for the reference.

        Returns:
            [..., out], dtype of x.
        """
        return F.linear(
            x, widened(self.weight, x.dtype), None if self.bias is None else widened(self.bias, x.dtype)
        )


def widened(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in `dtype`; itself (and no node in a captured graph) when it already is."""
    return weight if weight.dtype == dtype else weight.to(dtype)


def wide_dtype(x: Tensor) -> torch.dtype:
    """What norms and activations compute in, to round once at the end."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
