// Caches that are cleared page by page, as they are first written.
#pragma once

#include "ggml_abi.h"

namespace localspec {

// From now on CPU buffers that llama.cpp clears take no memory until they are written: it clears the KV
// cache of a whole context before the first token. If that does not work, or is not `wanted` in this
// thread, they are cleared as usual.
void clear_lazily(ggml_abi::BufferType * cpu, bool (*wanted)());

}  // namespace localspec
