"""The closed sets of words a BlockConfig field can take. Imports only the standard library."""

from typing import Literal

Norm = Literal["rmsnorm", "layernorm"]
NormPosition = Literal["pre", "post", "sandwich", "inner_post"]
Parallel = Literal["none", "one_norm", "two_norms"]
QkNorm = Literal["none", "head", "per_head", "full"]
RopeLayout = Literal["half", "interleaved"]
RopeScaling = Literal["none", "linear", "llama3", "yarn"]
FeedForward = Literal["swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu", "relu2"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
Router = Literal["softmax", "sigmoid"]
