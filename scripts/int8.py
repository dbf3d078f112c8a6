"""Convert an encoder's weights to 8-bit integers, run by ONNX Runtime on the CPU (extra `int8`)."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from claim2source.core.errors import UserError
from claim2source.models import Encoder

_NAMES = ["input_ids", "attention_mask"]


class Int8Model(torch.nn.Module):
    """Run a session of ONNX Runtime as the model of an `Encoder`."""

    def __init__(self, session: Any, config: Any) -> None:
        super().__init__()
        self.session, self.config = session, config
        # The Encoder finds its device by the model's parameters.
        self.place = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Return the last hidden state [n, longest, width], in float32."""
        inputs = dict(zip(_NAMES, (input_ids.numpy(), attention_mask.numpy()), strict=True))
        (hidden,) = self.session.run(None, inputs)
        return SimpleNamespace(last_hidden_state=torch.from_numpy(np.asarray(hidden)))


class _Hidden(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        return hidden


def to_int8(encoder: Encoder) -> Encoder:
    """Quantise the weights of an encoder; tokenizer, template and pooling stay as they are.

    Raises `UserError` where the extra is missing, the model is not on the CPU in float32, or it
    cannot be exported.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise UserError("int8 needs ONNX Runtime: pip install 'claim2source[int8]'") from None
    weight = next(encoder.model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise UserError(
            f"int8 starts from float32 weights on the CPU, not {weight.dtype} on {weight.device}"
        )
    if encoder.source_encoder is not None:
        raise UserError("int8 holds one model; here each side has its own (train: query_only)")
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        _export(encoder.model, plain)
        # 7 of the 8 bits: without VNNI, products are added in 16 bits, which 8 would overflow.
        quantize_dynamic(
            plain, small, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            small.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    model: Any = Int8Model(session, copy.deepcopy(encoder.model.config))
    weights = (
        None if encoder.weights is None else {**encoder.weights, "int8": "onnx, dynamic, 7 bits"}
    )
    quantised = Encoder(model, encoder.tokenizer, encoder.settings, weights)
    quantised.dense = encoder.dense
    return quantised


def _export(model: Any, path: Path) -> None:
    wrapped = _Hidden(model)
    training = model.training
    wrapped.eval()
    ids = torch.ones((2, 8), dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0  # trace with padding, or the export drops the mask
    axes = {0: "texts", 1: "tokens"}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                wrapped,
                (ids, mask),
                str(path),
                input_names=_NAMES,
                output_names=["hidden"],
                dynamic_axes={**dict.fromkeys(_NAMES, axes), "hidden": axes},
                opset_version=17,
                dynamo=False,
            )
    except Exception as error:
        # The exporter raises errors of many types; the first line names the operator.
        first_line = (str(error).splitlines() or [""])[0]
        why = f"this model cannot be exported to ONNX: {type(error).__name__}: {first_line}"
        raise UserError(why) from error
    finally:
        model.train(training)
