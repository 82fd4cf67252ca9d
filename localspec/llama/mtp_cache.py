"""The KV cache of a model's MTP (next-n) layer, which reads the target's states beside the tokens.

Such a layer (DeepSeek-V3, section 2.2) reads the pairs that an EAGLE-3 head reads, of a token and
the state of the place before it, and says what follows the token. The state is what the target
itself made of that place, so there is nothing to encode; behind what is only drafted it is the
layer's own. Positions of the two differ by one, and rotations tell distances alone.

Where a model was trained with several such layers, the first one drafts all tokens.
"""

from __future__ import annotations

from typing import Any

from localspec.decoding.sampling import Rows
from localspec.llama.context_params import MAX_LEAVES
from localspec.llama.eagle_cache import EagleCache

_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP


class MtpCache(EagleCache):
    """What an MTP layer has read of a text; used as an `EagleCache`.

    Args:
        model: has the layer, and was opened with `mtp`: the target itself, or a file with the layer
            alone. It must outlive the cache.
    """

    def _state_width(self) -> int:
        return self.model.output_width

    def _configure(self, params: Any, target: Any) -> None:
        params.ctx_type = _MTP
        # The layer attends, whatever the others do.
        params.n_seq_max = MAX_LEAVES
        params.n_rs_seq = 0

    def _take(self, inputs: Rows) -> None:
        self._states[self._made : self._made + len(inputs)] = inputs
